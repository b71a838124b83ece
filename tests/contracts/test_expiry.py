"""When a session is there: every read decides by the clock, since backends remove what has expired days later."""

from datetime import timedelta

import pytest

from durable.errors import StaleCheckpointError
from durable.messages import UserMessage
from durable.records import Status
from stores import LogStore
from tests.contracts.backends import Backend
from tests.contracts.conftest import TTL
from tests.contracts.samples import checkpoint, turn, with_messages

TICK = timedelta(microseconds=1)
DAY = timedelta(days=1)


def test_a_session_is_there_while_its_newest_save_is_fresh(backend: Backend, store: LogStore) -> None:
    """A session is loaded and listed up to T after its newest save, and absent from then on."""
    saved = store.checkpoints.save(checkpoint(), after=None)
    backend.clock.forward(TTL - TICK)
    assert store.checkpoints.load("s") == saved
    assert len(store.checkpoints.history("s")) == 1
    backend.clock.forward(TICK)
    assert store.checkpoints.load("s") is None
    assert store.checkpoints.history("s") == []


def test_without_a_ttl_nothing_expires(backend: Backend) -> None:
    """A store without a TTL keeps its sessions."""
    store = backend.open(ttl=None)
    saved = store.checkpoints.save(checkpoint(), after=None)
    backend.clock.forward(timedelta(days=10_000))
    assert store.checkpoints.load("s") == saved
    store.checkpoints.delete("s")
    backend.clock.forward(timedelta(days=10_000))
    assert store.checkpoints.load("s") is None


def test_each_save_keeps_the_session_for_another_ttl(backend: Backend, store: LogStore) -> None:
    """Saves extend the session, listed saves expire one by one, and a base is kept as long as it is needed."""
    held = store.checkpoints.save(checkpoint(), after=None)
    written = [backend.clock()]
    for number in range(7):
        backend.clock.forward(TTL * 0.4)
        held = store.checkpoints.save(with_messages(held, turn(f"c{number}")), after=held)
        written.append(backend.clock())
        fresh = [at for at in written if backend.clock() < at + TTL]
        assert [save.saved_at for save in store.checkpoints.history("s")] == fresh[::-1]
        assert store.checkpoints.load("s") == held
        for entry in backend.log.read("session/s"):
            (base,) = [one for one in backend.log.read("session/s") if one.revision == entry.base]
            assert base.kind == "reset"
            assert entry.fresh_until is not None
            assert base.expires_at is not None
            assert entry.fresh_until <= base.expires_at


def test_a_reset_comes_when_the_base_is_older_than_the_ttl(backend: Backend, store: LogStore) -> None:
    """Up to T after its base a save is a delta; more than T after it, to the second, it is a new base."""
    held = store.checkpoints.save(checkpoint(), after=None)
    backend.clock.forward(TTL)
    held = store.checkpoints.save(with_messages(held, turn("c1")), after=held)
    backend.clock.forward(timedelta(seconds=1))
    store.checkpoints.save(with_messages(held, turn("c2")), after=held)
    assert [entry.kind for entry in backend.log.read("session/s")] == ["reset", "delta", "reset"]


@pytest.mark.parametrize("then", [timedelta(days=300), None])
def test_a_longer_ttl_does_not_outlive_its_base(backend: Backend, store: LogStore, then: timedelta | None) -> None:
    """When a deployment raises its TTL, a session's next save is a new base, since the old one goes as it was told."""
    held = store.checkpoints.save(checkpoint(), after=None)
    longer = backend.open(ttl=then)
    loaded = longer.checkpoints.load("s")
    saved = longer.checkpoints.save(with_messages(held, turn("c1")), after=loaded)
    backend.clock.forward(2 * TTL + DAY)
    backend.log.drop("session/s", until=0)
    assert longer.checkpoints.load("s") == saved


def test_an_expired_session_begins_anew(backend: Backend, store: LogStore) -> None:
    """A new session under an expired id takes the next revision, has none of the old one, and stops its writer."""
    old = store.checkpoints.save(checkpoint(), after=None)
    backend.clock.forward(TTL)
    new = backend.open(ttl=TTL).checkpoints.save(checkpoint("s", UserMessage(content="anew")), after=None)
    assert new.revision == 1
    assert store.checkpoints.load("s") == new
    assert [save.checkpoint for save in store.checkpoints.history("s")] == [new]
    with pytest.raises(StaleCheckpointError):
        store.checkpoints.save(with_messages(old, turn("c1")), after=old)


def test_a_session_that_was_removed_begins_at_zero(backend: Backend, store: LogStore) -> None:
    """When the backend has removed all entries, the next session starts at revision 0 and its head is believed."""
    held = store.checkpoints.save(checkpoint(), after=None)
    store.checkpoints.save(with_messages(held, turn("c1")), after=held)
    backend.clock.forward(2 * TTL + DAY)
    backend.log.drop("session/s")
    assert store.checkpoints.load("s") is None
    new = store.checkpoints.save(checkpoint(), after=None)
    assert new.revision == 0
    assert store.checkpoints.load("s") == new
    head = backend.log.head("session/s")
    assert head is not None
    assert head.revision == 0


def test_a_tombstone_outlives_what_it_hides(backend: Backend) -> None:
    """A tombstone is kept for at least seven days, and at least as long as any entry before it."""
    for ttl in (timedelta(hours=1), TTL):
        store = backend.open(ttl=ttl)
        identity = f"ttl {ttl}"
        store.checkpoints.save(checkpoint(identity), after=None)
        (last,) = backend.log.read(f"session/{identity}")
        store.checkpoints.delete(identity)
        (tombstone,) = backend.log.read(f"session/{identity}")
        assert tombstone.kind == "tombstone"
        assert tombstone.expires_at is not None
        assert last.expires_at is not None
        assert tombstone.expires_at >= max(last.expires_at, backend.clock() + timedelta(days=7))
        head = backend.log.head(f"session/{identity}")
        assert head is not None
        assert (head.status, head.revision) == ("deleted", 1)
        assert (head.fresh_until, head.expires_at) == (tombstone.fresh_until, tombstone.expires_at)


def test_a_cleared_session_stays_cleared(backend: Backend, store: LogStore) -> None:
    """The history that is kept after a clear expires save by save, and the session does not come back."""
    held = store.checkpoints.save(checkpoint(), after=None)
    backend.clock.forward(DAY)
    held = store.checkpoints.save(with_messages(held, turn("c1")), after=held)
    store.checkpoints.delete("s", keep_history=True)
    backend.clock.forward(TTL - DAY)
    assert [save.checkpoint for save in store.checkpoints.history("s")] == [held]
    backend.clock.forward(DAY)
    assert store.checkpoints.history("s") == []
    assert store.checkpoints.load("s") is None


def test_a_pause_does_not_expire(backend: Backend, store: LogStore) -> None:
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
