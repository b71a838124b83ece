"""What only files can get wrong: torn and damaged lines, a full disk, files that are written anew, locks."""

import errno
import fcntl
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from durable.errors import ConfigurationError, RecordFormatError, StoreRejectedError, StoreUnavailableError
from stores import _private
from stores._files_lines import Header, header_line
from stores.contract.backend import MovedClock
from stores.contract.samples import AWKWARD_IDS, checkpoint, entry
from stores.files import files_store, open_folder
from stores.memory import MemoryLog

STREAM = "session/s"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


def log_in(folder: Path) -> Any:
    return open_folder(folder, clock=MovedClock())[0]


def file_in(folder: Path) -> Path:
    (path,) = folder.glob("*.jsonl")
    return path


def revisions(log: MemoryLog) -> list[int]:
    return [one.revision for one in log.read(STREAM)]


def written(folder: Path, count: int) -> bytes:
    log = log_in(folder)
    for revision in range(count):
        assert log.append(STREAM, entry(revision, f"body {revision}".encode()))
    return file_in(folder).read_bytes()


def test_a_session_is_one_file_named_by_a_hash(folder: Path) -> None:
    """No id leads out of the folder or into another's file, and each line of a file is JSON that people can read."""
    store = files_store(folder)
    for identity in AWKWARD_IDS:
        store.checkpoints.save(checkpoint(identity), after=None)
    names = {path.stem for path in folder.glob("*.jsonl")}
    assert len(names) == len(AWKWARD_IDS)
    assert all(len(name) == len("session-") + 64 for name in names)
    assert {path.parent for path in folder.rglob("*")} == {folder}
    assert all(line.startswith('{"') and line.endswith('"}') for line in file_in_of(folder).splitlines())
    with pytest.raises(ConfigurationError):
        store.log.append("../x/s", entry(0))


def file_in_of(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.glob("*.jsonl"))


def test_a_file_only_grows(folder: Path) -> None:
    """An append changes no byte that was there."""
    before = written(folder, 3)
    assert log_in(folder).append(STREAM, entry(3))
    assert file_in(folder).read_bytes().startswith(before)


def test_a_torn_last_line_is_ignored_and_repaired(folder: Path) -> None:
    """Wherever a last line was cut off, the lines before it are read and the next append takes its place."""
    whole = written(folder, 3)
    start = whole.rstrip(b"\n").rindex(b"\n") + 1
    warm = log_in(folder)
    for cut in range(start, len(whole)):
        file_in(folder).write_bytes(whole[:start])
        assert revisions(warm) == [0, 1]
        file_in(folder).write_bytes(whole[:cut])
        for log in (warm, log_in(folder)):
            assert revisions(log) == [0, 1]
        assert log_in(folder).append(STREAM, entry(2, b"body 2"))
        assert file_in(folder).read_bytes() == whole


def test_a_torn_first_line_is_an_empty_file(folder: Path) -> None:
    """A process that ended in its very first write has left nothing that is in the way."""
    whole = written(folder, 1)
    for cut in range(whole.index(b"\n") + 1):
        file_in(folder).write_bytes(whole[:cut])
        assert revisions(log_in(folder)) == []
    assert log_in(folder).append(STREAM, entry(0))
    assert revisions(log_in(folder)) == [0]


@pytest.mark.parametrize("line", [1, 2, 3, 4])
@pytest.mark.parametrize("damage", ["flipped", "cut", "emptied", "doubled"])
def test_a_damaged_line_is_reported_with_file_and_line(folder: Path, line: int, damage: str) -> None:
    """Damage of a whole line, even of a single bit, is an error that names file and line, for reads and appends."""
    lines = written(folder, 3).splitlines(keepends=True)
    text = lines[line - 1]
    lines[line - 1] = {
        "flipped": text.replace(b"o", b"n", 1) if b"o" in text else text.replace(b"e", b"d", 1),
        "cut": text[: len(text) // 2] + b"\n",
        "emptied": b"\n",
        "doubled": text[:-1] + text,
    }[damage]
    file_in(folder).write_bytes(b"".join(lines))
    log = log_in(folder)
    for _ in range(2):
        for call in (lambda: revisions(log), lambda: log.append(STREAM, entry(9))):
            with pytest.raises(RecordFormatError) as damaged:
                call()
            assert f"{file_in(folder)} line {line}" in str(damaged.value)
            assert "body" not in str(damaged.value)


def test_a_file_of_a_newer_format_or_another_session_is_refused(folder: Path) -> None:
    """A newer format is refused, whatever its lines are like, and so is a file under another session's name."""
    written(folder, 1)
    path = file_in(folder)
    path.write_bytes(header_line(Header("session/other", "f")))
    with pytest.raises(RecordFormatError, match="session/other"):
        revisions(log_in(folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stores._files_lines.FORMAT", 2)
        path.write_bytes(header_line(Header(STREAM, "f")))
    with pytest.raises(RecordFormatError, match="file format 2"):
        revisions(log_in(folder))


def test_what_another_process_wrote_anew_is_read_anew(folder: Path) -> None:
    """A log that knows a file notices every drop, deletion and new beginning by others, and what they added."""
    mine, other = log_in(folder), log_in(folder)
    chance = random.Random(5)
    for revision in range(60):
        assert other.append(STREAM, entry(revision, chance.randbytes(200)))
        if revision % 7 == 3:
            other.drop(STREAM, until=revision - 2)
        assert list(mine.read(STREAM)) == list(other.read(STREAM))
        assert not mine.append(STREAM, entry(revision, save_id="late"))
    other.drop(STREAM)
    assert revisions(mine) == []
    assert mine.append(STREAM, entry(0))
    assert revisions(other) == [0]


def test_a_read_that_has_begun_is_not_disturbed(folder: Path) -> None:
    """Entries that are read lazily stay readable while somebody drops them."""
    written(folder, 5)
    log = log_in(folder)
    reading: Iterator[Any] = iter(log.read(STREAM))
    assert next(reading).revision == 0
    log_in(folder).drop(STREAM, until=3)
    assert [one.revision for one in reading] == [1, 2, 3, 4]
    assert revisions(log) == [4]


@pytest.mark.parametrize(("code", "kind"), [(errno.ENOSPC, StoreUnavailableError), (errno.EROFS, StoreRejectedError)])
@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_a_write_that_fails_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int, kind: type[Exception]
) -> None:
    """When the disk is full or fails, the append is an error of ours, the file is as before, and goes on later."""
    before = written(folder, 2)
    log = log_in(folder)
    real = os.pwrite

    def failing(descriptor: int, *arguments: Any) -> int:
        if arguments:
            real(descriptor, arguments[0][:7], arguments[1])
        raise OSError(code, "told so")

    with monkeypatch.context() as patch:
        patch.setattr(_private.os, call, failing)
        with pytest.raises(kind):
            log.append(STREAM, entry(2, b"body 2"))
    assert file_in(folder).read_bytes() == before
    assert log.append(STREAM, entry(2, b"body 2"))
    assert revisions(log) == [0, 1, 2]


def test_a_lock_that_is_held_too_long_is_unavailable(folder: Path) -> None:
    """A process that hangs with a session's lock does not hang the others: they get a retryable error."""
    written(folder, 1)
    log = open_folder(folder, clock=MovedClock(), busy_timeout=0.05)[0]
    (lock,) = folder.glob("lock-*")
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StoreUnavailableError, match="locked"):
            log.append(STREAM, entry(1))
    assert log.append(STREAM, entry(1))


def test_temporary_files_are_no_records(folder: Path) -> None:
    """What a process left behind that ended in the middle of replacing a file is in nobody's way."""
    store = files_store(folder)
    store.checkpoints.save(checkpoint(), after=None)
    for path in list(folder.iterdir()):
        path.with_name(f".{path.name}.0.tmp").write_bytes(b"{")
    assert len(store.log.heads("session").items) == 1
    assert files_store(folder).checkpoints.load("s") is not None


@pytest.mark.parametrize("suffix", ["head", "lease"])
def test_a_damaged_record_is_reported_with_its_file(folder: Path, suffix: str) -> None:
    """A head or a lease that cannot be read is an error that names the file, not what is in it."""
    store = files_store(folder)
    saved = store.checkpoints.save(checkpoint(), after=None)
    store.leases.acquire(STREAM, "one", until=saved.updated_at, revision=0)
    (path,) = folder.glob(f"*.{suffix}")
    path.write_bytes(path.read_bytes().replace(b'"', b"secret", 1))
    with pytest.raises(RecordFormatError) as damaged:
        store.log.head(STREAM) if suffix == "head" else store.leases.look(STREAM)
    assert path.name in str(damaged.value)
    assert "secret" not in str(damaged.value)


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """A path that can be no folder is an error of ours that names it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreRejectedError, match="file"):
        files_store(tmp_path / "file" / "store").checkpoints.save(checkpoint(), after=None)


def test_any_body_is_kept(folder: Path) -> None:
    """Bytes that are no text, look like lines or end like them come back as they were."""
    bodies = [b"\n", b"\r\n", b"\xff\n\x00", b'","crc":"00000000"}', "\u2028\ud7ff🦔".encode(), b"", b"\\n"]
    log = log_in(folder)
    for revision, body in enumerate(bodies):
        assert log.append(STREAM, replace(entry(revision), body=body))
    assert [one.body for one in log_in(folder).read(STREAM)] == bodies
