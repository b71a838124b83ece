"""OpenAI's Responses, and every server that speaks the same protocol.

Nothing is kept at the provider unless `options` say `{"store": true}`: the whole conversation goes with each request,
and reasoning comes and goes encrypted.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import assert_never

from pydantic import JsonValue

from durable.messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    Message,
    NativeTurn,
    Part,
    SystemMessage,
    TextPart,
    ToolMessage,
    UserMessage,
)
from durable.ports import ModelRequest, ModelTurn, ToolSpec
from durable.providers._http import StreamReader
from durable.providers._model import HttpModel
from durable.providers._openai_responses_answer import ResponsesStream, parse
from durable.providers._retries import HttpSettings
from durable.providers._wire import (
    IdRule,
    Json,
    OpenCalls,
    arguments_text,
    checked_options,
    data_url,
    endpoint_url,
    media,
    merged,
    origin_of,
    result_text,
    strict_schema,
)
from durable.providers.openai_chat import OPENAI, bearer_endpoint

_OURS = frozenset({"model", "input", "instructions", "tools", "stream"})
_ID = IdRule(re.compile(r"[\s\S]{1,64}"))
_STATELESS: Json = {"store": False, "include": ["reasoning.encrypted_content"]}


class OpenAIResponses(HttpModel):
    """A model behind `POST <base_url>/responses`.

    `options` are more fields of the request body and replace ours, `store` and `include` too; `headers` go with each
    request.
    """

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None,
        base_url: str = OPENAI,
        headers: Mapping[str, str] | None = None,
        options: Mapping[str, JsonValue] | None = None,
        structured_output: bool = True,
        http: HttpSettings | None = None,
    ) -> None:
        self._model = model
        self._options = _STATELESS | checked_options(options, _OURS)
        self._structured = structured_output
        name = f"openai-responses:{model}"
        endpoint = bearer_endpoint(name, endpoint_url(base_url, "/responses"), api_key, headers, http)
        super().__init__(name=name, origin=origin_of("openai-responses", base_url, OPENAI), endpoint=endpoint)

    def _parse(self, answer: JsonValue) -> ModelTurn:
        return parse(self.name, answer, redact=self._endpoint.redact, origin=self.origin)

    def _reader(self) -> Callable[[], StreamReader]:
        return partial(ResponsesStream, self.name, self._endpoint.redact)

    def body(self, request: ModelRequest, *, stream: bool = False) -> dict[str, JsonValue]:
        """Give the JSON that is sent for a request."""
        ours: Json = {"model": self._model, "input": [*_items(request.messages, self.origin)]}
        if request.instructions:
            ours["instructions"] = request.instructions
        if request.tools:
            ours["tools"] = [_tool(spec) for spec in request.tools]
            if request.parallel_tool_calls is not None:
                ours["parallel_tool_calls"] = request.parallel_tool_calls
        if request.output_schema is not None and self._structured:
            strict = strict_schema(request.output_schema)
            schema: Json = {"name": "answer", "schema": strict or dict(request.output_schema), "strict": bool(strict)}
            ours["text"] = {"format": {"type": "json_schema", **schema}}
        if stream:
            ours["stream"] = True
        return merged(self._options, ours)


def _items(transcript: Sequence[Message], origin: str) -> Iterator[Json]:
    """Images and files that tools gave follow the turn's results, as if the user had shown them."""
    calls = OpenCalls(_ID)
    shown: list[JsonValue] = []
    for index, message in enumerate(transcript):
        if shown and not isinstance(message, ToolMessage):
            yield {"role": "user", "content": shown}
            shown = []
        match message:
            case SystemMessage():
                yield {"role": "system", "content": message.content}
            case UserMessage():
                yield {"role": "user", "content": _user_content(message.content)}
            case AssistantMessage():
                ids = calls.turn(index, message.tool_calls)
                native = message.native_for(origin)
                yield from _native_turn(message, ids, native) if native is not None else _plain_turn(message, ids)
            case ToolMessage():
                sent = calls.result(message.tool_call_id)
                yield {"type": "function_call_output", "call_id": sent, "output": result_text(message)}
                if parts := media(message):
                    shown.append({"type": "input_text", "text": f"From the tool {message.tool_name} (call {sent}):"})
                    shown.extend(_part(part) for part in parts)
            case _:
                assert_never(message)
    if shown:
        yield {"role": "user", "content": shown}


def _plain_turn(message: AssistantMessage, ids: Sequence[str]) -> Iterator[Json]:
    if message.content or not message.tool_calls:
        yield {"role": "assistant", "content": message.content}
    for id, call in zip(ids, message.tool_calls, strict=True):
        yield {"type": "function_call", "call_id": id, "name": call.name, "arguments": arguments_text(call)}


def _native_turn(message: AssistantMessage, ids: Sequence[str], native: NativeTurn) -> Iterator[Json]:
    """The items in the order in which the provider gave them; `part` of a text's value is what stood beside it."""
    at = 0
    calls = zip(ids, message.tool_calls, strict=True)
    for block in native.blocks:
        match block.kind:
            case "own":
                yield block.value
            case "text":
                value = dict(block.value)
                part = value.pop("part", None)
                text: Json = {"type": "output_text", "text": message.content[at : at + block.chars]}
                beside = part if isinstance(part, dict) else {}
                yield {"type": "message", "role": "assistant", **value, "content": [{**beside, **text}]}
            case "call":
                id, call = next(calls)
                called: Json = {"type": "function_call", "call_id": id, "name": call.name}
                yield {**block.value, **called, "arguments": arguments_text(call)}
        at += block.chars


def _user_content(content: str | tuple[Part, ...]) -> JsonValue:
    return content if isinstance(content, str) else [_part(part) for part in content]


def _part(part: Part) -> JsonValue:
    match part:
        case TextPart():
            return {"type": "input_text", "text": part.text}
        case ImagePart():
            return {"type": "input_image", "image_url": data_url(part)}
        case FilePart(url=str() as url):
            return {"type": "input_file", "file_url": url}
        case FilePart():
            return {"type": "input_file", "filename": part.name or "file", "file_data": data_url(part)}


def _tool(spec: ToolSpec) -> JsonValue:
    tool: Json = {"type": "function", "name": spec.name, "description": spec.description}
    return {**tool, "parameters": dict(spec.parameters), "strict": False}
