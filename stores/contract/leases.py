"""What all leases must do: one holder at a time, a fence that only rises, fields that nobody else changes."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from threading import Barrier

from durable.ports import Lease
from stores.contract.backend import START, Backend
from stores.contract.samples import AWKWARD_IDS

MINUTE = timedelta(minutes=1)
SOON = START + MINUTE


def acquired(backend: Backend, owner: str = "one", *, revision: int = 0, stream: str = "session/s") -> Lease:
    lease = backend.leases.acquire(stream, owner, until=backend.clock() + MINUTE, revision=revision)
    assert lease is not None
    return lease


def test_a_lease_is_acquired_and_looked_at(backend: Backend) -> None:
    """Who acquires a free lease has it until its time, and anybody can look at it."""
    assert backend.leases.look("session/s") is None
    lease = acquired(backend)
    assert lease == Lease(stream="session/s", owner="one", until=SOON, fence=1, attempt=1, revision=0)
    assert backend.leases.look("session/s") == lease


def test_a_live_lease_is_not_given_away(backend: Backend) -> None:
    """Another owner gets None while the lease is live, at whatever revision, and the lease stays."""
    lease = acquired(backend)
    for revision in (0, 1):
        assert backend.leases.acquire("session/s", "two", until=SOON, revision=revision) is None
    assert backend.leases.look("session/s") == lease


def test_a_lease_ends_at_its_time(backend: Backend) -> None:
    """The lease is live up to `until` and free at it; the next holder's fence is higher."""
    acquired(backend)
    backend.clock.forward(MINUTE - timedelta(microseconds=1))
    assert backend.leases.acquire("session/s", "two", until=SOON + MINUTE, revision=1) is None
    backend.clock.forward(timedelta(microseconds=1))
    assert acquired(backend, "two", revision=1).fence == 2


def test_the_owner_takes_its_lease_over(backend: Backend) -> None:
    """The owner itself gets a live lease again with a higher fence: a retry of the same execution."""
    acquired(backend)
    again = acquired(backend, revision=1)
    assert (again.owner, again.fence) == ("one", 2)


def test_a_released_lease_is_free_and_keeps_its_record(backend: Backend) -> None:
    """After `release` anybody may acquire, at once, and fence, attempt and revision go on from the record."""
    lease = acquired(backend)
    backend.leases.release(lease)
    released = backend.leases.look("session/s")
    assert released == replace(lease, owner=None, until=backend.clock())
    assert acquired(backend, "two") == replace(lease, owner="two", fence=2, attempt=2)


def test_only_the_newest_fence_releases(backend: Backend) -> None:
    """A holder that was overtaken cannot release the lease of the one that overtook it."""
    old = acquired(backend)
    backend.clock.forward(MINUTE)
    new = acquired(backend, "two")
    backend.leases.release(old)
    assert backend.leases.look("session/s") == new
    backend.leases.release(replace(old, stream="session/unknown"))
    assert backend.leases.look("session/unknown") is None


def test_attempts_count_acquires_that_find_no_progress(backend: Backend) -> None:
    """`attempt` rises while the revision is that of the acquire before, whoever it was, and else starts over."""
    attempts: list[int] = []
    for owner, revision in [("a", 0), ("b", 0), ("c", 0), ("c", 1), ("c", 2), ("d", 2), ("d", 5), ("e", 0), ("f", 0)]:
        attempts.append(acquired(backend, owner, revision=revision).attempt)
        backend.clock.forward(MINUTE)
    assert attempts == [1, 2, 3, 1, 1, 2, 1, 1, 2]


def test_an_acquire_without_a_revision_does_not_count(backend: Backend) -> None:
    """Whoever makes no attempt to get further says -1: it is attempt 1 however often, and the count starts over."""
    attempts: list[int] = []
    for revision in (3, 3, -1, -1, 3, 3):
        attempts.append(acquired(backend, revision=revision).attempt)
        backend.clock.forward(MINUTE)
    assert attempts == [1, 2, 1, 1, 1, 2]


def test_an_attempt_is_taken_back(backend: Backend) -> None:
    """A holder that releases with `counts=False` has not counted; one that was overtaken takes nothing back."""
    attempts: list[int] = []
    for counts in (True, False, False, True, False):
        lease = acquired(backend)
        attempts.append(lease.attempt)
        backend.leases.release(lease, counts=counts)
    assert attempts == [1, 2, 2, 2, 3]
    first = acquired(backend)
    second = acquired(backend)
    backend.leases.release(first, counts=False)
    assert backend.leases.look("session/s") == second
    backend.leases.release(second, counts=False)
    backend.leases.release(second, counts=False)
    assert acquired(backend).attempt == second.attempt


def test_the_only_attempt_is_taken_back(backend: Backend) -> None:
    """After the first attempt was taken back the next one is the first again."""
    for _ in range(3):
        lease = acquired(backend, revision=4)
        assert lease.attempt == 1
        backend.leases.release(lease, counts=False)


def test_notes_change_only_their_own_field(backend: Backend) -> None:
    """The execution and the abort flag are set beside a lease that is live, and survive acquire and release."""
    lease = acquired(backend)
    backend.leases.note_execution("session/s", "arn:1")
    backend.leases.request_abort("session/s", "r1")
    noted = replace(lease, execution="arn:1", abort_run="r1")
    assert backend.leases.look("session/s") == noted
    backend.leases.release(lease)
    again = acquired(backend, "two", revision=1)
    assert (again.execution, again.abort_run) == ("arn:1", "r1")
    backend.leases.note_execution("session/s", "arn:2")
    backend.leases.request_abort("session/s", "r2")
    assert backend.leases.look("session/s") == replace(again, execution="arn:2", abort_run="r2")


def test_notes_need_no_lease(backend: Backend) -> None:
    """An execution or an abort may be noted before anybody has acquired the lease, which is free then."""
    backend.leases.request_abort("session/s", "r1")
    backend.leases.note_execution("session/s", "arn:1")
    noted = backend.leases.look("session/s")
    assert noted is not None
    assert (noted.owner, noted.fence, noted.attempt, noted.abort_run, noted.execution) == (None, 0, 0, "r1", "arn:1")
    lease = acquired(backend)
    assert (lease.fence, lease.attempt, lease.abort_run) == (1, 1, "r1")


def test_of_many_who_ask_one_gets_it(backend: Backend) -> None:
    """When several owners ask for a free lease at the same time, exactly one gets it."""
    barrier = Barrier(6)
    leases = backend.leases

    def ask(number: int) -> Lease | None:
        barrier.wait()
        return leases.acquire("session/s", f"owner {number}", until=SOON, revision=0)

    with ThreadPoolExecutor(6) as pool:
        given = [lease for lease in pool.map(ask, range(6)) if lease is not None]
    assert len(given) == 1
    assert leases.look("session/s") == given[0]


def test_awkward_ids_have_leases_of_their_own(backend: Backend) -> None:
    """Ids that look alike or contain separators never share a lease."""
    for number, identity in enumerate(AWKWARD_IDS):
        assert acquired(backend, f"owner {number}", stream=f"session/{identity}").fence == 1
