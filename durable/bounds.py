"""What a run is given by whoever calls it: the time it may take here, and who looks on."""

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio.lowlevel

from durable.events import Listener
from durable.signals import AbortSignal

MIN_MODEL_SECONDS = 15.0
"""No model call starts with less time left than this."""

MIN_TOOL_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The time that a run may take here. `remaining` gives the seconds that are left; the run stops cleanly before."""

    remaining: Callable[[], float] = field(default=lambda: math.inf)
    min_model_seconds: float = MIN_MODEL_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Who looks on: `listener` gets the run's events, `signal` asks it to stop.

    `check` is awaited before each model call and before tools start: it may set the signal, or raise to end the run
    here and now, without another save.
    """

    listener: Listener | None = None
    signal: AbortSignal | None = None
    check: Callable[[], Awaitable[object]] = anyio.lowlevel.checkpoint_if_cancelled


UNBOUNDED = Bounds()
UNWATCHED = Watch()
