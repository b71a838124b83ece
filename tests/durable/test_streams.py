"""A run as a stream: its events, its result, and what leaving early does."""

import asyncio
import gc
from typing import Any

import anyio
import pytest

from durable import (
    Agent,
    ConfigurationError,
    Event,
    FinishReason,
    ModelRequest,
    ProviderUnavailableError,
    RunStream,
    SessionAwaitingApprovalError,
    Status,
    StepStart,
    TextDelta,
    ToolStart,
    tool,
)
from tests.support.runs import Clock, fresh_agent, memory_store, run
from tests.support.sessions import asked, kinds, look, pay, recorder, results, stored, texts

ANSWERS = [("look", {"what": "a"}), "done"]


async def all_of(stream: RunStream) -> list[Event]:
    return [event async for event in stream]


async def in_time(work: Any) -> Any:
    with anyio.fail_after(20):
        return await work


# --- a stream to its end ---------------------------------------------------------------------------------------------


def test_a_stream_gives_what_a_listener_hears() -> None:
    """The events of a stream are those that `send` tells a listener, numbered alike, and the result is the same."""
    heard: list[Event] = []
    sent = run(
        fresh_agent(ANSWERS, [look], memory_store(clock=Clock())).send("go", session_id="s", listener=heard.append)
    )

    async def streamed() -> tuple[list[Event], Any]:
        async with fresh_agent(ANSWERS, [look], memory_store(clock=Clock())).stream("go", session_id="s") as events:
            return await all_of(events), await events.result

    events, result = run(streamed())
    assert events == heard
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert (result.text, result.messages, result.usage) == (sent.text, sent.messages, sent.usage)


def test_events_come_while_the_run_runs() -> None:
    """A consumer sees that a tool has started while it still runs."""
    release = asyncio.Event()

    @tool
    async def wait() -> str:
        await release.wait()
        return "waited"

    async def streamed() -> Any:
        async with fresh_agent([("wait", {}), "done"], [wait], None).stream("go") as events:
            async for event in events:
                if isinstance(event, ToolStart):
                    release.set()
            return await events.result

    assert results(run(in_time(streamed())).messages) == ["waited"]


def test_the_result_settles_after_the_last_save() -> None:
    """Whoever has the result, or the last event, finds the finished run in the store."""
    store = memory_store(clock=Clock())

    async def streamed() -> None:
        async with fresh_agent(ANSWERS, [look], store).stream("go", session_id="s") as events:
            async for event in events:
                if event.type == "run.done":
                    assert stored(store).status is Status.FINISHED
            assert (await events.result).checkpoint == stored(store)

    run(streamed())


def test_the_result_alone_runs_the_run() -> None:
    """Nobody has to look at the events: `result` begins the run, and what was told is still there afterwards."""

    async def streamed() -> None:
        events = fresh_agent(ANSWERS, [look], None).stream("go")
        assert (await events.result).text == (await events.result).text == "done"
        assert kinds(await all_of(events))[0] == "run.start"

    run(in_time(streamed()))


def test_a_stream_ends_for_everyone_who_iterates() -> None:
    """Events are given once; iterating again, or from two places, comes to the end instead of waiting for ever."""

    async def streamed() -> None:
        events = fresh_agent(ANSWERS, [look], None).stream("go")
        first, second = await asyncio.gather(all_of(events), all_of(events))
        assert sorted(event.seq for event in first + second) == list(range(1, len(first + second) + 1))
        assert await all_of(events) == []

    run(in_time(streamed()))


def test_nothing_runs_before_it_is_asked_for() -> None:
    """Making a stream starts nothing, and closing one that nobody looked at neither runs nor writes anything."""
    store = memory_store(clock=Clock())
    agent = fresh_agent(["done"], [], store)

    async def unused() -> None:
        await agent.stream("go", session_id="s").aclose()

    run(unused())
    assert (asked(agent), store.consumed().requests) == (0, 0)


def test_a_stream_pauses_and_is_resumed() -> None:
    """A stream of a run that waits for a human ends with the pause; the next one of the session is refused."""
    store = memory_store(clock=Clock())
    agent = fresh_agent([("pay", {}), "done"], [pay], store)

    async def streamed() -> Any:
        async with agent.stream("go", session_id="s") as events:
            assert kinds(await all_of(events))[-2:] == ["approval.requested", "run.done"]
            paused = await events.result
        with pytest.raises(SessionAwaitingApprovalError):
            await all_of(agent.stream("more", session_id="s"))
        return paused

    paused = run(streamed())
    assert paused.finish_reason is FinishReason.AWAITING_APPROVAL
    assert run(agent.approvals.resolve(paused.approval_id, approved=True)).text == "done"


# --- leaving early ---------------------------------------------------------------------------------------------------


class Early:
    """A run that is left while its model thinks about the second turn, or while a tool runs."""

    def __init__(self) -> None:
        self.store: Any = memory_store(clock=Clock())
        self.ran: list[str] = []

    def agent(self, *, answers: bool = False) -> Agent:
        async def model(request: ModelRequest) -> Any:
            if sum(message.role == "assistant" for message in request.messages) == 0:
                return ("work", {})
            if not answers:
                await anyio.sleep_forever()
            return "done"

        return fresh_agent(model, [recorder(self.ran)], self.store)  # type: ignore[arg-type]

    def check(self) -> None:
        """What was done is saved, the session says that it was aborted, and it goes on."""
        assert (stored(self.store).status, stored(self.store).finish_reason) == (
            Status.IN_PROGRESS,
            FinishReason.ABORTED,
        )
        assert texts(stored(self.store).messages) == ["go", "", "it"]
        assert run(self.agent(answers=True).send("go on", session_id="s")).text == "done"
        assert texts(stored(self.store).messages) == ["go", "", "it", "go on", "done"]
        assert self.ran == ["it"]


def second_step(event: Event) -> bool:
    return isinstance(event, StepStart) and event.step == 2


def test_leaving_by_break() -> None:
    """A loop that is left inside `async with` aborts the run, which is saved when the block is left."""
    early = Early()

    async def streamed() -> None:
        async with early.agent().stream("go", session_id="s") as events:
            async for event in events:
                if second_step(event):
                    break
        assert stored(early.store).finish_reason is FinishReason.ABORTED
        assert (await events.result).finish_reason is FinishReason.ABORTED

    run(in_time(streamed()))
    early.check()


def test_leaving_by_break_without_a_block() -> None:
    """A loop that is left without `async with` aborts the run as soon as the loop's iterator is gone."""
    early = Early()

    async def streamed() -> None:
        events = early.agent().stream("go", session_id="s")
        async for event in events:
            if second_step(event):
                break
        gc.collect()
        assert (await events.result).finish_reason is FinishReason.ABORTED

    run(in_time(streamed()))
    early.check()


def test_leaving_by_aclose() -> None:
    """`aclose` aborts the run and comes back when it is saved; more than once is once."""
    early = Early()

    async def streamed() -> None:
        events = early.agent().stream("go", session_id="s")
        async for event in events:
            if second_step(event):
                await events.aclose()
        await events.aclose()
        assert stored(early.store).finish_reason is FinishReason.ABORTED

    run(in_time(streamed()))
    early.check()


def test_leaving_by_an_exception() -> None:
    """An error of the consumer is the consumer's, and the run is aborted."""
    early = Early()

    async def streamed() -> None:
        async with early.agent().stream("go", session_id="s") as events:
            async for event in events:
                if second_step(event):
                    raise LookupError

    with pytest.raises(LookupError):
        run(in_time(streamed()))
    early.check()


def test_leaving_by_a_cancelled_consumer() -> None:
    """A consumer that is cancelled, as when its client hangs up, aborts the run."""
    early = Early()

    async def streamed() -> None:
        async def consume() -> None:
            async with early.agent().stream("go", session_id="s") as events:
                async for event in events:
                    if second_step(event):
                        waiting.set()

        waiting = asyncio.Event()
        consumer = asyncio.create_task(consume())
        await waiting.wait()
        consumer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await consumer

    run(in_time(streamed()))
    early.check()


def test_whoever_waits_for_the_result_may_give_up() -> None:
    """Cancelling one wait for the result does not stop the run."""
    release = asyncio.Event()

    async def model(request: ModelRequest) -> str:
        await release.wait()
        return "done"

    async def streamed() -> None:
        events = fresh_agent(model, [], None).stream("go")  # type: ignore[arg-type]
        with anyio.move_on_after(0.01):
            await events.result
        release.set()
        assert (await events.result).text == "done"

    run(in_time(streamed()))


def test_closing_after_the_end_changes_nothing() -> None:
    """A stream that has come to its end may be closed."""
    store = memory_store(clock=Clock())

    async def streamed() -> None:
        async with fresh_agent(ANSWERS, [look], store).stream("go", session_id="s") as events:
            await all_of(events)
        await events.aclose()

    run(streamed())
    assert stored(store).status is Status.FINISHED


# --- errors ----------------------------------------------------------------------------------------------------------


def test_an_error_of_the_run_is_raised_where_the_events_end() -> None:
    """Everything that was told before the error is given first; `result` raises the same."""
    store = memory_store(clock=Clock())
    failing = fresh_agent([("look", {}), ProviderUnavailableError("scripted", "down")], [look], store)

    async def streamed() -> list[str]:
        seen: list[Event] = []

        async def consume() -> None:
            async for event in events:
                seen.append(event)

        events = failing.stream("go", session_id="s")
        with pytest.raises(ProviderUnavailableError):
            await consume()
        with pytest.raises(ProviderUnavailableError):
            await events.result
        return kinds(seen)

    seen = run(streamed())
    assert seen.count("step.start") == 2
    assert "run.done" not in seen


def test_an_error_that_nobody_asks_for_is_not_an_alarm(caplog: pytest.LogCaptureFixture) -> None:
    """A run that failed after its consumer had left does not show up as a forgotten exception."""
    reached = asyncio.Event()

    async def model(request: ModelRequest) -> Any:
        reached.set()
        return ProviderUnavailableError("scripted", "down")

    async def streamed() -> None:
        async with fresh_agent(model, [], None).stream("go") as _:  # type: ignore[arg-type]
            await reached.wait()
        gc.collect()

    run(in_time(streamed()))
    assert caplog.records == []


def test_a_stream_of_an_agent_that_cannot_run() -> None:
    """What `send` refuses with, a stream raises with its first event."""

    async def streamed() -> None:
        with pytest.raises(ConfigurationError, match="provider"):
            await all_of(Agent().stream("go"))
        with pytest.raises(ConfigurationError, match="session_id and store"):
            await Agent().stream("go", session_id="s").result

    run(streamed())


def test_text_comes_as_it_is_said() -> None:
    """The text of the answer is what the deltas add up to."""

    async def streamed() -> tuple[str, str]:
        async with fresh_agent(ANSWERS, [look], None).stream("go") as events:
            text = "".join([event.text async for event in events if isinstance(event, TextDelta)])
            return text, (await events.result).text

    assert run(streamed()) == ("done", "done")
