"""Files and folders of the local stores: private from the moment they exist, and durable once they are said to be.

New directories are 0700 less the umask, files exactly 0600. A directory that exists is never changed: whoever chose it
secures it. Other modes may let others read, never write.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from durable.errors import ConfigurationError, StoreError, StoreRejectedError, StoreUnavailableError

DIR_MODE: Final = 0o700
FILE_MODE: Final = 0o600

_OTHERS_WRITE: Final = 0o022
_MAY_PASS: Final = frozenset(
    {errno.EAGAIN, errno.EBUSY, errno.EDQUOT, errno.EINTR, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOSPC}
)


def check_mode(mode: int, name: str) -> int:
    """Give the mode back, or `ConfigurationError` where it lets a group or others write or locks the owner out."""
    if isinstance(mode, bool) or not isinstance(mode, int) or not 0 <= mode <= 0o777:
        raise ConfigurationError(f"`{name}` must be permission bits such as 0o{DIR_MODE:o}, not {mode!r}.")
    if mode & _OTHERS_WRITE:
        raise ConfigurationError(f"`{name}` 0o{mode:o} lets a group or others write; only the owner may.")
    owner = 0o700 if name == "dir_mode" else 0o600
    if mode & owner != owner:
        raise ConfigurationError(f"`{name}` 0o{mode:o} keeps the owner out; it needs 0o{owner:o}.")
    return mode


def make_directory(path: Path, mode: int) -> None:
    """Make a directory and what is missing above it, each of them private. What exists stays as it is."""
    if path.is_dir():
        return
    make_directory(path.parent, mode)
    try:
        path.mkdir(mode)
    except FileExistsError:
        if not path.is_dir():
            raise
    sync_directory(path.parent)


def open_private(path: Path, flags: int, mode: int) -> int:
    """Open a file, made where it is missing, with exactly these permissions whatever the umask."""
    descriptor = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        if os.fstat(descriptor).st_mode & 0o777 != mode:
            os.fchmod(descriptor, mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def sync_directory(path: Path) -> None:
    """Make names in a directory durable: without it a new file may be gone after a power failure."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(descriptor: int, content: bytes, offset: int) -> None:
    """Write all of it from `offset` on, and return when it is on the disk."""
    left = memoryview(content)
    while left:
        written = os.pwrite(descriptor, left, offset)
        left, offset = left[written:], offset + written
    os.fsync(descriptor)


def replace_file(path: Path, content: bytes, mode: int, *, unique: str) -> None:
    """Put a file in the place of another, so that a reader sees the old one or the new one, whole."""
    temporary = path.with_name(f".{path.name}.{unique}.tmp")
    try:
        descriptor = open_private(temporary, os.O_WRONLY | os.O_EXCL, mode)
        try:
            write_whole(descriptor, content, 0)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


@contextmanager
def file_errors(operation: str) -> Iterator[None]:
    """Give our error for one of the file system: what may pass is unavailable, what has to be fixed is rejected."""
    try:
        yield
    except OSError as error:
        raise translate(operation, error) from error


def translate(operation: str, error: OSError) -> StoreError:
    reason = os.strerror(error.errno) if error.errno else type(error).__name__
    if error.filename is not None:
        reason = f"{reason} ({os.fspath(error.filename)})"
    return (StoreUnavailableError if error.errno in _MAY_PASS else StoreRejectedError)(operation, reason)
