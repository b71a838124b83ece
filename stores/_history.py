"""Which entries a history lists, and which it needs for that: pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from durable.ports import Entry, HistoryEntry
from stores._replay import Replay
from stores._streams import Behind, gap_in, is_fresh


@dataclass(frozen=True, slots=True)
class Listed:
    """Entries in order, from the base of the oldest listed save to the newest entry, and the revisions to list."""

    entries: Sequence[Entry]
    revisions: frozenset[int]


def select(newest_first: Iterable[Entry], count: int, now: datetime) -> Listed | Behind:
    """Take the newest `count` fresh saves and what they are made of; reads no further back than that.

    A tombstone ends it. A cleared entry and a base are no saves, and what is before them stays listed.
    """
    taken: list[Entry] = []
    listed: set[int] = set()
    base: int | None = None  # of the oldest listed save
    for entry in newest_first:
        full = len(listed) == count or not is_fresh(entry, now)
        if entry.kind == "tombstone" or (full and (base is None or entry.revision < base)):
            break
        taken.append(entry)
        if not full and entry.kind not in ("cleared", "base"):
            listed.add(entry.revision)
            base = entry.base
    entries = [entry for entry in reversed(taken) if base is not None and entry.revision >= base]
    if base is not None and entries[0].revision != base:
        return Behind(base, entries[0].revision)
    return gap_in(entries) or Listed(entries, frozenset(listed))


def replay(stream: str, listed: Listed) -> list[HistoryEntry]:
    """Give the listed saves, newest first."""
    folded, saves = Replay(stream), list[HistoryEntry]()
    for entry in listed.entries:
        folded.apply(entry)
        if entry.revision in listed.revisions:
            whole = folded.checkpoint()
            saves.append(HistoryEntry(entry.revision, whole.step, entry.written_at, whole.status, whole))
    return saves[::-1]
