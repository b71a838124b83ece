"""DynamoDB for tests that count or look inside; started once for these and the contract tests together."""

from collections.abc import Iterator
from typing import Any

import pytest

from stores.contract.backend import Backend, MovedClock
from tests.contracts.backends import SERVERS, TABLE_NAME, client_or_skip, dynamodb_backend
from tests.handlers.conftest import cloud, clouds

__all__ = ["cloud", "clouds"]


class Recorder:
    """The names of the requests that a client makes."""

    def __init__(self) -> None:
        self.operations: list[str] = []

    def __call__(self, model: Any, **_: Any) -> None:
        self.operations.append(model.name)


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture(
    params=[
        pytest.param("ministack", marks=pytest.mark.local_cloud),
        pytest.param("dynamodb-local", marks=pytest.mark.dynamodb_local),
    ]
)
def server(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def client(server: str) -> Any:
    return client_or_skip(server)


@pytest.fixture
def backend(server: str, client: Any, clock: MovedClock) -> Backend:
    return dynamodb_backend(server, client, TABLE_NAME, clock)


@pytest.fixture
def requests(client: Any) -> Iterator[list[str]]:
    """The requests made from now on."""
    recorder = Recorder()
    client.meta.events.register("before-call.dynamodb", recorder)
    yield recorder.operations
    client.meta.events.unregister("before-call.dynamodb", recorder)


def pytest_unconfigure() -> None:
    SERVERS.stop()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    SERVERS.report(terminalreporter)
