"""What a writer remembers of the streams it writes, so that a save needs no read."""

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Lock
from typing import Final, Generic, TypeVar

from stores._streams import LONG_AGO

T = TypeVar("T")

_KEPT: Final = 10_000

ABSENT_FOR: Final = timedelta(minutes=1)
"""How long it is remembered that a stream has no entry: much shorter than a revision that was removed stays taken."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stream stands at `revision`. What is said of the entries never becomes wrong: they do not change.

    `base_expires` is when the base may be gone (None: never). `shown` is the status and the base that the head had when
    it was last read or marked, None if there was no head. `sizes` are the bytes of the base and of what came after it,
    None where nobody has seen them. `ends` is when the last of the entries may be gone (None: never): no entry may go
    before an earlier one, or the earlier one would be taken for the newest. `untidy` says that saves have moved the
    base far enough for what is before it to be worth dropping.
    """

    revision: int
    base: int
    base_expires: datetime | None
    listed_from: int = 0
    shown: tuple[str, int] | None = None
    sizes: tuple[int, int] | None = None
    ends: datetime | None = LONG_AGO
    untidy: bool = False


class _Newest(Generic[T]):
    """What was remembered last, by stream; bounded, and safe to share between threads."""

    def __init__(self) -> None:
        self._items: OrderedDict[str, T] = OrderedDict()
        self._lock = Lock()

    def put(self, stream: str, item: T) -> None:
        with self._lock:
            self._items[stream] = item
            self._items.move_to_end(stream)
            if len(self._items) > _KEPT:
                self._items.popitem(last=False)

    def get(self, stream: str) -> T | None:
        with self._lock:
            return self._items.get(stream)

    def take(self, stream: str) -> T | None:
        with self._lock:
            return self._items.pop(stream, None)


class Places:
    """The places used last."""

    def __init__(self) -> None:
        self._places = _Newest[Place]()
        self._absent = _Newest[datetime]()

    def put(self, stream: str, place: Place) -> None:
        self._places.put(stream, place)

    def at(self, stream: str, revision: int) -> Place | None:
        """Give the place if it is the one of this revision."""
        place = self._places.get(stream)
        return place if place is not None and place.revision == revision else None

    def put_absent(self, stream: str, now: datetime) -> None:
        """Remember that the stream had no entry at all, not even one that ended it."""
        self._absent.put(stream, now)

    def take_absent(self, stream: str, now: datetime) -> bool:
        """Whether it was found so a moment ago. That is said once: who then finds revision 0 taken has to read."""
        found = self._absent.take(stream)
        return found is not None and found <= now < found + ABSENT_FOR
