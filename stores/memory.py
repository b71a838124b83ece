"""A store in the memory of one process: for tests, and for runs that need not survive it."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from threading import Lock

from durable.capacity import Capacity
from durable.ports import Clock, Entry, Head, IdFactory, Lease, Page
from stores._bundle import LogStore, log_store, new_id, utc_now
from stores._heads import announced, is_listed, is_still_due, marked, settled
from stores._leases import acquired, released, unheld
from stores._meter import Meter
from stores._streams import ended
from stores.checkpoints import DEFAULT_HISTORY_LIMIT


def memory_store(
    *,
    ttl: timedelta | None = None,
    history_limit: int = DEFAULT_HISTORY_LIMIT,
    clock: Clock = utc_now,
    ids: IdFactory = new_id,
) -> LogStore:
    """Give a new, empty store. What goes in and comes out are copies."""
    meter = Meter()
    log, leases = MemoryLog(meter, clock=clock), MemoryLeases(meter, clock=clock)
    return log_store(log, leases, meter, clock=clock, ids=ids, ttl=ttl, history_limit=history_limit)


class MemoryLog:
    """A `Log` of entries that nobody can change: they are frozen and their bodies are bytes."""

    blocks = False

    def __init__(self, meter: Meter, *, clock: Clock) -> None:
        self._meter = meter
        self._clock = clock
        self._lock = Lock()
        self._streams: dict[str, dict[int, Entry]] = {}
        self._dropped: dict[str, int] = {}
        self._heads: dict[str, Head] = {}

    def append(self, stream: str, entry: Entry) -> bool:
        self._meter.add(Capacity(requests=1, bytes_written=len(entry.body)))
        with self._lock:
            entries = self._streams.setdefault(stream, {})
            if entry.revision not in entries and entry.revision <= self._dropped.get(stream, -1):
                return False
            there = entries.setdefault(entry.revision, entry)
        return there.save_id == entry.save_id

    def read(
        self, stream: str, *, after: int = -1, newest_first: bool = False, limit: int | None = None
    ) -> Iterable[Entry]:
        self._meter.add(Capacity(requests=1))
        with self._lock:
            entries = [entry for revision, entry in self._streams.get(stream, {}).items() if revision > after]
        entries.sort(key=lambda entry: entry.revision, reverse=newest_first)
        return iter(entries[:limit])

    def drop(self, stream: str, *, until: int | None = None) -> None:
        self._meter.add(Capacity(requests=1))
        with self._lock:
            if until is None:
                self._streams.pop(stream, None)
                self._dropped.pop(stream, None)
                self._heads.pop(stream, None)
                return
            entries = self._streams.get(stream, {})
            for revision, entry in list(entries.items()):
                if revision <= until and entry.kind != "tombstone":
                    del entries[revision]
            self._dropped[stream] = max(until, self._dropped.get(stream, -1))

    def expire(self, stream: str, *, until: int, fresh_until: datetime, expires_at: datetime) -> None:
        self._meter.add(Capacity(requests=1))
        with self._lock:
            entries = self._streams.get(stream, {})
            for revision, entry in entries.items():
                if revision <= until and (new := ended(entry, fresh_until, expires_at)):
                    entries[revision] = new

    def head(self, stream: str) -> Head | None:
        self._meter.add(Capacity(requests=1))
        with self._lock:
            return self._heads.get(stream)

    def mark(self, head: Head) -> None:
        self._meter.add(Capacity(requests=1))
        with self._lock:
            if new := marked(self._heads.get(head.stream), head):
                self._heads[head.stream] = new

    def announce(self, stream: str, *, run_id: str, due_at: datetime) -> None:
        self._meter.add(Capacity(requests=1))
        with self._lock:
            old = self._heads.get(stream)
            self._heads[stream] = announced(old, stream, run_id=run_id, due_at=due_at, now=self._clock())

    def settle(self, head: Head) -> None:
        self._meter.add(Capacity(requests=1))
        with self._lock:
            there = self._heads.get(head.stream)
            if there is None or not is_still_due(there, head):
                return
            if left := settled(there):
                self._heads[head.stream] = left
            else:
                del self._heads[head.stream]

    def heads(
        self,
        kind: str,
        *,
        status: str | None = None,
        due_before: datetime | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[Head]:
        self._meter.add(Capacity(requests=1))
        with self._lock:
            heads = sorted(self._heads.values(), key=lambda head: head.id)
        wanted = [
            head
            for head in heads
            if is_listed(head, kind, status=status, due_before=due_before) and (cursor is None or head.id > cursor)
        ]
        return Page(wanted[:limit], wanted[limit - 1].id if len(wanted) > limit else None)


class MemoryLeases:
    """`Leases` of one process."""

    def __init__(self, meter: Meter, *, clock: Clock) -> None:
        self._meter = meter
        self._clock = clock
        self._lock = Lock()
        self._leases: dict[str, Lease] = {}

    def acquire(self, stream: str, owner: str, *, until: datetime, revision: int) -> Lease | None:
        with self._lock:
            lease = acquired(self._get(stream), owner, until=until, revision=revision, now=self._clock())
            return self._put(lease) if lease is not None else None

    def look(self, stream: str) -> Lease | None:
        self._meter.add(Capacity(requests=1))
        with self._lock:
            return self._leases.get(stream)

    def note_execution(self, stream: str, execution: str) -> None:
        with self._lock:
            self._put(replace(self._get(stream), execution=execution))

    def request_abort(self, stream: str, run_id: str) -> None:
        with self._lock:
            self._put(replace(self._get(stream), abort_run=run_id))

    def release(self, lease: Lease, *, counts: bool = True) -> None:
        with self._lock:
            if ended := released(self._get(lease.stream), lease, self._clock(), counts=counts):
                self._put(ended)

    def _get(self, stream: str) -> Lease:
        return self._leases.get(stream) or unheld(stream)

    def _put(self, lease: Lease) -> Lease:
        self._meter.add(Capacity(requests=1))
        self._leases[lease.stream] = lease
        return lease
