"""A store in the memory of one process: for tests, and for runs that need not survive it."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from threading import Lock

from durable.ports import Capacity, Clock, Entry, Head, IdFactory, Lease, Page
from stores._bundle import LogStore, log_store, new_id, utc_now
from stores._meter import Meter
from stores._streams import ACCEPTED, DELETED, NEVER_HELD, is_fresh
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
                return
            entries = self._streams.get(stream, {})
            for revision, entry in list(entries.items()):
                if revision <= until and entry.kind != "tombstone":
                    del entries[revision]
            self._dropped[stream] = max(until, self._dropped.get(stream, -1))

    def head(self, stream: str) -> Head | None:
        self._meter.add(Capacity(requests=1))
        with self._lock:
            return self._heads.get(stream)

    def mark(self, head: Head) -> None:
        self._meter.add(Capacity(requests=1))
        with self._lock:
            old = self._heads.get(head.stream)
            if old is not None and head.revision < old.revision and is_fresh(old, head.updated_at):
                return
            due_at, due_run = (old.due_at, old.due_run) if old is not None else (None, None)
            self._heads[head.stream] = replace(head, due_at=due_at, due_run=due_run)

    def announce(self, stream: str, *, run_id: str, due_at: datetime) -> None:
        self._meter.add(Capacity(requests=1))
        kind, _, identity = stream.partition("/")
        with self._lock:
            head = self._heads.get(stream) or Head(kind=kind, id=identity, status=ACCEPTED, updated_at=self._clock())
            self._heads[stream] = replace(head, due_at=due_at, due_run=run_id)

    def settle(self, head: Head) -> None:
        self._meter.add(Capacity(requests=1))
        with self._lock:
            there = self._heads.get(head.stream)
            if there is None or there.due_at is None or (there.due_at, there.due_run) != (head.due_at, head.due_run):
                return
            if there.status == ACCEPTED:
                del self._heads[head.stream]
            else:
                self._heads[head.stream] = replace(there, due_at=None, due_run=None)

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
            if head.kind == kind
            and (head.status == status if status is not None else head.status != DELETED or due_before is not None)
            and (due_before is None or (head.due_at is not None and head.due_at < due_before))
            and (cursor is None or head.id > cursor)
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
            old = self._get(stream)
            if old.owner not in (None, owner) and old.until > self._clock():
                return None
            attempt = old.attempt + 1 if old.attempt and old.revision == revision else 1
            return self._put(
                replace(old, owner=owner, until=until, fence=old.fence + 1, attempt=attempt, revision=revision)
            )

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

    def release(self, lease: Lease) -> None:
        with self._lock:
            there = self._get(lease.stream)
            if there.fence == lease.fence:
                self._put(replace(there, owner=None, until=self._clock()))

    def _get(self, stream: str) -> Lease:
        return self._leases.get(stream) or Lease(stream=stream, owner=None, until=NEVER_HELD, fence=0)

    def _put(self, lease: Lease) -> Lease:
        self._meter.add(Capacity(requests=1))
        self._leases[lease.stream] = lease
        return lease
