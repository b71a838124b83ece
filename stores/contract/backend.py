"""What the contract is pointed at: a store that is opened as often as a test likes, as so many processes would."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, Protocol

import pytest

from durable.ports import CheckpointStore, Leases, Log, Metered
from stores._bundle import LogStore, log_store, new_id
from stores.contract.injection import CrashingLog

START = datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC)
"""When every test begins."""

TTL = timedelta(days=30)
"""How long a session is kept after its newest save, where a test does not say otherwise."""


class MovedClock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def forward(self, by: timedelta) -> None:
        self.now += by


class Opened(Protocol):
    """What a subject gives: a store with at least checkpoints."""

    @property
    def checkpoints(self) -> CheckpointStore: ...


class Subject(Protocol):
    """A checkpoint store of any make, with nothing in it: enough for `checkpoints`, `expiry` and `crashes`.

    `open` gives the store as another process would see it; it tells the time by `clock`. `open_dying` gives one whose
    process ends, with `Crash`, at the backend call numbered `call` from 0: before that call is applied, or right after.
    """

    @property
    def name(self) -> str: ...
    @property
    def clock(self) -> MovedClock: ...
    def open(self, *, ttl: timedelta | None = None) -> Opened: ...
    def open_dying(self, call: int, *, applied: bool, ttl: timedelta | None = None) -> Opened: ...


class Recorded(Subject, Protocol):
    """A subject that can be looked into: enough for `records`.

    `records` names everything in the database that says that there is a save, whether it can be loaded or not.
    """

    def records(self, session_id: str) -> Sequence[str]: ...


@dataclass
class Backend:
    """A `Subject` made of a `Log`. `connect` gives the log and the leases as another process would see them."""

    name: str
    connect: Callable[[], tuple[Log, Leases, Metered]]
    clock: MovedClock
    prefix: str = ""

    def open(self, *, log: Any = None, ttl: timedelta | None = None, history_limit: int = 50) -> LogStore:
        """Give a store on this backend's data; `log` stands in for its log, to make it fail."""
        own, leases, meter = self.connect()
        return log_store(log or own, leases, meter, clock=self.clock, ids=new_id, ttl=ttl, history_limit=history_limit)

    def open_dying(self, call: int, *, applied: bool, ttl: timedelta | None = None) -> LogStore:
        return self.open(log=CrashingLog(self.log, after=call, applied=applied), ttl=ttl)

    def records(self, session_id: str) -> Sequence[str]:
        return [str(entry.revision) for entry in self.log.read(f"session/{session_id}")]

    @property
    def log(self) -> Log:
        return self.connect()[0]

    @property
    def leases(self) -> Leases:
        return self.connect()[1]


def missing(name: str, reason: str) -> NoReturn:
    """Fail the test of a backend that should be there and is not: a suite that skips it would be green for nothing."""
    pytest.fail(f"{name} should be there to be tested, and is not: {reason}", pytrace=False)
