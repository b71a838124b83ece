"""Waiting for a session that somebody else runs, where a request says so."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Literal, TypeVar

from durable.errors import SessionBusyError
from handlers._deadline import RESERVE
from handlers._wiring import App

T = TypeVar("T")

BusyPolicy = Literal["reject", "wait"]
"""What a request does while somebody else runs the session: it is refused with 409, or waits as long as it may take."""

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 2.0
"""Seconds between two tries: each pause is twice as long as the one before, with half of it left to chance."""


def when_free(app: App, take: Callable[[], T], *, on_busy: BusyPolicy, until: datetime) -> T:
    """Do it, with `wait` as soon as the session is free.

    Its `SessionBusyError` is raised with `reject`, and when `until` is near and the session is still busy.
    """
    if on_busy == "reject":
        return take()
    pause = FIRST_PAUSE
    while True:
        try:
            return take()
        except SessionBusyError:
            seconds = pause * (0.5 + app.agent.random() / 2)
            if app.agent.clock() + timedelta(seconds=seconds + RESERVE) >= until:
                raise
            asyncio.run(_slept(app, seconds))
            pause = min(pause * 2, LONGEST_PAUSE)


async def _slept(app: App, seconds: float) -> None:
    await app.agent.sleep(seconds)
