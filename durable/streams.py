"""A run as a stream of its events.

    async with agent.stream("Summarize our plan.", session_id="chat-42") as events:
        async for event in events:
            if isinstance(event, TextDelta):
                print(event.text, end="")
    result = await events.result

Leaving early aborts the run, as `AbortSignal.abort` does: what was saved stays, and the session can be resumed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from durable.bounds import Watch
from durable.events import Event
from durable.outcome import RunResult
from durable.signals import AbortSignal

Begin = Callable[[Watch], Coroutine[Any, Any, RunResult]]


class RunStream:
    """Iterate for the events; `result` settles when the run has come back, after its last save.

    The run begins with the first event that is asked for, or with `result`. An error of the run is raised where the
    events end, and again by `result`.
    """

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._signal = AbortSignal()
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._task: asyncio.Task[RunResult] | None = None

    @property
    def result(self) -> asyncio.Future[RunResult]:
        return asyncio.shield(self._started())

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._all()

    async def __aenter__(self) -> Self:
        self._started()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Abort the run if it has not come back, and wait until it has. Its error is left to `result`."""
        if (task := self._task) is None:
            return  # nobody has asked for anything yet: there is no run to stop
        if not task.done():
            self._signal.abort()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()

    def _started(self) -> asyncio.Task[RunResult]:
        if self._task is None:
            watch = Watch(listener=self._events.put_nowait, signal=self._signal)
            self._task = asyncio.ensure_future(self._begin(watch))
            self._task.add_done_callback(lambda _: self._events.put_nowait(None))
        return self._task

    async def _all(self) -> AsyncIterator[Event]:
        task = self._started()
        try:
            while (event := await self._events.get()) is not None:
                yield event
            self._events.put_nowait(None)  # whoever iterates again finds the end, too
        finally:
            if not task.done():
                self._signal.abort()
        await task
