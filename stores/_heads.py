"""What the calls of a log do to a head: pure, for the backends that change a head under a lock."""

from dataclasses import replace
from datetime import datetime

from durable.ports import Head
from stores._streams import ACCEPTED, DELETED, is_fresh


def marked(old: Head | None, head: Head) -> Head | None:
    """Give the head after a `mark`, which leaves the due mark alone; None when the old one is newer and stays."""
    if old is None:
        return replace(head, due_at=None, due_run=None)
    if head.revision < old.revision and is_fresh(old, head.updated_at):
        return None
    return replace(head, due_at=old.due_at, due_run=old.due_run)


def announced(old: Head | None, stream: str, *, run_id: str, due_at: datetime, now: datetime) -> Head:
    """Give the head with a due mark; where there is none, one that only announces the run."""
    kind, _, identity = stream.partition("/")
    head = old or Head(kind=kind, id=identity, status=ACCEPTED, updated_at=now)
    return replace(head, due_at=due_at, due_run=run_id)


def is_still_due(there: Head | None, seen: Head) -> bool:
    """Whether the due mark is the one that the caller saw: nobody has announced another run since."""
    if there is None or there.due_at is None:
        return False
    return (there.due_at, there.due_run) == (seen.due_at, seen.due_run)


def settled(there: Head) -> Head | None:
    """Give the head without its due mark; None when there was nothing but the mark."""
    return None if there.status == ACCEPTED else replace(there, due_at=None, due_run=None)


def is_listed(head: Head, kind: str, *, status: str | None, due_before: datetime | None) -> bool:
    """Whether a listing shows the head: deleted ones only when they are due or asked for."""
    if head.kind != kind:
        return False
    if status is not None and head.status != status:
        return False
    if due_before is None:
        return status is not None or head.status != DELETED
    return head.due_at is not None and head.due_at < due_before
