"""Reads what boto3 gives for Converse and ConverseStream, and what it raises.

    content block      becomes
    text               text
    toolUse            a tool call
    anything else      kept verbatim at its place: reasoningContent with its signature, redacted reasoning, citations

boto3 knows bytes, JSON does not: they are kept as `{"$bytes": base64}`. What a newer service sends and this boto3 does
not know is dropped by boto3 itself. A stream ends with `messageStop`; `metadata` with the usage follows it.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterator
from typing import Any, cast

from durable.errors import (
    ProviderAuthenticationError,
    ProviderError,
    ProviderRequestError,
    ProviderResponseError,
    ProviderSetupError,
    ProviderStreamError,
    ProviderTimeoutError,
    ProviderUnavailableError,
)
from durable.messages import AssistantMessage, NativeBlock, NativeTurn, ToolCall
from durable.ports import Delta, ModelTurn
from durable.providers._failures import Failure, error_for, redactor, shortened
from durable.providers._text import Flow, as_dict, as_list, as_text, mended_json, read_json
from durable.providers._usage import count
from durable.providers._wire import written_arguments
from durable.records import FinishReason, Usage

_STATUS = {
    "AccessDeniedException": 403,
    "ExpiredTokenException": 403,
    "UnrecognizedClientException": 403,
    "InvalidSignatureException": 403,
    "ResourceNotFoundException": 404,
    "ValidationException": 400,
    "ThrottlingException": 429,
    "ServiceQuotaExceededException": 429,
    "TooManyRequestsException": 429,
    "ModelTimeoutException": 408,
    "InternalServerException": 500,
    "ModelErrorException": 500,
    "ModelStreamErrorException": 500,
    "ServiceUnavailableException": 503,
    "ModelNotReadyException": 503,
}
_REASONS = {
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "guardrail_intervened": FinishReason.CONTENT_FILTER,
    "content_filtered": FinishReason.CONTENT_FILTER,
}
_redact = redactor([])


def parse(provider: str, answer: Any, *, origin: str) -> ModelTurn:
    """Give the model's turn, or raise the `ProviderError` that the answer amounts to."""
    answered = as_dict(cast(object, answer))
    message = as_dict(as_dict(answered.get("output")).get("message"))
    if not isinstance(message.get("content"), list):
        raise ProviderResponseError(provider, "the answer has no message", status=200)
    try:
        content = as_list(mended_json(without_bytes(cast(object, message["content"]))))
    except ValueError:
        raise ProviderResponseError(provider, "the answer is nested too deep", status=200) from None
    text = ""
    calls: list[ToolCall] = []
    blocks: list[NativeBlock] = []
    for block in map(as_dict, content):
        if "toolUse" in block:
            use = as_dict(block["toolUse"])
            calls.append(_call(provider, use))
            beside = {name: value for name, value in use.items() if name not in ("toolUseId", "name", "input")}
            blocks.append(NativeBlock(kind="call", value=beside))
        elif set(block) == {"text"}:
            text += as_text(block["text"])
            blocks.append(NativeBlock(kind="text", chars=len(as_text(block["text"]))))
        elif block and "SDK_UNKNOWN_MEMBER" not in block:
            blocks.append(NativeBlock(kind="own", value=block))
    kinds = [block.kind for block in blocks]
    needed = any(block.value for block in blocks) or "text" in kinds[1:]
    reason = _REASONS.get(as_text(answered.get("stopReason")), FinishReason.STOP)
    native = NativeTurn(origin=origin, blocks=tuple(blocks)) if needed else None
    return ModelTurn(
        message=AssistantMessage(content=text, tool_calls=tuple(calls), native=native),
        usage=_usage(answered.get("usage")),
        finish_reason=FinishReason.STOP if calls else reason,
    )


def _call(provider: str, use: dict[str, Any]) -> ToolCall:
    name = as_text(use.get("name"))
    if not name:
        raise ProviderResponseError(provider, "a toolUse block has no name", status=200)
    return ToolCall(id=str(use.get("toolUseId") or ""), name=name, arguments=written_arguments(use.get("input")))


def _usage(value: object) -> Usage:
    """Their input tokens leave the cached ones out; ours hold them."""
    cached = count(value, "cacheReadInputTokens")
    return Usage(
        model_calls=1,
        input_tokens=count(value, "inputTokens") + cached + count(value, "cacheWriteInputTokens"),
        cached_input_tokens=cached,
        output_tokens=count(value, "outputTokens"),
    )


def without_bytes(value: object) -> Any:
    if isinstance(value, bytes):
        return {"$bytes": b64encode(value).decode()}
    if isinstance(value, dict):
        return {name: without_bytes(item) for name, item in as_dict(cast(object, value)).items()}
    return [without_bytes(item) for item in as_list(cast(object, value))] if isinstance(value, list) else value


def with_bytes(value: object) -> Any:
    if isinstance(value, list):
        return [with_bytes(item) for item in as_list(cast(object, value))]
    if not isinstance(value, dict):
        return value
    known = as_dict(cast(object, value))
    if set(known) == {"$bytes"}:
        return from_base64(as_text(known["$bytes"]))
    return {name: with_bytes(item) for name, item in known.items()}


def from_base64(text: str) -> bytes:
    return b64decode(text)


def failure_of(provider: str, error: Exception) -> Failure:
    """What a call of boto3 raised, in our words. Its own text may hold a token, so it goes through the same filter."""
    from botocore import exceptions

    if isinstance(error, exceptions.ClientError):
        return _stated(provider, as_dict(cast(object, error.response)), error)
    name = type(error).__name__
    reason = shortened(_redact(f"{name}: {error}"))
    if isinstance(error, exceptions.ReadTimeoutError | exceptions.ConnectTimeoutError):
        return Failure(ProviderTimeoutError(provider, f"no answer in time ({name})"), again=True, cause=error)
    if isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
        return Failure(ProviderAuthenticationError(provider, reason), cause=error)
    if isinstance(error, exceptions.ParamValidationError):
        return Failure(ProviderRequestError(provider, "boto3 refuses the request: a value has the wrong type"))
    if isinstance(error, exceptions.NoRegionError | exceptions.UnknownServiceError):
        return Failure(ProviderSetupError(provider, reason), cause=error)
    if isinstance(error, exceptions.EventStreamError | exceptions.ResponseStreamingError):
        return Failure(ProviderStreamError(provider, reason), again=True, cause=error)
    if isinstance(error, exceptions.HTTPClientError | exceptions.ConnectionError | OSError):
        return Failure(ProviderUnavailableError(provider, reason), again=True, cause=error)
    return Failure(ProviderResponseError(provider, f"the answer cannot be read ({name})"), cause=error)


def _stated(provider: str, response: dict[str, Any], cause: Exception) -> Failure:
    about = as_dict(response.get("Error"))
    code = as_text(about.get("Code"))
    http = as_dict(response.get("ResponseMetadata")).get("HTTPStatusCode")
    named = {name.lower(): status for name, status in _STATUS.items()}
    status = named.get(code.lower()) or (http if isinstance(http, int) and http >= 300 else 500)
    error = error_for(provider, status, as_text(about.get("Message")) or code, frozenset({code}), redact=_redact)
    return Failure(error, again=error.retryable, cause=cause)


class ConverseStream:
    """One stream: puts its events together into the answer that would have come whole."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, str] = {}
        self._flows: dict[int, Flow] = {}
        self._answer: dict[str, Any] = {}
        self.done = False

    def feed(self, event: Any) -> Iterator[Delta]:
        for name, value in as_dict(event).items():
            data = as_dict(value)
            index = count(data, "contentBlockIndex")
            if name == "contentBlockStart":
                self._blocks[index] = {kind: dict(as_dict(start)) for kind, start in as_dict(data.get("start")).items()}
            elif name == "contentBlockDelta":
                yield from self._delta(index, as_dict(data.get("delta")))
            elif name == "messageStop":
                self._answer["stopReason"] = data.get("stopReason")
                self.done = True
            elif name == "metadata":
                self._answer["usage"] = data.get("usage")
            elif name.endswith("Exception"):
                raise _error(self._provider, name, as_text(data.get("message")))

    def whole(self) -> dict[str, Any]:
        for index, text in self._inputs.items():
            value = read_json(text) if text.strip() else {}
            self._blocks[index]["toolUse"]["input"] = text if value is None else value
        content = [self._blocks[index] for index in sorted(self._blocks)]
        return {**self._answer, "output": {"message": {"role": "assistant", "content": content}}}

    def _delta(self, index: int, delta: dict[str, Any]) -> Iterator[Delta]:
        block = self._blocks.setdefault(index, {})
        flow = self._flows.setdefault(index, Flow())
        if "text" in delta:
            block["text"] = as_text(block.get("text")) + as_text(delta["text"])
            yield Delta("text", flow.feed(as_text(delta["text"])))
        elif "toolUse" in delta:
            use: dict[str, Any] = block.setdefault("toolUse", {})
            piece = as_text(as_dict(delta["toolUse"]).get("input"))
            self._inputs[index] = self._inputs.get(index, "") + piece
            place = sum("toolUse" in one for at, one in self._blocks.items() if at < index)
            id, name = as_text(use.get("toolUseId")), as_text(use.get("name"))
            yield Delta("arguments", flow.feed(piece), place, id or None, name)
        elif "reasoningContent" in delta:
            yield from self._reasoning(block, as_dict(delta["reasoningContent"]), flow)
        elif "citation" in delta:
            cited: dict[str, Any] = block.setdefault("citationsContent", {"content": [], "citations": []})
            cited["citations"].append(delta["citation"])

    def _reasoning(self, block: dict[str, Any], delta: dict[str, Any], flow: Flow) -> Iterator[Delta]:
        held: dict[str, Any] = block.setdefault("reasoningContent", {})
        if "redactedContent" in delta:
            held["redactedContent"] = held.get("redactedContent", b"") + delta["redactedContent"]
            return
        text: dict[str, Any] = held.setdefault("reasoningText", {})
        for name in ("text", "signature"):
            if name in delta:
                text[name] = as_text(text.get(name)) + as_text(delta[name])
        yield Delta("reasoning", flow.feed(as_text(delta.get("text"))))


def _error(provider: str, name: str, message: str) -> ProviderError:
    return _stated(provider, {"Error": {"Code": name, "Message": message}}, ValueError(name)).error
