"""A store in one SQLite file: for one machine, safe with several threads and processes.

The database is in WAL mode, and every write is one `BEGIN IMMEDIATE` transaction that is on the disk when it returns.
Put it on a local disk: WAL needs memory that the processes share, which network file systems do not give.
"""

import os
import sqlite3
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from threading import RLock
from typing import Any, Final

from durable.errors import RecordFormatError, StoreError, StoreRejectedError, StoreUnavailableError
from durable.ports import Clock, IdFactory
from stores import _private
from stores._bundle import LogStore, log_store, new_id, utc_now
from stores._meter import Meter
from stores._sqlite_log import MIGRATIONS, Execute, SqliteLeases, SqliteLog
from stores.checkpoints import DEFAULT_HISTORY_LIMIT

__all__ = ["open_database", "sqlite_store"]

BUSY_TIMEOUT: Final = 10.0
"""How many seconds a call waits for another process before it is `StoreUnavailableError`."""

_MAY_PASS: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PROTOCOL,
    }
)
_DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_SIDECARS: Final = ("-wal", "-shm", "-journal")


def sqlite_store(
    database: str | os.PathLike[str] | sqlite3.Connection,
    *,
    ttl: timedelta | None = None,
    history_limit: int = DEFAULT_HISTORY_LIMIT,
    busy_timeout: float = BUSY_TIMEOUT,
    dir_mode: int = _private.DIR_MODE,
    file_mode: int = _private.FILE_MODE,
    clock: Clock = utc_now,
    ids: IdFactory = new_id,
) -> LogStore:
    """Give the store in a database file, made where it is missing with what is missing of its path.

    The file and its sidecars get `file_mode`, new directories `dir_mode` less the umask; existing directories stay as
    they are. A connection in place of a path is the caller's: it is not configured, not closed, its file's permissions
    are not touched, and it must have no transaction open when the store is called. Open it with
    `check_same_thread=False`, since runs call their store from worker threads.
    """
    log, leases, meter = open_database(
        database, busy_timeout=busy_timeout, dir_mode=dir_mode, file_mode=file_mode, clock=clock
    )
    return log_store(log, leases, meter, clock=clock, ids=ids, ttl=ttl, history_limit=history_limit)


def open_database(
    database: str | os.PathLike[str] | sqlite3.Connection,
    *,
    clock: Clock,
    busy_timeout: float = BUSY_TIMEOUT,
    dir_mode: int = _private.DIR_MODE,
    file_mode: int = _private.FILE_MODE,
) -> tuple[SqliteLog, SqliteLeases, Meter]:
    """Give the log and the leases in a database, and what counts the calls of both."""
    if isinstance(database, sqlite3.Connection):
        opened = Database(database, name="the database")
    else:
        modes = (_private.check_mode(dir_mode, "dir_mode"), _private.check_mode(file_mode, "file_mode"))
        opened = FileDatabase(Path(database), *modes, busy_timeout)
    meter = Meter()
    opened.migrate(MIGRATIONS)
    return SqliteLog(opened, meter, clock=clock), SqliteLeases(opened, meter, clock=clock), meter


class Database:
    """Transactions on a connection that somebody else owns: one at a time, by whichever thread."""

    def __init__(self, connection: sqlite3.Connection, *, name: str) -> None:
        self._own = connection
        self._name = name
        self._lock = RLock()

    @contextmanager
    def read(self, operation: str) -> Iterator[Execute]:
        with self._lock, self._translated(operation):
            yield _execute_on(self._connection())

    @contextmanager
    def write(self, operation: str) -> Iterator[Execute]:
        with self._lock, self._translated(operation):
            connection = self._connection()
            if connection.in_transaction:
                raise StoreRejectedError(operation, "the connection has a transaction open")
            execute = _execute_on(connection)
            # A transaction that began as a reader could not become a writer once another process has written.
            execute("BEGIN IMMEDIATE")
            try:
                yield execute
                execute("COMMIT")
            finally:
                if connection.in_transaction:
                    execute("ROLLBACK")

    def migrate(self, migrations: Sequence[Sequence[str]]) -> None:
        """Bring the schema to the newest number; a newer one is refused, since nothing is known about it."""
        if self._has_schema(len(migrations)):
            return
        with self.write("migrate") as execute:
            execute("CREATE TABLE IF NOT EXISTS durable_schema (number INTEGER NOT NULL)")
            # Another process may have been faster.
            number = _number(execute)
            for statement in [one for migration in migrations[number:] for one in migration]:
                execute(statement)
            execute("DELETE FROM durable_schema")
            execute("INSERT INTO durable_schema VALUES (?)", max(number, len(migrations)))
        self._has_schema(len(migrations))

    def _has_schema(self, newest: int) -> bool:
        with self.read("open") as execute:
            if not execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'durable_schema'"):
                return False
            number = _number(execute)
        if number > newest:
            reason = f"has schema {number}, and this version reads up to {newest}"
            raise RecordFormatError(self._name, reason)
        return number == newest

    def _connection(self) -> sqlite3.Connection:
        return self._own

    @contextmanager
    def _translated(self, operation: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise translate(operation, self._name, error) from error
        except OSError as error:
            raise _private.translate(operation, error) from error


class FileDatabase(Database):
    """Transactions in a file, over connections of its own: one for each process, since a fork must not share one."""

    def __init__(self, path: Path, dir_mode: int, file_mode: int, busy_timeout: float) -> None:
        self._path = path
        self._modes = dir_mode, file_mode
        self._busy_timeout = busy_timeout
        self._lock = RLock()
        self._name = repr(os.fspath(path))
        self._process = -1

    def _connection(self) -> sqlite3.Connection:
        if self._process != os.getpid():
            self._own = self._open()
            self._process = os.getpid()
            weakref.finalize(self, _close, self._own, self._process)
        return self._own

    def _open(self) -> sqlite3.Connection:
        dir_mode, file_mode = self._modes
        _private.make_directory(self._path.parent, dir_mode)
        # SQLite gives its sidecars the permissions of the database.
        os.close(_private.open_private(self._path, os.O_RDWR, file_mode))
        for sidecar in (Path(f"{self._path}{suffix}") for suffix in _SIDECARS):
            if sidecar.exists():
                sidecar.chmod(file_mode)
        connection = sqlite3.connect(
            self._path, timeout=self._busy_timeout, isolation_level=None, check_same_thread=False
        )
        try:
            self._configure(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _configure(self, connection: sqlite3.Connection) -> None:
        deadline = time.monotonic() + self._busy_timeout
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL").fetchall()
                break
            except sqlite3.OperationalError as error:
                # The change of mode does not wait by itself when several processes make it at once.
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        connection.execute("PRAGMA synchronous = FULL")


def translate(operation: str, name: str, error: sqlite3.Error) -> StoreError:
    """Give our error for one of SQLite's, decided by its code and never by its text."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_MISUSE) & 0xFF  # the driver's own errors have none
    if code in _DAMAGE:
        return RecordFormatError(name, f"is damaged or no database ({error})")
    kind = StoreUnavailableError if code in _MAY_PASS else StoreRejectedError
    return kind(operation, f"{getattr(error, 'sqlite_errorname', type(error).__name__)}: {error}")


def _execute_on(connection: sqlite3.Connection) -> Execute:
    def execute(statement: str, *parameters: Any) -> Sequence[tuple[Any, ...]]:
        cursor = connection.cursor()
        cursor.row_factory = None  # the caller's connection may have its own
        return cursor.execute(statement, parameters).fetchall()

    return execute


def _number(execute: Execute) -> int:
    rows = execute("SELECT number FROM durable_schema")
    return rows[0][0] if rows else 0


def _close(connection: sqlite3.Connection, process: int) -> None:
    if process == os.getpid():  # a connection that came through a fork is its parent's
        connection.close()
