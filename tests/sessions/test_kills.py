"""A process killed at any call to the store, in any operation of a session.

The session is as before or as after, never between, and usable.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from durable import Compaction, ModelRequest, SessionExistsError
from durable.transcript import first_fault
from tests.support.deaths import Death, Killed, mortal_store
from tests.support.runs import fresh_agent, memory_store, run
from tests.support.sessions import look, pay, stored

COMPACTION = Compaction(after_tokens=6, keep=1, count_tokens=len, summarize=lambda old: f"{len(old)} old")


def model(request: ModelRequest) -> Any:
    assert first_fault(request.messages) is None
    last = request.messages[-1]
    if last.role == "user" and last.content in ("look", "pay"):
        return [(str(last.content), {}), ("look", {"what": "b"})]
    return f"re {last.content}"


def session(store: Any, durable: bool, compaction: Compaction | None = None) -> Any:
    agent = fresh_agent(model, [look, pay], store if durable else None, compaction=compaction)  # type: ignore[arg-type]
    return agent.session("s", store=store)


def conversation() -> Any:
    """A session of three turns: 0 1, 2 to 6 with two calls, 7 8."""
    store = memory_store()
    for text in ("hi", "look", "bye"):
        run(session(store, True).send(text))
    return store


def shown(store: Any, id: str = "s") -> Any:
    """The record of a session, without its times; None where there is none."""
    chat = fresh_agent([], [], store).session(id)
    record = run(chat.load())
    return record and record.model_dump(exclude={"created_at", "updated_at", "pending"})


OPERATIONS: dict[str, Callable[[Any, bool], Any]] = {
    "send": lambda store, durable: session(store, durable).send("more"),
    "send with tools": lambda store, durable: session(store, durable).send("look"),
    "fork": lambda store, durable: session(store, durable).fork("t", message_count=7),
    "truncate": lambda store, durable: session(store, durable).truncate(2),
    "clear": lambda store, durable: session(store, durable).clear(),
    "compaction": lambda store, durable: session(store, durable, COMPACTION).send("more"),
}


def deaths(operation: Callable[[Any, bool], Any], durable: bool, make: Callable[[], Any]) -> Any:
    """A store for each point at which the operation's process dies, as it leaves it."""
    at, dead = 0, True
    while dead:
        at += 1
        store, death = make(), Death()
        death.reset(at)
        try:
            run(operation(mortal_store(store, death), durable))
        except Killed:
            pass
        if dead := death.dead:
            yield store
    assert at > 3


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "in memory"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_before_or_after(name: str, durable: bool) -> None:
    """The sessions are as before or as after, whichever call was the last; then they are loaded, sent to and cut."""
    untouched, done = conversation(), conversation()
    run(OPERATIONS[name](done, durable))
    states = [tuple(shown(store, id) for id in "st") for store in (untouched, done)]
    if name == "compaction":  # the swap is a save of its own, before the turn is over
        compacted, full = dict(states[1][0]), dict(states[0][0])
        states.append(({**full, "messages": compacted["messages"][:-2]}, None))
    seen: list[Any] = []
    for store in deaths(OPERATIONS[name], durable, conversation):
        found = tuple(shown(store, id) for id in "st")
        assert found in states
        seen.append(found)
        check_usable(store, durable)
    assert states[0] in seen
    assert states[1] in seen


def check_usable(store: Any, durable: bool) -> None:
    """What is left is resumed where it can be, takes a message, is copied, cut and cleared."""
    chat = session(store, durable)
    if durable:
        run(chat.resume())
    result = run(chat.send("and on"))
    history = run(chat.history())
    assert result.text == "re and on"
    assert first_fault(history) is None
    assert [m.content for m in history if m.role == "user"].count("and on") == 1
    assert run(chat.load()).pending is None
    branch = run(chat.fork("u"))
    assert run(branch.history()) == history
    run(chat.truncate(0))
    run(chat.clear())
    assert run(chat.load()) is None


def test_clearing_a_session_that_waits() -> None:
    """Killed while it clears a session that waits for a human, it leaves one that is cleared again, or resumed."""

    def paused() -> Any:
        store = conversation()
        run(session(store, True).send("pay"))
        return store

    for again in ("clear", "resume"):
        for store in deaths(OPERATIONS["clear"], True, paused):
            there = store.checkpoints.load("s")
            approval = store.approvals.get(there.approval_id) if there is not None and there.approval_id else None
            chat = session(store, True)
            if again == "resume" and approval is not None and approval.status == "cancelled":
                assert run(chat.resume()).finish_reason == "aborted"
                assert run(chat.send("and on")).text == "re and on"
                assert first_fault(stored(store).messages) is None
            run(chat.clear())
            assert run(chat.load()) is None


def test_two_forks_to_one_id() -> None:
    """Of two processes that copy to one id, one gets it; where the first died, the second gets it or is told so."""
    for store in deaths(OPERATIONS["fork"], True, conversation):
        taken = store.checkpoints.load("t") is not None
        with pytest.raises(SessionExistsError) if taken else nullcontext():
            run(session(store, True).fork("t", message_count=2))
        assert len(stored(store, "t").messages) == (7 if taken else 2)
