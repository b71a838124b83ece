"""Streaming: `stream` runs the turn, forwards every event, and its result settles after the turn is saved."""

import asyncio
from typing import Any

import pytest

from durable import TextDelta, ToolContext, tool
from durable.errors import ProviderUnavailableError
from tests.support.runs import fresh_agent, memory_store, run
from tests.support.sessions import kinds, look, texts


@pytest.mark.parametrize("durable", [True, False])
def test_every_event_is_forwarded(durable: bool) -> None:
    """The stream of a session has the events that `send` tells its listener, in order, numbered without a gap."""
    heard: list[Any] = []
    answers = [("look", {"what": "x"}), "X."]
    run(chat(answers, durable).send("hi", listener=heard.append))

    async def main() -> list[Any]:
        return [event async for event in chat(answers, durable).stream("hi")]

    streamed = run(main())
    assert kinds(streamed) == kinds(heard)
    assert [event.seq for event in streamed] == list(range(1, len(heard) + 1))
    assert any(isinstance(event, TextDelta) for event in streamed)


def chat(answers: Any, durable: bool = True, tools: Any = (look,)) -> Any:
    store = memory_store()
    return fresh_agent(answers, tools, store if durable else None).session("s", store=store)


@pytest.mark.parametrize("durable", [True, False])
def test_result_settles_after_the_save(durable: bool) -> None:
    """When `result` has settled, the turn is saved and the pending mark is gone."""

    async def main() -> None:
        session = chat(["one"], durable)
        stream = session.stream("hi")
        result = await stream.result
        record = await session.load()
        assert (result.text, record.pending, texts(record.messages)) == ("one", None, ["hi", "one"])

    run(main())


def test_leaving_early_aborts_the_turn() -> None:
    """Leaving the stream early stops the turn: the messages are as before, and the turn can be resumed."""
    session = chat([("work", {}), "done"], tools=[work])

    async def main() -> None:
        async with session.stream("hi") as events:
            async for event in events:
                if event.type == "tool.start":
                    break
        record = await session.load()
        assert record.messages == ()
        assert record.pending.input == "hi"
        assert (await session.resume()).text == "done"

    run(main())


@tool
async def work(ctx: ToolContext) -> str:
    await ctx.signal.wait()
    return "half"


def test_leaving_a_stream_that_waits_leaves_the_queue() -> None:
    """A stream that is left while it waits for the session never begins its turn."""
    session = chat([("work", {}), "done"], tools=[work])

    async def main() -> None:
        first = session.stream("first")
        async with first as events:
            async for event in events:
                if event.type == "tool.start":
                    async with session.stream("never"):
                        await asyncio.sleep(0)
                    break
        record = await session.load()
        assert record.pending.input == "first"

    run(main())


def test_an_error_of_the_turn_is_raised_where_the_events_end() -> None:
    """A turn that fails ends the stream with its error."""

    async def main() -> None:
        session = chat([ProviderUnavailableError("m", "down")])
        with pytest.raises(ProviderUnavailableError):
            async for _ in session.stream("hi"):
                pass

    run(main())
