"""How a provider is called, and how often: full jitter, a budget of time, and the wait that the provider asks for."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import anyio

from durable.errors import ConfigurationError, ProviderTimeoutError
from durable.ports import Clock
from durable.providers._failures import Failure

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """How a provider is called. All times are seconds.

    `total_timeout` bounds a call whose request names no time-out of its own. A provider that asks for a wait of more
    than `longest_wait`, or longer than the time left, gets no second attempt: the error says when to come back.
    The last four fields are for tests, and `transport` for whoever needs a special connection.
    """

    attempts: int = 3
    connect_timeout: float = 10.0
    read_timeout: float = 300.0
    total_timeout: float = 600.0
    longest_wait: float = 60.0
    first_backoff: float = 0.5
    longest_backoff: float = 8.0
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep
    clock: Clock = _now
    random: Callable[[], float] = random.random
    transport: "httpx.AsyncBaseTransport | None" = None

    def __post_init__(self) -> None:
        if not 1 <= self.attempts <= 20:
            raise ConfigurationError(f"attempts must be 1 to 20, not {self.attempts!r}.")


def pause_before_retry(
    failure: Failure, attempt: int, *, left: float, jitter: float, settings: HttpSettings
) -> float | None:
    """Give how long to wait after the failed `attempt` (the first is 1), or None when the failure stands.

    Full jitter: anything up to the doubled backoff, but never less than the provider asks for.
    """
    if not failure.again or attempt >= settings.attempts:
        return None
    backoff = min(settings.longest_backoff, settings.first_backoff * 2.0 ** (attempt - 1))
    pause = max(jitter * backoff, failure.retry_after or 0.0)
    return pause if pause < left and pause <= settings.longest_wait else None


async def attempts(
    provider: str, act: Callable[[float], Awaitable[T | Failure]], *, budget: float | None, settings: HttpSettings
) -> T:
    """Act until it gives something else than a failure, or the failure stands: then its error is raised.

    `act` is given the seconds that are left of the `budget`, which bounds all attempts and the pauses between them.
    """
    budget = settings.total_timeout if budget is None else budget
    started = settings.clock()

    def left() -> float:
        return budget - (settings.clock() - started).total_seconds()

    attempt = 0
    while True:
        attempt += 1
        if left() <= 0:
            raise ProviderTimeoutError(provider, "there was no time left for the call")
        answer = await act(left())
        if not isinstance(answer, Failure):
            return answer
        pause = pause_before_retry(answer, attempt, left=left(), jitter=settings.random(), settings=settings)
        if pause is None:
            raise answer.error from answer.cause
        await settings.sleep(pause)
