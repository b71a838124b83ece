"""Reads an answer of the Messages protocol, whole or as a stream.

    content block      becomes
    text               text; citations and other fields are kept beside it
    tool_use           a tool call; fields like `caller` are kept beside it
    anything else      kept verbatim at its place: thinking with its signature, redacted_thinking, compaction,
                       calls and results of server tools

A turn that the server paused (`pause_turn`, by server tools) ends as cut by length: a message goes on from there.
A stream ends with `message_stop`. Pings and unknown events are passed over, unknown deltas are joined to their block.
"""

from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from durable.errors import ProviderError, ProviderResponseError
from durable.messages import AssistantMessage, NativeBlock, NativeTurn, ToolCall
from durable.ports import Delta, ModelTurn
from durable.providers._failures import Redact, error_for, said
from durable.providers._sse import ServerEvent
from durable.providers._text import Flow, as_dict, as_list, as_text, mended, mended_json, read_json, read_raw
from durable.providers._usage import count
from durable.providers._wire import written_arguments
from durable.records import FinishReason, Usage

_STATUS = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
_REASONS = {
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "pause_turn": FinishReason.LENGTH,
    "refusal": FinishReason.CONTENT_FILTER,
}


def parse(provider: str, value: JsonValue, *, redact: Redact, origin: str) -> ModelTurn:
    """Give the model's turn, or raise the `ProviderError` that the answer amounts to."""
    answer = as_dict(value)
    if answer.get("type") == "error" or (answer.get("error") and "content" not in answer):
        raise _stated(provider, value, redact)
    if not isinstance(answer.get("content"), list):
        raise ProviderResponseError(provider, "this is not an answer of the protocol (content: a list)", status=200)
    text = ""
    calls: list[ToolCall] = []
    blocks: list[NativeBlock] = []
    for block in map(as_dict, as_list(answer["content"])):
        match block.get("type"):
            case "text":
                said_now = as_text(block.get("text"))
                text += said_now
                blocks.append(NativeBlock(kind="text", chars=len(said_now), value=_beside(block, "text")))
            case "tool_use":
                calls.append(_call(provider, block))
                blocks.append(NativeBlock(kind="call", value=_beside(block, "id", "name", "input")))
            case str():
                blocks.append(NativeBlock(kind="own", value=block))
            case _:
                raise ProviderResponseError(provider, "a content block has no type", status=200)
    native = NativeTurn(origin=origin, blocks=tuple(blocks)) if _needed(blocks) else None
    reason = _REASONS.get(as_text(answer.get("stop_reason")), FinishReason.STOP)
    return ModelTurn(
        message=AssistantMessage(content=text, tool_calls=tuple(calls), native=native),
        usage=_usage(answer.get("usage")),
        finish_reason=FinishReason.STOP if calls else reason,
        model=as_text(answer.get("model")) or None,
    )


def _needed(blocks: list[NativeBlock]) -> bool:
    """Whether the neutral message alone would not be sent back as these blocks: one text, then the calls."""
    kinds = [block.kind for block in blocks]
    return any(block.value for block in blocks) or "own" in kinds or "text" in kinds[1:]


def _beside(block: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in block.items() if name not in ("type", *names) and value is not None}


def _call(provider: str, block: dict[str, Any]) -> ToolCall:
    name = as_text(block.get("name"))
    if not name:
        raise ProviderResponseError(provider, "a tool_use block has no name", status=200)
    return ToolCall(id=str(block.get("id") or ""), name=name, arguments=written_arguments(block.get("input")))


def _usage(value: object) -> Usage:
    """Their input tokens leave the cached ones out; ours hold them."""
    cached = count(value, "cache_read_input_tokens")
    return Usage(
        model_calls=1,
        input_tokens=count(value, "input_tokens") + cached + count(value, "cache_creation_input_tokens"),
        cached_input_tokens=cached,
        output_tokens=count(value, "output_tokens"),
    )


def _stated(provider: str, value: Any, redact: Redact) -> ProviderError:
    message, codes = said(value)
    status = next((_STATUS[code] for code in codes if code in _STATUS), 500)
    return error_for(provider, status, message or "", codes, redact=redact)


class MessageStream:
    """One stream of the protocol."""

    def __init__(self, provider: str, redact: Redact) -> None:
        self._provider = provider
        self._redact = redact
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, str] = {}
        self._flows: dict[int, Flow] = {}
        self.done = False

    def feed(self, event: ServerEvent) -> Iterator[Delta]:
        data = as_dict(read_raw(event.data))
        if not data:
            raise ProviderResponseError(self._provider, "an event of the stream is not a JSON object")
        at = data.get("index")
        index = at if isinstance(at, int) else -1
        match data.get("type") or event.name:
            case "message_start":
                self._message = dict(as_dict(data.get("message")))
            case "content_block_start":
                self._blocks[index] = dict(as_dict(data.get("content_block")))
            case "content_block_delta":
                yield from self._delta(index, as_dict(data.get("delta")))
            case "message_delta":
                self._message |= as_dict(data.get("delta"))
                usage = {name: value for name, value in as_dict(data.get("usage")).items() if value is not None}
                self._message["usage"] = {**as_dict(self._message.get("usage")), **usage}
            case "message_stop":
                self.done = True
            case "error":
                raise _stated(self._provider, data, self._redact)
            case _:
                pass

    def whole(self) -> JsonValue:
        if not self.done:
            return None
        for index, text in self._inputs.items():
            block = self._blocks.get(index, {})
            if text.strip():
                value = read_json(text)
                block["input"] = mended(text) if value is None else value
        content = [self._blocks[index] for index in sorted(self._blocks)]
        try:
            return mended_json({**self._message, "content": content})
        except ValueError:
            raise ProviderResponseError(self._provider, "the answer is nested too deep") from None

    def _delta(self, index: int, delta: dict[str, Any]) -> Iterator[Delta]:
        block = self._blocks.setdefault(index, {})
        flow = self._flows.setdefault(index, Flow())
        match delta.get("type"):
            case "text_delta":
                yield Delta("text", flow.feed(_append(block, "text", delta)))
            case "thinking_delta":
                yield Delta("reasoning", flow.feed(_append(block, "thinking", delta)))
            case "input_json_delta":
                piece = as_text(delta.get("partial_json"))
                self._inputs[index] = self._inputs.get(index, "") + piece
                if block.get("type") == "tool_use":
                    id, name = as_text(block.get("id")), as_text(block.get("name"))
                    yield Delta("arguments", flow.feed(piece), self._place(index), id or None, name)
            case "citations_delta":
                block["citations"] = [*as_list(block.get("citations")), delta.get("citation")]
            case _:
                for name in delta:
                    if name != "type":
                        _append(block, name, delta)

    def _place(self, index: int) -> int:
        return sum(block.get("type") == "tool_use" for at, block in self._blocks.items() if at < index)


def _append(block: dict[str, Any], name: str, delta: dict[str, Any]) -> str:
    """Add a field of a delta to its block: texts are joined, anything else takes the place of what was there."""
    value = delta.get(name)
    block[name] = as_text(block.get(name)) + value if isinstance(value, str) else value
    return as_text(value)
