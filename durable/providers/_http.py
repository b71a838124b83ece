"""One POST of JSON to a provider, answered whole or as a stream of events; errors in our own words.

httpx is imported with the first call, so a cold start does not pay for it. A call has a client of its own, which its
attempts share: a client that outlived its event loop would be useless in the next one, and each invocation of a
Lambda function has a new loop. The TLS settings, the slow part of making a client, are kept.
"""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from ssl import SSLContext
from typing import TYPE_CHECKING, Protocol, TypeVar

import anyio
from pydantic import JsonValue

from durable.errors import (
    ProviderError,
    ProviderRequestError,
    ProviderResponseError,
    ProviderSetupError,
    ProviderStreamError,
    ProviderTimeoutError,
    ProviderUnavailableError,
)
from durable.ports import Delta
from durable.providers._failures import Failure, Redact, failure_of, read_json, shortened
from durable.providers._retries import HttpSettings, attempts
from durable.providers._sse import EventReader, ServerEvent, TooLarge

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
Tell = Callable[[Delta], None]


class StreamReader(Protocol):
    """Puts the events of one stream together.

    `feed` gives the pieces to tell, and raises a `ProviderError` where the provider says that it failed. `done` is
    whether the last event has come. `whole` gives the answer as it would have come without streaming; None where the
    stream broke off before it was one.
    """

    @property
    def done(self) -> bool: ...
    def feed(self, event: ServerEvent) -> Iterable[Delta]: ...
    def whole(self) -> JsonValue: ...


@dataclass(slots=True)
class Told:
    """Hands pieces on, and remembers that there were some."""

    tell: Tell
    any: bool = False

    def __call__(self, delta: Delta) -> None:
        if delta.text:
            self.any = True
            self.tell(delta)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a provider takes its requests. `rescue` may make an answer of an error that holds one."""

    provider: str
    url: str
    headers: Mapping[str, str] = field(repr=False)
    redact: Redact = field(repr=False)
    settings: HttpSettings = field(repr=False)
    rescue: Callable[[JsonValue], JsonValue] = field(default=lambda value: None, repr=False)

    async def post(self, body: Mapping[str, JsonValue], *, budget: float | None) -> JsonValue:
        """Give the JSON value that the provider answers with a 2xx status. Raises a `ProviderError` and nothing else.

        `budget` bounds the call, all attempts and pauses included, in seconds.
        """
        content = self._encode(body)
        async with _client(self.settings) as client:

            async def once(left: float) -> JsonValue | Failure:
                async def ask() -> JsonValue | Failure:
                    async with self._answer(client, content, left) as response:
                        await response.aread()
                        return self._decode(response)

                return await self._guarded(ask, left)

            return await attempts(self.provider, once, budget=budget, settings=self.settings)

    async def stream(
        self,
        body: Mapping[str, JsonValue],
        *,
        budget: float | None,
        reader: Callable[[], StreamReader],
        tell: Tell,
    ) -> JsonValue:
        """The same, with the answer put together from a stream of events; `tell` gets its pieces as they come.

        Tried again only as long as nothing was told. A server that does not stream is read all the same.
        """
        content = self._encode(body)
        told = Told(tell)
        async with _client(self.settings) as client:

            async def once(left: float) -> JsonValue | Failure:
                async def ask() -> JsonValue | Failure:
                    async with self._answer(client, content, left) as response:
                        if not response.is_success or "json" in response.headers.get("content-type", ""):
                            await response.aread()
                            return self._decode(response)
                        return await self._read(response, reader(), told)

                return self._last(await self._guarded(ask, left), told)

            return await attempts(self.provider, once, budget=budget, settings=self.settings)

    async def _read(self, response: "httpx.Response", stream: StreamReader, told: Told) -> JsonValue:
        events = EventReader()
        async for chunk in response.aiter_bytes():
            for event in events.feed(chunk):
                for delta in stream.feed(event):
                    told(delta)
            if stream.done:
                break
        else:
            try:
                for event in events.end():
                    for delta in stream.feed(event):
                        told(delta)
            except ProviderResponseError:
                raise self._cut() from None  # half an event
        whole = stream.whole()
        if whole is None:
            raise self._cut()
        return whole

    def _cut(self) -> ProviderStreamError:
        return ProviderStreamError(self.provider, "the stream ended before its last event")

    def _last(self, answer: JsonValue | Failure, told: Told) -> JsonValue | Failure:
        """A failure is final once something was shown, and says then that a stream was cut."""
        if not isinstance(answer, Failure) or not told.any:
            return answer
        error = answer.error
        if error.retryable and not isinstance(error, ProviderStreamError):
            error = ProviderStreamError(self.provider, error.reason, status=error.status)
        return Failure(error, cause=answer.cause)

    @asynccontextmanager
    async def _answer(
        self, client: "httpx.AsyncClient", content: bytes, left: float
    ) -> "AsyncGenerator[httpx.Response]":
        import httpx

        read, connect = min(self.settings.read_timeout, left), min(self.settings.connect_timeout, left)
        timeout = httpx.Timeout(read, connect=connect)
        request = client.build_request("POST", self.url, content=content, headers=dict(self.headers), timeout=timeout)
        response = await client.send(request, stream=True)
        try:
            yield response
        finally:
            with anyio.CancelScope(shield=True):
                await response.aclose()

    async def _guarded(self, ask: Callable[[], Awaitable[T | Failure]], left: float) -> T | Failure:
        """Ask, and give what goes wrong on the way as a failure."""
        import httpx

        try:
            with anyio.fail_after(left):
                return await ask()
        except ProviderError as error:
            return Failure(error, again=error.retryable)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
            return Failure(ProviderSetupError(self.provider, self._reason("cannot be asked", error)), cause=error)
        except httpx.DecodingError as error:
            return Failure(ProviderResponseError(self.provider, self._reason("cannot be read", error)), cause=error)
        except TooLarge as error:
            return Failure(ProviderResponseError(self.provider, f"the answer has {error}"), cause=error)
        except (httpx.TimeoutException, TimeoutError) as error:
            late = ProviderTimeoutError(self.provider, f"no answer in time ({type(error).__name__})")
            return Failure(late, again=True, cause=error)
        except (httpx.HTTPError, OSError) as error:
            unavailable = ProviderUnavailableError(self.provider, self._reason("the connection failed", error))
            return Failure(unavailable, again=True, cause=error)

    def _encode(self, body: Mapping[str, JsonValue]) -> bytes:
        try:
            return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, TypeError, RecursionError) as error:
            reason = f"the request cannot be written as JSON ({type(error).__name__})"
            raise ProviderRequestError(self.provider, reason) from None  # the cause would show the content

    def _decode(self, response: "httpx.Response") -> JsonValue | Failure:
        value = read_json(response.content)
        if not response.is_success:
            return self.rescue(value) or failure_of(
                self.provider,
                response.status_code,
                response.content,
                response.headers,
                now=self.settings.clock(),
                redact=self.redact,
            )
        if value is None:
            kind = self.redact(shortened(response.headers.get("content-type", "unknown")))
            reason = f"the answer is not JSON ({len(response.content)} bytes, content type {kind})"
            raise ProviderResponseError(self.provider, reason, status=response.status_code)
        return value

    def _reason(self, what: str, error: Exception) -> str:
        return shortened(self.redact(f"{what} ({type(error).__name__}: {error})"))


def _client(settings: HttpSettings) -> "httpx.AsyncClient":
    import httpx

    return httpx.AsyncClient(transport=settings.transport, verify=True if settings.transport else _tls())


@cache
def _tls() -> SSLContext:
    import httpx

    return httpx.create_ssl_context()
