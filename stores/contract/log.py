"""What every log must do: numbered entries, compare-and-append, reads in order, drops that leave tombstones."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from itertools import islice
from threading import Barrier
from typing import Any

import pytest

from durable.ports import Head, Lease
from stores.contract.backend import START, Backend
from stores.contract.samples import AWKWARD_IDS, entry


def revisions(backend: Backend, stream: str, **arguments: object) -> list[int]:
    return [one.revision for one in backend.log.read(stream, **arguments)]  # type: ignore[arg-type]


@pytest.mark.parametrize("lifetime", ["ends", "endless"])
def test_an_entry_comes_back_as_it_went_in(backend: Backend, lifetime: str) -> None:
    """An entry is read back field by field as it was appended, by another process too."""
    written = entry(0, b'{"v":1}', kind="reset")
    if lifetime == "endless":
        written = replace(written, fresh_until=None, expires_at=None)
    assert backend.log.append("session/s", written)
    assert list(backend.log.read("session/s")) == [written]


def test_a_revision_is_written_once(backend: Backend) -> None:
    """A second append to a revision is refused and changes nothing."""
    first = entry(0, b"first", save_id="one")
    assert backend.log.append("session/s", first)
    assert not backend.log.append("session/s", entry(0, b"second", save_id="two"))
    assert list(backend.log.read("session/s")) == [first]


def test_a_repeated_save_counts_as_made(backend: Backend) -> None:
    """An append that finds its own save id there was applied before, and counts as success."""
    assert backend.log.append("session/s", entry(0, b"x" * 700_000))
    assert backend.log.append("session/s", entry(0, b"x" * 700_000))
    assert revisions(backend, "session/s") == [0]


def test_of_many_appends_one_is_made(backend: Backend) -> None:
    """When several writers append the same revision at the same time, exactly one succeeds, and its entry is there."""
    barrier = Barrier(6)

    def write(number: int) -> bool:
        barrier.wait()
        return log.append("session/s", entry(0, str(number).encode(), save_id=f"w{number}"))

    log = backend.log
    with ThreadPoolExecutor(6) as pool:
        won = list(pool.map(write, range(6)))
    assert won.count(True) == 1
    (there,) = log.read("session/s")
    assert there.body == str(won.index(True)).encode()


def test_reads_are_in_order_bounded_and_from_either_end(backend: Backend) -> None:
    """Entries come in order of revision or newest first, above `after` and at most `limit` of them."""
    for revision in (0, 1, 2, 9, 10, 11, 100, 1_000_000):
        backend.log.append("session/s", entry(revision))
    assert revisions(backend, "session/s") == [0, 1, 2, 9, 10, 11, 100, 1_000_000]
    assert revisions(backend, "session/s", after=9) == [10, 11, 100, 1_000_000]
    assert revisions(backend, "session/s", newest_first=True) == [1_000_000, 100, 11, 10, 9, 2, 1, 0]
    assert revisions(backend, "session/s", newest_first=True, limit=1) == [1_000_000]
    assert revisions(backend, "session/s", newest_first=True, after=10, limit=2) == [1_000_000, 100]
    assert revisions(backend, "session/s", limit=3) == [0, 1, 2]
    assert revisions(backend, "session/s", after=1_000_000) == []
    assert revisions(backend, "session/unknown") == []


def test_reads_page_through_megabytes(backend: Backend) -> None:
    """A read gives all entries when they are more than one page, from both ends, bounded or not."""
    noise = random.Random(1)
    for revision in range(12):
        backend.log.append("session/s", entry(revision, noise.randbytes(200_000)))
    assert revisions(backend, "session/s") == list(range(12))
    assert revisions(backend, "session/s", newest_first=True, limit=9) == list(range(11, 2, -1))
    lazily = islice(backend.log.read("session/s", newest_first=True), 2)
    assert [one.revision for one in lazily] == [11, 10]


@pytest.mark.parametrize("size", [390_000, 409_600, 600_000, 2_500_000, 5_000_000])
@pytest.mark.parametrize("compressible", [True, False])
def test_a_body_has_no_limit(backend: Backend, size: int, compressible: bool) -> None:
    """A body larger than a backend's records comes back byte for byte."""
    body = b"abcdefgh" * (size // 8) if compressible else random.Random(2).randbytes(size)
    written = entry(0, body)
    assert backend.log.append("session/s", written)
    assert list(backend.log.read("session/s")) == [written]


def test_two_large_saves_of_one_revision_do_not_mix(backend: Backend) -> None:
    """Of two large bodies for one revision the winner's is read, whole, and the loser leaves it alone."""
    noise = random.Random(3)
    winner, loser = entry(0, noise.randbytes(900_000)), entry(0, noise.randbytes(900_000), save_id="other")
    assert backend.log.append("session/s", winner)
    assert not backend.log.append("session/s", loser)
    assert list(backend.log.read("session/s")) == [winner]


def test_awkward_ids_are_streams_of_their_own(backend: Backend) -> None:
    """Ids that look alike or contain separators never share an entry, a head or a drop."""
    for kind in ("session", "approval"):
        for number, identity in enumerate(AWKWARD_IDS):
            assert backend.log.append(f"{kind}/{identity}", entry(0, f"{kind} {number}".encode()))
    backend.log.drop("session/a")
    for kind in ("session", "approval"):
        for number, identity in enumerate(AWKWARD_IDS):
            bodies = [one.body for one in backend.log.read(f"{kind}/{identity}")]
            assert bodies == ([] if (kind, identity) == ("session", "a") else [f"{kind} {number}".encode()])


def test_drop_removes_up_to_a_revision_and_leaves_tombstones(backend: Backend) -> None:
    """`drop(until)` removes entries with all their parts and may be repeated; tombstones stay for their time."""
    backend.log.append("session/s", entry(0, random.Random(4).randbytes(900_000)))
    backend.log.append("session/s", entry(1, kind="tombstone"))
    for revision in range(2, 40):
        backend.log.append("session/s", entry(revision))
    backend.log.drop("session/s", until=-1)
    assert len(revisions(backend, "session/s")) == 40
    for _ in range(2):
        backend.log.drop("session/s", until=35)
        assert revisions(backend, "session/s") == [1, 36, 37, 38, 39]
    backend.log.drop("session/s")
    assert revisions(backend, "session/s") == []
    backend.log.drop("session/unknown")


@pytest.mark.parametrize("size", [10, 900_000])
def test_entries_can_be_given_an_end(backend: Backend, size: int) -> None:
    """`expire` shortens the time of entries up to a revision; it prolongs none and revives none."""
    endless = [replace(entry(revision), fresh_until=None, expires_at=None) for revision in range(30)]
    endless[2] = replace(endless[2], body=random.Random(6).randbytes(size))
    for one in (entry(0), *endless[1:]):
        assert backend.log.append("session/s", one)
    fresh, end = START + timedelta(days=7), START.replace(microsecond=0) + timedelta(days=9)
    for _ in range(2):
        backend.log.expire("session/s", until=25, fresh_until=fresh, expires_at=end)
        shortened = [replace(one, fresh_until=fresh, expires_at=end) for one in endless[1:26]]
        assert list(backend.log.read("session/s")) == [entry(0), *shortened, *endless[26:]]
    backend.log.drop("session/s", until=27)
    sooner = end - timedelta(days=8)
    backend.log.expire("session/s", until=28, fresh_until=fresh, expires_at=sooner)
    assert [(one.revision, one.expires_at) for one in backend.log.read("session/s")] == [(28, sooner), (29, None)]
    backend.log.expire("session/unknown", until=5, fresh_until=fresh, expires_at=end)
    assert list(backend.log.read("session/unknown")) == []


def test_what_was_dropped_stays_taken(backend: Backend) -> None:
    """A writer who was overtaken long ago finds its revision taken, also when it was dropped; a read skips it."""
    for revision in range(30):
        backend.log.append("session/s", entry(revision, b"x" * (400_000 if revision == 5 else 1)))
    backend.log.drop("session/s", until=27)
    for revision in (0, 5, 27, 28):
        assert not backend.log.append("session/s", entry(revision, save_id="late"))
    assert revisions(backend, "session/s") == [28, 29]
    assert revisions(backend, "session/s", limit=1) == [28]
    backend.log.drop("session/s", until=29)
    assert revisions(backend, "session/s", newest_first=True, limit=1) == []
    assert backend.log.append("session/s", entry(30))
    backend.log.drop("session/s")
    assert backend.log.append("session/s", entry(0))


def test_every_call_is_counted(backend: Backend) -> None:
    """Each call of the log and of the leases is at least one request of the meter, also one that finds nothing."""
    log, leases, meter = backend.connect()
    now, until = backend.clock(), backend.clock() + timedelta(minutes=1)
    head = Head(kind="session", id="s", status="in-progress", revision=0, updated_at=now)
    held: list[Lease | None] = []
    calls: list[Callable[[], Any]] = [
        lambda: log.append("session/s", entry(0)),
        lambda: log.append("session/s", entry(0)),
        lambda: list(log.read("session/s")),
        lambda: list(log.read("session/unknown")),
        lambda: log.mark(head),
        lambda: log.announce("session/s", run_id="r", due_at=now),
        lambda: log.head("session/s"),
        lambda: log.settle(replace(head, due_at=now, due_run="r")),
        lambda: log.heads("session"),
        lambda: log.expire("session/s", until=0, fresh_until=now, expires_at=until),
        lambda: log.drop("session/s", until=0),
        lambda: held.append(leases.acquire("session/s", "one", until=until, revision=0)),
        lambda: leases.look("session/s"),
        lambda: leases.note_execution("session/s", "arn"),
        lambda: leases.request_abort("session/s", "r"),
        lambda: leases.release(held[0]) if held[0] is not None else None,
    ]
    for number, call in enumerate(calls):
        before = meter.consumed().requests
        call()
        assert meter.consumed().requests > before, f"call {number} is not counted"
