"""Who works on a session: one at a time, the others wait their turn.

A lock keeps order; it does not keep the data right. That is the log's compare-and-append, whatever a lock does: of two
who move a session from the same point, one wins and the other gets `StaleCheckpointError`.
"""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime, timedelta
from threading import Lock
from typing import Protocol
from uuid import uuid4

import anyio

from durable.crossing import cross
from durable.definition import utc_now
from durable.errors import ConfigurationError, LeaseLostError, StoreError
from durable.ports import Clock, Lease, Leases


class Held(Protocol):
    """A session that is held. `check` raises `LeaseLostError` when it is not any more; `release` lets go of it."""

    async def check(self) -> None: ...
    async def release(self) -> None: ...


class SessionLock(Protocol):
    """Whatever serializes the work on a session.

    `acquire` waits until nobody else holds the session. A waiter that is cancelled leaves the queue and holds nothing.
    What is held ends with `release`, and may end by itself when its holder has died.
    """

    async def acquire(self, session_id: str) -> Held: ...


class Unlocked:
    """No lock: something else sees to it that a session has one writer at a time, or the loser of two may fail."""

    async def acquire(self, session_id: str) -> Held:
        return self

    async def check(self) -> None:
        pass

    async def release(self) -> None:
        pass


class InProcessLock:
    """First come, first served, among all who give the same object, in whatever thread and event loop of a process."""

    def __init__(self, shared: object) -> None:
        self._shared = shared

    async def acquire(self, session_id: str) -> Held:
        place = _Place((id(self._shared), session_id), self._shared)
        with _guard:
            queue = _queues.setdefault(place.key, deque())
            queue.append(place)
            if queue[0] is place:
                return place
        try:
            await place.turn
        except BaseException:
            await place.release()
            raise
        return place


class _Place:
    """A place in the queue of a session. The first one holds the session; the shared object lives as long."""

    def __init__(self, key: tuple[int, str], shared: object) -> None:
        self.key = key
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self.turn: asyncio.Future[None] = self._loop.create_future()

    async def check(self) -> None:
        pass

    async def release(self) -> None:
        with _guard:
            queue = _queues.get(self.key)
            if queue is None or self not in queue:
                return
            was_first = queue[0] is self
            queue.remove(self)
            while was_first and queue and not queue[0].call():
                queue.popleft()
            if not queue:
                del _queues[self.key]

    def call(self) -> bool:
        """Say that it is this one's turn; False when its event loop is gone, and it with it."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._come)
            return True
        return False

    def _come(self) -> None:
        if not self.turn.done():
            self.turn.set_result(None)


_guard = Lock()
_queues: dict[tuple[int, str], deque[_Place]] = {}
"""The places of each session that somebody holds or waits for, in the order in which they came."""


class LeaseLock:
    """The leases of a store: they hold a session against other processes, machines and Lambdas.

    A lease is taken for `hold_for` and renewed while its holder lives, never past the time that `deadline` gives (when
    the holder's process ends, if it knows). So one that dies holds the session at most that long. Waiters of one
    process queue; the first of them looks every `poll` seconds or so, and whoever looks first gets it.
    """

    def __init__(
        self,
        leases: Leases,
        *,
        hold_for: timedelta = timedelta(seconds=30),
        deadline: Callable[[], datetime] | None = None,
        poll: float = 0.05,
        clock: Clock = utc_now,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        if hold_for <= timedelta(0) or poll <= 0:
            raise ConfigurationError("hold_for and poll must be positive.")
        self.leases = leases
        self.hold_for = hold_for
        self._deadline = deadline
        self._poll = poll
        self.clock = clock
        self.sleep = sleep
        self._queue = InProcessLock(leases)

    async def acquire(self, session_id: str) -> Held:
        place = await self._queue.acquire(session_id)
        owner = f"session/{uuid4().hex}"
        try:
            while (lease := await self.take(session_id, owner)) is None:
                await self.sleep(self._poll * (0.5 + random.random()))
        except BaseException:
            with anyio.CancelScope(shield=True):
                try:
                    await self._let_go(session_id, owner)
                finally:
                    await place.release()
            raise
        return _HeldLease(self, session_id, lease, place)

    async def take(self, session_id: str, owner: str) -> Lease | None:
        """Hold the session from now on, or go on holding it; None while somebody else does."""
        until = self.clock() + self.hold_for
        if self._deadline is not None:
            until = min(until, self._deadline())
        return await cross(self.leases.acquire, _stream(session_id), owner, until=until, revision=-1)

    async def _let_go(self, session_id: str, owner: str) -> None:
        """Release what a cancelled `take` may have got in its worker thread."""
        with suppress(StoreError):
            lease = await cross(self.leases.look, _stream(session_id))
            if lease is not None and lease.owner == owner:
                await cross(self.leases.release, lease)


class _HeldLease:
    """A lease, renewed three times as often as it would end."""

    def __init__(self, lock: LeaseLock, session_id: str, lease: Lease, place: Held) -> None:
        self._lock = lock
        self._session_id = session_id
        self._lease = lease
        self._place = place
        self._lost = False
        self._taking = asyncio.Lock()
        self._renewing = asyncio.get_running_loop().create_task(self._renew())

    async def check(self) -> None:
        if self._lost or self._lock.clock() >= self._lease.until:
            raise LeaseLostError(self._session_id)

    async def release(self) -> None:
        async with self._taking:  # a renewal under way would take the lease once more
            self._renewing.cancel()
        try:
            await cross(self._lock.leases.release, self._lease)
        finally:
            await self._place.release()

    async def _renew(self) -> None:
        while not self._lost:
            await self._lock.sleep(self._lock.hold_for.total_seconds() / 3)
            async with self._taking:
                with suppress(StoreError):  # the next try may be in time; after `until` the lease counts as lost
                    renewed = await self._lock.take(self._session_id, self._lease.owner or "")
                    self._lost = renewed is None
                    self._lease = renewed or self._lease


def _stream(session_id: str) -> str:
    return f"session/{session_id}"
