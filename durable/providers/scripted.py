"""A model that says what it was told to say: for tests, tours and offline work."""

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import cast

from pydantic import JsonValue

from durable.errors import ProviderRequestError
from durable.messages import AssistantMessage, ToolCall
from durable.ports import ModelRequest, ModelTurn
from durable.records import Usage

Call = ToolCall | tuple[str, Mapping[str, JsonValue] | str]
"""A tool call: whole, or as name and arguments (as JSON text where it should be malformed)."""

Answer = str | Call | Sequence[Call] | AssistantMessage | ModelTurn | Exception
"""One turn: a text, one or several calls, a whole message or turn, or an exception to raise."""

Script = Sequence[Answer] | Callable[[ModelRequest], Answer | Awaitable[Answer]]


class Scripted:
    """A provider whose answers are a list, or a function of the request.

    From a list it takes the answer by the number of model turns that the request already has. So a run that goes on
    in another process finds its place, and a turn that is asked for twice is answered twice alike, exceptions
    included. Whoever needs anything else gives a function. `requests` holds what this object was asked.
    """

    def __init__(self, answers: Script, name: str = "scripted") -> None:
        self._answers = answers
        self._name = name
        self.requests: list[ModelRequest] = []

    def __repr__(self) -> str:
        return f"<Scripted {self._name!r}>"

    @property
    def name(self) -> str:
        return self._name

    async def generate(self, request: ModelRequest) -> ModelTurn:
        self.requests.append(request)
        turn = sum(1 for message in request.messages if isinstance(message, AssistantMessage))
        answer = await self._answer(request, turn)
        if isinstance(answer, Exception):
            raise answer.with_traceback(None)
        if isinstance(answer, ModelTurn):
            return answer
        usage = Usage(model_calls=1, input_tokens=10 * len(request.messages), output_tokens=5)
        return ModelTurn(message=self._message(answer, turn), usage=usage, model=self._name)

    async def _answer(self, request: ModelRequest, turn: int) -> Answer:
        if callable(self._answers):
            answer = self._answers(request)
            return await answer if inspect.isawaitable(answer) else answer
        if turn >= len(self._answers):
            reason = f"the script has {len(self._answers)} answers, and the conversation has {turn} model turns already"
            raise ProviderRequestError(self._name, reason)
        return self._answers[turn]

    def _message(self, answer: str | Call | Sequence[Call] | AssistantMessage, turn: int) -> AssistantMessage:
        match answer:
            case AssistantMessage():
                return answer
            case str():
                return AssistantMessage(content=answer)
            case ToolCall() | (str(), _):
                return AssistantMessage(tool_calls=(self._call(answer, f"call_{turn}_0"),))
            case list() | tuple():
                calls = enumerate(cast(Sequence[Call], answer))
                return AssistantMessage(tool_calls=tuple(self._call(one, f"call_{turn}_{n}") for n, one in calls))
            case _:
                raise self._unusable(answer)

    def _call(self, call: Call, call_id: str) -> ToolCall:
        match call:
            case ToolCall():
                return call
            case (str() as name, str() as arguments):
                return ToolCall(id=call_id, name=name, arguments=arguments)
            case (str() as name, Mapping() as arguments):
                return ToolCall(id=call_id, name=name, arguments=json.dumps(dict(arguments), ensure_ascii=False))
            case _:
                raise self._unusable(call)

    def _unusable(self, answer: object) -> ProviderRequestError:
        reason = f"an answer of type {type(answer).__name__} is not a text, calls, a message, a turn or an exception"
        return ProviderRequestError(self._name, reason)
