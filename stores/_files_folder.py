"""The folder of the file store: names, locks between processes, and small records that are replaced whole.

    <kind>-<SHA-256 of the id>.jsonl     the entries of a stream
    <kind>-<SHA-256 of the id>.head      its head
    <kind>-<SHA-256 of the id>.lease     its lease
    lock-<n>                             held while one of these changes; empty, and never removed

Locks are `flock`s: the system lets go of them when their process ends, however it ends.
"""

import fcntl
import hashlib
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from durable.errors import ConfigurationError, RecordFormatError, StoreUnavailableError
from durable.ports import Head, IdFactory, Lease
from stores import _private

T = TypeVar("T", Head, Lease)

_LOCKS: Final = 64
_KIND: Final = re.compile(r"[a-z]+")
_adapters: Final[Mapping[type, TypeAdapter[Any]]] = {Head: TypeAdapter(Head), Lease: TypeAdapter(Lease)}


def name_of(stream: str) -> str:
    """Give what the names of a stream's files begin with: no id can lead out of the folder or into another's files."""
    kind, _, identity = stream.partition("/")
    if not _KIND.fullmatch(kind):
        raise ConfigurationError(f"The kind of a stream is a word in small letters, not {kind!r}.")
    return f"{kind}-{hashlib.sha256(identity.encode()).hexdigest()}"


class Folder:
    """A directory, made with what is missing above it when it is first needed."""

    def __init__(self, path: Path, *, dir_mode: int, file_mode: int, busy_timeout: float, ids: IdFactory) -> None:
        self.path = path
        self.file_mode = _private.check_mode(file_mode, "file_mode")
        self._dir_mode = _private.check_mode(dir_mode, "dir_mode")
        self._busy_timeout = busy_timeout
        self.ids = ids

    @contextmanager
    def locked(self, operation: str, stream: str, *, shared: bool = False) -> Iterator[None]:
        """Keep other threads and processes away from a stream's files; `shared` keeps only those away that write."""
        with _private.file_errors(operation):
            _private.make_directory(self.path, self._dir_mode)
            number = int(name_of(stream)[-2:], 16) % _LOCKS
            descriptor = _private.open_private(self.path / f"lock-{number:02d}", os.O_RDWR, self.file_mode)
            try:
                self._wait(operation, descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
                try:
                    yield
                finally:
                    # Said aloud: a child that was forked meanwhile has the descriptor too, and must not keep the lock.
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
            finally:
                os.close(descriptor)

    def _wait(self, operation: str, descriptor: int, how: int) -> None:
        deadline, pause = time.monotonic() + self._busy_timeout, 0.000_5
        while True:
            try:
                fcntl.flock(descriptor, how | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StoreUnavailableError(operation, "another process keeps the session's files locked") from None
                time.sleep(pause)
                pause = min(2 * pause, 0.02)
            else:
                return

    def file(self, stream: str, suffix: str) -> Path:
        return self.path / f"{name_of(stream)}.{suffix}"

    def get(self, kind: type[T], stream: str) -> T | None:
        """Give the record of a stream as it was put last."""
        return self.get_at(kind, self.file(stream, kind.__name__.lower()))

    def get_at(self, kind: type[T], path: Path) -> T | None:
        with _private.file_errors("read"):
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                return None
        try:
            return _adapters[kind].validate_json(content)
        except ValidationError:
            # The cause shows what is in it, which no error may.
            raise RecordFormatError(os.fspath(path), f"is no {kind.__name__.lower()}: it is damaged") from None

    def put(self, record: Head | Lease) -> None:
        path = self.file(record.stream, type(record).__name__.lower())
        content = _adapters[type(record)].dump_json(record)
        _private.replace_file(path, content + b"\n", self.file_mode, unique=self.ids())

    def remove(self, path: Path) -> None:
        with suppress(FileNotFoundError):
            path.unlink()
            _private.sync_directory(self.path)

    def names(self, kind: str, suffix: str, after: str) -> list[str]:
        """Give the names of the files of one kind, in order, those up to `after` left out."""
        with _private.file_errors("heads"):
            try:
                found = os.listdir(self.path)
            except FileNotFoundError:
                return []
        return sorted(name for name in found if name.startswith(f"{kind}-") and name.endswith(suffix) and name > after)
