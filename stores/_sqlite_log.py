"""The log and the leases in SQLite: rows, and what each call does to them inside one transaction."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple, fields, replace
from datetime import datetime
from typing import Any, Final, Protocol, TypeVar

from durable.capacity import Capacity
from durable.ports import Clock, Entry, Head, Lease, Page
from stores._heads import announced, is_still_due, marked, settled
from stores._leases import acquired, released, unheld
from stores._meter import Meter
from stores._streams import DELETED, stamp

Row = tuple[Any, ...]
Execute = Callable[..., Sequence[Row]]
"""Runs one statement with its parameters and gives all its rows."""

T = TypeVar("T", Entry, Head, Lease)

_PAGE: Final = 100
"""How many entries are read at once."""


class Transactions(Protocol):
    """A database. `read` sees one state of it, `write` is alone with it from its first statement on."""

    def read(self, operation: str) -> AbstractContextManager[Execute]: ...
    def write(self, operation: str) -> AbstractContextManager[Execute]: ...


MIGRATIONS: Final[Sequence[Sequence[str]]] = (
    # 1: the first version.
    (
        "CREATE TABLE durable_entries (stream TEXT NOT NULL, revision INTEGER NOT NULL, kind TEXT NOT NULL,"
        " base INTEGER NOT NULL, save_id TEXT NOT NULL, written_at TEXT NOT NULL, body BLOB NOT NULL,"
        " fresh_until TEXT, expires_at TEXT, PRIMARY KEY (stream, revision))",
        # What was dropped stays taken: no entry at or below `until` can be written again.
        "CREATE TABLE durable_dropped (stream TEXT PRIMARY KEY, until INTEGER NOT NULL) WITHOUT ROWID",
        "CREATE TABLE durable_heads (stream TEXT PRIMARY KEY, kind TEXT NOT NULL, id TEXT NOT NULL,"
        " status TEXT NOT NULL, revision INTEGER NOT NULL, base INTEGER NOT NULL, listed_from INTEGER NOT NULL,"
        " due_at TEXT, due_run TEXT, updated_at TEXT NOT NULL, fresh_until TEXT, expires_at TEXT) WITHOUT ROWID",
        "CREATE INDEX durable_heads_listed ON durable_heads (kind, id, status)",
        "CREATE INDEX durable_heads_due ON durable_heads (kind, due_at) WHERE due_at IS NOT NULL",
        "CREATE TABLE durable_leases (stream TEXT PRIMARY KEY, owner TEXT, until TEXT NOT NULL,"
        " fence INTEGER NOT NULL, attempt INTEGER NOT NULL, revision INTEGER NOT NULL, execution TEXT,"
        " abort_run TEXT) WITHOUT ROWID",
    ),
)
"""The statements that lead from each number of the schema to the next. What was released is never edited."""


class SqliteLog:
    """A `Log` in the tables of `MIGRATIONS`."""

    def __init__(self, database: Transactions, meter: Meter, *, clock: Clock) -> None:
        self._database = database
        self._meter = meter
        self._clock = clock

    def append(self, stream: str, entry: Entry) -> bool:
        self._meter.add(Capacity(requests=1, bytes_written=len(entry.body)))
        with self._database.write("append") as execute:
            where = (stream, entry.revision)
            there = execute("SELECT save_id FROM durable_entries WHERE stream = ? AND revision = ?", *where)
            if there:
                return there == [(entry.save_id,)]
            if execute("SELECT 1 FROM durable_dropped WHERE stream = ? AND until >= ?", *where):
                return False
            execute(
                f"INSERT INTO durable_entries (stream, {_names(Entry)}) VALUES (?, {_marks(Entry)})",
                *(stream, *_row(entry)),
            )
            return True

    def read(
        self, stream: str, *, after: int = -1, newest_first: bool = False, limit: int | None = None
    ) -> Iterable[Entry]:
        self._meter.add(Capacity(requests=1))
        return self._pages(stream, after, newest_first, limit)

    def _pages(self, stream: str, after: int, newest_first: bool, limit: int | None) -> Iterator[Entry]:
        bound, left = None, limit
        order, edge = ("DESC", "<") if newest_first else ("ASC", ">")
        query = (
            f"SELECT {_names(Entry)} FROM durable_entries WHERE stream = ? AND revision > ?"
            f" AND (? IS NULL OR revision {edge} ?) ORDER BY revision {order} LIMIT ?"
        )
        while left is None or left > 0:
            size = _PAGE if left is None else min(left, _PAGE)
            with self._database.read("read") as execute:
                rows = execute(query, stream, after, bound, bound, size)
            yield from (_value(Entry, row) for row in rows)
            if len(rows) < size:
                return
            bound, left = rows[-1][0], None if left is None else left - size

    def drop(self, stream: str, *, until: int | None = None) -> None:
        self._meter.add(Capacity(requests=1))
        with self._database.write("drop") as execute:
            if until is None:
                for table in ("entries", "dropped", "heads"):
                    execute(f"DELETE FROM durable_{table} WHERE stream = ?", stream)
                return
            execute(
                "DELETE FROM durable_entries WHERE stream = ? AND revision <= ? AND kind <> 'tombstone'", stream, until
            )
            execute(
                "INSERT INTO durable_dropped VALUES (?, ?)"
                " ON CONFLICT (stream) DO UPDATE SET until = max(until, excluded.until)",
                *(stream, until),
            )

    def expire(self, stream: str, *, until: int, fresh_until: datetime, expires_at: datetime) -> None:
        self._meter.add(Capacity(requests=1))
        fresh, end = stamp(fresh_until), stamp(expires_at)
        with self._database.write("expire") as execute:
            execute(
                "UPDATE durable_entries SET fresh_until = min(coalesce(fresh_until, ?), ?), expires_at = ?"
                " WHERE stream = ? AND revision <= ? AND (expires_at IS NULL OR expires_at > ?)",
                *(fresh, fresh, end, stream, until, end),
            )

    # The head

    def head(self, stream: str) -> Head | None:
        self._meter.add(Capacity(requests=1))
        with self._database.read("head") as execute:
            return _one(execute, Head, "durable_heads", stream)

    def mark(self, head: Head) -> None:
        self._meter.add(Capacity(requests=1))
        with self._database.write("mark") as execute:
            if new := marked(_one(execute, Head, "durable_heads", head.stream), head):
                _put(execute, head.stream, new)

    def announce(self, stream: str, *, run_id: str, due_at: datetime) -> None:
        self._meter.add(Capacity(requests=1))
        with self._database.write("announce") as execute:
            old = _one(execute, Head, "durable_heads", stream)
            new = announced(old, stream, run_id=run_id, due_at=due_at, now=self._clock())
            _put(execute, stream, new)

    def settle(self, head: Head) -> None:
        self._meter.add(Capacity(requests=1))
        with self._database.write("settle") as execute:
            there = _one(execute, Head, "durable_heads", head.stream)
            if there is None or not is_still_due(there, head):
                return
            if left := settled(there):
                _put(execute, head.stream, left)
            else:
                execute("DELETE FROM durable_heads WHERE stream = ?", head.stream)

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
        conditions: dict[str, Any] = {"kind = ?": kind}
        if status is not None:
            conditions["status = ?"] = status
        elif due_before is None:
            conditions["status <> ?"] = DELETED
        if due_before is not None:
            conditions["due_at < ?"] = stamp(due_before)
        if cursor is not None:
            conditions["id > ?"] = cursor
        query = f"SELECT {_names(Head)} FROM durable_heads WHERE {' AND '.join(conditions)} ORDER BY id LIMIT ?"
        with self._database.read("heads") as execute:
            heads = [_value(Head, row) for row in execute(query, *conditions.values(), limit + 1)]
        return Page(heads[:limit], heads[limit - 1].id if len(heads) > limit else None)


class SqliteLeases:
    """`Leases` beside the log, in the same database."""

    def __init__(self, database: Transactions, meter: Meter, *, clock: Clock) -> None:
        self._database = database
        self._meter = meter
        self._clock = clock

    def acquire(self, stream: str, owner: str, *, until: datetime, revision: int) -> Lease | None:
        def change(old: Lease) -> Lease | None:
            return acquired(old, owner, until=until, revision=revision, now=self._clock())

        return self._change("acquire", stream, change)

    def look(self, stream: str) -> Lease | None:
        self._meter.add(Capacity(requests=1))
        with self._database.read("look") as execute:
            return _one(execute, Lease, "durable_leases", stream)

    def note_execution(self, stream: str, execution: str) -> None:
        self._change("note_execution", stream, lambda old: replace(old, execution=execution))

    def request_abort(self, stream: str, run_id: str) -> None:
        self._change("request_abort", stream, lambda old: replace(old, abort_run=run_id))

    def release(self, lease: Lease, *, counts: bool = True) -> None:
        self._change("release", lease.stream, lambda there: released(there, lease, self._clock(), counts=counts))

    def _change(self, operation: str, stream: str, change: Callable[[Lease], Lease | None]) -> Lease | None:
        self._meter.add(Capacity(requests=1))
        with self._database.write(operation) as execute:
            new = change(_one(execute, Lease, "durable_leases", stream) or unheld(stream))
            if new is not None:
                names, marks = _names(Lease), _marks(Lease)
                execute(f"INSERT OR REPLACE INTO durable_leases ({names}) VALUES ({marks})", *_row(new))
            return new


# Rows and values: the columns of a table are the fields of its record, in the same order. Times are text that sorts.


def _names(kind: type[T]) -> str:
    return ", ".join(field.name for field in fields(kind))


def _marks(kind: type[T]) -> str:
    return ", ".join("?" * len(fields(kind)))


def _row(value: Entry | Head | Lease) -> Row:
    return tuple(stamp(one) if isinstance(one, datetime) else one for one in astuple(value))


def _value(kind: type[T], row: Row) -> T:
    columns: dict[str, Any] = {field.name: column for field, column in zip(fields(kind), row, strict=True)}
    for name in _TIMES & columns.keys():
        if columns[name] is not None:
            columns[name] = datetime.fromisoformat(columns[name])
    return kind(**columns)


_TIMES: Final = frozenset({"written_at", "updated_at", "fresh_until", "expires_at", "due_at", "until"})


def _one(execute: Execute, kind: type[T], table: str, stream: str) -> T | None:
    rows = execute(f"SELECT {_names(kind)} FROM {table} WHERE stream = ?", stream)
    return _value(kind, rows[0]) if rows else None


def _put(execute: Execute, stream: str, head: Head) -> None:
    names, marks = _names(Head), _marks(Head)
    execute(f"INSERT OR REPLACE INTO durable_heads (stream, {names}) VALUES (?, {marks})", stream, *_row(head))
