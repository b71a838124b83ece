"""Reads an answer of the Chat Completions protocol, as OpenAI and everybody who speaks it too write it.

What compatible servers do, and what is made of it:

    content missing, null, a text, or a list of parts    the joined text parts (thinking parts are not text)
    tool_calls missing or null                           no calls
    arguments missing, null, "" or an object             `{}`, or the object as JSON text
    call id missing, null, "" or repeated                kept as it is: the executor makes it unique
    finish_reason beside calls                           ignored: what was said counts, not what is said about it
    finish_reason `tool_calls` with neither call nor text  not an answer
    status 200 with an `error`, whole or in the choice   the error that its code stands for
    usage missing or odd                                 zeros
    fields of their own, in message, part or call        kept in the native turn, sent back (reasoning_content,
                                                         reasoning_details, thinking parts, extra_content, …)
    status 400 for a call that misses its schema (Groq)  that call: the executor tells the model what is wrong with it
"""

import re
from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, ValidationError

from durable.errors import ProviderError, ProviderResponseError
from durable.messages import AssistantMessage, NativeBlock, NativeTurn, ToolCall
from durable.ports import ModelTurn
from durable.providers._failures import Redact, error_for, said
from durable.providers._text import read_json
from durable.providers._usage import count
from durable.providers._wire import written_arguments
from durable.records import FinishReason, Usage

_REASONS = {
    "length": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
}


class _Read(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="allow", coerce_numbers_to_str=True, hide_input_in_errors=True, protected_namespaces=()
    )


class _Function(_Read):
    name: str = Field(min_length=1)
    arguments: JsonValue = None


class _Call(_Read):
    id: str | None = None
    function: _Function


class _Message(_Read):
    content: str | list[JsonValue] | None = None
    refusal: str | None = None
    role: JsonValue = None
    tool_calls: list[_Call] | None = None


class _Choice(_Read):
    message: _Message | None = None
    finish_reason: str | None = None
    error: JsonValue = None


def _text_or_none(value: Any) -> Any:
    return value if isinstance(value, str) else None


class _Answer(_Read):
    choices: list[_Choice] = Field(min_length=1)
    model: Annotated[str | None, BeforeValidator(_text_or_none)] = None
    usage: JsonValue = None


def parse(provider: str, value: JsonValue, *, redact: Redact, origin: str) -> ModelTurn:
    """Give the model's turn, or raise the `ProviderError` that the answer amounts to."""
    if isinstance(value, dict) and value.get("error") and not value.get("choices"):
        raise stated(provider, value, redact)
    try:
        answer = _Answer.model_validate(value)
    except ValidationError as error:
        raise ProviderResponseError(provider, _where(error), status=200) from error
    choice = answer.choices[0]
    if choice.error:
        raise stated(provider, {"error": choice.error}, redact)
    message = choice.message
    reason = _REASONS.get(choice.finish_reason or "", FinishReason.STOP)
    if message is None and reason is FinishReason.STOP:
        raise ProviderResponseError(provider, "the answer has no message", status=200)
    turn = _assistant(message or _Message(), origin)
    if turn.tool_calls:
        reason = FinishReason.STOP
    elif not turn.content and choice.finish_reason == "tool_calls":
        raise ProviderResponseError(provider, "the answer announces tool calls and has none", status=200)
    elif message is not None and _refusal(message):
        reason = FinishReason.CONTENT_FILTER
    return ModelTurn(message=turn, usage=_usage(answer.usage), finish_reason=reason, model=answer.model)


def rescued(value: JsonValue) -> JsonValue:
    """The answer in an error that holds one: Groq's `tool_use_failed` with the call that the model wrote."""
    match value:
        case {"error": {"code": "tool_use_failed", "failed_generation": str() as text}}:
            pass
        case _:
            return None
    match read_json(text):
        case {"name": str() as name, "arguments": arguments} if name:
            function: JsonValue = {"name": name, "arguments": arguments}
            return {"choices": [{"message": {"tool_calls": [{"function": function}]}, "finish_reason": "tool_calls"}]}
        case _:
            return None


def _assistant(message: _Message, origin: str) -> AssistantMessage:
    calls = tuple(
        ToolCall(id=call.id or "", name=call.function.name, arguments=written_arguments(call.function.arguments))
        for call in message.tool_calls or ()
    )
    content = _text(message.content) or _refusal(message)
    return AssistantMessage(content=content, tool_calls=calls, native=_native(message, content, origin))


def _native(message: _Message, content: str, origin: str) -> NativeTurn | None:
    """What the answer has beside text and calls; None where that is nothing."""
    extra = cast("dict[str, JsonValue]", message.model_extra or {})
    fields: dict[str, JsonValue] = {
        name: value
        for name, value in extra.items()
        if value not in (None, "", [], {}) or (name == "reasoning_content" and value == "")
    }
    said = _parts(message.content) if isinstance(message.content, list) else ()
    if not said and content:
        said = (NativeBlock(kind="text", chars=len(content)),)
    elif sum(block.chars for block in said) != len(content):  # a refusal in a part
        said = (*said, NativeBlock(kind="own", chars=len(content), value={"type": "refusal", "refusal": content}))
    called = tuple(NativeBlock(kind="call", value=_beside(call)) for call in message.tool_calls or ())
    blocks = (*said, *called)
    if not any(block.value for block in blocks):
        blocks = ()
    return NativeTurn(origin=origin, fields=fields, blocks=blocks) if fields or blocks else None


def _parts(parts: list[JsonValue]) -> tuple[NativeBlock, ...]:
    blocks: list[NativeBlock] = []
    for part in parts:
        if text := _part(part, "text"):
            own = {name: value for name, value in part.items() if name != "text"} if isinstance(part, dict) else {}
            blocks.append(NativeBlock(kind="text", chars=len(text), value=own or {"type": "text"}))
        elif isinstance(part, dict) and part.get("type") not in ("text", "refusal"):
            blocks.append(NativeBlock(kind="own", value=part))
    return tuple(blocks)


def _beside(call: _Call) -> dict[str, JsonValue]:
    extra = cast("dict[str, JsonValue]", call.model_extra or {})
    inner = cast("dict[str, JsonValue]", call.function.model_extra or {})
    beside: dict[str, JsonValue] = {
        name: value for name, value in extra.items() if name not in ("type", "index") and value is not None
    }
    return {**beside, "function": inner} if inner else beside


def _text(content: str | list[JsonValue] | None) -> str:
    match content:
        case None:
            return ""
        case str():
            return content
        case list():
            return "".join(_part(part, "text") for part in content)


def _part(part: JsonValue, kind: str) -> str:
    match part:
        case str() if kind == "text":
            return part
        case {"type": str() as found} if found == kind and isinstance(part.get(kind), str):
            return str(part[kind])
        case _:
            return ""


def _refusal(message: _Message) -> str:
    if message.refusal:
        return message.refusal
    parts = message.content if isinstance(message.content, list) else []
    return "".join(_part(part, "refusal") for part in parts)


def _usage(value: JsonValue) -> Usage:
    cached = count(value, "prompt_tokens_details", "cached_tokens") or count(value, "prompt_cache_hit_tokens")
    return Usage(
        model_calls=1,
        input_tokens=count(value, "prompt_tokens"),
        cached_input_tokens=cached,
        output_tokens=count(value, "completion_tokens"),
    )


def stated(provider: str, value: JsonValue, redact: Redact) -> ProviderError:
    """The error in an answer of status 200. Its code is a status where the server is a gateway (OpenRouter)."""
    message, codes = said(value)
    status = next((int(code) for code in codes if re.fullmatch("[45][0-9]{2}", code)), 200)
    return error_for(provider, status, message or "", codes, redact=redact)


def _where(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_context=False, include_input=False)[:3]
    places = "; ".join(f"{'.'.join(str(part) for part in one['loc']) or 'the answer'}: {one['msg']}" for one in found)
    return f"this is not an answer of the protocol ({places})"
