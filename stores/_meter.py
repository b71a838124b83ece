"""Counting what store calls take: for the store, and for the run that makes them."""

from durable.capacity import Capacity
from durable.counting import Tally, count


class Meter(Tally):
    """What the calls of a store have taken since it was opened."""

    def add(self, capacity: Capacity) -> None:
        super().add(capacity)
        count(capacity)
