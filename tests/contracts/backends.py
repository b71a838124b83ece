"""The backends that the contract runs against, and the servers behind them.

A backend is opened as often as a test likes: each opening is another process on the same data.
"""

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest
from botocore.config import Config

from durable.ports import Leases, Log, Metered
from infra.local import dynamodb_local
from infra.local.cloud import LocalCloud, LocalCloudError
from stores._bundle import LogStore, log_store, new_id
from stores._dynamodb_table import TABLE
from stores._meter import Meter
from stores.dynamodb import open_table
from stores.files import open_folder
from stores.memory import MemoryLeases, MemoryLog
from stores.sqlite import open_database

TABLE_NAME: Final = "durable"
START: Final = datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC)


class MovedClock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def forward(self, by: timedelta) -> None:
        self.now += by


@dataclass
class Backend:
    """One backend with nothing in it. `connect` gives the log and the leases as another process would see them."""

    name: str
    connect: Callable[[], tuple[Log, Leases, Metered]]
    clock: MovedClock
    prefix: str = ""

    def open(self, *, log: Log | None = None, ttl: timedelta | None = None, history_limit: int = 50) -> LogStore:
        """Give a store on this backend's data; `log` stands in for its log, to make it fail."""
        own, leases, meter = self.connect()
        return log_store(log or own, leases, meter, clock=self.clock, ids=new_id, ttl=ttl, history_limit=history_limit)

    @property
    def log(self) -> Log:
        return self.connect()[0]

    @property
    def leases(self) -> Leases:
        return self.connect()[1]


def memory_backend(clock: MovedClock) -> Backend:
    meter = Meter()
    log, leases = MemoryLog(meter, clock=clock), MemoryLeases(meter, clock=clock)
    return Backend("memory", lambda: (log, leases, meter), clock)


def sqlite_backend(path: Path, clock: MovedClock) -> Backend:
    return Backend("sqlite", partial(open_database, path, clock=clock), clock)


def files_backend(path: Path, clock: MovedClock) -> Backend:
    return Backend("files", partial(open_folder, path, clock=clock), clock)


def dynamodb_backend(name: str, client: Any, table: str, clock: MovedClock) -> Backend:
    """Give a backend whose keys nobody else has, in a table that all tests share."""
    prefix = f"{uuid4().hex}/"
    connect = partial(open_table, client=client, table=table, prefix=prefix, clock=clock, ids=new_id)
    return Backend(name, connect, clock, prefix)


class UnavailableError(Exception):
    """A server that this machine cannot run, and why."""


class Servers:
    """The servers, each started when it is first asked for and stopped at the end."""

    NAMES: Final = {"ministack": "DynamoDB of the local cloud", "dynamodb-local": "AWS's DynamoDB Local"}

    def __init__(self) -> None:
        self._clients: dict[str, Any] = {}
        self._stack = ExitStack()
        self.missing: dict[str, str] = {}

    def client(self, name: str) -> Any:
        """Give a client of the server, with the table made, or raise `UnavailableError`."""
        if name in self.missing:
            raise UnavailableError(self.missing[name])
        if name not in self._clients:
            try:
                client = self._start(name)
            except (LocalCloudError, UnavailableError) as error:
                self.missing[name] = str(error)
                raise UnavailableError(str(error)) from error
            client.create_table(TableName=TABLE_NAME, **TABLE)
            self._clients[name] = client
        return self._clients[name]

    def _start(self, name: str) -> Any:
        config = Config(retries={"mode": "standard", "total_max_attempts": 1})
        if name == "ministack":
            return self._stack.enter_context(LocalCloud()).client("dynamodb", config=config)
        if reason := dynamodb_local.unavailable():
            raise UnavailableError(reason)
        return self._stack.enter_context(dynamodb_local.DynamoDBLocal()).client(config=config)

    def stop(self) -> None:
        self._stack.close()

    def report(self, reporter: pytest.TerminalReporter) -> None:
        """Say, once, which part of the tests did not run, and why."""
        while self.missing:
            name, reason = self.missing.popitem()
            reporter.write_line(f"NOT RUN: the store's tests on {self.NAMES[name]}: {reason}", yellow=True)


SERVERS: Final = Servers()
"""The servers of this test run, shared by the folders that use them; their `conftest.py` stops them."""


def client_or_skip(name: str) -> Any:
    """Give a client of the server. Where it cannot run: in CI a failure, else a skip that the summary repeats."""
    try:
        return SERVERS.client(name)
    except UnavailableError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{Servers.NAMES[name]} cannot run: {error}")
        pytest.skip(f"{Servers.NAMES[name]} cannot run: {error}")
