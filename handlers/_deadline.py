"""How much of this invocation a run may use."""

import os
import sys
import time
from datetime import datetime, timedelta
from typing import Protocol

from durable.bounds import Bounds
from durable.workers import abandoned
from handlers._observe import logger

RESERVE = 2.0
"""Seconds that are kept for saving, handing over and answering."""


class LambdaContext(Protocol):
    """The part of Lambda's context object that is used here."""

    @property
    def aws_request_id(self) -> str: ...
    def get_remaining_time_in_millis(self) -> int: ...


def leave_if_unfit() -> None:
    """End this process, before it does anything, if a tool that was given up still works in it (SEMANTICS 4).

    What such a thread does next would happen beside a run that knows nothing of it. A new environment takes over: the
    state machine tries again, a caller gets 503 and sends the request again.
    """
    if (threads := abandoned()) > 0:
        logger().warning("environment left", extra={"threads": threads})
        sys.stdout.flush()
        os._exit(1)


def seconds_left(context: LambdaContext) -> float:
    return context.get_remaining_time_in_millis() / 1000


def end_of(context: LambdaContext, now: datetime) -> datetime:
    """When this invocation is over, whatever happens: no lease of it may live longer."""
    return now + timedelta(seconds=seconds_left(context))


def bounds(context: LambdaContext, *, min_model_seconds: float) -> Bounds:
    """Let the run stop cleanly while there is time to save and to answer."""
    ends = time.monotonic() + seconds_left(context) - RESERVE
    return Bounds(remaining=lambda: ends - time.monotonic(), min_model_seconds=min_model_seconds)
