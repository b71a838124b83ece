"""What is stored: the record of a session, and what a turn that does not finish leaves of it."""

import asyncio
from typing import Any

import anyio
import pytest

from durable import AbortSignal, Hooks, ModelRequest, ToolContext, tool
from durable.conversation import ConversationSessionRecord
from durable.errors import ProviderRequestError, ProviderUnavailableError
from tests.support.runs import Clock, Crash, fresh_agent, memory_store, run
from tests.support.sessions import asked, look, texts

FIELDS = ["run_id", "type", "id", "messages", "turns", "created_at", "updated_at", "forked_from", "pending"]


def test_the_record_has_these_fields() -> None:
    """The record has exactly the fields of the document, in its order, and is plain JSON."""
    clock = Clock()
    chat = fresh_agent([("look", {"what": "x"}), "X."], [look], memory_store(clock=clock), clock=clock).session("u")
    run(chat.send("hi"))
    clock.advance(hours=1)
    run(chat.fork("v", message_count=1))
    record = run(chat.load())
    assert list(type(record).model_fields) == FIELDS
    assert record.model_dump(mode="json", exclude={"messages"}) == {
        "run_id": "session:u",
        "type": "conversation-session",
        "id": "u",
        "turns": 1,
        "created_at": "2030-01-01T00:00:00+00:00",
        "updated_at": "2030-01-01T00:00:00+00:00",
        "forked_from": None,
        "pending": None,
    }
    assert ConversationSessionRecord.model_validate_json(record.model_dump_json()) == record
    branch = run(fresh_agent([], [], chat.store).session("v").load())
    assert branch.forked_from.model_dump() == {"id": "u", "message_count": 1}


def test_a_session_that_was_never_sent_to_has_no_record() -> None:
    """There is no record and no message before the first send."""
    chat = fresh_agent([], [], memory_store()).session("s")
    assert run(chat.load()) is None
    assert run(chat.history()) == []


def test_history_is_a_copy() -> None:
    """`history` gives a copy: what is done to it does not reach the session."""
    chat = fresh_agent(["one"], [], memory_store()).session("s")
    run(chat.send("hi"))
    run(chat.history()).clear()
    assert texts(run(chat.history())) == ["hi", "one"]


def test_no_transcript_is_stored_twice() -> None:
    """The session, its checkpoint and its pending mark are one stream: what is said is in the log once."""
    store = memory_store()
    agent = fresh_agent(["the one and only answer"], [], store)
    run(agent.session("s").send("the one and only question"))
    bodies = b"".join(entry.body for entry in store.log.read("session/s"))
    assert bodies.count(b"the one and only question") == 1
    assert bodies.count(b"the one and only answer") == 1
    assert [head.stream for head in store.log.heads("session").items] == ["session/s"]


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("turns_before", [0, 1])
def test_a_failed_run_leaves_the_messages_unchanged(durable: bool, turns_before: int) -> None:
    """A failed run leaves `messages` as they were; only a durable agent's turn stays pending, to be resumed."""
    store = memory_store()
    broken = ProviderUnavailableError("scripted", "down")
    if turns_before:
        run(session(store, durable, "one").send("hi"))
    before = run(session(store, durable).history())
    with pytest.raises(ProviderUnavailableError):
        run(session(store, durable, *["one"] * turns_before, broken).send("again"))
    record = run(session(store, durable).load())
    assert list(record.messages) == before
    assert record.turns == turns_before
    assert (record.pending.input if record.pending else None) == ("again" if durable else None)
    run(session(store, durable, "one", "two").send("again"))
    after = texts(run(session(store, durable).history()))
    assert after == [*["hi", "one"][: 2 * turns_before], "again", "two" if turns_before else "one"]


def session(store: Any, durable: bool, *answers: Any) -> Any:
    return fresh_agent(answers, [look], store if durable else None).session("s", store=store)


@pytest.mark.parametrize("durable", [True, False])
def test_an_aborted_run_leaves_the_messages_unchanged(durable: bool) -> None:
    """A run that its signal stops leaves `messages` as they were."""
    store = memory_store()
    stop = AbortSignal()

    @tool
    async def work(ctx: ToolContext) -> str:
        stop.abort()
        return "half"

    run(session(store, durable, "one").send("hi"))
    agent = fresh_agent(["one", ("work", {})], [work], store if durable else None)
    result = run(agent.session("s", store=store).send("again", signal=stop))
    record = run(session(store, durable).load())
    assert result.finish_reason == "aborted"
    assert texts(record.messages) == ["hi", "one"]
    assert (record.pending is not None) is durable


@pytest.mark.parametrize("durable", [True, False])
def test_a_cancelled_task_leaves_the_messages_unchanged(durable: bool) -> None:
    """A send whose task is cancelled leaves `messages` as they were, and the session free."""
    store = memory_store()
    begun = asyncio.Event()

    async def model(request: ModelRequest) -> str:
        if len(request.messages) > 2 and not begun.is_set():
            begun.set()
            await anyio.sleep_forever()
        return "well"

    async def main() -> Any:
        chat = fresh_agent(model, [], store if durable else None).session("s", store=store)  # type: ignore[arg-type]
        await chat.send("hi")
        task = asyncio.create_task(chat.send("again"))
        await begun.wait()
        task.cancel()
        await asyncio.wait([task])
        record = await chat.load()
        await chat.send("again")
        return record, await chat.history()

    record, after = run(main())
    assert texts(record.messages) == ["hi", "well"]
    assert (record.pending is not None) is durable
    assert texts(after) == ["hi", "well", "again", "well"]


def test_a_hook_that_raises_leaves_the_messages_unchanged() -> None:
    """What ends a run from outside the model leaves `messages` as they were, too."""
    store = memory_store()

    def before_model(request: ModelRequest) -> None:
        raise LookupError

    chat = fresh_agent([], [], None, hooks=Hooks(before_model=before_model)).session("s", store=store)
    with pytest.raises(LookupError):
        run(chat.send("hi"))
    record = run(chat.load())
    assert (record.messages, record.turns, record.pending) == ((), 0, None)


def test_a_poisoned_turn_is_replaced_by_the_next_send() -> None:
    """A turn that the provider refuses for good stays pending with its error, and the next send takes its place."""
    store = memory_store()
    refused = ProviderRequestError("scripted", "no")
    run(session(store, True, "one").send("hi"))
    with pytest.raises(ProviderRequestError):
        run(session(store, True, "one", refused).send("bad words"))
    assert run(session(store, True).load()).pending.input == "bad words"
    run(session(store, True, "one", "fine").send("good words"))
    assert texts(run(session(store, True).history())) == ["hi", "one", "good words", "fine"]


def test_the_pending_mark_tells_the_turn() -> None:
    """While a turn runs the record is marked with its run, its input and when it began; the save takes that away."""
    clock = Clock()
    store = memory_store(clock=clock)
    clock.advance(minutes=1)
    seen: list[Any] = []

    async def model(request: ModelRequest) -> str:
        clock.advance(minutes=1)
        seen.append(await chat.load())
        return "well"

    chat = fresh_agent(model, [], store, clock=clock).session("s")  # type: ignore[arg-type]
    result = run(chat.send("hi"))
    assert seen[0].pending.model_dump(mode="json") == {
        "run_id": result.run_id,
        "input": "hi",
        "started_at": "2030-01-01T00:01:00+00:00",
    }
    assert seen[0].messages == ()
    assert run(chat.load()).pending is None


def test_a_crash_leaves_the_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that stops mid-run leaves the pending mark behind, whatever the agent is."""
    for durable in (True, False):
        store = memory_store()

        def model(request: ModelRequest) -> str:
            raise Crash

        agent = fresh_agent(model, [], store if durable else None)  # type: ignore[arg-type]
        with pytest.raises(Crash):
            run(agent.session("s", store=store).send("hi"))
        assert run(session(store, durable).load()).pending.input == "hi"
        assert asked(agent) == 1
