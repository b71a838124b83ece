"""What store calls take: plain numbers."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Capacity:
    """What store calls took: requests over the wire, DynamoDB's write and read units, bytes written."""

    requests: int = 0
    write_units: float = 0.0
    read_units: float = 0.0
    bytes_written: int = 0

    def __add__(self, other: "Capacity") -> "Capacity":
        return Capacity(
            self.requests + other.requests,
            self.write_units + other.write_units,
            self.read_units + other.read_units,
            self.bytes_written + other.bytes_written,
        )

    def __sub__(self, other: "Capacity") -> "Capacity":
        return Capacity(
            self.requests - other.requests,
            self.write_units - other.write_units,
            self.read_units - other.read_units,
            self.bytes_written - other.bytes_written,
        )


NOTHING: Final = Capacity()
