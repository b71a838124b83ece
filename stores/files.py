"""A store in the files of one folder: for one machine, safe with several threads and processes, readable with `less`.

Each session is one append-only file of JSON lines. What a save wrote is on the disk when it returns. A last line that
was torn by a crash is ignored, and overwritten by the next save; damage anywhere else is an error that names the file
and the line. Needs a POSIX system and a local disk.
"""

import os
from datetime import timedelta
from pathlib import Path
from typing import Final

from durable.ports import Clock, IdFactory
from stores import _private
from stores._bundle import LogStore, log_store, new_id, utc_now
from stores._files_folder import Folder
from stores._files_log import FilesLeases, FilesLog
from stores._meter import Meter
from stores.checkpoints import DEFAULT_HISTORY_LIMIT

__all__ = ["files_store", "open_folder"]

BUSY_TIMEOUT: Final = 10.0
"""How many seconds a call waits for another process before it is `StoreUnavailableError`."""


def files_store(
    directory: str | os.PathLike[str],
    *,
    ttl: timedelta | None = None,
    history_limit: int = DEFAULT_HISTORY_LIMIT,
    busy_timeout: float = BUSY_TIMEOUT,
    dir_mode: int = _private.DIR_MODE,
    file_mode: int = _private.FILE_MODE,
    clock: Clock = utc_now,
    ids: IdFactory = new_id,
) -> LogStore:
    """Give the store in a directory, which is made with what is missing above it when the store is first used.

    Files get `file_mode`, new directories `dir_mode` less the umask; existing directories stay as they are.
    """
    log, leases, meter = open_folder(
        directory, clock=clock, ids=ids, busy_timeout=busy_timeout, dir_mode=dir_mode, file_mode=file_mode
    )
    return log_store(log, leases, meter, clock=clock, ids=ids, ttl=ttl, history_limit=history_limit)


def open_folder(
    directory: str | os.PathLike[str],
    *,
    clock: Clock,
    ids: IdFactory = new_id,
    busy_timeout: float = BUSY_TIMEOUT,
    dir_mode: int = _private.DIR_MODE,
    file_mode: int = _private.FILE_MODE,
) -> tuple[FilesLog, FilesLeases, Meter]:
    """Give the log and the leases in a directory, and what counts the calls of both."""
    folder = Folder(Path(directory), dir_mode=dir_mode, file_mode=file_mode, busy_timeout=busy_timeout, ids=ids)
    meter = Meter()
    return FilesLog(folder, meter, clock=clock), FilesLeases(folder, meter, clock=clock), meter
