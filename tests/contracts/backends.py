"""The backends of this project that the contract is pointed at, and the servers behind them."""

import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest
from botocore.config import Config

from infra.local import dynamodb_local
from infra.local.cloud import LocalCloud, LocalCloudError
from stores._bundle import new_id
from stores._dynamodb_table import TABLE
from stores._meter import Meter
from stores.contract import Backend, MovedClock, missing
from stores.dynamodb import open_table
from stores.files import open_folder
from stores.memory import MemoryLeases, MemoryLog
from stores.sqlite import open_database

TABLE_NAME: Final = "durable"


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
            missing(Servers.NAMES[name], str(error))
        pytest.skip(f"{Servers.NAMES[name]} cannot run: {error}")
