"""What pruning takes and what it leaves, on stores whose backend removes nothing by itself."""

from datetime import timedelta

import pytest

from durable.messages import UserMessage
from durable.records import Applied, Status
from stores import LogStore
from tests.contracts.backends import Backend
from tests.contracts.faults import CountingLog
from tests.contracts.samples import checkpoint, turn, with_messages
from tests.contracts.test_approvals import requested, voted

DAY = timedelta(days=1)
MONTH = timedelta(days=30)


@pytest.fixture
def store(backend: Backend) -> LogStore:
    return backend.open()


def left(backend: Backend, stream: str) -> list[str]:
    return [entry.kind for entry in backend.log.read(stream)]


def paused(store: LogStore, identity: str) -> None:
    """Begin a session and pause it on an approval of its own."""
    held = store.checkpoints.save(checkpoint(identity), after=None)
    store.approvals.request(f"a-{identity}", requested(session_id=identity, deadline=None))
    waiting = held.but(status=Status.AWAITING_APPROVAL, approval_id=f"a-{identity}")
    store.checkpoints.save(waiting, after=held)


def test_old_sessions_go_and_young_ones_stay(backend: Backend, store: LogStore) -> None:
    """A session whose newest save is older than the limit is removed, to the microsecond, whatever its status."""
    for number, status in enumerate((Status.IN_PROGRESS, Status.FINISHED)):
        store.checkpoints.save(checkpoint(f"old{number}", status=status), after=None)
    backend.clock.forward(timedelta(microseconds=1))
    young = store.checkpoints.save(checkpoint("young"), after=None)
    backend.clock.forward(MONTH)
    assert store.prune(MONTH) == 2
    assert store.checkpoints.load("old0") is None
    assert store.checkpoints.load("old1") is None
    assert store.checkpoints.load("young") == young
    assert store.prune(MONTH) == 0


def test_after_a_week_nothing_is_left_of_a_pruned_session(backend: Backend, store: LogStore) -> None:
    """A removed session leaves a tombstone, which stops a writer for a week, and then not even that."""
    held = store.checkpoints.save(checkpoint(), after=None)
    backend.clock.forward(MONTH)
    store.prune(DAY)
    assert left(backend, "session/s") == ["tombstone"]
    with pytest.raises(Exception, match="written by somebody else"):
        store.checkpoints.save(with_messages(held, turn("c1")), after=held)
    backend.clock.forward(timedelta(days=7))
    store.prune(DAY)
    assert left(backend, "session/s") == ["tombstone"]
    backend.clock.forward(timedelta(microseconds=1))
    store.prune(DAY)
    assert left(backend, "session/s") == []
    assert backend.log.head("session/s") is None


def test_what_a_pending_approval_needs_stays(backend: Backend, store: LogStore) -> None:
    """A session that waits for an approval stays with it, however old, until it is decided and carried on."""
    paused(store, "s")
    backend.clock.forward(100 * MONTH)
    assert store.prune(timedelta(0)) == 0
    loaded = store.checkpoints.load("s")
    assert loaded is not None
    approval = store.approvals.get("a-s")
    assert approval is not None
    decided = store.approvals.append(voted(at=backend.clock()), after=approval)
    assert decided is not None
    backend.clock.forward(MONTH)
    assert store.prune(timedelta(0)) == 0
    moved = store.checkpoints.save(loaded.but(status=Status.IN_PROGRESS, approval_id=None), after=loaded)
    store.approvals.append(Applied(at=backend.clock()), after=decided)
    backend.clock.forward(MONTH)
    assert store.prune(2 * MONTH) == 0
    assert store.checkpoints.load("s") == moved
    assert store.prune(DAY) == 2
    assert store.approvals.get("a-s") is None


def test_an_orphaned_approval_goes_after_a_week(backend: Backend, store: LogStore) -> None:
    """An approval that no session waits for may be about to be named by a checkpoint; later it is removed."""
    store.approvals.request("a", requested(session_id="never saved", deadline=None))
    backend.clock.forward(timedelta(days=7))
    assert store.prune(timedelta(0)) == 0
    backend.clock.forward(DAY)
    assert store.prune(timedelta(0)) == 1
    assert store.approvals.get("a") is None


def test_old_saves_of_a_young_session_go(backend: Backend, store: LogStore) -> None:
    """Saves older than the limit leave the history where a base lets them, and the session is as it was."""
    held = store.checkpoints.save(checkpoint(), after=None)
    held = store.checkpoints.save(with_messages(held, turn("c1")), after=held)
    backend.clock.forward(MONTH)
    held = store.checkpoints.save(held.but(messages=(UserMessage(content="summary"),)), after=held)
    held = store.checkpoints.save(with_messages(held, turn("c2")), after=held)
    store.prune(2 * MONTH)
    assert [save.revision for save in store.checkpoints.history("s")] == [3, 2, 1, 0]
    store.prune(DAY)
    assert [save.revision for save in store.checkpoints.history("s")] == [3, 2]
    assert store.checkpoints.load("s") == held


def test_runs_that_are_under_way_or_due_stay(backend: Backend, store: LogStore) -> None:
    """A session with a live lease, or one that recovery is about to look at, is left alone."""
    for name in ("run", "due", "over"):
        store.checkpoints.save(checkpoint(name), after=None)
    backend.clock.forward(MONTH)
    now = backend.clock()
    store.leases.acquire("session/run", "one", until=now + DAY, revision=0)
    store.leases.acquire("session/over", "one", until=now, revision=0)
    store.log.announce("session/due", run_id="r", due_at=now)
    store.log.announce("session/new", run_id="r", due_at=now)
    assert store.prune(DAY) == 1
    assert store.checkpoints.load("run") is not None
    assert store.checkpoints.load("due") is not None
    assert store.checkpoints.load("over") is None
    assert backend.log.head("session/new") is not None


def test_a_session_that_moves_meanwhile_stays(backend: Backend, store: LogStore) -> None:
    """A session that is saved between the look and the removal is not removed."""
    held = store.checkpoints.save(checkpoint(), after=None)
    backend.clock.forward(MONTH)
    quick = backend.open()

    class Overtaking(CountingLog):
        def append(self, stream: str, entry: object) -> bool:  # type: ignore[override]
            quick.checkpoints.save(with_messages(held, turn("c1")), after=held)
            return super().append(stream, entry)  # type: ignore[arg-type]

    assert backend.open(log=Overtaking(backend.log)).prune(DAY) == 0
    loaded = store.checkpoints.load("s")
    assert loaded is not None
    assert loaded.revision == 1


def test_expired_sessions_go_at_once(backend: Backend) -> None:
    """What has expired is gone for every reader already, so it is removed however young the limit is."""
    store = backend.open(ttl=DAY)
    store.checkpoints.save(checkpoint(), after=None)
    backend.clock.forward(2 * DAY)
    assert store.prune(MONTH) == 0
    backend.clock.forward(DAY)
    assert store.prune(MONTH) == 1


def test_many_are_pruned_page_by_page(backend: Backend, store: LogStore) -> None:
    """More sessions than a page holds are all looked at, though they disappear from the listing meanwhile."""
    for number in range(130):
        store.checkpoints.save(checkpoint(f"s{number}"), after=None)
    backend.clock.forward(MONTH)
    kept = store.checkpoints.save(checkpoint("kept"), after=None)
    assert store.prune(DAY) == 130
    assert list(store.log.heads("session").items) != []
    assert store.checkpoints.load("kept") == kept
