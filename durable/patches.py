"""What a fork changes about the checkpoint that it starts from: pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from pydantic import JsonValue

from durable.errors import InvalidInputError
from durable.messages import AssistantMessage, Conversational, Message, SystemMessage, ToolMessage, UserMessage
from durable.records import Checkpoint
from durable.tools import UnserializableResult, to_json_value
from durable.transcript import first_fault, open_turn, pending_calls, settle


class Unchanged(Enum):
    """Says of a field that it stays, where None is a value."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED

Rewrite = Callable[[tuple[Conversational, ...]], Sequence[Message]]


@dataclass(frozen=True, slots=True)
class PatchedResult:
    """Another result for one call: in the place of the one it has, or as the one it waits for."""

    tool_call_id: str
    result: Any = field(repr=False)
    is_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """What is different in a fork, applied in this order.

    `messages` is a new transcript, or a function that makes one of the old; it must be in order, but the calls of its
    last turn may be open. `business_state` replaces the old one. `tool_result` gives one call another result; what
    came after it stays as it is. `append_input` is a user message behind the calls that still wait for their results.
    """

    messages: Sequence[Message] | Rewrite | None = None
    business_state: Any = field(default=UNCHANGED, repr=False)
    tool_result: PatchedResult | None = None
    append_input: str | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        given = {
            "messages": self.messages is not None,
            "business_state": self.business_state is not UNCHANGED,
            "tool_result": self.tool_result is not None,
            "append_input": self.append_input is not None,
        }
        return f"<Patch {' '.join(name for name, there in given.items() if there) or 'nothing'}>"


NO_PATCH: Final = Patch()


def patched(checkpoint: Checkpoint, patch: Patch) -> Checkpoint:
    """Give the checkpoint with the patch applied. Raises `InvalidInputError` that says what does not fit."""
    if patch.messages is not None:
        checkpoint = _rewritten(checkpoint, patch.messages)
    if patch.business_state is not UNCHANGED:
        checkpoint = checkpoint.but(business_state=_json(patch.business_state, "business_state"))
    if patch.tool_result is not None:
        checkpoint = _answered(checkpoint, patch.tool_result)
    if patch.append_input is not None:
        checkpoint = checkpoint.but(queued=(*checkpoint.queued, UserMessage(content=patch.append_input)))
    return checkpoint


def _rewritten(checkpoint: Checkpoint, patch: Sequence[Message] | Rewrite) -> Checkpoint:
    """The checkpoint with another transcript, without what it knew about calls that are not open in the new one."""
    before = checkpoint.messages
    given = tuple(patch(before) if callable(patch) else patch)
    messages = tuple(message for message in given if not isinstance(message, SystemMessage))
    if len(messages) < len(given):
        raise InvalidInputError("`messages`: instructions belong to the agent, a transcript has no system message.")
    if fault := _fault(messages):
        raise InvalidInputError(f"`messages` is not a valid transcript: {fault}.")
    rewritten = checkpoint.but(messages=messages, committed=_committed(messages, before[: checkpoint.committed]))
    waiting = {call.id for call in pending_calls(rewritten.but(results={}))}
    return settle(
        rewritten.but(
            started=tuple(id for id in rewritten.started if id in waiting),
            suspended={id: state for id, state in rewritten.suspended.items() if id in waiting},
            results={},
        ),
        [result for id, result in rewritten.results.items() if id in waiting],
    )


def _fault(messages: Sequence[Conversational]) -> str | None:
    """Why no run could go on from this transcript. The calls of its last turn may be open."""
    turn, answered = open_turn(messages)
    closing = (
        [ToolMessage(tool_call_id=call.id, tool_name=call.name) for call in turn.tool_calls[answered:]] if turn else ()
    )
    if fault := first_fault((*messages, *closing)):
        return fault
    ids = [call.id for message in messages if isinstance(message, AssistantMessage) for call in message.tool_calls]
    if "" in ids or len(ids) > len(set(ids)):
        return "call ids must not be empty or come twice"
    return None


def _committed(messages: Sequence[Conversational], finished: Sequence[Conversational]) -> int:
    """How many messages are of finished turns: up to the last answer that both transcripts begin with."""
    committed = 0
    for at, (now, then) in enumerate(zip(messages, finished, strict=False), start=1):
        if now != then:
            break
        if isinstance(now, AssistantMessage) and not now.tool_calls:
            committed = at
    return committed


def _answered(checkpoint: Checkpoint, patch: PatchedResult) -> Checkpoint:
    if (answered := _with_result(checkpoint, patch)) is None:
        raise InvalidInputError(f"`tool_result`: there is no call {patch.tool_call_id!r} at this step.")
    return answered


def _with_result(checkpoint: Checkpoint, patch: PatchedResult) -> Checkpoint | None:
    """The result is looked for in the transcript, then among those that wait for their place, then it is recorded.

    So it is in the sub-agents that are at work, where the run itself has no such call.
    """
    id = patch.tool_call_id
    content = _json(patch.result, "tool_result")
    changed = {"content": content, "parts": (), "is_error": patch.is_error}
    checkpoint = checkpoint.but(
        started=tuple(started for started in checkpoint.started if started != id),
        suspended={call: state for call, state in checkpoint.suspended.items() if call != id},
    )
    for at, message in enumerate(checkpoint.messages):
        if isinstance(message, ToolMessage) and message.tool_call_id == id:
            result = message.model_copy(update=changed)
            return checkpoint.but(messages=(*checkpoint.messages[:at], result, *checkpoint.messages[at + 1 :]))
    if (waiting := checkpoint.results.get(id)) is not None:
        return checkpoint.but(results={**checkpoint.results, id: waiting.model_copy(update=changed)})
    for call in pending_calls(checkpoint):
        if call.id == id:
            result = ToolMessage(tool_call_id=id, tool_name=call.name, content=content, is_error=patch.is_error)
            return settle(checkpoint, [result])
    for above, child in checkpoint.suspended.items():
        if (answered := _with_result(child, patch)) is not None:
            return checkpoint.but(suspended={**checkpoint.suspended, above: answered})
    return None


def _json(value: object, name: str) -> JsonValue:
    try:
        return to_json_value(value)
    except UnserializableResult as error:
        raise InvalidInputError(f"`{name}`: {error}.") from None
