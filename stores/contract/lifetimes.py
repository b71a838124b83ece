"""How long what a session is made of is kept, over a log: nothing that is listed outlives what it needs."""

from datetime import UTC, datetime, timedelta

import pytest

from durable.errors import StaleCheckpointError
from durable.messages import UserMessage
from durable.records import Checkpoint, Status
from stores import LogStore
from stores.contract.backend import TTL, Backend
from stores.contract.injection import Crash, CrashingLog
from stores.contract.samples import checkpoint, turn, with_messages

TICK = timedelta(microseconds=1)
DAY = timedelta(days=1)


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


def test_saves_are_listed_while_they_are_fresh(backend: Backend, store: LogStore) -> None:
    """A save is listed up to T after it was written, and a tombstone without a TTL hides for ever."""
    store.checkpoints.save(checkpoint(), after=None)
    backend.clock.forward(TTL - TICK)
    assert len(store.checkpoints.history("s")) == 1
    backend.clock.forward(TICK)
    assert store.checkpoints.history("s") == []
    endless = backend.open(ttl=None)
    endless.checkpoints.save(checkpoint("endless"), after=None)
    endless.checkpoints.delete("endless")
    backend.clock.forward(timedelta(days=10_000))
    assert endless.checkpoints.load("endless") is None


def paused(store: LogStore) -> tuple[Checkpoint, Checkpoint]:
    """Begin a session and pause it; give the pause and what comes after it."""
    held = store.checkpoints.save(checkpoint(), after=None)
    pause = store.checkpoints.save(held.but(status=Status.AWAITING_APPROVAL, approval_id="a"), after=held)
    return pause, pause.but(status=Status.IN_PROGRESS, approval_id=None)


def lasting(backend: Backend) -> list[int]:
    """Give the revisions of the entries that never expire."""
    return [entry.revision for entry in backend.log.read("session/s") if entry.expires_at is None]


def test_a_pause_ends_with_what_comes_after_it(backend: Backend, store: LogStore) -> None:
    """A pause has no end; the save after it gives it one, so it is neither listed nor kept longer than that save."""
    pause, on = paused(store)
    assert lasting(backend) == [pause.revision]
    backend.clock.forward(10 * TTL)
    went_on = store.checkpoints.save(on, after=pause)
    assert lasting(backend) == []
    backend.clock.forward(TTL - TICK)
    assert store.checkpoints.load("s") == went_on
    assert [save.checkpoint for save in store.checkpoints.history("s")] == [went_on, pause]
    backend.clock.forward(TICK)
    assert store.checkpoints.load("s") is None
    assert store.checkpoints.history("s") == []


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
def test_a_pause_never_comes_back(backend: Backend, store: LogStore, applied: bool) -> None:
    """Wherever the save after a pause ends, no entry goes before the pause does; the next save makes up for it."""
    pause, on = paused(store)
    log = CrashingLog(backend.log)
    dying = backend.open(log=log, ttl=TTL)
    assert dying.checkpoints.load("s") == pause
    log.arm(2, applied=applied)
    with pytest.raises(Crash):
        dying.checkpoints.save(on, after=pause)
    ends = [entry.expires_at or datetime.max.replace(tzinfo=UTC) for entry in backend.log.read("session/s")]
    assert ends == sorted(ends)
    loaded = store.checkpoints.load("s")
    assert loaded is not None
    store.checkpoints.save(with_messages(loaded, turn("c1")), after=loaded)
    assert lasting(backend) == []


@pytest.mark.parametrize("keep_history", [False, True])
def test_a_paused_session_that_is_deleted_leaves_nothing_for_ever(
    backend: Backend, store: LogStore, keep_history: bool
) -> None:
    """Whatever a deleted session leaves has an end, and it is the last to go."""
    paused(store)
    store.checkpoints.delete("s", keep_history=keep_history)
    assert lasting(backend) == []
    head = backend.log.head("session/s")
    assert head is not None
    assert head.expires_at is not None
    ends = [entry.expires_at for entry in backend.log.read("session/s") if entry.expires_at is not None]
    assert ends == sorted(ends)


def test_a_shorter_ttl_brings_nothing_back(backend: Backend, store: LogStore) -> None:
    """When a deployment lowers its TTL, newer entries outlive the older ones all the same."""
    held = store.checkpoints.save(checkpoint(), after=None)
    shorter = backend.open(ttl=DAY)
    shorter.checkpoints.save(with_messages(held, turn("c1")), after=held)
    first, second = backend.log.read("session/s")
    assert (first.expires_at, second.fresh_until) == (second.expires_at, backend.clock() + DAY)
    backend.clock.forward(DAY)
    assert shorter.checkpoints.load("s") is None
