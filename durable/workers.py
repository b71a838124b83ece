"""Plain functions in worker threads, and which of the threads were given up.

A thread cannot be stopped. One that is given up goes on with whatever it does, beside what comes after it in the same
process; whoever reuses processes has to know of it.
"""

import threading
from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread

T = TypeVar("T")

_lock = threading.Lock()
_abandoned: set[object] = set()


def abandoned() -> int:
    """How many threads of this process were given up and still work."""
    with _lock:
        return len(_abandoned)


async def in_thread(work: Callable[[], T]) -> T:
    """Await the work in a thread of its own: no number of slow ones keeps another, or a save, from its thread.

    When it is cancelled the thread is given up; work that had not begun by then never does.
    """
    job = _Job()

    def carry_out() -> T:
        if not job.begin():
            raise RuntimeError("given up before it began")  # nobody waits for it any more
        try:
            return work()
        finally:
            job.end()

    try:
        return await anyio.to_thread.run_sync(carry_out, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
    except anyio.get_cancelled_exc_class():
        job.give_up()
        raise


class _Job:
    def __init__(self) -> None:
        self._works = False
        self._given_up = False

    def begin(self) -> bool:
        with _lock:
            self._works = not self._given_up
            return self._works

    def end(self) -> None:
        with _lock:
            self._works = False
            _abandoned.discard(self)

    def give_up(self) -> None:
        with _lock:
            self._given_up = True
            if self._works:
                _abandoned.add(self)
