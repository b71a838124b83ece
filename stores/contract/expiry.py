"""When a session is there: every read decides by the clock, since backends remove what has expired days later."""

from datetime import timedelta

from durable.records import Status
from stores.contract.backend import TTL, Opened, Subject
from stores.contract.samples import checkpoint, turn, with_messages

TICK = timedelta(microseconds=1)


def test_a_session_is_there_while_its_newest_save_is_fresh(backend: Subject, store: Opened) -> None:
    """A session is loaded up to T after its newest save, and absent from then on."""
    saved = store.checkpoints.save(checkpoint(), after=None)
    backend.clock.forward(TTL - TICK)
    assert store.checkpoints.load("s") == saved
    backend.clock.forward(TICK)
    assert store.checkpoints.load("s") is None


def test_without_a_ttl_nothing_expires(backend: Subject) -> None:
    """A store without a TTL keeps its sessions."""
    store = backend.open(ttl=None)
    saved = store.checkpoints.save(checkpoint(), after=None)
    backend.clock.forward(timedelta(days=10_000))
    assert store.checkpoints.load("s") == saved


def test_a_pause_does_not_expire(backend: Subject, store: Opened) -> None:
    """A session that waits for a human is there however long that takes; once it goes on it expires as any other."""
    held = store.checkpoints.save(with_messages(checkpoint(), turn("c1")), after=None)
    paused = store.checkpoints.save(held.but(status=Status.AWAITING_APPROVAL, approval_id="apr_1"), after=held)
    backend.clock.forward(10 * TTL)
    assert backend.open(ttl=TTL).checkpoints.load("s") == paused
    decided = paused.but(status=Status.IN_PROGRESS, approval_id=None)
    went_on = store.checkpoints.save(decided, after=paused)
    backend.clock.forward(TTL - TICK)
    assert store.checkpoints.load("s") == went_on
    backend.clock.forward(TICK)
    assert store.checkpoints.load("s") is None
