"""What only SQLite can get wrong: schemas old and new, other processes' locks, damaged files, settings."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from durable.errors import RecordFormatError, StoreError, StoreRejectedError, StoreUnavailableError
from stores import sqlite
from stores._sqlite_log import MIGRATIONS
from stores.contract.backend import MovedClock
from stores.contract.samples import checkpoint, entry
from stores.sqlite import open_database, sqlite_store, translate


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def query(path: Path, statement: str) -> list[Any]:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


def test_the_database_is_set_up_to_lose_nothing(path: Path) -> None:
    """The database is in WAL mode, and a commit is on the disk when it returns."""
    store = sqlite_store(path)
    store.checkpoints.save(checkpoint(), after=None)
    assert query(path, "PRAGMA journal_mode") == [("wal",)]
    connection: sqlite3.Connection = store.log._database._connection()  # type: ignore[attr-defined]
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_the_schema_has_a_number(path: Path) -> None:
    """A new database has the newest schema, and opening it again changes nothing."""
    for _ in range(2):
        sqlite_store(path)
        assert query(path, "SELECT number FROM durable_schema") == [(len(MIGRATIONS),)]


def test_an_older_schema_is_brought_up_to_date(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database of an older version gets the migrations that it has not had, once, and keeps what is in it."""
    saved = sqlite_store(path).checkpoints.save(checkpoint(), after=None)
    later = (
        *MIGRATIONS,
        ("CREATE TABLE durable_more (x)", "INSERT INTO durable_more VALUES (1)"),
        ("INSERT INTO durable_more VALUES (2)",),
    )
    monkeypatch.setattr(sqlite, "MIGRATIONS", later)
    for _ in range(2):
        assert sqlite_store(path).checkpoints.load("s") == saved
    assert query(path, "SELECT x FROM durable_more") == [(1,), (2,)]
    assert query(path, "SELECT number FROM durable_schema") == [(len(later),)]


def test_a_migration_that_fails_leaves_the_old_schema(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A migration is made whole or not at all."""
    sqlite_store(path)
    monkeypatch.setattr(sqlite, "MIGRATIONS", (*MIGRATIONS, ("CREATE TABLE durable_more (x)", "NONSENSE")))
    with pytest.raises(StoreRejectedError):
        sqlite_store(path)
    monkeypatch.undo()
    sqlite_store(path)
    assert query(path, "SELECT 1 FROM sqlite_master WHERE name = 'durable_more'") == []


def test_a_newer_schema_is_refused(path: Path) -> None:
    """A database that a newer version has written is refused with both numbers, and left alone."""
    sqlite_store(path)
    query(path, "UPDATE durable_schema SET number = 99")
    before = path.read_bytes()
    with pytest.raises(RecordFormatError, match=f"schema 99, and this version reads up to {len(MIGRATIONS)}"):
        sqlite_store(path)
    assert path.read_bytes() == before


def test_a_lock_that_is_held_too_long_is_unavailable(path: Path) -> None:
    """A process that hangs in a transaction does not hang the others: they get a retryable error, and can read."""
    log = open_database(path, clock=MovedClock(), busy_timeout=0.05)[0]
    log.append("session/s", entry(0))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailableError, match="SQLITE_BUSY"):
        log.append("session/s", entry(1))
    assert [one.revision for one in log.read("session/s")] == [0]
    other.execute("ROLLBACK")
    other.close()
    assert log.append("session/s", entry(1))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_BUSY, StoreUnavailableError),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, StoreUnavailableError),
        (sqlite3.SQLITE_LOCKED, StoreUnavailableError),
        (sqlite3.SQLITE_FULL, StoreUnavailableError),
        (sqlite3.SQLITE_IOERR_FSYNC, StoreUnavailableError),
        (sqlite3.SQLITE_READONLY, StoreRejectedError),
        (sqlite3.SQLITE_CANTOPEN, StoreRejectedError),
        (sqlite3.SQLITE_TOOBIG, StoreRejectedError),
        (sqlite3.SQLITE_CORRUPT, RecordFormatError),
        (sqlite3.SQLITE_NOTADB, RecordFormatError),
        (None, StoreRejectedError),
    ],
)
def test_every_foreign_error_has_one_of_ours(code: int | None, kind: type[StoreError]) -> None:
    """An error of SQLite becomes one of ours, by its code."""
    error = sqlite3.OperationalError("m")
    if code is not None:
        error.sqlite_errorcode, error.sqlite_errorname = code, "NAME"
    assert type(translate("append", "store.db", error)) is kind


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    """A file of another kind is reported by its name and left as it is."""
    path.write_bytes(b"something else entirely, and long enough to have a header" * 20)
    before = path.read_bytes()
    with pytest.raises(RecordFormatError, match=path.name):
        sqlite_store(path)
    assert path.read_bytes() == before


def test_a_place_that_cannot_be_is_refused(tmp_path: Path) -> None:
    """A path that can hold no file is an error of ours."""
    (tmp_path / "file").write_text("")
    for impossible in (tmp_path / "file" / "store.db", tmp_path):
        with pytest.raises(StoreRejectedError):
            sqlite_store(impossible)


def test_another_users_tables_are_left_alone(path: Path) -> None:
    """Every table and index of ours has a name that begins with `durable_`."""
    sqlite_store(path)
    names = [name for (name,) in query(path, "SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")]
    assert names
    assert all(name.startswith("durable_") for name in names)
