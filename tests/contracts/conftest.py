"""The contract runs against every backend. One that cannot run here is reported, and in CI is a failure."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from stores.contract import Backend, MovedClock
from stores.contract.plugin import clock, pytest_runtest_makereport, store
from tests.contracts.backends import (
    SERVERS,
    TABLE_NAME,
    client_or_skip,
    dynamodb_backend,
    files_backend,
    memory_backend,
    sqlite_backend,
)

__all__ = ["clock", "pytest_runtest_makereport", "store"]

MEMORY = Path("/dev/shm")
"""Where Linux keeps files in memory. What a disk loses is tested elsewhere: see `tests/stores/test_kills.py`."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder on the fastest disk there is: the contract writes thousands of times."""
    if not MEMORY.is_dir() or not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)


@pytest.fixture(
    params=[
        "memory",
        "files",
        "sqlite",
        pytest.param("ministack", marks=pytest.mark.local_cloud),
        pytest.param("dynamodb-local", marks=pytest.mark.dynamodb_local),
    ]
)
def backend(request: pytest.FixtureRequest, clock: MovedClock, folder: Path) -> Backend:
    match request.param:
        case "memory":
            return memory_backend(clock)
        case "files":
            return files_backend(folder / "store", clock)
        case "sqlite":
            return sqlite_backend(folder / "store.db", clock)
        case name:
            return dynamodb_backend(name, client_or_skip(name), TABLE_NAME, clock)


def pytest_unconfigure() -> None:
    SERVERS.stop()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    SERVERS.report(terminalreporter)
