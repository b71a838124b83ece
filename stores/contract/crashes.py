"""What a process may leave behind that ends in the middle of a save or a delete: the old or the new, never a mix."""

import pytest

from durable.messages import UserMessage
from durable.records import Checkpoint, Status
from stores.contract.backend import TTL, Opened, Subject
from stores.contract.injection import Crash
from stores.contract.samples import checkpoint, result, turn, with_messages

CALLS = 12
"""More calls than any save or delete makes."""


def next_save(situation: str, held: Checkpoint | None) -> Checkpoint:
    """Give what is to be saved after `held`, which is None for a new session."""
    match held, situation:
        case None, _:
            return checkpoint("s", UserMessage(content="new"))
        case Checkpoint(), "reset":
            return held.but(messages=held.messages[1:])
        case Checkpoint(), "large":
            return held.but(results={"c1": result("c1", "large " * 50_000)})
        case Checkpoint(), "finish":
            return with_messages(held, result("c1"), status=Status.FINISHED)
        case Checkpoint(), _:
            return with_messages(held, result("c1"))


def begun(store: Opened, session_id: str, situation: str) -> Checkpoint | None:
    """Bring a session into a situation and give what a caller holds of it."""
    if situation == "new":
        return None
    first = store.checkpoints.save(checkpoint(session_id, turn("c1"), turn("c2")), after=None)
    return store.checkpoints.save(with_messages(first, UserMessage(content="go on")), after=first)


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("situation", ["new", "ordinary", "reset", "large", "finish"])
def test_wherever_a_save_ends_the_session_is_whole(backend: Subject, situation: str, applied: bool) -> None:
    """After a crash at any call of a save the next process finds what was there before or what was saved; it goes on.

    A save that returned is there: nothing rolls it back, also when the one after it failed.
    """
    crashed = 0
    for call in range(CALLS):
        session_id = f"s{call}"
        held = begun(backend.open(ttl=TTL), session_id, situation)
        new = next_save(situation, held).but(session_id=session_id)
        dying = backend.open_dying(call, applied=applied, ttl=TTL)
        try:
            saved = dying.checkpoints.save(new, after=held)
        except Crash:
            crashed += 1
        else:
            assert backend.open(ttl=TTL).checkpoints.load(session_id) == saved
            continue
        store = backend.open(ttl=TTL)
        loaded = store.checkpoints.load(session_id)
        assert loaded == held or (loaded is not None and loaded == new.but(revision=loaded.revision))
        on = new if loaded is None else with_messages(loaded, UserMessage(content="on"))
        again = store.checkpoints.save(on, after=loaded)
        assert backend.open(ttl=TTL).checkpoints.load(session_id) == again
    assert 1 <= crashed < CALLS


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
def test_wherever_a_delete_ends_the_session_is_there_or_gone(backend: Subject, applied: bool) -> None:
    """After a crash at any call of a delete the session is there whole or is gone; deleting again finishes the job."""
    crashed = 0
    for call in range(CALLS):
        session_id = f"s{call}"
        store = backend.open(ttl=TTL)
        held = begun(store, session_id, "ordinary")
        try:
            backend.open_dying(call, applied=applied, ttl=TTL).checkpoints.delete(session_id)
        except Crash:
            crashed += 1
            assert store.checkpoints.load(session_id) in (None, held)
        store.checkpoints.delete(session_id)
        assert store.checkpoints.load(session_id) is None
    assert 1 <= crashed < CALLS
