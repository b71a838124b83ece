"""OpenAI's Chat Completions, and every server that speaks the same protocol."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import assert_never
from urllib.parse import urlsplit

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
    ToolCall,
    ToolMessage,
    UserMessage,
)
from durable.ports import ModelRequest, ModelTurn, ToolSpec
from durable.providers._failures import redactor
from durable.providers._http import Endpoint, StreamReader
from durable.providers._model import HttpModel
from durable.providers._openai_chat_answer import parse, rescued
from durable.providers._openai_chat_stream import ChatStream
from durable.providers._retries import HttpSettings
from durable.providers._wire import (
    IdRule,
    Json,
    OpenCalls,
    arguments_text,
    checked_options,
    data_url,
    endpoint_url,
    header_value,
    media,
    merged,
    origin_of,
    result_text,
    strict_schema,
)

OPENAI = "https://api.openai.com/v1"
_OURS = frozenset({"model", "messages", "tools", "stream"})
_ANY_ID = IdRule(re.compile(r"[\s\S]+"))
_MISTRALS = IdRule(re.compile(r"[a-zA-Z0-9]{9}"), prefix="", length=9)
"""Mistral's own server refuses a transcript with any other id (docs.mistral.ai, "Function calling")."""

_NOT_SENT = frozenset({"annotations", "audio", "refusal", "function_call"})
"""Fields of an answer that the protocol does not take back."""


class OpenAIChat(HttpModel):
    """A model behind `POST <base_url>/chat/completions`.

    `headers` go with each request and replace ours of the same name; a query of `base_url` is kept. `options` are more
    fields of the request body, e.g. `{"temperature": 0}`; one of None leaves a field of ours out, for a server that
    does not take it, e.g. `{"stream_options": None}`. `structured_output` says whether the server is asked to hold
    a final answer to the schema: by default OpenAI's own is, others are not, since many refuse such a request.
    """

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None,
        base_url: str = OPENAI,
        headers: Mapping[str, str] | None = None,
        options: Mapping[str, JsonValue] | None = None,
        structured_output: bool | None = None,
        http: HttpSettings | None = None,
    ) -> None:
        self._model = model
        self._options = checked_options(options, _OURS)
        self._structured = base_url == OPENAI if structured_output is None else structured_output
        name = f"openai:{model}"
        endpoint = bearer_endpoint(name, endpoint_url(base_url, "/chat/completions"), api_key, headers, http)
        super().__init__(name=name, origin=origin_of("openai-chat", base_url, OPENAI), endpoint=endpoint)
        self._ids = _MISTRALS if (urlsplit(base_url).hostname or "").endswith("mistral.ai") else _ANY_ID

    def _parse(self, answer: JsonValue) -> ModelTurn:
        return parse(self.name, answer, redact=self._endpoint.redact, origin=self.origin)

    def _reader(self) -> Callable[[], StreamReader]:
        return partial(ChatStream, self.name, self._endpoint.redact)

    def body(self, request: ModelRequest, *, stream: bool = False) -> dict[str, JsonValue]:
        """Give the JSON that is sent for a request."""
        messages: list[JsonValue] = []
        if request.instructions:
            messages.append({"role": "system", "content": request.instructions})
        messages.extend(_messages(request.messages, self.origin, self._ids))
        ours: Json = {"model": self._model, "messages": messages}
        if request.tools:
            ours["tools"] = [_tool(spec) for spec in request.tools]
            if request.parallel_tool_calls is not None:
                ours["parallel_tool_calls"] = request.parallel_tool_calls
        if request.output_schema is not None and self._structured:
            strict = strict_schema(request.output_schema)
            schema: Json = {"name": "answer", "schema": strict or dict(request.output_schema), "strict": bool(strict)}
            ours["response_format"] = {"type": "json_schema", "json_schema": schema}
        if stream:
            ours |= {"stream": True, "stream_options": {"include_usage": True}}
        return merged(self._options, ours)


def bearer_endpoint(
    name: str, url: str, api_key: str | None, headers: Mapping[str, str] | None, http: HttpSettings | None
) -> Endpoint:
    """An endpoint that takes its key as a bearer token, as OpenAI's do."""
    key = header_value("api_key", (api_key or "").strip())
    given = {name.lower(): header_value(f"headers[{name!r}]", value) for name, value in (headers or {}).items()}
    sent = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    if key:
        sent["authorization"] = f"Bearer {key}"
    return Endpoint(
        provider=name,
        url=url,
        headers=sent | given,
        redact=redactor([key, *(value for value in given.values() if len(value) >= 8)]),
        settings=http or HttpSettings(),
        rescue=rescued,
    )


def _messages(transcript: Sequence[Message], origin: str, ids: IdRule) -> Iterator[Json]:
    """The protocol takes no images from a tool: they follow the turn's results, as if the user had shown them."""
    calls = OpenCalls(ids)
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
                yield _assistant(message, calls.turn(index, message.tool_calls), message.native_for(origin))
            case ToolMessage():
                sent = calls.result(message.tool_call_id)
                yield {"role": "tool", "tool_call_id": sent, "content": result_text(message)}
                if parts := media(message):
                    shown.append({"type": "text", "text": f"From the tool {message.tool_name} (call {sent}):"})
                    shown.extend(_part(part) for part in parts)
            case _:
                assert_never(message)
    if shown:
        yield {"role": "user", "content": shown}


def _user_content(content: str | tuple[Part, ...]) -> JsonValue:
    return content if isinstance(content, str) else [_part(part) for part in content]


def _part(part: Part) -> JsonValue:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case ImagePart():
            return {"type": "image_url", "image_url": {"url": data_url(part)}}
        case FilePart():
            named: Json = {"filename": part.name} if part.name else {}
            return {"type": "file", "file": {"file_data": data_url(part), **named}}


def _assistant(message: AssistantMessage, ids: Sequence[str], native: NativeTurn | None) -> Json:
    blocks = native.blocks if native is not None else ()
    extra = [block.value for block in blocks if block.kind == "call"] or [{} for _ in ids]
    sent: Json = {"role": "assistant", "content": _content(message, native)}
    if message.tool_calls:
        sent["tool_calls"] = [
            _call(call, id, own) for id, call, own in zip(ids, message.tool_calls, extra, strict=True)
        ]
    fields = native.fields if native is not None else {}
    if "reasoning_details" in fields:  # they hold the same again, with its signature
        fields = {name: value for name, value in fields.items() if name not in ("reasoning", "reasoning_content")}
    return sent | {name: value for name, value in fields.items() if name not in _NOT_SENT}


def _call(call: ToolCall, id: str, own: Json) -> JsonValue:
    inner = own.get("function")
    beside = inner if isinstance(inner, dict) else {}
    function: Json = {**beside, "name": call.name, "arguments": arguments_text(call)}
    return {**own, "id": id, "type": "function", "function": function}


def _content(message: AssistantMessage, native: NativeTurn | None) -> JsonValue:
    """The text; a list of parts where the provider wrote one."""
    parts: list[JsonValue] = []
    at = 0
    for block in native.blocks if native is not None else ():
        if block.kind == "own":
            parts.append(block.value)
        elif block.kind == "text" and block.value:
            parts.append({**block.value, "text": message.content[at : at + block.chars]})
        at += block.chars
    return parts or message.content or (None if message.tool_calls else "")


def _tool(spec: ToolSpec) -> JsonValue:
    function: Json = {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}
    return {"type": "function", "function": function}
