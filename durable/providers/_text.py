"""Text as providers send it, and JSON that a store takes.

A model may write half of a surrogate pair, and a stream may part a pair: JSON escapes carry both, UTF-8 and so every
store refuse them. Halves that belong together are joined, a lone one becomes U+FFFD.
"""

import json
from typing import Any, NoReturn, cast

from pydantic import JsonValue

MAX_DEPTH = 120
"""How deep an answer may be nested: deeper ones no store would take."""


def read_json(body: bytes | str) -> JsonValue:
    """Give the JSON value, its text mended, or None where it is not JSON (NaN is none, nor is what is too deep)."""
    try:
        text = body.decode("utf-8-sig") if isinstance(body, bytes) else body
        value = _decode(text)
        return mended_json(value)
    except (ValueError, RecursionError):
        return None


def mended(text: str) -> str:
    """Give the text with surrogate halves joined or replaced."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def mended_json(value: Any, depth: int = 0) -> JsonValue:
    """Give the value with each text in it mended. Raises `ValueError` for one that is nested too deep."""
    if isinstance(value, str):
        return mended(value)
    if not isinstance(value, dict | list):
        return value
    if depth >= MAX_DEPTH:
        raise ValueError("nested too deep")
    if isinstance(value, list):
        return [mended_json(item, depth + 1) for item in as_list(cast(object, value))]
    return {mended(name): mended_json(item, depth + 1) for name, item in as_dict(cast(object, value)).items()}


class Flow:
    """The pieces of one text: each is given on as far as it is whole, so that no half of a pair is shown."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        text = self._held + piece
        split = len(text) - 1 if text and "\ud800" <= text[-1] <= "\udbff" else len(text)
        self._held = text[split:]
        return mended(text[:split])


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _decode(text: str) -> JsonValue:
    return cast(JsonValue, _decoder.decode(text.strip()))


def as_dict(value: object) -> dict[str, Any]:
    """The value if it is an object, else an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """The value if it is a list, else an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def as_text(value: object) -> str:
    """The value if it is a text, else an empty one."""
    return value if isinstance(value, str) else ""


def read_raw(text: str) -> Any:
    """Like `read_json`, with surrogate halves as they are: for pieces of a stream, which may part a pair."""
    try:
        return _decode(text)
    except (ValueError, RecursionError):
        return None


_decoder = json.JSONDecoder(parse_constant=_refuse)
