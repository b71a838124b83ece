"""What the protocols have in common on the way out: results and arguments as text, ids, structured output."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit, urlunsplit

from pydantic import JsonValue

from durable.errors import ConfigurationError
from durable.messages import FilePart, ImagePart, TextPart, ToolCall, ToolMessage
from durable.ports import Delta, ModelTurn
from durable.providers._text import read_json

Json = dict[str, JsonValue]


def result_text(message: ToolMessage) -> str:
    """A result as text: a string as it is, anything else as JSON, and the texts among its parts."""
    content = message.content
    texts = [part.text for part in message.parts if isinstance(part, TextPart)]
    if not (content is None and message.parts):
        texts.insert(0, content if isinstance(content, str) else json.dumps(content, ensure_ascii=False))
    return "\n".join(texts)


def media(message: ToolMessage) -> list[ImagePart | FilePart]:
    return [part for part in message.parts if not isinstance(part, TextPart)]


def data_url(part: ImagePart | FilePart) -> str:
    return part.url or f"data:{part.media_type};base64,{part.data}"


def arguments_object(call: ToolCall) -> Json:
    """The arguments as an object, for protocols that take nothing else. What is none is wrapped: the model still sees
    what it wrote."""
    value = read_json(call.arguments) if call.arguments.strip() else {}
    if isinstance(value, dict):
        return value
    return {} if call.arguments.strip() == "null" else {"invalid_arguments": call.arguments}


def arguments_text(call: ToolCall) -> str:
    """The text as the model wrote it, where that is a JSON object: several servers parse it, and refuse the whole
    transcript over anything else."""
    value = read_json(call.arguments) if call.arguments.strip() else None
    return call.arguments if isinstance(value, dict) else json.dumps(arguments_object(call), ensure_ascii=False)


def written_arguments(value: JsonValue) -> str:
    """What a model gave as arguments, as text: nothing is `{}`, an object its JSON, a text itself."""
    if isinstance(value, str):
        return value if value.strip() else "{}"
    return "{}" if value is None else json.dumps(value, ensure_ascii=False)


class IdRule(NamedTuple):
    """What a protocol takes as the id of a call: a pattern, and what one looks like that we make."""

    pattern: "re.Pattern[str]"
    prefix: str = "call_"
    length: int = 32

    def fitted(self, id: str) -> str:
        """The id itself where it fits, else one made from it: the same for a call and its result."""
        if self.pattern.fullmatch(id):
            return id
        return self.prefix + hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[: self.length]


class OpenCalls:
    """The ids of a turn's calls as they are sent. A call without an id is named by its place in the transcript; a
    result takes the id of the first open call that it answers."""

    def __init__(self, rule: IdRule) -> None:
        self._rule = rule
        self._open: list[tuple[str, str]] = []

    def turn(self, index: int, calls: Sequence[ToolCall]) -> list[str]:
        ids = [self._rule.fitted(call.id or f"call_{index}_{n}") for n, call in enumerate(calls)]
        self._open = list(zip((call.id for call in calls), ids, strict=True))
        return ids

    def result(self, call_id: str) -> str:
        answered = next((pair for pair in self._open if pair[0] == call_id), None)
        if answered is None:
            return self._rule.fitted(call_id)
        self._open.remove(answered)
        return answered[1]


def strict_schema(schema: Mapping[str, JsonValue]) -> Json | None:
    """A schema as providers enforce it: every object closed, every property required. None where it has an object of
    free keys, which nobody can be held to."""
    strict = deepcopy(dict(schema))
    return strict if _closed(strict) else None


def _closed(node: Any) -> bool:
    if isinstance(node, list):
        return all(_closed(item) for item in cast("list[Any]", node))
    if not isinstance(node, dict):
        return True
    schema = cast("dict[str, Any]", node)
    properties = schema.get("properties")
    if schema.get("type") == "object" or isinstance(properties, dict):
        if not isinstance(properties, dict) or schema.get("additionalProperties", False) is not False:
            return False
        schema["additionalProperties"] = False
        schema["required"] = list(cast("dict[str, Any]", properties))
    schema.pop("default", None)
    named = [*_values(properties), *_values(schema.get("$defs"))]
    nested = [schema.get(key) for key in ("items", "anyOf", "allOf", "oneOf", "prefixItems")]
    return all(_closed(one) for one in (*named, *nested))


def _values(node: Any) -> list[Any]:
    return list(cast("dict[str, Any]", node).values()) if isinstance(node, dict) else []


def whole_text(turn: ModelTurn) -> list[Delta]:
    """The pieces of a turn that came whole, for a caller who expects a stream."""
    pieces = [Delta("text", turn.message.content)] if turn.message.content else []
    return pieces + [
        Delta("arguments", call.arguments, n, call.id or None, call.name)
        for n, call in enumerate(turn.message.tool_calls)
    ]


def header_value(what: str, value: str) -> str:
    """Give the value if it can stand in a header."""
    if not (value.isascii() and (value.isprintable() or not value)):
        raise ConfigurationError(f"{what} must be printable ASCII text: it has another character, e.g. a line end.")
    return value


def endpoint_url(base_url: str, path: str) -> str:
    """The address below a base URL; a query of it is kept."""
    try:
        parts = urlsplit(base_url.strip())
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
        parts = urlsplit("")
    if not usable or "@" in parts.netloc:
        raise ConfigurationError("base_url must look like https://host/v1, with no user name or password in it.")
    return urlunsplit((parts.scheme, parts.netloc, f"{parts.path.rstrip('/')}{path}", parts.query, ""))


def origin_of(protocol: str, base_url: str, own: str) -> str:
    """Whose native turns these are: the protocol, and the host where it is not the protocol's own provider."""
    host = urlsplit(base_url.strip()).hostname or ""
    return protocol if host == urlsplit(own).hostname else f"{protocol}@{host}"


def checked_options(options: Mapping[str, JsonValue] | None, taken: frozenset[str]) -> Json:
    """More fields for the body of each request; those that we write ourselves are a `ConfigurationError`."""
    given = dict(options or {})
    if wrong := sorted(taken & given.keys()):
        raise ConfigurationError(f"options must not name {', '.join(wrong)}.")
    return given


def merged(options: Json, ours: Json) -> Json:
    """Both, field by field; within an object that both name, ours come beside the given ones. An option of None leaves
    a field out that a server does not take, e.g. `stream_options`."""
    both = dict(options)
    for name, value in ours.items():
        given = both.get(name)
        both[name] = {**given, **value} if isinstance(given, dict) and isinstance(value, dict) else value
    left_out = {name for name, value in options.items() if value is None}
    return {name: value for name, value in both.items() if name not in left_out}
