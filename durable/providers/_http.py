"""One POST of JSON to a provider: time-outs, retries within a time budget, errors in our own words.

httpx is imported with the first call, so a cold start does not pay for it. A call has a client of its own, which its
attempts share: a client that outlived its event loop would be useless in the next one, and each invocation of a
Lambda function has a new loop. The TLS settings, the slow part of making a client, are kept.
"""

import json
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from ssl import SSLContext
from typing import TYPE_CHECKING

import anyio
from pydantic import JsonValue

from durable.errors import (
    ConfigurationError,
    ProviderRequestError,
    ProviderResponseError,
    ProviderUnavailableError,
)
from durable.ports import Clock
from durable.providers._failures import Failure, Redact, failure_of, read_json, shortened

if TYPE_CHECKING:
    import httpx


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a provider takes its requests."""

    provider: str
    url: str
    headers: Mapping[str, str] = field(repr=False)
    redact: Redact = field(repr=False)
    settings: HttpSettings = field(repr=False)

    async def post(self, body: Mapping[str, JsonValue], *, budget: float | None) -> JsonValue:
        """Give the JSON value that the provider answers with a 2xx status. Raises a `ProviderError` and nothing else.

        `budget` bounds the call, all attempts and pauses included, in seconds.
        """
        content = self._encode(body)
        budget = self.settings.total_timeout if budget is None else budget
        started = self.settings.clock()
        attempt = 0
        async with _client(self.settings) as client:
            while True:
                attempt += 1
                answer = await self._try(client, content, left=budget - self._since(started))
                if not isinstance(answer, Failure):
                    return self._decode(answer)
                pause = pause_before_retry(
                    answer,
                    attempt,
                    left=budget - self._since(started),
                    jitter=self.settings.random(),
                    settings=self.settings,
                )
                if pause is None:
                    raise answer.error from answer.cause
                await self.settings.sleep(pause)

    async def _try(self, client: "httpx.AsyncClient", content: bytes, *, left: float) -> "httpx.Response | Failure":
        import httpx

        if left <= 0:
            return Failure(ProviderUnavailableError(self.provider, "there was no time left for the call"))
        read, connect = min(self.settings.read_timeout, left), min(self.settings.connect_timeout, left)
        try:
            with anyio.fail_after(left):
                response = await client.post(
                    self.url,
                    content=content,
                    headers=dict(self.headers),
                    timeout=httpx.Timeout(read, connect=connect),
                )
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
            return Failure(ProviderRequestError(self.provider, self._reason("cannot be asked", error)), cause=error)
        except httpx.DecodingError as error:
            return Failure(ProviderResponseError(self.provider, self._reason("cannot be read", error)), cause=error)
        except (httpx.TimeoutException, TimeoutError) as error:
            unavailable = ProviderUnavailableError(self.provider, f"no answer in time ({type(error).__name__})")
            return Failure(unavailable, again=True, cause=error)
        except (httpx.HTTPError, OSError) as error:
            unavailable = ProviderUnavailableError(self.provider, self._reason("the connection failed", error))
            return Failure(unavailable, again=True, cause=error)
        if response.is_success:
            return response
        now = self.settings.clock()
        headers = response.headers
        return failure_of(self.provider, response.status_code, response.content, headers, now=now, redact=self.redact)

    def _encode(self, body: Mapping[str, JsonValue]) -> bytes:
        try:
            return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, TypeError, RecursionError) as error:
            reason = f"the request cannot be written as JSON ({type(error).__name__})"
            raise ProviderRequestError(self.provider, reason) from None  # the cause would show the content

    def _decode(self, response: "httpx.Response") -> JsonValue:
        value = read_json(response.content)
        if value is None:
            kind = self.redact(shortened(response.headers.get("content-type", "unknown")))
            reason = f"the answer is not JSON ({len(response.content)} bytes, content type {kind})"
            raise ProviderResponseError(self.provider, reason, status=response.status_code)
        return value

    def _reason(self, what: str, error: Exception) -> str:
        return shortened(self.redact(f"{what} ({type(error).__name__}: {error})"))

    def _since(self, started: datetime) -> float:
        return (self.settings.clock() - started).total_seconds()


def _client(settings: HttpSettings) -> "httpx.AsyncClient":
    import httpx

    return httpx.AsyncClient(transport=settings.transport, verify=True if settings.transport else _tls())


@cache
def _tls() -> SSLContext:
    import httpx

    return httpx.create_ssl_context()
