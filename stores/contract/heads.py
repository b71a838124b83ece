"""What every log must do with heads: two owners who never touch each other's part, and a listing in pages."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from durable.errors import ConfigurationError
from durable.ports import Head, Log
from stores.contract.backend import START, Backend
from stores.contract.samples import AWKWARD_IDS

DUE = START + timedelta(minutes=5)
DAY = timedelta(days=1)


def head(identity: str = "s", status: str = "in-progress", **fields: Any) -> Head:
    return Head(kind="session", id=identity, status=status, **{"revision": 0, "updated_at": START} | fields)


def listed(log: Log, kind: str = "session", *, limit: int = 50, **arguments: Any) -> list[str]:
    """Give the ids of all pages."""
    ids: list[str] = []
    cursor: str | None = None
    while True:
        page = log.heads(kind, limit=limit, cursor=cursor, **arguments)
        assert len(page.items) <= limit
        ids += [one.id for one in page.items]
        cursor = page.cursor
        if cursor is None:
            return sorted(ids)


def test_a_head_comes_back_as_it_was_marked(backend: Backend) -> None:
    """A head is read back field by field, and an unknown stream has none."""
    assert backend.log.head("session/s") is None
    marked = head(revision=7, base=3, listed_from=2, fresh_until=START + DAY, expires_at=DUE.replace(microsecond=0))
    backend.log.mark(marked)
    assert backend.log.head("session/s") == marked
    endless = head(revision=8, base=8, status="finished")
    backend.log.mark(endless)
    assert backend.log.head("session/s") == endless


def test_a_head_never_goes_back(backend: Backend) -> None:
    """A late mark of a lower revision changes nothing while the head is fresh."""
    newer = head(revision=5, base=5, status="finished", fresh_until=START + DAY)
    backend.log.mark(newer)
    backend.log.mark(head(revision=4, base=2, updated_at=START + DAY - timedelta(microseconds=1)))
    assert backend.log.head("session/s") == newer


def test_a_head_past_its_time_is_replaced(backend: Backend) -> None:
    """A head that is no longer fresh may be replaced by a lower revision, of a session that began anew."""
    backend.log.mark(head(revision=5, base=5, fresh_until=START + DAY))
    again = head(revision=0, base=0, updated_at=START + DAY)
    backend.log.mark(again)
    assert backend.log.head("session/s") == again


def test_a_mark_leaves_the_due_mark_and_an_announcement_the_rest(backend: Backend) -> None:
    """The store's part and the due mark of a head are set apart, in either order."""
    marked = head(revision=3, base=1, fresh_until=START + DAY)
    backend.log.mark(marked)
    backend.log.announce("session/s", run_id="r2", due_at=DUE)
    assert backend.log.head("session/s") == replace(marked, due_at=DUE, due_run="r2")
    finished = replace(marked, status="finished", revision=4)
    backend.log.mark(finished)
    assert backend.log.head("session/s") == replace(finished, due_at=DUE, due_run="r2")


def test_an_announcement_may_come_first(backend: Backend) -> None:
    """A run is announced before anything of its session is saved; its settled head is gone with the mark."""
    backend.log.announce("session/s", run_id="r1", due_at=DUE)
    announced = backend.log.head("session/s")
    assert announced == head(status="accepted", revision=-1, due_at=DUE, due_run="r1")
    assert announced is not None
    backend.log.settle(announced)
    assert backend.log.head("session/s") is None


def test_a_settled_head_keeps_the_rest(backend: Backend) -> None:
    """`settle` takes away the due mark alone, also when the head was marked after the caller read it."""
    backend.log.announce("session/s", run_id="r1", due_at=DUE)
    announced = backend.log.head("session/s")
    assert announced is not None
    backend.log.mark(head(revision=0))
    backend.log.settle(announced)
    assert backend.log.head("session/s") == head(revision=0)
    backend.log.settle(head(revision=0))
    backend.log.settle(head("unknown"))
    assert backend.log.head("session/unknown") is None


@pytest.mark.parametrize(("run_id", "due_at"), [("r2", DUE), ("r1", DUE + timedelta(seconds=1))])
def test_a_stale_clearer_clears_nothing(backend: Backend, run_id: str, due_at: datetime) -> None:
    """A due mark that was set after the caller read the head stays: another run, or the same one handed over."""
    for marked in (False, True):
        if marked:
            backend.log.mark(head())
        backend.log.announce("session/s", run_id="r1", due_at=DUE)
        seen = backend.log.head("session/s")
        assert seen is not None
        backend.log.announce("session/s", run_id=run_id, due_at=due_at)
        backend.log.settle(seen)
        now = backend.log.head("session/s")
        assert now is not None
        assert (now.due_run, now.due_at) == (run_id, due_at)


def test_heads_are_listed_by_kind_and_status(backend: Backend) -> None:
    """A listing shows the heads of one kind, all or of one status, and each once."""
    for identity in AWKWARD_IDS:
        backend.log.mark(head(identity))
    backend.log.mark(head("done"))
    backend.log.mark(head("done", "finished", revision=1))
    backend.log.mark(Head(kind="approval", id="p", status="pending", updated_at=START))
    backend.log.announce("session/new", run_id="r", due_at=DUE)
    assert listed(backend.log, status="in-progress") == sorted(AWKWARD_IDS)
    assert listed(backend.log, status="finished") == ["done"]
    assert listed(backend.log, status="accepted") == ["new"]
    assert listed(backend.log) == sorted([*AWKWARD_IDS, "done", "new"])
    assert listed(backend.log, "approval") == ["p"]
    assert listed(backend.log, "approval", status="decided") == []


@pytest.mark.parametrize("limit", [1, 2, 7, 23, 24])
def test_a_listing_comes_in_pages(backend: Backend, limit: int) -> None:
    """Pages of any size together show every head once; a page is full unless it is the last."""
    ids = sorted(f"s{number}" for number in range(23))
    for number, identity in enumerate(ids):
        backend.log.mark(head(identity, "finished" if number % 3 else "in-progress"))
        backend.log.announce(f"session/{identity}", run_id="r", due_at=DUE + timedelta(seconds=number))
    assert listed(backend.log, limit=limit) == ids
    assert listed(backend.log, limit=limit, due_before=DUE + timedelta(seconds=10)) == ids[:10]
    first = backend.log.heads("session", limit=limit)
    assert len(first.items) == min(limit, 23)


def test_due_heads_are_those_before_a_time(backend: Backend) -> None:
    """A head is due strictly before the time asked for, and not once it is settled."""
    backend.log.mark(head("never"))
    backend.log.mark(head("due"))
    backend.log.announce("session/due", run_id="r", due_at=DUE)
    backend.log.announce("session/new", run_id="r", due_at=DUE - timedelta(microseconds=1))
    assert listed(backend.log, due_before=DUE) == ["new"]
    later = DUE + timedelta(microseconds=1)
    assert listed(backend.log, due_before=later) == ["due", "new"]
    assert listed(backend.log, due_before=later, status="in-progress") == ["due"]
    (shown,) = backend.log.heads("session", due_before=later, status="in-progress").items
    assert shown == head("due", due_at=DUE, due_run="r")
    backend.log.settle(shown)
    assert listed(backend.log, due_before=later) == ["new"]
    assert listed(backend.log, status="in-progress") == ["due", "never"]


def test_deleted_heads_are_listed_only_when_due(backend: Backend) -> None:
    """A head of status `deleted` is out of the listing, but a run announced there is still found."""
    backend.log.mark(head("gone", "deleted"))
    assert listed(backend.log) == []
    backend.log.announce("session/gone", run_id="r", due_at=DUE)
    assert listed(backend.log) == []
    assert listed(backend.log, due_before=DUE + DAY) == ["gone"]


def test_a_foreign_cursor_is_refused(backend: Backend) -> None:
    """A cursor that no listing gave is a `ConfigurationError`, if it is not just past the end."""
    for cursor in ("x", "e30=", "WzE=", "!", "ä"):
        try:
            page = backend.log.heads("session", cursor=cursor)
        except ConfigurationError:
            continue
        assert list(page.items) == []


def test_a_stream_that_is_dropped_has_no_head(backend: Backend) -> None:
    """When a whole stream is dropped its head goes with it, while a drop up to a revision leaves it."""
    backend.log.mark(head(revision=3))
    backend.log.drop("session/s", until=3)
    assert backend.log.head("session/s") == head(revision=3)
    backend.log.drop("session/s")
    assert backend.log.head("session/s") is None
    assert listed(backend.log) == []
