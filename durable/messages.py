"""The conversation, in words that belong to no provider.

A transcript is a sequence of messages. The order is always valid for every provider: the results of a turn's tool
calls follow that turn directly and in call order, and user input comes after them.
"""

import re
from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Sequence
from hashlib import sha256
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    field_validator,
    model_serializer,
    model_validator,
)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"  # a repr must not show what people and models say

    __str__ = __repr__


class _Part(_Frozen):
    @model_serializer(mode="wrap")
    def _with_type(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Always with its type, which a store that leaves defaults out needs to read it back."""
        return {"type": type(self).model_fields["type"].default, **plain(self)}


class TextPart(_Part):
    type: Literal["text"] = "text"
    text: str


_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+")


class _Media(_Part):
    """Bytes as base64 `data` with their `media_type`, or a `url` that the provider reads; exactly one of the two."""

    media_type: str | None = None
    data: str | None = None
    url: str | None = None

    @classmethod
    def from_bytes(cls, data: bytes, media_type: str, **more: Any) -> Self:
        return cls(data=b64encode(data).decode(), media_type=media_type, **more)

    @field_validator("data")
    @classmethod
    def _base64(cls, data: str | None) -> str | None:
        if data is not None:
            a2b_base64(data, strict_mode=True)  # a ValueError says what is wrong with it
        return data

    @field_validator("media_type")
    @classmethod
    def _named(cls, media_type: str | None) -> str | None:
        if media_type is not None and not _MEDIA_TYPE.fullmatch(media_type):
            raise ValueError("must look like image/png")
        return media_type

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.data is None) == (self.url is None):
            raise ValueError("give data or url, and not both")
        if self.data is not None and self.media_type is None:
            raise ValueError("data needs a media_type")
        return self


class ImagePart(_Media):
    """An image: `ImagePart.from_bytes(png, "image/png")` or `ImagePart(url="https://…")`."""

    type: Literal["image"] = "image"

    @model_validator(mode="after")
    def _image(self) -> Self:
        if self.media_type is not None and not self.media_type.startswith("image/"):
            raise ValueError("an image has a media_type image/…; anything else is a FilePart")
        return self


class FilePart(_Media):
    """A document; `name` is what the model is told that it is called."""

    type: Literal["file"] = "file"
    name: str | None = None


Part = Annotated[TextPart | ImagePart | FilePart, Field(discriminator="type")]


def described(part: TextPart | ImagePart | FilePart) -> dict[str, JsonValue]:
    """A part for people: a text as it is, bytes by their number and the start of their SHA-256."""
    if isinstance(part, TextPart):
        return {"type": part.type, "text": part.text}
    if part.data is None:
        return {"type": part.type, "url": part.url}
    raw = a2b_base64(part.data)
    digest = sha256(raw).hexdigest()[:16]
    return {"type": part.type, "media_type": part.media_type, "bytes": len(raw), "sha256": digest}


class ToolCall(_Frozen):
    """One call that the model asked for.

    `arguments` is the JSON text as the model wrote it, malformed or not. `id` is unique in the session; where the
    provider's own id is empty or repeated, `id` is ours and `provider_id` keeps the provider's.
    """

    id: str
    name: str
    arguments: str = "{}"
    provider_id: str | None = None

    def __repr__(self) -> str:
        return f"<ToolCall {self.name!r} {self.id!r}>"


class SystemMessage(_Frozen):
    """Accepted as input for the sake of clients that send it; never stored (instructions belong to the agent)."""

    role: Literal["system"] = "system"
    content: str


class UserMessage(_Frozen):
    """What the user says: a text, or parts (texts, images, files) in their order.

    `summary_of` marks a summary that stands for so many older turns of the conversation (`durable.compaction`).
    """

    role: Literal["user"] = "user"
    content: str | tuple[Part, ...]
    summary_of: int | None = None

    @property
    def text(self) -> str:
        """The text alone; that of several parts is joined by line ends."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content if isinstance(part, TextPart))


class NativeBlock(_Frozen):
    """One block of a turn, in its provider's order.

    A `text` stands for the next `chars` characters of the message's content and a `call` for its next tool call, so
    neither is stored twice; `value` has the fields that the provider wrote beside them. An `own` block is what only
    this provider understands, verbatim in `value`: thinking with its signature, encrypted reasoning, a compaction.
    Where a part of the content is in such a block as well, `chars` says how much.
    """

    kind: Literal["text", "call", "own"]
    chars: int = 0
    value: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])


class NativeTurn(_Frozen):
    """What of a turn its provider needs back, and nobody else can use.

    `origin` names who understands it: a protocol, and the provider behind it where the protocol has many. `fields` are
    the provider's own fields of the message itself, `blocks` the layout of the whole turn (none: text, then calls).
    Sent back in place to the same origin, left out for every other one, and never removed from the record.
    """

    origin: str
    fields: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])
    blocks: tuple[NativeBlock, ...] = ()


class AssistantMessage(_Frozen):
    """A model turn: in words of nobody's, and `native` beside them where its provider said more than these can."""

    role: Literal["assistant"] = "assistant"
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    native: NativeTurn | None = None

    def native_for(self, origin: str) -> NativeTurn | None:
        """The native turn if `origin` understands it and it still fits the message, which a hook may have changed."""
        native = self.native
        if native is None or native.origin != origin:
            return None
        if native.blocks:
            chars = sum(block.chars for block in native.blocks)
            calls = sum(block.kind == "call" for block in native.blocks)
            if (chars, calls) != (len(self.content), len(self.tool_calls)):
                return None
        return native


class ToolMessage(_Frozen):
    """The one result of a call: any JSON value. `""`, `0`, `False`, `[]` and `None` are five different results.

    `parts` are what the model is shown beside it; where there are some, a `content` of None is not shown.
    """

    role: Literal["tool"] = "tool"
    tool_call_id: str
    tool_name: str
    content: JsonValue = None
    parts: tuple[Part, ...] = ()
    is_error: bool = False

    def __repr__(self) -> str:
        return f"<ToolMessage {self.tool_name!r} {self.tool_call_id!r}{' error' if self.is_error else ''}>"


Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]
Conversational = UserMessage | AssistantMessage | ToolMessage

messages_adapter: TypeAdapter[tuple[Message, ...]] = TypeAdapter(tuple[Message, ...])


def same_message(a: Message, b: Message) -> bool:
    """Whether two messages count as the same when a client sends its history again (SEMANTICS 1).

    What a provider wrote beside its turn does not count: clients do not send it.
    """
    return (
        a.role == b.role
        and a.content == b.content
        and getattr(a, "parts", ()) == getattr(b, "parts", ())
        and getattr(a, "tool_call_id", None) == getattr(b, "tool_call_id", None)
    )


def shown_result(message: ToolMessage) -> JsonValue:
    """A result as one JSON value, its parts described."""
    if not message.parts:
        return message.content
    parts: list[JsonValue] = [described(part) for part in message.parts]
    return {"content": message.content, "parts": parts}


def bound_elsewhere(messages: Sequence[Message], origin: str) -> int:
    """How many turns have native parts that `origin` does not understand, and that are left out when it is asked."""
    turns = (message.native for message in messages if isinstance(message, AssistantMessage))
    return sum(native is not None and native.origin != origin for native in turns)
