"""What went wrong with a call to a provider, in our own words.

The rules, in order: a credential never shows; the text is the provider's own message where it has one; the status
decides the type, and of a 4xx the provider's codes and words: too long, refused, or not about the transcript at all.
Providers write their errors in many shapes; these are read:

    {"error": {"message", "code", "type"}}      OpenAI and most others      {"error": "text"}     Ollama
    [{"error": {…}}]                            Gemini                      {"message": "text"}   Mistral, vLLM
    {"detail": "text" | [{"loc", "msg"}]}       servers built on FastAPI    {"errors": […]}       Cloudflare

What is not JSON is shown as it is.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import cast

from pydantic import JsonValue

from durable.errors import (
    ProviderAuthenticationError,
    ProviderContextLengthError,
    ProviderError,
    ProviderOverloadedError,
    ProviderRateLimitError,
    ProviderRefusedError,
    ProviderRequestError,
    ProviderResponseError,
    ProviderSetupError,
    ProviderTimeoutError,
    ProviderUnavailableError,
)
from durable.providers._text import mended, read_json

LONGEST_REASON = 500
_OVERLOADED = frozenset({"overloaded_error", "slow_down", "server_overloaded", "engine_overloaded"})
_UNAUTHENTICATED = frozenset({"authentication_error", "invalid_api_key"})
_REFUSED = frozenset({"content_policy_violation", "content_filter", "invalid_prompt", "ResponsibleAIPolicyViolation"})
_TOO_LONG = frozenset({"context_length_exceeded", "request_too_large", "string_above_max_length"})
_NO_MODEL = frozenset({"model_not_found", "invalid_model", "unsupported_parameter", "unsupported_value"})
_SAYS_TOO_LONG = re.compile(
    r"prompt is too long|input is too long|context (length|window|limit)|too many (input )?tokens|maximum context"
    r"|input tokens exceeded|exceeds? the (max(imum)?|available) (context|number of tokens)",
    re.IGNORECASE,
)
_SAYS_NO_MODEL = re.compile(
    r"model identifier is invalid|\bmodel\b.{0,80}\b(does not exist|not found|isn.t supported|credit balance)"
    r"|credit balance is too low|on-demand throughput",
    re.IGNORECASE,
)
_SETTINGS = re.compile(
    r"(?:body\.)?(tools|tool_choice|max_tokens|temperature|top_p|top_k|thinking|model|system|metadata|stop_sequences"
    r"|output_config|response_format|reasoning)\b[\w.\[\]-]*: "
)
"""How some providers name the option that they object to: `tools.0.name: …`."""

_KEY_LIKE = r"\bbearer\s+[^\s\"',;]{6,}|\b(?:sk-|gsk_|xai-|AIza)[\w*.\-]{3,}"

Redact = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt without an answer. `again` says whether another one may help, `cause` where the error comes from."""

    error: ProviderError
    again: bool = False
    retry_after: float | None = None
    cause: Exception | None = None


def redactor(secrets: Iterable[str]) -> Redact:
    """Give the function that takes these secrets, and whatever looks like a key, out of a text."""
    known = sorted({re.escape(secret) for secret in secrets if secret}, key=len, reverse=True)
    pattern = re.compile("|".join([*known, f"(?i:{_KEY_LIKE})"]))
    return lambda text: pattern.sub("[redacted]", text)


def failure_of(
    provider: str, status: int, body: bytes, headers: Mapping[str, str], *, now: datetime, redact: Redact
) -> Failure:
    """Read an answer whose status is not 2xx."""
    message, codes = said(read_json(body) if body else None)
    reason = message or body[: 8 * LONGEST_REASON].decode(errors="replace")
    wait = retry_after(headers, now)
    about = _about(read_json(body) if body else None)
    error = error_for(provider, status, reason, codes, redact=redact, retry_after=wait, about=about)
    match headers.get("x-should-retry"):
        case "true":
            again = True
        case "false":
            again = False
        case _:
            again = error.retryable and 400 <= status < 600
    return Failure(error, again, wait)


def error_for(
    provider: str,
    status: int,
    reason: str,
    codes: frozenset[str] = frozenset(),
    *,
    redact: Redact,
    retry_after: float | None = None,
    about: str | None = None,
) -> ProviderError:
    """Give the typed error of a status and of what the provider said with it; `about` is the parameter it names."""
    reason = shortened(redact(reason)) or "no reason was given"
    if "tool_use_failed" in codes:
        reason += " (the model's call does not fit the tool's schema: ask again, or allow more in the schema)"
        return ProviderResponseError(provider, reason, status=status)
    if "insufficient_quota" in codes:
        return ProviderSetupError(provider, reason, status=status)
    if status == 429:
        return ProviderRateLimitError(provider, reason, status=status, retry_after=retry_after)
    return _kind(status, reason, codes, about)(provider, reason, status=status)


def _kind(status: int, reason: str, codes: frozenset[str], about: str | None) -> type[ProviderError]:
    if status in (401, 403):
        return ProviderAuthenticationError
    if status in (408, 504):
        return ProviderTimeoutError
    if status == 529 or codes & _OVERLOADED:
        return ProviderOverloadedError
    if 500 <= status < 600:
        return ProviderUnavailableError
    if not 400 <= status < 500:
        return ProviderResponseError
    if codes & _UNAUTHENTICATED:
        return ProviderAuthenticationError
    if codes & _TOO_LONG or status == 413 or _SAYS_TOO_LONG.search(reason):
        return ProviderContextLengthError
    if codes & _REFUSED:
        return ProviderRefusedError
    elsewhere = not re.match(r"(messages|input)\b", about) if about else bool(_SETTINGS.match(reason))
    if elsewhere or status not in (400, 422) or codes & _NO_MODEL or _SAYS_NO_MODEL.search(reason):
        return ProviderSetupError
    return ProviderRequestError


def said(value: JsonValue) -> tuple[str | None, frozenset[str]]:
    """Give the message of an error answer and the codes and types that it names. Never what it echoes of a request."""
    match value:
        case [first, *_]:
            return said(first)
        case {"error": dict() as inner}:
            return _text(inner.get("message")), _codes(inner)
        case {"error": str() as text}:
            return text, _codes(value)
        case {"message": message}:
            return _text(message), _codes(value)
        case {"detail": detail} | {"errors": detail}:
            return _text(detail), _codes(value)
        case dict():
            return "an error without a message", _codes(value)
        case _:
            return None, frozenset()


def _about(value: JsonValue) -> str | None:
    """The parameter that OpenAI and its like object to."""
    match value:
        case {"error": {"param": str() as param}} if param:
            return param
        case _:
            return None


def _text(value: JsonValue) -> str:
    match value:
        case str() as text:
            return text
        case {"loc": list() as where, "msg": str() as text}:
            return f"{'.'.join(str(part) for part in where)}: {text}"
        case {"detail": inner} | {"message": inner}:
            return _text(inner)
        case list() as several:
            return "; ".join(_text(one) for one in several[:3])
        case _:
            return "an error without a message"


def _codes(error: Mapping[str, JsonValue]) -> frozenset[str]:
    return frozenset(str(error[name]) for name in ("code", "type") if isinstance(error.get(name), str | int))


def shortened(text: str) -> str:
    """Give the text on one line and not longer than a reason may be."""
    line = " ".join(mended(text).split())  # an error is kept with the run, and half a surrogate pair cannot be
    return line if len(line) <= LONGEST_REASON else f"{line[: LONGEST_REASON - 1]}…"


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Give the seconds that the provider asks to wait: `retry-after-ms`, or `retry-after` in seconds or as a date."""
    milliseconds = _seconds(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _seconds(value)
    if seconds is not None or value is None:
        return seconds
    try:
        moment = parsedate_to_datetime(value)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return max(0.0, (moment - now).total_seconds())
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def _seconds(value: str | None) -> float | None:
    try:
        number = float(cast(str, value))
    except (ValueError, TypeError):
        return None
    return number if isfinite(number) and number >= 0 else None
