"""Who may read what the local stores write: nobody else, unless somebody chose that, and nobody else ever writes."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from durable.errors import ConfigurationError, StoreRejectedError
from durable.records import Status
from stores import LogStore
from stores.contract.samples import checkpoint, turn, with_messages
from stores.files import files_store
from stores.sqlite import sqlite_store

OpenStore = Callable[..., LogStore]


def files_in(path: Path, **options: Any) -> LogStore:
    return files_store(path, **options)


def sqlite_in(path: Path, **options: Any) -> LogStore:
    return sqlite_store(path / "store.db", **options)


@pytest.fixture(params=[files_in, sqlite_in], ids=["files", "sqlite"])
def open_store(request: pytest.FixtureRequest) -> OpenStore:
    return request.param


@pytest.fixture(autouse=True, params=[0o000, 0o022, 0o077], ids=lambda mask: f"umask-{mask:03o}")
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(path: Path) -> dict[str, int]:
    """Give the permissions of every file and folder below a path."""
    return {str(one.relative_to(path)): one.stat().st_mode & 0o777 for one in path.rglob("*")}


def use(store: LogStore) -> None:
    """Make a store write every kind of file that it has."""
    held = store.checkpoints.save(checkpoint(), after=None)
    held = store.checkpoints.save(with_messages(held, turn("c1"), status=Status.FINISHED), after=held)
    lease = store.leases.acquire("session/s", "one", until=held.updated_at, revision=0)
    assert lease is not None
    store.leases.release(lease)
    store.checkpoints.delete("s")
    assert store.checkpoints.load("s") is None


def test_what_a_store_makes_is_private(open_store: OpenStore, tmp_path: Path) -> None:
    """New directories are 0700 and files, temporary ones and sidecars included, 0600, whatever the umask."""
    made: list[tuple[Any, ...]] = []
    store = open_store(tmp_path / "new" / "deep")
    use(store)
    found = modes(tmp_path)
    assert len(found) >= 4
    for name, mode in found.items():
        made.append((name, oct(mode)))
        assert mode == (0o700 if (tmp_path / name).is_dir() else 0o600), made


def test_every_file_is_born_private(open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file is readable for others even for a moment: each is opened with its final permissions."""
    opened: list[tuple[str, int]] = []
    real = os.open

    def watching(path: Any, flags: int, mode: int = 0o777, **arguments: Any) -> int:
        if flags & os.O_CREAT:
            opened.append((os.fspath(path), mode))
        return real(path, flags, mode, **arguments)

    monkeypatch.setattr(os, "open", watching)
    use(open_store(tmp_path / "new"))
    assert opened
    assert {mode for _, mode in opened} == {0o600}


def test_existing_directories_are_never_changed(open_store: OpenStore, tmp_path: Path) -> None:
    """A directory that was there keeps its permissions, open or not: its owner chose them."""
    there = tmp_path / "there"
    there.mkdir()
    there.chmod(0o755)
    use(open_store(there))
    assert there.stat().st_mode & 0o777 == 0o755


def test_others_may_be_let_read(open_store: OpenStore, tmp_path: Path, umask: int) -> None:
    """With `dir_mode` and `file_mode` a group may read: directories less the umask, files exactly."""
    use(open_store(tmp_path / "new", dir_mode=0o750, file_mode=0o640))
    found = modes(tmp_path)
    for name, mode in found.items():
        assert mode == (0o750 & ~umask if (tmp_path / name).is_dir() else 0o640), name


def test_files_that_were_open_are_closed_to_others(open_store: OpenStore, tmp_path: Path) -> None:
    """Files that somebody made readable for all are private again with the next write."""
    use(open_store(tmp_path))
    for one in tmp_path.iterdir():
        one.chmod(0o644)
    use(open_store(tmp_path))
    assert set(modes(tmp_path).values()) == {0o600}


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o660, 0o606, 0o400, 0o1600, -1, True, "600", 384.0])
@pytest.mark.parametrize("option", ["dir_mode", "file_mode"])
def test_others_may_never_write(open_store: OpenStore, tmp_path: Path, option: str, mode: Any) -> None:
    """A mode that lets a group or others write, or keeps the owner out, is refused and nothing is made."""
    with pytest.raises(ConfigurationError, match=option):
        open_store(tmp_path / "new", **{option: mode})
    assert list(tmp_path.iterdir()) == []


def test_a_connection_is_the_callers(tmp_path: Path, umask: int) -> None:
    """A store on the caller's own connection changes no permissions and no settings, and does not close it."""
    path = tmp_path / "mine.db"
    connection = sqlite3.connect(path, check_same_thread=False)
    connection.execute("CREATE TABLE mine (x)")
    connection.execute("PRAGMA user_version = 7")
    path.chmod(0o644)
    use(sqlite_store(connection))
    assert path.stat().st_mode & 0o777 == 0o644
    assert connection.execute("PRAGMA user_version").fetchone() == (7,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    connection.execute("INSERT INTO mine VALUES (1)")
    with pytest.raises(StoreRejectedError, match="transaction"):
        sqlite_store(connection).checkpoints.save(checkpoint(), after=None)
    connection.rollback()
    connection.close()


def test_a_callers_connection_may_have_its_own_rows() -> None:
    """A row factory and a database in memory are the caller's choice, and the store works with them."""
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    connection.row_factory = sqlite3.Row
    use(sqlite_store(connection))
    connection.close()
    with pytest.raises(StoreRejectedError):
        sqlite_store(connection)
