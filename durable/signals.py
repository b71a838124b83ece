"""Asking a run to stop."""

import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager

import anyio
import anyio.from_thread
import anyio.lowlevel


class AbortSignal:
    """Set once, from any thread; seen by the run that was given it, and by its tools as `ctx.signal`.

    A tool that can stop early looks at `aborted`, or waits for `wait()` beside its work.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._aborted = False
        self._waiting: list[tuple[int, anyio.lowlevel.EventLoopToken, Callable[[], object]]] = []
        self._followers: list[AbortSignal] = []

    def __repr__(self) -> str:
        return f"<AbortSignal {'aborted' if self._aborted else 'open'}>"

    @property
    def aborted(self) -> bool:
        return self._aborted

    def abort(self) -> None:
        """Ask to stop. More than once is once."""
        with self._lock:
            if self._aborted:
                return
            self._aborted = True
            waiting, followers = list(self._waiting), list(self._followers)
        for follower in followers:
            follower.abort()
        for thread, token, act in waiting:
            if thread == threading.get_ident():
                act()
            else:
                anyio.from_thread.run_sync(act, token=token)

    async def wait(self) -> None:
        """Return when it is set."""
        if self._aborted:
            return
        event = anyio.Event()
        with self.calling(event.set):
            await event.wait()

    @contextmanager
    def calling(self, act: Callable[[], object]) -> Generator[None]:
        """Inside, call `act` in this event loop when it is set; at once where it is set already."""
        waiter = (threading.get_ident(), anyio.lowlevel.current_token(), act)
        with self._lock:
            aborted = self._aborted
            if not aborted:
                self._waiting.append(waiter)
        if aborted:
            act()
        try:
            yield
        finally:
            with self._lock:
                if waiter in self._waiting:
                    self._waiting.remove(waiter)

    def follow(self, other: "AbortSignal") -> None:
        """Be set when `other` is."""
        with other._lock:
            if not other._aborted:
                other._followers.append(self)
                return
        self.abort()

    def unfollow(self, other: "AbortSignal") -> None:
        with other._lock:
            if self in other._followers:
                other._followers.remove(self)


@asynccontextmanager
async def cancelled_by(signal: AbortSignal) -> AsyncGenerator[anyio.CancelScope]:
    """Cancel what runs inside when the signal is set."""
    if signal.aborted:
        with anyio.CancelScope() as scope:
            scope.cancel()
            yield scope
        return
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            await signal.wait()
            group.cancel_scope.cancel()

        group.start_soon(watch)
        yield group.cancel_scope
        group.cancel_scope.cancel()
