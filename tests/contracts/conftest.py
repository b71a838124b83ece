"""Every contract test runs against every backend. One that cannot run here is reported, and in CI is a failure."""

from datetime import timedelta

import pytest

from stores import LogStore
from tests.contracts.backends import (
    SERVERS,
    TABLE_NAME,
    Backend,
    MovedClock,
    client_or_skip,
    dynamodb_backend,
    memory_backend,
)

TTL = timedelta(days=30)


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture(
    params=[
        "memory",
        pytest.param("ministack", marks=pytest.mark.local_cloud),
        pytest.param("dynamodb-local", marks=pytest.mark.dynamodb_local),
    ]
)
def backend(request: pytest.FixtureRequest, clock: MovedClock) -> Backend:
    if request.param == "memory":
        return memory_backend(clock)
    return dynamodb_backend(request.param, client_or_skip(request.param), TABLE_NAME, clock)


@pytest.fixture
def store(backend: Backend) -> LogStore:
    return backend.open(ttl=TTL)


def pytest_unconfigure() -> None:
    SERVERS.stop()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    SERVERS.report(terminalreporter)
