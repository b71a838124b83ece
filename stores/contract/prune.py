"""What pruning takes and what it leaves, on stores whose backend removes nothing by itself."""

from datetime import timedelta

import pytest

from durable.approval_stream import Applied
from durable.messages import UserMessage
from durable.records import Status
from stores import LogStore
from stores.contract.approvals import requested, voted
from stores.contract.backend import Backend
from stores.contract.injection import CountingLog
from stores.contract.samples import checkpoint, turn, with_messages

DAY = timedelta(days=1)
MONTH = timedelta(days=30)


@pytest.fixture
def endless(backend: Backend) -> LogStore:
    """The backend, opened without a time to live."""
    return backend.open()


def left(backend: Backend, stream: str) -> list[str]:
    return [entry.kind for entry in backend.log.read(stream)]


def paused(store: LogStore, identity: str) -> None:
    """Begin a session and pause it on an approval of its own."""
    held = store.checkpoints.save(checkpoint(identity), after=None)
    store.approvals.request(f"a-{identity}", requested(session_id=identity, deadline=None))
    waiting = held.but(status=Status.AWAITING_APPROVAL, approval_id=f"a-{identity}")
    store.checkpoints.save(waiting, after=held)


def test_old_sessions_go_and_young_ones_stay(backend: Backend, endless: LogStore) -> None:
    """A session whose newest save is older than the limit is removed, to the microsecond, whatever its status."""
    for number, status in enumerate((Status.IN_PROGRESS, Status.FINISHED)):
        endless.checkpoints.save(checkpoint(f"old{number}", status=status), after=None)
    backend.clock.forward(timedelta(microseconds=1))
    young = endless.checkpoints.save(checkpoint("young"), after=None)
    backend.clock.forward(MONTH)
    assert endless.prune(MONTH) == 2
    assert endless.checkpoints.load("old0") is None
    assert endless.checkpoints.load("old1") is None
    assert endless.checkpoints.load("young") == young
    assert endless.prune(MONTH) == 0


def test_after_a_week_nothing_is_left_of_a_pruned_session(backend: Backend, endless: LogStore) -> None:
    """A removed session leaves a tombstone, which stops a writer for a week, and then not even that."""
    held = endless.checkpoints.save(checkpoint(), after=None)
    backend.clock.forward(MONTH)
    endless.prune(DAY)
    assert left(backend, "session/s") == ["tombstone"]
    with pytest.raises(Exception, match="written by somebody else"):
        endless.checkpoints.save(with_messages(held, turn("c1")), after=held)
    backend.clock.forward(timedelta(days=7))
    endless.prune(DAY)
    assert left(backend, "session/s") == ["tombstone"]
    backend.clock.forward(timedelta(microseconds=1))
    endless.prune(DAY)
    assert left(backend, "session/s") == []
    assert backend.log.head("session/s") is None


def test_what_a_pending_approval_needs_stays(backend: Backend, endless: LogStore) -> None:
    """A session that waits for an approval stays with it, however old, until it is decided and carried on."""
    paused(endless, "s")
    backend.clock.forward(100 * MONTH)
    assert endless.prune(timedelta(0)) == 0
    loaded = endless.checkpoints.load("s")
    assert loaded is not None
    approval = endless.approvals.get("a-s")
    assert approval is not None
    decided = endless.approvals.append(voted(at=backend.clock()), after=approval)
    assert decided is not None
    backend.clock.forward(MONTH)
    assert endless.prune(timedelta(0)) == 0
    moved = endless.checkpoints.save(loaded.but(status=Status.IN_PROGRESS, approval_id=None), after=loaded)
    endless.approvals.append(Applied(at=backend.clock()), after=decided)
    backend.clock.forward(MONTH)
    assert endless.prune(2 * MONTH) == 0
    assert endless.checkpoints.load("s") == moved
    assert endless.prune(DAY) == 2
    assert endless.approvals.get("a-s") is None


def test_an_orphaned_approval_goes_after_a_week(backend: Backend, endless: LogStore) -> None:
    """An approval that no session waits for may be about to be named by a checkpoint; later it is removed."""
    endless.approvals.request("a", requested(session_id="never saved", deadline=None))
    backend.clock.forward(timedelta(days=7))
    assert endless.prune(timedelta(0)) == 0
    backend.clock.forward(DAY)
    assert endless.prune(timedelta(0)) == 1
    assert endless.approvals.get("a") is None


def test_old_saves_of_a_young_session_go(backend: Backend, endless: LogStore) -> None:
    """Saves older than the limit leave the history where a base lets them, and the session is as it was."""
    held = endless.checkpoints.save(checkpoint(), after=None)
    held = endless.checkpoints.save(with_messages(held, turn("c1")), after=held)
    backend.clock.forward(MONTH)
    held = endless.checkpoints.save(held.but(messages=(UserMessage(content="summary"),)), after=held)
    held = endless.checkpoints.save(with_messages(held, turn("c2")), after=held)
    endless.prune(2 * MONTH)
    assert [save.revision for save in endless.checkpoints.history("s")] == [3, 2, 1, 0]
    endless.prune(DAY)
    assert [save.revision for save in endless.checkpoints.history("s")] == [3, 2]
    assert endless.checkpoints.load("s") == held


def test_runs_that_are_under_way_or_due_stay(backend: Backend, endless: LogStore) -> None:
    """A session with a live lease, or one that recovery is about to look at, is left alone."""
    for name in ("run", "due", "over"):
        endless.checkpoints.save(checkpoint(name), after=None)
    backend.clock.forward(MONTH)
    now = backend.clock()
    endless.leases.acquire("session/run", "one", until=now + DAY, revision=0)
    endless.leases.acquire("session/over", "one", until=now, revision=0)
    endless.log.announce("session/due", run_id="r", due_at=now)
    endless.log.announce("session/new", run_id="r", due_at=now)
    assert endless.prune(DAY) == 1
    assert endless.checkpoints.load("run") is not None
    assert endless.checkpoints.load("due") is not None
    assert endless.checkpoints.load("over") is None
    assert backend.log.head("session/new") is not None


def test_a_session_that_moves_meanwhile_stays(backend: Backend, endless: LogStore) -> None:
    """A session that is saved between the look and the removal is not removed."""
    held = endless.checkpoints.save(checkpoint(), after=None)
    backend.clock.forward(MONTH)
    quick = backend.open()

    class Overtaking(CountingLog):
        def append(self, stream: str, entry: object) -> bool:  # type: ignore[override]
            quick.checkpoints.save(with_messages(held, turn("c1")), after=held)
            return super().append(stream, entry)  # type: ignore[arg-type]

    assert backend.open(log=Overtaking(backend.log)).prune(DAY) == 0
    loaded = endless.checkpoints.load("s")
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


def test_many_are_pruned_page_by_page(backend: Backend, endless: LogStore) -> None:
    """More sessions than a page holds are all looked at, though they disappear from the listing meanwhile."""
    for number in range(104):
        endless.checkpoints.save(checkpoint(f"s{number}"), after=None)
    backend.clock.forward(MONTH)
    kept = endless.checkpoints.save(checkpoint("kept"), after=None)
    assert endless.prune(DAY) == 104
    assert list(endless.log.heads("session").items) != []
    assert endless.checkpoints.load("kept") == kept
