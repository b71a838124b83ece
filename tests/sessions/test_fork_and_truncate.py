"""Fork and truncate: a conversation is copied and cut between its messages, never between a call and its result."""

from typing import Any

import pytest

from durable import (
    AssistantMessage,
    ConfigurationError,
    NativeBlock,
    NativeTurn,
    SessionExistsError,
    SessionNotFoundError,
    ToolCall,
    TurnPendingError,
)
from durable.transcript import first_fault
from tests.support.runs import fresh_agent, memory_store, run
from tests.support.sessions import crashes, dying, look, pay, stored, texts

SIGNED = NativeTurn(origin="anthropic", blocks=(NativeBlock(kind="own", value={"signature": "s=="}),))
ANSWERS = [
    "Hello.",
    AssistantMessage(tool_calls=tuple(ToolCall(id=f"c{n}", name="look") for n in range(3)), native=SIGNED),
    AssistantMessage(tool_calls=(ToolCall(id="c3", name="look"),)),
    "Found.",
    "Goodbye.",
]
# 0 hi, 1 Hello, 2 look, 3 three calls, 4 5 6 results, 7 one call, 8 result, 9 Found, 10 bye, 11 Goodbye
ALLOWED = {0, 1, 2, 3, 7, 9, 10, 11, 12}
TURNS = {0: 0, 1: 0, 2: 1, 3: 1, 7: 1, 9: 1, 10: 2, 11: 2, 12: 3}


def conversation(durable: bool = True) -> Any:
    store = memory_store()
    chat = fresh_agent(ANSWERS, [look], store if durable else None).session("s", store=store)
    for text in ("hi", "look", "bye"):
        run(chat.send(text))
    return chat


def model(request: Any) -> str:
    assert first_fault(request.messages) is None
    return "next"


def go_on(chat: Any, id: str) -> Any:
    return fresh_agent(model, [look], chat.store).session(id)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", range(13))
def test_a_truncation_at_every_index(count: int) -> None:
    """Allowed exactly where no call is cut from its result; then the first messages are left, turns counted anew."""
    chat = conversation()
    before = run(chat.load())
    if count not in ALLOWED:
        with pytest.raises(ConfigurationError, match="separate a tool call from its result"):
            run(chat.truncate(count))
        assert run(chat.load()) == before
        return
    run(chat.truncate(count))
    record = run(chat.load())
    assert record.messages == before.messages[:count]
    assert (record.turns, record.pending) == (TURNS[count], None)
    assert run(go_on(chat, "s").send("go on")).text == "next"
    assert texts(run(chat.history()))[count:] == ["go on", "next"]


@pytest.mark.parametrize("count", range(13))
def test_a_fork_at_every_index(count: int) -> None:
    """A fork may be made at the same places; it begins with an unchanged copy, and the original stays as it is."""
    chat = conversation()
    before = run(chat.load())
    if count not in ALLOWED:
        with pytest.raises(ConfigurationError, match="separate a tool call from its result"):
            run(chat.fork("t", message_count=count))
        assert stored_or_none(chat.store, "t") is None
        return
    branch = run(chat.fork("t", message_count=count))
    record = run(branch.load())
    assert record.messages == before.messages[:count]
    assert (record.turns, record.id, record.run_id) == (TURNS[count], "t", "session:t")
    assert record.forked_from.model_dump() == {"id": "s", "message_count": count}
    run(go_on(chat, "t").send("go on"))
    assert run(chat.load()) == before
    assert run(branch.history())[:count] == list(before.messages[:count])  # signed thinking stays valid in the branch


def stored_or_none(store: Any, id: str) -> Any:
    return store.checkpoints.load(id)


def test_the_error_names_the_nearest_counts() -> None:
    """A cut that is refused says where the nearest ones are that are not."""
    with pytest.raises(ConfigurationError, match=r"message_count 5 .* are 3 and 7\."):
        run(conversation().truncate(5))


@pytest.mark.parametrize("count", [-1, 13, True, "2", 1.0])
def test_a_count_that_is_none_is_refused(count: Any) -> None:
    """A count below 0, above the number of messages, or of another type is refused by name."""
    for work in (lambda chat: chat.truncate(count), lambda chat: chat.fork("t", message_count=count)):
        with pytest.raises(ConfigurationError, match="message_count must be a whole number from 0 to 12"):
            run(work(conversation()))


def test_a_fork_of_everything() -> None:
    """Without a count the whole conversation is copied."""
    chat = conversation()
    branch = run(run(chat.fork("t")).load())
    assert (len(branch.messages), branch.turns) == (12, 3)


def test_the_target_must_be_free() -> None:
    """A fork to an id that exists is refused, and neither session changes; a cleared id is free again."""
    chat = conversation()
    other = run(chat.fork("t", message_count=2))
    before = stored(chat.store, "t")
    with pytest.raises(SessionExistsError):
        run(chat.fork("t"))
    with pytest.raises(SessionExistsError):
        run(chat.fork("s"))
    assert stored(chat.store, "t") == before
    run(other.clear())
    assert len(run(run(chat.fork("t", message_count=4 - 1)).history())) == 3


def test_a_truncation_to_the_same_length_writes_nothing() -> None:
    """Keeping all messages changes nothing."""
    chat = conversation()
    before = stored(chat.store)
    run(chat.truncate(12))
    assert stored(chat.store) == before


@pytest.mark.parametrize("durable", [True, False])
def test_refused_while_a_turn_is_pending(durable: bool) -> None:
    """While a turn is pending, interrupted or failed, nothing is cut or copied."""
    store = memory_store()
    run(fresh_agent(["one"], [], store).session("s").send("hi"))
    crashes(fresh_agent(["one", "two"], [], dying(store, 0)).session("s").send("again"))
    chat = fresh_agent([], [], store if durable else None).session("s", store=store)
    for work in (lambda: chat.truncate(0), lambda: chat.fork("t")):
        with pytest.raises(TurnPendingError):
            run(work())


def test_no_session_no_cut() -> None:
    """A session that is not there cannot be cut or copied; clearing it is no error."""
    chat = fresh_agent([], [], memory_store()).session("s")
    for work in (lambda: chat.truncate(0), lambda: chat.fork("t")):
        with pytest.raises(SessionNotFoundError):
            run(work())
    run(chat.clear())


def test_clear_deletes_the_record() -> None:
    """`clear` deletes the record, and the next send begins a new conversation."""
    chat = conversation()
    run(chat.clear())
    assert run(chat.load()) is None
    run(chat.send("hi"))
    assert texts(run(chat.history())) == ["hi", "Hello."]
    assert run(chat.load()).turns == 1


def test_clear_closes_the_approval_of_a_turn_that_waits() -> None:
    """What the cleared session waited for is cancelled, so that nobody decides about it any more."""
    agent = fresh_agent([("pay", {}), "paid"], [pay], memory_store())
    paused = run(agent.session("s").send("pay"))
    run(agent.session("s").clear())
    assert run(agent.approvals.get(paused.approval_id)).status == "cancelled"
    assert run(agent.session("s").load()) is None


def test_a_session_has_no_edit_in_place() -> None:
    """Earlier turns are never changed: what a session offers adds at the end or removes from it."""
    public = {name for name in dir(conversation()) if not name.startswith("_")}
    fields = {"id", "agent", "store", "lock", "durable"}
    assert public - fields == {"send", "stream", "resume", "load", "history", "fork", "truncate", "clear"}
