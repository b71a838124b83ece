"""Every contract test runs against every backend. One that cannot run here is reported, and in CI is a failure."""

from datetime import timedelta
from pathlib import Path

import pytest

from stores import LogStore
from tests.contracts.backends import (
    SERVERS,
    TABLE_NAME,
    Backend,
    MovedClock,
    client_or_skip,
    dynamodb_backend,
    files_backend,
    memory_backend,
    sqlite_backend,
)

TTL = timedelta(days=30)


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture(
    params=[
        "memory",
        "files",
        "sqlite",
        pytest.param("ministack", marks=pytest.mark.local_cloud),
        pytest.param("dynamodb-local", marks=pytest.mark.dynamodb_local),
    ]
)
def backend(request: pytest.FixtureRequest, clock: MovedClock, tmp_path: Path) -> Backend:
    match request.param:
        case "memory":
            return memory_backend(clock)
        case "files":
            return files_backend(tmp_path / "store", clock)
        case "sqlite":
            return sqlite_backend(tmp_path / "store.db", clock)
    return dynamodb_backend(request.param, client_or_skip(request.param), TABLE_NAME, clock)


@pytest.fixture
def store(backend: Backend) -> LogStore:
    return backend.open(ttl=TTL)


def pytest_unconfigure() -> None:
    SERVERS.stop()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    SERVERS.report(terminalreporter)
