"""The conversation, in words that belong to no provider.

A transcript is a sequence of messages. The order is always valid for every provider: the results of a turn's tool
calls follow that turn directly and in call order, and user input comes after them.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"  # a repr must not show what people and models say

    __str__ = __repr__


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
    role: Literal["user"] = "user"
    content: str


class AssistantMessage(_Frozen):
    """A model turn."""

    role: Literal["assistant"] = "assistant"
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


class ToolMessage(_Frozen):
    """The one result of a call: any JSON value. `""`, `0`, `False`, `[]` and `None` are five different results."""

    role: Literal["tool"] = "tool"
    tool_call_id: str
    tool_name: str
    content: JsonValue = None
    is_error: bool = False

    def __repr__(self) -> str:
        return f"<ToolMessage {self.tool_name!r} {self.tool_call_id!r}{' error' if self.is_error else ''}>"


Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]
Conversational = UserMessage | AssistantMessage | ToolMessage

messages_adapter: TypeAdapter[tuple[Message, ...]] = TypeAdapter(tuple[Message, ...])


def same_message(a: Message, b: Message) -> bool:
    """Whether two messages count as the same when a client sends its history again (SEMANTICS 1)."""
    return (
        a.role == b.role
        and a.content == b.content
        and getattr(a, "tool_call_id", None) == getattr(b, "tool_call_id", None)
    )
