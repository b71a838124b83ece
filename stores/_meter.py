"""Counting what store calls take."""

from threading import Lock

from durable.ports import Capacity


class Meter:
    """A sum of capacity that several threads may add to."""

    def __init__(self) -> None:
        self._sum = Capacity()
        self._lock = Lock()

    def add(self, capacity: Capacity) -> None:
        with self._lock:
            self._sum += capacity

    def consumed(self) -> Capacity:
        """Give what was added since the meter was made."""
        with self._lock:
            return self._sum
