"""Several models for one agent: the next one is asked when one is too busy, out of reach or too slow."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import anyio

from durable.errors import ConfigurationError, ProviderError
from durable.ports import Delta, ModelRequest, ModelTurn, NativeProvider, Provider, StreamingProvider
from durable.providers._http import Tell, Told
from durable.providers._wire import whole_text


class Fallback:
    """The first model answers; while its provider cannot, the others do, in their order.

    A run's model is the first one, whoever answered. The next one is asked only for errors that are `retryable`, never
    for a refused request or a missing key, and never after a piece of an answer was told. What is left of the time is
    the next one's. Each leaves the native parts of the others' turns out.
    """

    def __init__(self, providers: Sequence[Provider]) -> None:
        if not providers:
            raise ConfigurationError("A fallback needs at least one model.")
        self._providers = tuple(providers)

    def __repr__(self) -> str:
        return f"<Fallback {' '.join(provider.name for provider in self._providers)}>"

    @property
    def name(self) -> str:
        return self._providers[0].name

    @property
    def origin(self) -> str:
        first = self._providers[0]
        return first.origin if isinstance(first, NativeProvider) else first.name

    async def generate(self, request: ModelRequest) -> ModelTurn:
        return await self._ask(request, None)

    async def stream(self, request: ModelRequest, tell: Tell) -> ModelTurn:
        return await self._ask(request, Told(tell))

    async def _ask(self, request: ModelRequest, told: Told | None) -> ModelTurn:
        began = anyio.current_time()
        *others, last = self._providers
        for provider in others:
            try:
                return await _turn(provider, _with_what_is_left(request, began), told)
            except ProviderError as error:
                if not error.retryable or (told is not None and told.any):
                    raise
                left = _with_what_is_left(request, began).timeout
                if left is not None and left <= 0:
                    raise
        return await _turn(last, _with_what_is_left(request, began), told)


async def _turn(provider: Provider, request: ModelRequest, told: Told | None) -> ModelTurn:
    if told is None:
        return await provider.generate(request)
    if isinstance(provider, StreamingProvider):
        tell: Callable[[Delta], None] = told
        return await provider.stream(request, tell)
    turn = await provider.generate(request)
    for delta in whole_text(turn):
        told(delta)
    return turn


def _with_what_is_left(request: ModelRequest, began: float) -> ModelRequest:
    if request.timeout is None:
        return request
    return replace(request, timeout=request.timeout - (anyio.current_time() - began))
