"""A model behind HTTP: how a request becomes a turn, whole or streamed, whatever the protocol."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from pydantic import JsonValue

from durable.ports import ModelRequest, ModelTurn
from durable.providers._http import Endpoint, StreamReader, Tell, Told
from durable.providers._wire import whole_text


class HttpModel(ABC):
    """What the protocols over HTTP share. Each builds a body, reads an answer and puts a stream together."""

    def __init__(self, *, name: str, origin: str, endpoint: Endpoint) -> None:
        self._name = name
        self._origin = origin
        self._endpoint = endpoint

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}>"

    @property
    def name(self) -> str:
        return self._name

    @property
    def origin(self) -> str:
        """Whose native turns it sends back."""
        return self._origin

    async def generate(self, request: ModelRequest) -> ModelTurn:
        answer = await self._endpoint.post(self.body(request), budget=request.timeout)
        return self._parse(answer)

    async def stream(self, request: ModelRequest, tell: Tell) -> ModelTurn:
        """Like `generate`, and `tell` gets the pieces of the turn while it is written."""
        told = Told(tell)
        body = self.body(request, stream=True)
        answer = await self._endpoint.stream(body, budget=request.timeout, reader=self._reader(), tell=told)
        turn = self._parse(answer)
        if not told.any:
            for delta in whole_text(turn):
                tell(delta)
        return turn

    @abstractmethod
    def body(self, request: ModelRequest, *, stream: bool = False) -> dict[str, JsonValue]:
        """Give the JSON that is sent for a request."""

    @abstractmethod
    def _parse(self, answer: JsonValue) -> ModelTurn:
        """Read a whole answer."""

    @abstractmethod
    def _reader(self) -> Callable[[], StreamReader]:
        """Give what makes a reader for one stream."""
