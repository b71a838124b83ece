"""Anthropic's Messages.

Results come in the user message right after the turn that asked for them, before anything that the user says; blocks
of thinking and the like go back unchanged and in place (platform.claude.com, "Extended thinking" and "Tool use").
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import assert_never

from pydantic import JsonValue

from durable.messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    Message,
    Part,
    SystemMessage,
    TextPart,
    ToolMessage,
    UserMessage,
)
from durable.ports import ModelRequest, ModelTurn, ToolSpec
from durable.providers._anthropic_answer import MessageStream, parse
from durable.providers._failures import redactor
from durable.providers._http import Endpoint, StreamReader
from durable.providers._model import HttpModel
from durable.providers._retries import HttpSettings
from durable.providers._wire import (
    IdRule,
    Json,
    OpenCalls,
    arguments_object,
    checked_options,
    endpoint_url,
    header_value,
    media,
    merged,
    origin_of,
    result_text,
    strict_schema,
)

ANTHROPIC = "https://api.anthropic.com"
VERSION = "2023-06-01"
MAX_TOKENS = 8192
"""What a turn may take unless `options` say something else: the protocol wants a number."""

_OURS = frozenset({"model", "messages", "system", "tools", "stream"})
_ID = IdRule(re.compile(r"[a-zA-Z0-9_-]+"))


class Anthropic(HttpModel):
    """A model behind `POST <base_url>/v1/messages`.

    `options` are more fields of the request body, e.g. `{"max_tokens": 16000, "thinking": {"type": "adaptive"}}`;
    `headers` go with each request, e.g. `anthropic-beta`. A path and query of `base_url` are kept.
    """

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None,
        base_url: str = ANTHROPIC,
        headers: Mapping[str, str] | None = None,
        options: Mapping[str, JsonValue] | None = None,
        structured_output: bool = True,
        http: HttpSettings | None = None,
    ) -> None:
        self._model = model
        self._options: Json = {"max_tokens": MAX_TOKENS, **checked_options(options, _OURS)}
        self._structured = structured_output
        name = f"anthropic:{model}"
        key = header_value("api_key", (api_key or "").strip())
        given = {name.lower(): header_value(f"headers[{name!r}]", value) for name, value in (headers or {}).items()}
        sent = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        sent |= {"anthropic-version": VERSION} | ({"x-api-key": key} if key else {})
        endpoint = Endpoint(
            provider=name,
            url=endpoint_url(base_url, "/v1/messages"),
            headers=sent | given,
            redact=redactor([key, *(value for value in given.values() if len(value) >= 8)]),
            settings=http or HttpSettings(),
        )
        super().__init__(name=name, origin=origin_of("anthropic", base_url, ANTHROPIC), endpoint=endpoint)

    def _parse(self, answer: JsonValue) -> ModelTurn:
        return parse(self.name, answer, redact=self._endpoint.redact, origin=self.origin)

    def _reader(self) -> Callable[[], StreamReader]:
        return partial(MessageStream, self.name, self._endpoint.redact)

    def body(self, request: ModelRequest, *, stream: bool = False) -> dict[str, JsonValue]:
        """Give the JSON that is sent for a request."""
        system = [message.content for message in request.messages if isinstance(message, SystemMessage)]
        if request.instructions:
            system.insert(0, request.instructions)
        ours: Json = {"model": self._model, "messages": _messages(request.messages, self.origin)}
        if system:
            ours["system"] = "\n\n".join(system)
        if request.tools:
            ours["tools"] = [_tool(spec) for spec in request.tools]
            if request.parallel_tool_calls is not None:
                choice: Json = {"disable_parallel_tool_use": not request.parallel_tool_calls}
                ours["tool_choice"] = choice if "tool_choice" in self._options else {"type": "auto", **choice}
        if request.output_schema is not None and self._structured:
            strict = strict_schema(request.output_schema)
            if strict is not None:
                ours["output_config"] = {"format": {"type": "json_schema", "schema": strict}}
        if stream:
            ours["stream"] = True
        return merged(self._options, ours)


def _messages(transcript: Sequence[Message], origin: str) -> list[JsonValue]:
    """User and assistant in turn: what follows one another on one side is one message."""
    calls = OpenCalls(_ID)
    sides: list[tuple[str, list[JsonValue]]] = []

    def add(role: str, blocks: list[JsonValue]) -> None:
        if sides and sides[-1][0] == role:
            sides[-1][1].extend(blocks)
        elif blocks:
            sides.append((role, list(blocks)))

    for index, message in enumerate(transcript):
        match message:
            case SystemMessage():
                pass
            case UserMessage():
                add("user", _user_content(message.content))
            case AssistantMessage():
                add("assistant", _turn(message, calls.turn(index, message.tool_calls), origin))
            case ToolMessage():
                add("user", [_result(message, calls.result(message.tool_call_id))])
            case _:
                assert_never(message)
    return [{"role": role, "content": blocks} for role, blocks in sides]


def _turn(message: AssistantMessage, ids: Sequence[str], origin: str) -> list[JsonValue]:
    native = message.native_for(origin)
    called: list[Json] = [
        {"type": "tool_use", "id": id, "name": call.name, "input": arguments_object(call)}
        for id, call in zip(ids, message.tool_calls, strict=True)
    ]
    if native is None:
        return [*_text(message.content), *called]
    sent: list[JsonValue] = []
    at = 0
    for block in native.blocks:
        match block.kind:
            case "own":
                sent.append(block.value)
            case "text":
                sent.extend({**block.value, **text} for text in _text(message.content[at : at + block.chars]))
            case "call":
                sent.append({**block.value, **called.pop(0)})
        at += block.chars
    return sent


def _text(text: str) -> list[Json]:
    """A block of text; none where it is empty or blank, which the protocol refuses."""
    return [{"type": "text", "text": text}] if text.strip() else []


def _user_content(content: str | tuple[Part, ...]) -> list[JsonValue]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [_part(part) for part in content]


def _part(part: Part) -> JsonValue:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case ImagePart():
            return {"type": "image", "source": _source(part)}
        case FilePart():
            named: Json = {"title": part.name} if part.name else {}
            return {"type": "document", "source": _source(part), **named}


def _source(part: ImagePart | FilePart) -> Json:
    if part.url is not None:
        return {"type": "url", "url": part.url}
    return {"type": "base64", "media_type": part.media_type, "data": part.data}


def _result(message: ToolMessage, id: str) -> JsonValue:
    text = result_text(message)
    content: JsonValue = text
    if parts := media(message):
        content = [*_text(text), *(_part(part) for part in parts)]
    failed: Json = {"is_error": True} if message.is_error else {}
    return {"type": "tool_result", "tool_use_id": id, "content": content, **failed}


def _tool(spec: ToolSpec) -> JsonValue:
    return {"name": spec.name, "description": spec.description, "input_schema": dict(spec.parameters)}
