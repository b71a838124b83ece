"""Checkpoints as log entries and back: pure, no store.

A *reset* or *base* entry holds a whole checkpoint, a *delta* entry what is new in a checkpoint since the one before it:

    {"v": 1, "checkpoint": {field: value, …}}
    {"v": 1, "fields": {field: value, …},               small fields that changed
             "messages": [message | reference, …],      added at the end
             "queued": [message | reference, …],        the whole list, when it changed
             "keys": {field: {"gone": [key, …], "set": {key: value, …}}, …}}

A message that only moves, out of `results` or `queued`, is written as a reference to where it was before:
`{"result": call id}` or `{"queued": index}`. So a large tool result is written once in its life. `revision` and
`updated_at` are the entry's own. Bytes grow with what is new, and a replay is linear in what was written.
"""

from collections.abc import Mapping, Sequence
from operator import is_
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from durable.errors import RecordFormatError
from durable.messages import Conversational, ToolMessage, UserMessage
from durable.ports import Entry
from durable.records import Checkpoint, upgrade
from stores._json import from_body, same, to_body, to_plain
from stores._streams import WHOLE

_OF_ENTRY: Final = frozenset({"v", "revision", "updated_at"})
_KEYED: Final = ("results", "decisions", "requests", "suspended")
_SMALL: Final = tuple(
    name for name in Checkpoint.model_fields if name not in {*_OF_ENTRY, *_KEYED, "messages", "queued"}
)
_DEFAULTS: Final[Mapping[str, Any]] = {
    name: default.model_dump(exclude_defaults=True) if isinstance(default, BaseModel) else default
    for name, field in Checkpoint.model_fields.items()
    if name in _SMALL and not field.is_required()
    for default in [field.get_default(call_default_factory=True)]
}

_messages: TypeAdapter[list[Conversational]] = TypeAdapter(list[Annotated[Conversational, Field(discriminator="role")]])


def reset_body(checkpoint: Checkpoint) -> bytes:
    """Give the body of a reset entry. A value that is not JSON is `RecordFormatError`, which names the field."""
    whole = _plain_fields(checkpoint, _SMALL)
    for name in _KEYED:
        if items := getattr(checkpoint, name):
            whole[name] = {key: _plain_item(checkpoint, name, key) for key in items}
    whole["messages"] = [_plain_message(message, "messages") for message in checkpoint.messages]
    whole["queued"] = [_plain_message(message, "queued") for message in checkpoint.queued]
    return to_body({"checkpoint": whole})


def delta_body(checkpoint: Checkpoint, after: Checkpoint) -> bytes | None:
    """Give the body of a delta entry, or None when `checkpoint.messages` does not extend `after.messages`.

    What is new is found by comparing: the values in `after` must not have been changed in place.
    """
    if not _extends(checkpoint.messages, after.messages):
        return None
    content: dict[str, Any] = {}
    now, before = vars(checkpoint), vars(after)
    changed = [name for name in _SMALL if now[name] is not before[name] and not same(now[name], before[name])]
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
    return to_body(content)


class Replay:
    """Folds the entries of one stream, in order from a reset, into checkpoints.

    Each message is parsed once, however many checkpoints are taken on the way. Checkpoints share their messages,
    which are frozen, and nothing else.
    """

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._entry: Entry | None = None
        self._fields: dict[str, Any] = {}
        self._messages: list[Conversational] = []
        self._unparsed: list[dict[str, Any]] = []

    def apply(self, entry: Entry) -> None:
        """Take the next entry: a reset starts over, a delta adds, a cleared one changes nothing."""
        whole = entry.kind in WHOLE
        content = from_body(entry.body, self._name(entry), oldest=0 if whole else 1)
        self._entry = entry
        try:
            if whole:
                self._fields = upgrade({"v": content.get("v", 0), **content["checkpoint"]})
                self._messages = []
                self._unparsed = self._fields.pop("messages")
            elif entry.kind == "delta":
                self._add(content)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise RecordFormatError(self._name(entry), "does not fit the entries before it: it is damaged") from error

    def checkpoint(self) -> Checkpoint:
        """Give the checkpoint as of the entry applied last."""
        if self._entry is None:
            raise RecordFormatError(self._stream, "has no entries")
        own = {"revision": self._entry.revision, "updated_at": self._entry.written_at}
        try:
            self._messages += _messages.validate_python(self._unparsed)
            self._unparsed = []
            checkpoint = Checkpoint.model_validate({**self._fields, **own})
        except ValidationError as error:
            places = sorted({".".join(map(str, flaw["loc"])) for flaw in error.errors(include_input=False)})
            # The cause shows the values, which no error may.
            raise RecordFormatError(self._name(self._entry), f"is damaged at {', '.join(places[:3])}") from None
        return checkpoint.but(messages=tuple(self._messages))

    def _add(self, content: Mapping[str, Any]) -> None:
        results: Mapping[str, Any] = self._fields.get("results", {})
        queued: Sequence[Any] = self._fields.get("queued", ())

        def resolve(item: dict[str, Any]) -> dict[str, Any]:
            if "role" in item:
                return item
            return results[item["result"]] if "result" in item else queued[item["queued"]]

        self._unparsed += map(resolve, content.get("messages", ()))
        if "queued" in content:
            self._fields["queued"] = [resolve(item) for item in content["queued"]]
        self._fields.update(content.get("fields", {}))
        for name, delta in content.get("keys", {}).items():
            gone = set(delta.get("gone", ()))
            kept = {key: value for key, value in self._fields.get(name, {}).items() if key not in gone}
            self._fields[name] = kept | delta.get("set", {})

    def _name(self, entry: Entry) -> str:
        return f"{self._stream!r} revision {entry.revision}"


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
    new = [key for key, item in now.items() if key not in before or not same(item, before[key])]
    kept = [key for key in before if key in now]
    if [*kept, *(key for key in new if key not in before)] != list(now):  # the order changed: all anew
        gone, new = list(before), list(now)
    delta = {"gone": gone, "set": {key: _plain_item(checkpoint, name, key) for key in new}}
    return {part: value for part, value in delta.items() if value} or None
