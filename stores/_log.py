"""Checkpoints as log entries and back: pure, no store.

A *reset* or *base* entry holds a whole checkpoint, a *delta* entry what is new in a checkpoint since the one before it:

    {"v": 1, "checkpoint": {field: value, …}}
    {"v": 1, "fields": {field: value, …},               small fields that changed
             "messages": [message | reference, …],      added at the end
             "queued": [message | reference, …],        the whole list, when it changed
             "keys": {field: {"gone": [key, …], "set": {key: value, …}, "in": {key: what is new, …}}, …}}

A message that only moves, out of `results` or `queued`, is written as a reference to where it was before:
`{"result": call id}` or `{"queued": index}`. So a large tool result is written once in its life. `revision` and
`updated_at` are the entry's own.

The state of a sub-agent is written alike: whole when it is new, and then, under `in`, what is new in it. Bytes grow
with what is new, and a replay is linear in what was written.
"""

from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any, Final

from pydantic import BaseModel

from durable.errors import RecordFormatError
from durable.messages import Conversational, ToolMessage, UserMessage
from durable.records import Checkpoint
from stores._json import same, to_body, to_plain

_OF_ENTRY: Final = frozenset({"v", "revision", "updated_at"})
_KEYED: Final = ("results", "decisions", "requests", "suspended")
_SMALL_OF_CHILD: Final = tuple(
    name for name in Checkpoint.model_fields if name not in {"v", *_KEYED, "messages", "queued"}
)
_SMALL: Final = tuple(name for name in _SMALL_OF_CHILD if name not in _OF_ENTRY)
_DEFAULTS: Final[Mapping[str, Any]] = {
    name: default.model_dump(exclude_defaults=True) if isinstance(default, BaseModel) else default
    for name, field in Checkpoint.model_fields.items()
    if name in _SMALL_OF_CHILD and not field.is_required()
    for default in [field.get_default(call_default_factory=True)]
}


def reset_body(checkpoint: Checkpoint) -> bytes:
    """Give the body of a reset entry. A value that is not JSON is `RecordFormatError`, which names the field."""
    return to_body({"checkpoint": _whole(checkpoint, _SMALL)})


def _whole(checkpoint: Checkpoint, small: Sequence[str]) -> dict[str, Any]:
    whole = _plain_fields(checkpoint, small)
    for name in _KEYED:
        if items := getattr(checkpoint, name):
            whole[name] = {key: _plain_item(checkpoint, name, key) for key in items}
    whole["messages"] = [_plain_message(message, "messages") for message in checkpoint.messages]
    whole["queued"] = [_plain_message(message, "queued") for message in checkpoint.queued]
    return whole


def delta_body(checkpoint: Checkpoint, after: Checkpoint) -> bytes | None:
    """Give the body of a delta entry, or None when `checkpoint.messages` does not extend `after.messages`.

    What is new is found by comparing: the values in `after` must not have been changed in place.
    """
    new = _new(checkpoint, after, _SMALL)
    return None if new is None else to_body(new)


def _new(checkpoint: Checkpoint, after: Checkpoint, small: Sequence[str]) -> dict[str, Any] | None:
    """Give what is new in a checkpoint, or None when it does not go on from `after`."""
    if not _extends(checkpoint.messages, after.messages):
        return None
    content: dict[str, Any] = {}
    now, before = vars(checkpoint), vars(after)
    changed = [name for name in small if now[name] is not before[name] and not same(now[name], before[name])]
    if changed:
        plain = _plain_fields(checkpoint, changed)
        content["fields"] = {name: plain[name] if name in plain else _DEFAULTS[name] for name in changed}
    if added := checkpoint.messages[len(after.messages) :]:
        content["messages"] = [_moved(message, after) or _plain_message(message, "messages") for message in added]
    if not _same_messages(checkpoint.queued, after.queued):
        content["queued"] = [
            _moved(message, after) or _plain_message(message, "queued") for message in checkpoint.queued
        ]
    keys = {name: _keyed_delta(checkpoint, after, name) for name in _KEYED}
    if keys := {name: delta for name, delta in keys.items() if delta}:
        content["keys"] = keys
    return content


def _plain_fields(checkpoint: Checkpoint, names: Sequence[str]) -> dict[str, Any]:
    """Give fields as JSON values, without those that have their default."""
    try:
        return to_plain(checkpoint, "checkpoint", only={*names})
    except RecordFormatError:
        for name in names:
            to_plain(checkpoint, name, only={name})  # the error says which one it is
        raise


def _plain_item(checkpoint: Checkpoint, name: str, key: str) -> Any:
    """Give one item of a keyed field as JSON values."""
    item = getattr(checkpoint, name)[key]
    if isinstance(item, ToolMessage):
        return _plain_message(item, name)
    if isinstance(item, Checkpoint):
        return _whole(item, _SMALL_OF_CHILD)
    return to_plain(checkpoint, name, only={name: {key}})[name][key]


def _plain_message(message: Conversational, name: str) -> dict[str, Any]:
    if not isinstance(message, Conversational):
        raise RecordFormatError(name, f"holds a {type(message).__name__}, which is no part of a conversation")
    return {"role": message.role, **to_plain(message, name)}


def _extends(messages: Sequence[Conversational], before: Sequence[Conversational]) -> bool:
    return len(messages) >= len(before) and _same_messages(messages[: len(before)], before)


def _same_messages(a: Sequence[Conversational], b: Sequence[Conversational]) -> bool:
    return len(a) == len(b) and (all(map(is_, a, b)) or all(map(same, a, b)))


def _moved(message: Conversational, after: Checkpoint) -> dict[str, Any] | None:
    """Give the reference for a message that `after` already holds elsewhere, else None."""
    if isinstance(message, ToolMessage):
        result = after.results.get(message.tool_call_id)
        return {"result": message.tool_call_id} if result is not None and same(result, message) else None
    if isinstance(message, UserMessage):
        return next(({"queued": at} for at, queued in enumerate(after.queued) if same(queued, message)), None)
    return None


def _keyed_delta(checkpoint: Checkpoint, after: Checkpoint, name: str) -> dict[str, Any] | None:
    """Give what makes a keyed field out of that of `after`, the order of its keys included; None for no change."""
    now: Mapping[str, Any] = getattr(checkpoint, name)
    before: Mapping[str, Any] = getattr(after, name)
    if now is before or not (now or before):
        return None
    gone = [key for key in before if key not in now]
    kept = [key for key in before if key in now]
    inside: dict[str, Any] = {}
    if name == "suspended":
        grown = {key: _new(now[key], before[key], _SMALL_OF_CHILD) for key in kept if now[key] is not before[key]}
        new = [key for key in now if key not in before or (key in grown and grown[key] is None)]
        inside = {key: delta for key, delta in grown.items() if delta}
    else:
        new = [key for key, item in now.items() if key not in before or not same(item, before[key])]
    if [*kept, *(key for key in new if key not in before)] != list(now):  # the order changed: all anew
        gone, new, inside = list(before), list(now), {}
    delta = {"gone": gone, "set": {key: _plain_item(checkpoint, name, key) for key in new}, "in": inside}
    return {part: value for part, value in delta.items() if value} or None
