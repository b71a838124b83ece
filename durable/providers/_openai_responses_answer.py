"""Reads an answer of the Responses protocol, whole or as a stream.

    output item        becomes
    message            text (a refusal too); where it is one part of text, its characters are stored once
    function_call      a tool call; the item's own id and status are kept beside it
    anything else      kept verbatim at its place: reasoning (encrypted or not), compaction, calls of built-in tools

A stream ends with `response.completed`, `response.incomplete` or `response.failed`, which hold the whole response.
"""

from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from durable.errors import ProviderResponseError
from durable.messages import AssistantMessage, NativeBlock, NativeTurn, ToolCall
from durable.ports import Delta, ModelTurn
from durable.providers._failures import Redact, error_for, said
from durable.providers._sse import ServerEvent
from durable.providers._text import Flow, as_dict, as_list, as_text, mended_json, read_raw
from durable.providers._usage import count
from durable.providers._wire import written_arguments
from durable.records import FinishReason, Usage

_STATUS = {"rate_limit_exceeded": 429, "invalid_prompt": 400, "insufficient_quota": 429, "context_length_exceeded": 400}
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})
_REASONING = frozenset({"response.reasoning_summary_text.delta", "response.reasoning_text.delta"})


def parse(provider: str, value: JsonValue, *, redact: Redact, origin: str) -> ModelTurn:
    """Give the model's turn, or raise the `ProviderError` that the answer amounts to."""
    answer = as_dict(value)
    _check(provider, answer, redact)
    output = answer.get("output")
    if not isinstance(output, list):
        raise ProviderResponseError(provider, "this is not an answer of the protocol (output: a list)", status=200)
    status = as_text(answer.get("status")) or "completed"
    if status not in ("completed", "incomplete"):
        raise ProviderResponseError(provider, f"the response is {status!r}, not completed", status=200)
    turn = _Turn()
    for item in as_list(answer["output"]):
        turn.take(provider, as_dict(item))
    reason = FinishReason.STOP
    if not turn.calls:
        incomplete = as_dict(answer.get("incomplete_details")).get("reason")
        if turn.refused or incomplete == "content_filter":
            reason = FinishReason.CONTENT_FILTER
        elif status == "incomplete":
            reason = FinishReason.LENGTH
    model = as_text(answer.get("model")) or None
    return ModelTurn(message=turn.message(origin), usage=_usage(answer.get("usage")), finish_reason=reason, model=model)


def _check(provider: str, answer: dict[str, Any], redact: Redact) -> None:
    """Raise what a failed response amounts to."""
    if answer.get("error") or answer.get("status") == "failed":
        message, codes = said({"error": answer.get("error") or {}})
        status = next((_STATUS[code] for code in codes if code in _STATUS), 500)
        raise error_for(provider, status, message or "", codes, redact=redact)


class _Turn:
    def __init__(self) -> None:
        self.text = ""
        self.calls: list[ToolCall] = []
        self.blocks: list[NativeBlock] = []
        self.refused = False

    def take(self, provider: str, item: dict[str, Any]) -> None:
        match item.get("type"):
            case "function_call":
                self._call(provider, item)
            case "message":
                self._message(item)
            case str():
                self.blocks.append(NativeBlock(kind="own", value=item))
            case _:
                raise ProviderResponseError(provider, "an output item has no type", status=200)

    def message(self, origin: str) -> AssistantMessage:
        plain = [block.kind for block in self.blocks] in (["text"], []) and not self.calls
        native = None if plain and not _ids(self.blocks) else NativeTurn(origin=origin, blocks=tuple(self.blocks))
        return AssistantMessage(content=self.text, tool_calls=tuple(self.calls), native=native)

    def _call(self, provider: str, item: dict[str, Any]) -> None:
        name = as_text(item.get("name"))
        if not name:
            raise ProviderResponseError(provider, "a function call has no name", status=200)
        call_id, arguments = item.get("call_id"), written_arguments(item.get("arguments"))
        self.calls.append(ToolCall(id=str(call_id) if call_id else "", name=name, arguments=arguments))
        beside = _without(item, "type", "call_id", "name", "arguments")
        self.blocks.append(NativeBlock(kind="call", value=beside))

    def _message(self, item: dict[str, Any]) -> None:
        parts = [as_dict(part) for part in as_list(item.get("content"))]
        texts = [as_text(part.get("text") if "text" in part else part.get("refusal")) for part in parts]
        self.refused = self.refused or any(part.get("type") == "refusal" for part in parts)
        text = "".join(texts) or as_text(item.get("content"))
        self.text += text
        if len(parts) == 1 and parts[0].get("type") == "output_text":
            beside = {**_without(item, "type", "role", "content"), "part": _without(parts[0], "type", "text")}
            self.blocks.append(NativeBlock(kind="text", chars=len(text), value=beside))
        elif parts or text:
            self.blocks.append(NativeBlock(kind="own", chars=len(text), value=item))


def _ids(blocks: list[NativeBlock]) -> bool:
    return any(block.value for block in blocks)


def _without(item: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in names}


def _usage(value: object) -> Usage:
    return Usage(
        model_calls=1,
        input_tokens=count(value, "input_tokens"),
        cached_input_tokens=count(value, "input_tokens_details", "cached_tokens"),
        output_tokens=count(value, "output_tokens"),
    )


class ResponsesStream:
    """One stream of the protocol."""

    def __init__(self, provider: str, redact: Redact) -> None:
        self._provider = provider
        self._redact = redact
        self._answer: JsonValue = None
        self._items: list[Any] = []
        self._calls: dict[str, tuple[int, dict[str, Any]]] = {}
        self._flows: dict[str, Flow] = {}
        self.done = False

    def feed(self, event: ServerEvent) -> Iterator[Delta]:
        if event.data.strip() == "[DONE]":
            return
        data = as_dict(read_raw(event.data))
        kind = as_text(data.get("type")) or event.name
        if not data:
            raise ProviderResponseError(self._provider, "an event of the stream is not a JSON object")
        if kind in _ENDS:
            self._end(data)
        elif kind == "error" or "error" in data:
            self._fail(data)
        else:
            yield from self._take(kind, data)

    def _take(self, kind: str, data: dict[str, Any]) -> Iterator[Delta]:
        key, text = data.get("output_index"), as_text(data.get("delta"))
        if kind == "response.output_item.added":
            item = as_dict(data.get("item"))
            if item.get("type") == "function_call":
                self._calls[str(key)] = (len(self._calls), item)
        elif kind == "response.output_item.done":
            self._items.append(data.get("item"))
        elif kind in ("response.output_text.delta", "response.refusal.delta"):
            yield Delta("text", self._piece(f"text {key}", text))
        elif kind in _REASONING:
            yield Delta("reasoning", self._piece(f"reasoning {key}", text))
        elif kind == "response.function_call_arguments.delta" and str(key) in self._calls:
            place, item = self._calls[str(key)]
            piece = self._piece(f"arguments {key}", text)
            yield Delta("arguments", piece, place, as_text(item.get("call_id")) or None, as_text(item.get("name")))

    def whole(self) -> JsonValue:
        return self._answer

    def _end(self, data: dict[str, Any]) -> None:
        response = as_dict(data.get("response"))
        _check(self._provider, response, self._redact)
        if not response.get("output") and self._items:
            response["output"] = self._items
        try:
            self._answer = mended_json(response)
        except ValueError:
            raise ProviderResponseError(self._provider, "the answer is nested too deep") from None
        self.done = True

    def _fail(self, data: dict[str, Any]) -> None:
        error = as_dict(data.get("error")) or data
        codes = frozenset(as_text(error.get(name)) for name in ("code", "type"))
        status = next((_STATUS[code] for code in codes if code in _STATUS), 500)
        raise error_for(self._provider, status, as_text(error.get("message")), codes, redact=self._redact)

    def _piece(self, key: str, text: str) -> str:
        return self._flows.setdefault(key, Flow()).feed(text)
