"""What a runner looks at while it runs: whether the session is still its own, and whether somebody asked it to stop."""

import asyncio
from collections.abc import Awaitable

from durable.bounds import Watch
from durable.crossing import cross
from durable.errors import LeaseLostError, StoreError
from durable.outcome import RunResult
from durable.ports import Lease
from durable.signals import AbortSignal
from handlers._observe import logger
from handlers._wiring import App

LOOKS_EVERY = 5.0
"""Seconds between two looks while a model or a tool works; before each of them there is one anyway."""


class Guard:
    """Watches the lease under which a run is carried on.

    `check` raises `LeaseLostError` when somebody has taken the lease over (its fence has risen), and sets the signal
    when `POST …/abort` named this run. A look that fails is no answer: the log itself refuses what an outdated runner
    saves, and the next look finds the flag.
    """

    def __init__(self, app: App, lease: Lease, *, session_id: str, run_id: str) -> None:
        self.lease = lease
        self.session_id = session_id
        self.run_id = run_id
        self._app = app
        self._signal = AbortSignal()

    @property
    def watch(self) -> Watch:
        return Watch(signal=self._signal, check=self.check)

    async def check(self) -> None:
        there = await self._look()
        if there is not None and there.fence != self.lease.fence:
            raise LeaseLostError(self.session_id)

    async def run(self, work: Awaitable[RunResult]) -> RunResult:
        """Await the work, and look for the flag meanwhile: a long answer or tool is not waited for."""
        looking = asyncio.create_task(self._keep_looking())
        try:
            return await work
        finally:
            looking.cancel()

    async def _keep_looking(self) -> None:
        while not self._signal.aborted:
            await asyncio.sleep(LOOKS_EVERY)
            await self._look()

    async def _look(self) -> Lease | None:
        try:
            there = await cross(self._app.store.leases.look, self.lease.stream)
        except StoreError as error:
            logger().warning("lease not looked at", extra={"code": error.code})
            return None
        if there is not None and there.fence == self.lease.fence and there.abort_run == self.run_id:
            self._signal.abort()
        return there
