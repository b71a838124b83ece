"""Log entries folded back into checkpoints: the other side of `stores/_log.py`, whose format it reads. Pure."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from durable.errors import RecordFormatError
from durable.messages import Conversational
from durable.ports import Entry
from durable.records import Checkpoint, upgrade
from stores._json import from_body
from stores._streams import WHOLE

_messages: TypeAdapter[list[Conversational]] = TypeAdapter(list[Annotated[Conversational, Field(discriminator="role")]])


class Replay:
    """Folds the entries of one stream, in order from a reset, into checkpoints.

    Each message is parsed once, however many checkpoints are taken on the way. Checkpoints share their messages,
    which are frozen, and nothing else.
    """

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._entry: Entry | None = None
        self._state = _State({"messages": []}, version=0)

    def apply(self, entry: Entry) -> None:
        """Take the next entry: a reset starts over, a delta adds, a cleared one changes nothing."""
        whole = entry.kind in WHOLE
        content = from_body(entry.body, self._name(entry), oldest=0 if whole else 1)
        self._entry = entry
        try:
            if whole:
                self._state = _State(content["checkpoint"], version=content.get("v", 0))
            elif entry.kind == "delta":
                self._state.add(content, version=content["v"])
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise RecordFormatError(self._name(entry), "does not fit the entries before it: it is damaged") from error

    def checkpoint(self) -> Checkpoint:
        """Give the checkpoint as of the entry applied last."""
        if self._entry is None:
            raise RecordFormatError(self._stream, "has no entries")
        try:
            return self._state.checkpoint(revision=self._entry.revision, updated_at=self._entry.written_at)
        except ValidationError as error:
            places = sorted({".".join(map(str, flaw["loc"])) for flaw in error.errors(include_input=False)})
            # The cause shows the values, which no error may.
            raise RecordFormatError(self._name(self._entry), f"is damaged at {', '.join(places[:3])}") from None

    def _name(self, entry: Entry) -> str:
        return f"{self._stream!r} revision {entry.revision}"


class _State:
    """What the entries so far say of one agent: a run's own, or a sub-agent that is at work."""

    def __init__(self, whole: Mapping[str, Any], *, version: int) -> None:
        self._fields = upgrade({"v": version, **whole})
        self._messages: list[Conversational] = []
        self._unparsed: list[dict[str, Any]] = self._fields.pop("messages")
        self._children = {
            key: _State(child, version=version) for key, child in self._fields.pop("suspended", {}).items()
        }

    def add(self, content: Mapping[str, Any], *, version: int) -> None:
        """Take what is new."""
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
            gone, new = set(delta.get("gone", ())), delta.get("set", {})
            if name == "suspended":
                self._children = {key: child for key, child in self._children.items() if key not in gone}
                self._children |= {key: _State(child, version=version) for key, child in new.items()}
                for key, inside in delta.get("in", {}).items():
                    self._children[key].add(inside, version=version)
            else:
                kept = {key: value for key, value in self._fields.get(name, {}).items() if key not in gone}
                self._fields[name] = kept | new

    def checkpoint(self, **own: Any) -> Checkpoint:
        """Give what it amounts to, with fields that are kept elsewhere. Raises pydantic's `ValidationError`."""
        self._messages += _messages.validate_python(self._unparsed)
        self._unparsed = []
        children = {key: child.checkpoint() for key, child in self._children.items()}
        checkpoint = Checkpoint.model_validate({**self._fields, "suspended": children, **own})
        return checkpoint.but(messages=tuple(self._messages))
