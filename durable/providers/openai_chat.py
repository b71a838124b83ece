"""OpenAI's Chat Completions, and every server that speaks the same protocol."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import assert_never
from urllib.parse import urlsplit, urlunsplit

from pydantic import JsonValue
from pydantic_core import from_json

from durable.errors import ConfigurationError
from durable.messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    Message,
    Part,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from durable.ports import ModelRequest, ModelTurn, ToolSpec
from durable.providers._failures import redactor
from durable.providers._http import Endpoint, HttpSettings
from durable.providers._openai_chat_answer import parse

OPENAI = "https://api.openai.com/v1"
_OURS = frozenset({"model", "messages", "tools", "stream"})


class OpenAIChat:
    """A model behind `POST <base_url>/chat/completions`, without streaming.

    `headers` go with each request and replace ours of the same name; a query of `base_url` is kept. `options` are more
    fields of the request body, e.g. `{"temperature": 0}`.
    """

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None,
        base_url: str = OPENAI,
        headers: Mapping[str, str] | None = None,
        options: Mapping[str, JsonValue] | None = None,
        http: HttpSettings | None = None,
    ) -> None:
        self._model = model
        self._options = dict(options or {})
        if taken := sorted(_OURS & self._options.keys()):
            raise ConfigurationError(f"options must not name {', '.join(taken)}.")
        key = _checked("api_key", (api_key or "").strip())
        given = {name.lower(): _checked(f"headers[{name!r}]", value) for name, value in (headers or {}).items()}
        sent = {"content-type": "application/json", "accept": "application/json"}
        if key:
            sent["authorization"] = f"Bearer {key}"
        self._endpoint = Endpoint(
            provider=self.name,
            url=_url(base_url),
            headers=sent | given,
            redact=redactor([key, *(value for value in given.values() if len(value) >= 8)]),
            settings=http or HttpSettings(),
        )

    def __repr__(self) -> str:
        return f"<OpenAIChat {self._model!r}>"

    @property
    def name(self) -> str:
        return f"openai:{self._model}"

    async def generate(self, request: ModelRequest) -> ModelTurn:
        answer = await self._endpoint.post(self.body(request), budget=request.timeout)
        return parse(self.name, answer, redact=self._endpoint.redact)

    def body(self, request: ModelRequest) -> dict[str, JsonValue]:
        """Give the JSON that is sent for a request."""
        messages: list[JsonValue] = []
        if request.instructions:
            messages.append({"role": "system", "content": request.instructions})
        messages.extend(_messages(request.messages))
        body: dict[str, JsonValue] = {**self._options, "model": self._model, "messages": messages}
        if request.tools:
            body["tools"] = [_tool(spec) for spec in request.tools]
        return body


def _messages(transcript: Sequence[Message]) -> Iterator[dict[str, JsonValue]]:
    """Call ids on the wire: ours, which is the provider's own where that was usable. The one of a call that still has
    none is its place in the transcript; a result takes the id of the first open call that it answers."""
    open_calls: list[tuple[str, str]] = []
    for index, message in enumerate(transcript):
        match message:
            case SystemMessage():
                yield {"role": "system", "content": message.content}
            case UserMessage():
                yield {"role": "user", "content": _user_content(message.content)}
            case AssistantMessage():
                open_calls = [(call.id, call.id or f"call_{index}_{n}") for n, call in enumerate(message.tool_calls)]
                yield _assistant(message, [sent for _, sent in open_calls])
            case ToolMessage():
                answered = next((pair for pair in open_calls if pair[0] == message.tool_call_id), None)
                if answered:
                    open_calls.remove(answered)
                sent = answered[1] if answered else message.tool_call_id
                yield {"role": "tool", "tool_call_id": sent, "content": _as_text(message.content)}
            case _:
                assert_never(message)


def _user_content(content: str | tuple[Part, ...]) -> JsonValue:
    return content if isinstance(content, str) else [_part(part) for part in content]


def _part(part: Part) -> JsonValue:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case ImagePart():
            return {"type": "image_url", "image_url": {"url": part.url or f"data:{part.media_type};base64,{part.data}"}}
        case FilePart():
            file: dict[str, JsonValue] = {"file_data": part.url or f"data:{part.media_type};base64,{part.data}"}
            return {"type": "file", "file": file | ({"filename": part.name} if part.name else {})}


def _assistant(message: AssistantMessage, ids: Sequence[str]) -> dict[str, JsonValue]:
    if not message.tool_calls:
        return {"role": "assistant", "content": message.content}
    calls: list[JsonValue] = [
        {"id": sent, "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}
        for sent, call in zip(ids, message.tool_calls, strict=True)
    ]
    return {"role": "assistant", "content": message.content or None, "tool_calls": calls}


def _arguments(call: ToolCall) -> str:
    """The text as the model wrote it, where that is a JSON object. Several servers parse it and refuse the whole
    transcript over anything else, so the rest is wrapped: the model still sees what it wrote."""
    try:
        value = from_json(call.arguments or "null", allow_inf_nan=False)
    except ValueError:
        value = call.arguments
    if isinstance(value, dict):
        return call.arguments
    return "{}" if value is None else json.dumps({"invalid_arguments": call.arguments}, ensure_ascii=False)


def _as_text(content: JsonValue) -> str:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def _tool(spec: ToolSpec) -> JsonValue:
    function: dict[str, JsonValue] = {
        "name": spec.name,
        "description": spec.description,
        "parameters": dict(spec.parameters),
    }
    return {"type": "function", "function": function}


def _checked(what: str, value: str) -> str:
    if not (value.isascii() and (value.isprintable() or not value)):
        raise ConfigurationError(f"{what} must be printable ASCII text: it has another character, e.g. a line end.")
    return value


def _url(base_url: str) -> str:
    try:
        parts = urlsplit(base_url.strip())
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
        parts = urlsplit("")
    if not usable or "@" in parts.netloc:
        raise ConfigurationError("base_url must look like https://host/v1, with no user name or password in it.")
    return urlunsplit((parts.scheme, parts.netloc, f"{parts.path.rstrip('/')}/chat/completions", parts.query, ""))
