"""For whom store calls are counted.

A run counts the calls that it makes itself, wherever they are made (the stores are crossed into in worker threads) and
whatever else uses the same store meanwhile: a context variable says whose calls they are.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock

from durable.capacity import Capacity


class Tally:
    """A sum of capacity that several threads may add to."""

    def __init__(self) -> None:
        self._sum = Capacity()
        self._lock = Lock()

    def add(self, capacity: Capacity) -> None:
        with self._lock:
            self._sum += capacity

    def consumed(self) -> Capacity:
        """Give what was added since the tally was made."""
        with self._lock:
            return self._sum


_counting: ContextVar[Tally | None] = ContextVar("_counting", default=None)


@contextmanager
def counted(*, join: bool = False) -> Generator[Tally]:
    """Count the store calls made inside, and in the tasks and threads started from there.

    Nested, the innermost counts. With `join` the one around it goes on counting, where there is one.
    """
    if join and (around := _counting.get()) is not None:
        yield around
        return
    tally = Tally()
    token = _counting.set(tally)
    try:
        yield tally
    finally:
        _counting.reset(token)


def count(capacity: Capacity) -> None:
    """Add what a store call took to whoever counts here; every backend calls it, through its meter."""
    if (tally := _counting.get()) is not None:
        tally.add(capacity)
