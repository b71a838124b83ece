"""When a new base is due, and which entries nobody needs once it is there: pure."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from durable.ports import Entry
from stores._places import Place
from stores._streams import is_fresh

MIN_ENTRIES: Final = 100
"""From how many entries since the base on another one may be due. A base is read with the entries after it."""

UNLISTED: Final = 50
"""How many entries that are no saves are looked through among the listed ones. There is one in a hundred."""


def sizes(entries: Iterable[Entry]) -> tuple[int, int]:
    """Give the bytes of the base and of the entries after it, which come in order."""
    first, *since = [len(entry.body) for entry in entries]
    return first, sum(since)


def is_due(place: Place) -> bool:
    """Whether what came after the base is larger than it: a transcript is rewritten when it has about doubled."""
    if place.sizes is None or place.revision - place.base < MIN_ENTRIES:
        return False
    base, since = place.sizes
    return since > base


def is_far(old: int, new: int) -> bool:
    """Whether a base has moved over a hundred: once in a hundred entries, however often saves move it."""
    return new // MIN_ENTRIES > old // MIN_ENTRIES


def needed_from(newest_first: Sequence[Entry], count: int, now: datetime, since: datetime | None = None) -> int | None:
    """Give the first revision that the newest entry or one of the newest `count` saves needs; None if not known.

    A save counts while it is fresh and not older than `since`. What comes after a tombstone needs nothing before it.
    """
    if not newest_first:
        return None
    needed, listed = newest_first[0].base, 0
    for entry in newest_first:
        old = since is not None and entry.written_at < since
        if listed == count or old or entry.kind == "tombstone" or not is_fresh(entry, now):
            return needed
        if entry.kind not in ("cleared", "base"):
            needed, listed = min(needed, entry.base), listed + 1
    # All that was read is listed: there may be more.
    return None if len(newest_first) == count + UNLISTED else needed
