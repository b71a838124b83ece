"""Abort: it resolves and never raises, every call gets its result, and the session takes a new message."""

import threading
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from durable import (
    AbortSignal,
    CheckpointSaved,
    Event,
    FinishReason,
    Hooks,
    ModelRequest,
    RunResult,
    Status,
    Tool,
    ToolContext,
    resume_after_approval,
    tool,
)
from durable.signals import cancelled_by
from durable.transcript import first_fault
from tests.support.runs import Clock, fresh_agent, memory_store, run
from tests.support.sessions import asked, crashes, dying, look, pay, recorder, results, stored, texts


def aborted(signal: AbortSignal | None = None) -> AbortSignal:
    signal = signal or AbortSignal()
    signal.abort()
    return signal


def aborting(signal: AbortSignal) -> Tool:
    """A tool that ends at once, and the user wants to stop while it runs."""

    @tool(name="abort")
    async def abort() -> str:
        signal.abort()
        return "kept"

    return abort


async def in_time(work: Any) -> Any:
    with anyio.fail_after(20):
        return await work


def was_aborted(result: RunResult, store: Any) -> None:
    assert result.finish_reason is FinishReason.ABORTED
    assert result.checkpoint == stored(store)
    assert (stored(store).status, stored(store).finish_reason) == (Status.IN_PROGRESS, FinishReason.ABORTED)
    assert first_fault(stored(store).messages) is None


# --- when ------------------------------------------------------------------------------------------------------------


def test_before_the_run() -> None:
    """A run whose signal is set before it begins asks nobody; its input is kept, and a new message follows it."""
    store = memory_store(clock=Clock())
    agent = fresh_agent(["done"], [], store)
    result = run(agent.send("go", session_id="s", signal=aborted()))
    was_aborted(result, store)
    assert (asked(agent), result.steps) == (0, 0)
    assert run(fresh_agent(["done"], [], store).send("no, this", session_id="s")).text == "done"
    assert texts(stored(store).messages) == ["go", "no, this", "done"]


def test_during_a_model_call() -> None:
    """The answer is not waited for and nothing of it is recorded; a retry asks the model again."""
    signal = AbortSignal()

    async def never(request: ModelRequest) -> str:
        signal.abort()
        await anyio.sleep_forever()
        raise AssertionError

    store = memory_store(clock=Clock())
    result = run(in_time(fresh_agent(never, [], store).send("go", session_id="s", signal=signal)))
    was_aborted(result, store)
    assert (result.steps, result.usage.model_calls) == (0, 0)
    assert run(fresh_agent(["done"], [], store).send("go", session_id="s")).text == "done"
    assert texts(stored(store).messages) == ["go", "done"]


def test_an_answer_that_is_there_is_kept() -> None:
    """A model turn that comes together with the abort is recorded; its calls do not start."""
    signal = AbortSignal()
    ran: list[str] = []

    def answer(request: ModelRequest) -> Any:
        signal.abort()
        return ("work", {})

    store = memory_store(clock=Clock())
    result = run(fresh_agent(answer, [recorder(ran)], store).send("go", session_id="s", signal=signal))
    was_aborted(result, store)
    assert (results(result.messages), ran) == (["not-run"], [])


def test_during_tools() -> None:
    """Finished calls keep their result, as does one that heeds the signal; one that ignores it is abandoned."""
    signal = AbortSignal()
    ended: list[str] = []
    ran: list[str] = []

    @tool
    async def heed(ctx: ToolContext) -> str:
        await ctx.signal.wait()
        await anyio.lowlevel.checkpoint()
        return "stopped early"

    @tool
    async def ignore() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("ignore")

    @tool
    async def fail(ctx: ToolContext) -> None:
        await ctx.signal.wait()
        raise RuntimeError("interrupted")

    store = memory_store(clock=Clock())
    answers = [[("look", {}), ("heed", {}), ("ignore", {}), ("fail", {}), ("abort", {}), ("work", {})], "done"]
    tools = [look, heed, ignore, fail, aborting(signal), recorder(ran)]
    agent = fresh_agent(answers, tools, store, tool_concurrency=5, abort_grace=0.01)
    result = run(in_time(agent.send("go", session_id="s", signal=signal)))
    was_aborted(result, store)
    assert results(result.messages) == ["IT", "stopped early", "unknown-outcome", "execution", "kept", "not-run"]
    assert (ended, ran, asked(agent)) == (["ignore"], [], 1)


def test_plain_tools_that_hang_are_left_behind() -> None:
    """Threads that never come back do not hold the abort up, however many there are."""
    signal, release = AbortSignal(), threading.Event()

    @tool
    def hang() -> None:
        release.wait(20)

    store = memory_store(clock=Clock())
    agent = fresh_agent([[("hang", {})] * 50 + [("abort", {})]], [hang, aborting(signal)], store, abort_grace=0.01)
    try:
        result = run(in_time(agent.send("go", session_id="s", signal=signal)))
    finally:
        release.set()
    was_aborted(result, store)
    assert results(result.messages) == ["unknown-outcome"] * 50 + ["kept"]


def test_without_a_grace_period() -> None:
    """`abort_grace=0` abandons at once what still runs; what had ended by then is kept."""
    signal = AbortSignal()

    @tool
    async def ignore() -> None:
        await anyio.sleep_forever()

    store = memory_store(clock=Clock())
    agent = fresh_agent([[("ignore", {}), ("abort", {})]], [ignore, aborting(signal)], store, abort_grace=0)
    result = run(in_time(agent.send("go", session_id="s", signal=signal)))
    assert results(result.messages) == ["unknown-outcome", "kept"]


def test_with_a_call_that_waits_for_its_gate() -> None:
    """A call that would have been asked about is closed like the ones behind it: nobody is asked, nothing runs."""
    signal = AbortSignal()
    ran: list[str] = []
    store = memory_store(clock=Clock())
    agent = fresh_agent([[("abort", {}), ("pay", {}), ("work", {})]], [aborting(signal), pay, recorder(ran)], store)
    result = run(agent.send("go", session_id="s", signal=signal))
    was_aborted(result, store)
    assert (results(result.messages), ran) == (["kept", "not-run", "not-run"], [])
    assert run(agent.approvals.list(status=None)).items == []


def test_with_a_call_that_is_about_to_start() -> None:
    """Calls that start together are stopped one by one: what an earlier one aborts, a later one does not begin."""
    signal = AbortSignal()
    ran: list[str] = []
    store = memory_store(clock=Clock())
    agent = fresh_agent([[("abort", {}), ("work", {}), ("work", {})]], [aborting(signal), recorder(ran)], store)
    result = run(agent.send("go", session_id="s", signal=signal))
    was_aborted(result, store)
    assert (results(result.messages), ran) == (["kept", "not-run", "not-run"], [])


def test_while_a_call_is_named() -> None:
    """A call that was named before the abort and did not start never does; that it did not is not known for sure."""
    signal = AbortSignal()
    ran: list[str] = []
    store = memory_store(clock=Clock())
    agent = fresh_agent([("work", {})], [recorder(ran, recovery="report")], store)

    def stop(event: Event) -> None:
        if isinstance(event, CheckpointSaved) and stored(store).started:
            signal.abort()

    result = run(agent.send("go", session_id="s", signal=signal, listener=stop))
    was_aborted(result, store)
    assert (results(result.messages), ran) == (["unknown-outcome"], [])


def test_of_a_run_that_resumes_after_an_approval() -> None:
    """A resume may be aborted, too: the decision is applied, the approved call is closed, and it never runs."""
    store = memory_store(clock=Clock())
    ran: list[str] = []
    gated = recorder(ran, needs_approval=True)
    agent = fresh_agent([("work", {}), "done"], [gated], store)
    paused = run(agent.send("go", session_id="s"))
    result = run(agent.approvals.resolve(paused.approval_id, approved=True, signal=aborted()))
    was_aborted(result, store)
    assert results(result.messages) == ["not-run"]
    again = run(resume_after_approval(agent, paused.approval_id, store=store))
    assert (again.text, results(again.messages), ran) == ("done", ["not-run"], [])


def test_of_a_call_that_had_started_before_a_crash() -> None:
    """A call that was named before it started is not said to have never run: its outcome is unknown."""
    store = memory_store(clock=Clock())
    answers = [[("once", {}), ("often", {})], "done"]

    @tool(recovery="report")
    async def once() -> None:
        raise AssertionError

    @tool
    async def often() -> None:
        raise AssertionError

    crashes(fresh_agent(answers, [once, often], dying(store, 1)).send("go", session_id="s"))
    assert stored(store).started == ("call_0_0",)
    result = run(fresh_agent(answers, [once, often], store).send([], session_id="s", signal=aborted()))
    was_aborted(result, store)
    assert results(result.messages) == ["unknown-outcome", "not-run"]
    assert stored(store).started == ()


def test_after_the_run() -> None:
    """A signal that is set when the run is over changes nothing, nor does setting it twice."""
    signal = AbortSignal()
    store = memory_store(clock=Clock())
    result = run(fresh_agent(["done"], [], store).send("go", session_id="s", signal=signal))
    aborted(aborted(signal))
    assert result.finish_reason is FinishReason.STOP
    assert stored(store).status is Status.FINISHED


def test_without_a_store() -> None:
    """A run that keeps nothing can be aborted as well."""
    signal = AbortSignal()
    agent = fresh_agent([[("abort", {}), ("look", {})]], [aborting(signal), look], None, tool_concurrency=1)
    result = run(agent.send("go", signal=signal))
    assert (result.finish_reason, results(result.messages)) == (FinishReason.ABORTED, ["kept", "not-run"])


# --- from where ------------------------------------------------------------------------------------------------------


def test_from_another_thread() -> None:
    """Any thread may set the signal; a run that waits in its event loop sees it."""
    signal, waiting = AbortSignal(), threading.Event()

    async def never(request: ModelRequest) -> str:
        waiting.set()
        await anyio.sleep_forever()
        raise AssertionError

    def stop() -> None:
        waiting.wait(20)
        signal.abort()

    store = memory_store(clock=Clock())
    thread = threading.Thread(target=stop)
    thread.start()
    result = run(in_time(fresh_agent(never, [], store).send("go", session_id="s", signal=signal)))
    thread.join()
    was_aborted(result, store)


def test_from_a_tool_in_its_thread() -> None:
    """A plain tool may stop the run that it is part of, and still gives its result."""
    signal = AbortSignal()

    @tool
    def enough() -> str:
        signal.abort()
        return "enough"

    store = memory_store(clock=Clock())
    agent = fresh_agent([[("enough", {}), ("look", {})]], [enough, look], store, tool_concurrency=1)
    result = run(in_time(agent.send("go", session_id="s", signal=signal)))
    was_aborted(result, store)
    assert results(result.messages) == ["enough", "not-run"]


def test_one_signal_stops_several_runs() -> None:
    """A signal may be given to many runs, at once or one after the other."""
    signal = AbortSignal()
    store = memory_store(clock=Clock())
    waiting: list[str] = []

    async def never(request: ModelRequest) -> str:
        waiting.append("model")
        if len(waiting) == 2:
            signal.abort()
        await anyio.sleep_forever()
        raise AssertionError

    async def both() -> list[RunResult]:
        ended: list[RunResult] = []

        async def one(session_id: str) -> None:
            ended.append(await fresh_agent(never, [], store).send("go", session_id=session_id, signal=signal))

        async with anyio.create_task_group() as group:
            group.start_soon(one, "a")
            group.start_soon(one, "b")
        return ended

    assert {result.finish_reason for result in run(in_time(both()))} == {FinishReason.ABORTED}
    third = fresh_agent(["x"], [], store)
    assert run(third.send("go", session_id="c", signal=signal)).finish_reason is FinishReason.ABORTED
    assert asked(third) == 0


# --- afterwards ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("go_on", "tail"),
    [
        (lambda agent: agent.send("turn back", session_id="s"), ["turn back", "done"]),
        (lambda agent: agent.send("go", session_id="s"), ["done"]),
        (lambda agent: agent.send([], session_id="s"), ["done"]),
        (lambda agent: agent.resume("s"), ["done"]),
    ],
    ids=["a new message", "a retry", "nothing", "resume"],
)
def test_the_session_goes_on(go_on: Callable[[Any], Any], tail: list[str]) -> None:
    """After an abort a new message, a retry or a resume continues the run: no closed call runs, the model is asked."""
    signal = AbortSignal()
    ran: list[str] = []
    store = memory_store(clock=Clock())
    answers = [[("abort", {}), ("work", {})], "done"]
    tools = [aborting(signal), recorder(ran)]
    agent = fresh_agent(answers, tools, store, tool_concurrency=1)
    was_aborted(run(agent.send("go", session_id="s", signal=signal)), store)
    later = fresh_agent(answers, tools, store)
    assert run(go_on(later)).text == "done"
    kept, not_run = texts(stored(store).messages)[2:4]
    assert (kept, not_run["kind"]) == ("kept", "not-run")
    assert texts(stored(store).messages)[4:] == tail
    assert (ran, asked(later), stored(store).finish_reason) == ([], 1, FinishReason.STOP)


def test_aborting_again_writes_nothing() -> None:
    """A run that was aborted and is aborted again before it has done anything stays at its revision."""
    store = memory_store(clock=Clock())
    revisions = []
    for _ in range(3):
        run(fresh_agent(["x"], [], store).send("go", session_id="s", signal=aborted()))
        revisions.append(stored(store).revision)
    assert len(set(revisions)) == 1


def test_hooks_and_listeners_hear_of_the_abort() -> None:
    """The end of an aborted run is told like any other."""
    ends: list[Any] = []
    agent = fresh_agent(["x"], [], None, hooks=Hooks(on_run_end=lambda result: ends.append(result.finish_reason)))
    run(agent.send("go", signal=aborted(), listener=lambda event: ends.append(event.type)))
    assert ends == ["run.start", "run.done", FinishReason.ABORTED]


# --- the signal ------------------------------------------------------------------------------------------------------


def test_a_signal_says_whether_it_is_set() -> None:
    """A signal is open until it is set, and shows which."""
    signal = AbortSignal()
    assert (signal.aborted, repr(signal)) == (False, "<AbortSignal open>")
    aborted(signal)
    assert (signal.aborted, repr(signal)) == (True, "<AbortSignal aborted>")


def test_waiting_for_a_signal() -> None:
    """`wait` returns when the signal is set from here or from another thread, and at once when it is set already."""

    async def wait() -> None:
        for signal_it in (lambda signal: signal.abort(), None):
            signal = AbortSignal()
            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(signal.wait)
                await anyio.lowlevel.checkpoint()
                if signal_it is not None:
                    signal_it(signal)
                else:
                    await anyio.to_thread.run_sync(signal.abort)
            await signal.wait()

    run(in_time(wait()))


def test_a_signal_that_follows() -> None:
    """A signal that follows another is set when that one is, and not any more after it has stopped following."""
    leader = AbortSignal()
    first, second, late = AbortSignal(), AbortSignal(), AbortSignal()
    first.follow(leader)
    second.follow(leader)
    second.unfollow(leader)
    second.unfollow(leader)
    leader.abort()
    late.follow(leader)
    assert (first.aborted, second.aborted, late.aborted) == (True, False, True)


def test_what_runs_under_a_signal_is_cancelled_with_it() -> None:
    """`cancelled_by` cuts off what runs inside when the signal is set, before or later, and nothing else."""

    async def under(signal: AbortSignal, act: Callable[[], object]) -> list[str]:
        passed: list[str] = []
        async with cancelled_by(signal):
            act()
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            passed.append("inside")
        passed.append("outside")
        return passed

    signal = AbortSignal()
    assert run(under(signal, lambda: None)) == ["inside", "outside"]
    assert run(under(signal, signal.abort)) == ["outside"]
    assert run(under(signal, lambda: None)) == ["outside"]


def test_the_callers_signal_is_not_set_by_the_run() -> None:
    """What a run does with its own signal, when a save fails, is not told to the caller's other runs."""
    store = memory_store(clock=Clock())
    signal = AbortSignal()
    seen: list[AbortSignal] = []

    @tool
    async def mine(ctx: ToolContext) -> None:
        seen.append(ctx.signal)
        ctx.signal.abort()

    result = run(fresh_agent([("mine", {}), "done"], [mine], store).send("go", session_id="s", signal=signal))
    assert (signal.aborted, seen[0] is signal, result.finish_reason) == (False, False, FinishReason.ABORTED)
