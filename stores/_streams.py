"""What every use of a log needs: appends that survive a lost response, reads that never give the past."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final, TypeVar

from durable.errors import StaleReplicaError, StoreUnavailableError
from durable.ports import Entry, EntryKind, Head, Log

T = TypeVar("T")

WHOLE: Final = frozenset[EntryKind]({"reset", "base"})
"""The kinds of entries that hold everything, so that nothing before them is needed."""

DELETED: Final = "deleted"
"""The status of the head of a stream that was deleted or cleared. Such heads are not listed."""

ACCEPTED: Final = "accepted"
"""The status of a head that only announces a run: nothing of it has been saved yet."""

NEVER_HELD: Final = datetime.fromtimestamp(0, UTC)
"""The `until` of a lease record that nobody has acquired yet."""

LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)
"""The end of what is not there."""

TAKEN_FOR: Final = timedelta(days=7)
"""How long a revision that was deleted or dropped stays taken at least: longer than a writer can be left behind."""


def is_fresh(item: Entry | Head, now: datetime) -> bool:
    """Whether an entry or a head still counts: up to `fresh_until` and not at it."""
    return item.fresh_until is None or now < item.fresh_until


def lifetime(now: datetime, ttl: timedelta | None) -> tuple[datetime | None, datetime | None]:
    """Give `fresh_until` and `expires_at`. What was written outlives its freshness by `ttl`, for those who need it."""
    return (None, None) if ttl is None else (now + ttl, whole_second(now + 2 * ttl))


def whole_second(moment: datetime) -> datetime:
    """Round up: backends that remove by time count in seconds and must not be early."""
    return datetime.fromtimestamp(math.ceil(moment.timestamp()), UTC)


def stamp(moment: datetime) -> str:
    """Give a time as text that sorts like the time: UTC, always with microseconds."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def later(one: datetime | None, other: datetime | None) -> datetime | None:
    """Give the later of two ends; None is no end at all."""
    return None if one is None or other is None else max(one, other)


def earlier(one: datetime | None, other: datetime) -> datetime:
    """Give the earlier of two ends, the first of which may be none."""
    return other if one is None else min(one, other)


def ended(entry: Entry, fresh_until: datetime, expires_at: datetime) -> Entry | None:
    """Give an entry with an end, or None where it would not last longer anyway."""
    if entry.expires_at is not None and entry.expires_at <= expires_at:
        return None
    return replace(entry, fresh_until=earlier(entry.fresh_until, fresh_until), expires_at=expires_at)


def append(log: Log, stream: str, entry: Entry) -> bool:
    """Append, and once more when it is not known whether that was applied: an own entry that is there is success."""
    try:
        return log.append(stream, entry)
    except StoreUnavailableError:
        return log.append(stream, entry)


def newest(log: Log, stream: str) -> Entry | None:
    """Give the entry with the highest revision, whatever its kind and expired or not."""
    return next(iter(log.read(stream, newest_first=True, limit=1)), None)


@dataclass(frozen=True, slots=True)
class Absent:
    """There is nothing: never written, deleted, cleared or expired."""


@dataclass(frozen=True, slots=True)
class Found:
    """The entries from the base to the newest, without a gap."""

    entries: Sequence[Entry]


@dataclass(frozen=True, slots=True)
class Behind:
    """Entries are missing that were promised."""

    expected: int
    found: int


def examine(entries: Sequence[Entry], head: Head | None, now: datetime) -> Absent | Found | Behind:
    """Decide what the entries that were read mean. In this order:

    1. a tombstone is the newest: absent, whatever else is missing
    2. a fresh head promises more: behind
    3. the newest is not fresh, or clears the session: absent
    4. from the newest reset or base on every number must be there: a gap, or neither of them, is behind
    """
    last = entries[-1] if entries else None
    if last is not None and last.kind == "tombstone":
        return Absent()
    found = last.revision if last is not None else -1
    if head is not None and is_fresh(head, now) and head.revision > found:
        return Behind(head.revision, found)
    if last is None or not is_fresh(last, now) or last.kind == "cleared":
        return Absent()
    base = next((at for at in reversed(range(len(entries))) if entries[at].kind in WHOLE), None)
    if base is None:
        return Behind(last.base, found)
    return gap_in(entries[base:]) or Found(entries[base:])


def gap_in(entries: Sequence[Entry]) -> Behind | None:
    """Give the first revision that is missing between entries in order."""
    for before, entry in pairwise(entries):
        if entry.revision != before.revision + 1:
            return Behind(before.revision + 1, before.revision)
    return None


def read_twice(stream: str, read: Callable[[], T | Behind]) -> T:
    """Read, and once more when entries are missing: they may be under way. Then it is `StaleReplicaError`."""
    with suppress(StaleReplicaError):  # the backend itself may find parts of an entry missing
        outcome = read()
        if not isinstance(outcome, Behind):
            return outcome
    outcome = read()
    if isinstance(outcome, Behind):
        raise StaleReplicaError(stream, expected=outcome.expected, found=outcome.found)
    return outcome
