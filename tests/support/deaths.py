"""Processes that die, or are overtaken, at any call to something outside: before it is carried out, or right after."""

from collections.abc import Callable
from typing import Any

from stores._bundle import LogStore, log_store


class Killed(BaseException):
    """The process is gone. Nothing of it runs any more: not its `finally` blocks either."""


class Death:
    """When a process dies: at its `at`-th point (None: never). Each call outside passes one before and one after.

    With an `instead` it lives, and something else happens there.
    """

    def __init__(self) -> None:
        self.at: int | None = None
        self.points = 0
        self.dead = False
        self.passed = False
        self._instead: Callable[[], object] | None = None

    def pass_point(self) -> None:
        if self.dead:
            raise Killed
        self.points += 1
        if self.points != self.at:
            return
        self.passed = True
        if self._instead is None:
            self.dead = True
            raise Killed
        self._instead()

    def reset(self, at: int | None = None, instead: Callable[[], object] | None = None) -> None:
        self.at, self.points, self.dead, self.passed, self._instead = at, 0, False, False, instead


class Mortal:
    """What a process calls outside, with a point before and after each call."""

    def __init__(self, target: Any, death: Death) -> None:
        self._target = target
        self._death = death

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not callable(value):
            return value

        def call(*arguments: Any, **options: Any) -> Any:
            self._death.pass_point()
            result = value(*arguments, **options)
            self._death.pass_point()
            return result

        return call


def mortal_store(store: LogStore, death: Death) -> LogStore:
    """The same store, seen by processes that die at its log's and its leases' calls."""
    log, leases = Mortal(store.log, death), Mortal(store.leases, death)
    return log_store(log, leases, store.meter, clock=store.clock)
