"""JSON as it is kept: compact, in the order it was given, and nothing that is not JSON."""

import json
import math
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, from_json, to_json

from durable.errors import RecordFormatError
from durable.records import FORMAT

MAX_DEPTH = 150
"""How deep a record may be nested. The parser that reads it back stops at 200, and an entry adds a few levels."""

_SCALARS = (str, int, float, type(None))

_MAX_BITS = 14_000
"""Python writes no number of more than 4,300 digits."""


def to_plain(record: BaseModel, what: str, *, only: Any = None) -> dict[str, Any]:
    """Give a record, or `only` some of its fields, as JSON values; `what` names it in an error.

    Fields that have their default are left out: a changed default is a new format.
    """
    try:
        plain = record.model_dump(include=only, exclude_defaults=True, warnings="error")
    except PydanticSerializationError:
        # The cause shows the value, which no error may.
        raise RecordFormatError(what, "holds a value that is not of its type") from None
    if flaw := _flaw(plain):
        raise RecordFormatError(what, f"holds {flaw}, which cannot be kept as JSON")
    return plain


def to_body(content: dict[str, Any]) -> bytes:
    """Give the bytes of an entry. `content` is made of values that `to_plain` gave."""
    return to_json({"v": FORMAT, **content})


def from_body(body: bytes, what: str, *, oldest: int = 1) -> dict[str, Any]:
    """Give the content of an entry's bytes; a newer format and damage are `RecordFormatError`.

    Format 0 has no number, which counts as damage unless `oldest` says otherwise.
    """
    try:
        content = from_json(body)
    except ValueError as error:
        raise RecordFormatError(what, "is not JSON: it is damaged") from error
    version = content.get("v", 0) if isinstance(content, dict) else None
    if not isinstance(version, int) or version < oldest:
        raise RecordFormatError(what, "has no format number: it is damaged")
    if version > FORMAT:
        raise RecordFormatError(what, f"has format {version}, and this version reads up to {FORMAT}")
    return content


def same(a: Any, b: Any) -> bool:
    """Whether two values are the same JSON. Python's `==` takes `0`, `0.0` and `False` for one value; JSON does not."""
    if a is b:
        return True
    if a != b or type(a) is not type(b):
        return False
    return _text(a) == _text(b)


def _text(value: Any) -> str:
    return json.dumps(value, default=lambda other: other.model_dump() if isinstance(other, BaseModel) else str(other))


def _flaw(value: Any, depth: int = 0) -> str | None:
    """Say what in a value is not JSON, by its type alone. Tuples are a record's own and count as arrays."""
    if isinstance(value, _SCALARS):
        return _scalar_flaw(value)
    if depth == MAX_DEPTH:
        return f"a value nested more than {MAX_DEPTH} deep"
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                return f"a key of type {type(key).__name__}"
            if flaw := _scalar_flaw(key):
                return flaw
        value = value.values()
    elif not isinstance(value, list | tuple):
        return f"a value of type {type(value).__name__}"
    for item in value:
        if flaw := _flaw(item, depth + 1):
            return flaw
    return None


def _scalar_flaw(value: str | float | None) -> str | None:
    if isinstance(value, str):
        return None if value.isascii() or _is_unicode(value) else "text that is not valid Unicode"
    if isinstance(value, float):
        return None if math.isfinite(value) else f"the number {value}"
    if isinstance(value, int) and value.bit_length() > _MAX_BITS and not _is_writable(value):
        return "a number of thousands of digits"
    return None


def _is_unicode(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_writable(value: int) -> bool:
    try:
        str(value)
    except ValueError:
        return False
    return True
