"""What a writer remembers of the streams it writes, so that a save needs no read."""

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Lock
from typing import Final

from stores._streams import LONG_AGO

_KEPT: Final = 10_000

ABSENT_FOR: Final = timedelta(minutes=1)
"""How long it is remembered that a stream has no entry: much shorter than a revision that was removed stays taken."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stream stands at `revision`. What is said of the entries never becomes wrong: they do not change.

    `base_expires` is when the base may be gone (None: never). `shown` is the status and the base that the head had when
    it was last read or marked, None if there was no head. `sizes` are the bytes of the base and of what came after it,
    None where nobody has seen them. `ends` is when the last of the entries may be gone (None: never): no entry may go
    before an earlier one, or the earlier one would be taken for the newest.
    """

    revision: int
    base: int
    base_expires: datetime | None
    listed_from: int = 0
    shown: tuple[str, int] | None = None
    sizes: tuple[int, int] | None = None
    ends: datetime | None = LONG_AGO


class Places:
    """The places used last, by stream; bounded, and safe to share between threads."""

    def __init__(self) -> None:
        self._places: OrderedDict[str, Place] = OrderedDict()
        self._absent: OrderedDict[str, datetime] = OrderedDict()
        self._lock = Lock()

    def put(self, stream: str, place: Place) -> None:
        with self._lock:
            self._places[stream] = place
            self._places.move_to_end(stream)
            if len(self._places) > _KEPT:
                self._places.popitem(last=False)

    def at(self, stream: str, revision: int) -> Place | None:
        """Give the place if it is the one of this revision."""
        with self._lock:
            place = self._places.get(stream)
        return place if place is not None and place.revision == revision else None

    def put_absent(self, stream: str, now: datetime) -> None:
        """Remember that the stream had no entry at all, not even one that ended it."""
        with self._lock:
            self._absent[stream] = now
            self._absent.move_to_end(stream)
            if len(self._absent) > _KEPT:
                self._absent.popitem(last=False)

    def take_absent(self, stream: str, now: datetime) -> bool:
        """Whether it was found so a moment ago. That is said once: who then finds revision 0 taken has to read."""
        with self._lock:
            found = self._absent.pop(stream, None)
        return found is not None and found <= now < found + ABSENT_FOR
