"""Answers that fit: a Lambda may answer 6 MB, and what a session holds has no limit.

A value that is too large is shown as `{"truncated": true, "size": bytes of its JSON, "sha256": of its JSON}`.
"""

import hashlib
import json
from collections.abc import Iterable
from typing import Any, Final

MAX_ANSWER: Final = 4_000_000
"""Bytes of JSON in one answer."""

MAX_VALUE: Final = 256 * 1024
"""Bytes of one value that are always shown, where the whole fits."""

_VALUES: Final = frozenset({"content", "arguments", "args", "business_state", "instructions", "text", "result", "data"})
_LISTS: Final = frozenset({"messages", "a", "b"})


def fitted(view: Any, limit: int = MAX_ANSWER) -> Any:
    """Give the view with its large values truncated: those over 256 KB, and where that is not enough, smaller ones."""
    most = MAX_VALUE
    shown = _truncated(view, _VALUES, most)
    while size_of(shown) > limit and most > 1024:
        most //= 4
        shown = _truncated(view, _VALUES, most)
    return shown if size_of(shown) <= limit else _truncated(shown, _LISTS, most)


def page(views: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give the first of these views, as many as fit in one answer, and at least one where there is one."""
    shown: list[dict[str, Any]] = []
    left = MAX_ANSWER
    for view in map(fitted, views):
        left -= size_of(view)
        if shown and left < 0:
            break
        shown.append(view)
    return shown


def size_of(value: Any) -> int:
    return len(_text(value))


def _truncated(value: Any, names: frozenset[str], most: int) -> Any:
    if isinstance(value, list | tuple):
        return [_truncated(item, names, most) for item in value]
    if not isinstance(value, dict):
        return value
    shown = {name: _truncated(item, names, most) for name, item in value.items()}
    return {
        name: _mark(value[name]) if name in names and size_of(item) > most else item for name, item in shown.items()
    }


def _mark(value: Any) -> dict[str, Any]:
    text = _text(value)
    return {"truncated": True, "size": len(text), "sha256": hashlib.sha256(text).hexdigest()}


def _text(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
