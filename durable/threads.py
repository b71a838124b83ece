"""Threads for the store calls of this process: started when they are needed, and kept.

A save is what each step of a run waits for. In memory it takes less time than anyio's way into a thread and back, which
serves calls of every kind; this one has nothing to cancel and nothing to clean up, and takes half as long.
"""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import NoReturn, TypeVar

import anyio
import anyio.lowlevel

T = TypeVar("T")

MOST = 40
"""Calls at once, as in anyio; further ones wait."""


class Threads:
    """They make the calls in the order in which these come."""

    def __init__(self, most: int = MOST) -> None:
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._idle: deque[None] = deque()  # one for each thread that has nothing to do
        self._lock = threading.Lock()
        self._startable = most

    async def make(self, call: Callable[[], T]) -> T:
        """Make a call that may block. It is never cut off: who is cancelled meanwhile waits until it has come back."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        loop, context = asyncio.get_running_loop(), copy_context()
        done: asyncio.Future[Callable[[], T]] = loop.create_future()

        def settle(outcome: Callable[[], T]) -> None:
            if not done.done():
                done.set_result(outcome)

        def made() -> None:
            try:
                given = context.run(call)
            except BaseException as error:
                outcome = partial(_fail, error)
            else:
                outcome = partial(_give, given)
            self._idle.append(None)
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, outcome)

        self._assign(made)
        with anyio.CancelScope(shield=True):
            await done
        return done.result()()

    def _assign(self, made: Callable[[], None]) -> None:
        try:
            self._idle.pop()
        except IndexError:
            with self._lock:
                if self._startable:
                    self._startable -= 1
                    threading.Thread(target=self._work, name="durable-store", daemon=True).start()
        self._calls.put(made)

    def _work(self) -> None:
        while True:
            self._calls.get()()


def _give(given: T) -> T:
    return given


def _fail(error: BaseException) -> NoReturn:
    raise error


_threads = Threads()


def _start_over() -> None:
    global _threads
    _threads = Threads()


os.register_at_fork(after_in_child=_start_over)  # none of the parent's threads lives there


async def in_thread(call: Callable[[], T]) -> T:
    """Make the call in one of the threads of this process."""
    return await _threads.make(call)
