"""What a save leaves in the database that did not come to its end: the whole of it, or nothing that says it was made.

Half a save is worse than none. A reader that meets it and goes on to the one before has rolled the session back, and
says nothing.
"""

import random

import pytest

from durable.records import Checkpoint
from stores.contract.backend import TTL, Recorded
from stores.contract.crashes import CALLS, begun, next_save
from stores.contract.injection import Crash
from stores.contract.samples import checkpoint, result


def assert_whole(backend: Recorded, session_id: str, held: Checkpoint, before: int) -> None:
    """A record more than before means that the new save is loaded; none more, that the old one is."""
    loaded = backend.open(ttl=TTL).checkpoints.load(session_id)
    made = loaded != held
    assert len(backend.records(session_id)) == before + made, "there is a record of a save that cannot be loaded"


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("situation", ["ordinary", "reset", "large", "finish"])
def test_a_save_that_crashed_has_no_record_or_is_whole(backend: Recorded, situation: str, applied: bool) -> None:
    """Wherever a save ends, nothing in the database says that there is a newer save than the one that is loaded."""
    for call in range(CALLS):
        session_id = f"s{call}"
        held = begun(backend.open(ttl=TTL), session_id, situation)
        assert held is not None
        before = len(backend.records(session_id))
        dying = backend.open_dying(call, applied=applied, ttl=TTL)
        try:
            dying.checkpoints.save(next_save(situation, held).but(session_id=session_id), after=held)
        except Crash:
            assert_whole(backend, session_id, held, before)


def test_a_save_that_was_refused_has_no_record(backend: Recorded) -> None:
    """Where a value is too large for the database, the error leaves no part of the save; else all is there."""
    store = backend.open(ttl=TTL)
    held = store.checkpoints.save(checkpoint(), after=None)
    before = len(backend.records("s"))
    noise = random.Random(6).randbytes(450_000).hex()
    try:
        store.checkpoints.save(held.but(results={"c": result("c", noise)}), after=held)
    except Exception:  # whatever a store makes of it
        assert backend.open(ttl=TTL).checkpoints.load("s") == held
    assert_whole(backend, "s", held, before)
