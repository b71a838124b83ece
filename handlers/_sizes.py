"""Answers that fit: a Lambda may answer 6 MB, and what a session holds has no limit.

A value that is too large is shown as `{"truncated": true, "size": …, "sha256": …, "href": …}`: the bytes of its JSON,
their hash, and where the value can be looked up a link that gives them part by part.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from typing import Any, Final
from urllib.parse import quote

MAX_ANSWER: Final = 4_000_000
"""Bytes of JSON in one answer."""

MAX_BODY: Final = 5_000_000
"""Bytes of JSON over which an answer would be cut whatever it is; the rest of what a Lambda may answer is reserve."""

MAX_VALUE: Final = 256 * 1024
"""Bytes of one value that are always shown, where the whole fits."""

MAX_PART: Final = 1_000_000
"""Bytes of a value's JSON in one part. The answer quotes it again, which may double it."""

Link = Callable[[str], str | None]
"""Gives where the value at a JSON Pointer (RFC 6901) of the view can be looked up."""

_VALUES: Final = frozenset(
    {"content", "arguments", "args", "business_state", "instructions", "text", "result", "data", "input"}
)
_LISTS: Final = frozenset({"messages", "a", "b"})


def nowhere(pointer: str) -> None:
    """The `Link` of a view whose values cannot be looked up one by one."""


def values_at(path: str) -> Link:
    """The `Link` of a view whose values are given by `path` itself, with their pointer in the query."""
    return lambda pointer: f"{path}?value={quote(pointer, safe='')}"


def fitted(view: Any, link: Link = nowhere, *, limit: int = MAX_ANSWER) -> Any:
    """Give the view with its large values truncated: those over 256 KB, and where that is not enough, smaller ones.

    Where values alone do not do, lists of them go, and at last whatever is large.
    """
    most = MAX_VALUE
    shown = _truncated(view, _VALUES, most, link)
    while size_of(shown) > limit and most > 1024:
        most //= 4
        shown = _truncated(view, _VALUES, most, link)
    for names in (_LISTS, None):
        if size_of(shown) > limit:
            shown = _truncated(shown, names, most, link)
    return shown


def page(views: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give the first of these views, as many as fit in one answer, and at least one where there is one."""
    shown: list[dict[str, Any]] = []
    left = MAX_ANSWER
    for view in views:
        left -= size_of(view)
        if shown and left < 0:
            break
        shown.append(view)
    return shown


def value_in(view: Any, pointer: str) -> Any:
    """Give the value at a JSON Pointer; one that leads nowhere is `LookupError`."""
    if pointer and not pointer.startswith("/"):
        raise LookupError(pointer)
    for token in pointer.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        if isinstance(view, list | tuple):
            view = view[int(name)] if name.isascii() and name.isdecimal() and len(name) < 10 else {}[name]
        elif isinstance(view, dict):
            view = view[name]
        else:
            raise LookupError(pointer)
    return view


def part_of(value: Any, offset: int) -> dict[str, Any]:
    """Give the bytes of a value's JSON from `offset` on, as text; `next` is the offset of the next part.

    A part ends between two characters. An offset past the end, or inside of a character, is `LookupError`.
    """
    text = _text(value)
    if offset > len(text) or not _starts_at(text, offset):
        raise LookupError(offset)
    end = min(offset + MAX_PART, len(text))
    while not _starts_at(text, end):
        end -= 1
    return {
        "size": len(text),
        "sha256": hashlib.sha256(text).hexdigest(),
        "offset": offset,
        "part": text[offset:end].decode(),
        "next": end if end < len(text) else None,
    }


def size_of(value: Any) -> int:
    return len(_text(value))


def _starts_at(text: bytes, at: int) -> bool:
    """Whether a character starts there, or the text ends: UTF-8 marks the bytes inside of one."""
    return at == len(text) or text[at] & 0xC0 != 0x80


def _truncated(value: Any, names: frozenset[str] | None, most: int, link: Link, pointer: str = "") -> Any:
    """Truncate the members of these names (None: of any), inner ones first."""
    if isinstance(value, list | tuple):
        return [_truncated(item, names, most, link, f"{pointer}/{at}") for at, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    shown: dict[str, Any] = {}
    for name, item in value.items():
        here = f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}"
        inner = _truncated(item, names, most, link, here)
        large = (names is None or name in names) and size_of(inner) > most
        shown[name] = _mark(item, link(here)) if large else inner
    return shown


def _mark(value: Any, href: str | None) -> dict[str, Any]:
    text = _text(value)
    mark = {"truncated": True, "size": len(text), "sha256": hashlib.sha256(text).hexdigest()}
    return mark if href is None else {**mark, "href": href}


def _text(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
