"""Pure functions over a run's messages: what is pending, what settles, what is in order."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import assert_never

from durable.messages import (
    AssistantMessage,
    Conversational,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from durable.ports import IdFactory
from durable.records import Checkpoint


def open_turn(messages: Sequence[Message]) -> tuple[AssistantMessage | None, int]:
    """The last model turn if only its results follow it, and how many of its calls have their result in order."""
    answered = 0
    for message in reversed(messages):
        match message:
            case ToolMessage():
                answered += 1
            case AssistantMessage():
                return message, answered
            case UserMessage() | SystemMessage():
                return None, 0
            case _:
                assert_never(message)
    return None, 0


def answered_part(messages: tuple[Conversational, ...]) -> tuple[Conversational, ...]:
    """The messages without user input at their end."""
    end = len(messages)
    while end and isinstance(messages[end - 1], UserMessage):
        end -= 1
    return messages[:end]


def pending_calls(checkpoint: Checkpoint) -> tuple[ToolCall, ...]:
    """The calls of the last turn that have no result yet, in call order."""
    turn, answered = open_turn(checkpoint.messages)
    if turn is None:
        return ()
    return tuple(call for call in turn.tool_calls[answered:] if call.id not in checkpoint.results)


def settle(checkpoint: Checkpoint, results: Sequence[ToolMessage]) -> Checkpoint:
    """Record results by call id; those that are next in call order join the transcript.

    When the last call of the turn is answered, the input that was held back follows. The state of an agent whose call
    has its result goes.
    """
    waiting = {**checkpoint.results, **{result.tool_call_id: result for result in results}}
    turn, answered = open_turn(checkpoint.messages)
    messages = list(checkpoint.messages)
    calls = turn.tool_calls[answered:] if turn else ()
    for call in calls:
        if call.id not in waiting:
            break
        messages.append(waiting.pop(call.id))
        answered += 1
    done = turn is None or answered == len(turn.tool_calls)
    settled = _ids(results, waiting)
    return checkpoint.but(
        messages=(*messages, *checkpoint.queued) if done else tuple(messages),
        queued=() if done else checkpoint.queued,
        results=waiting,
        started=tuple(call_id for call_id in checkpoint.started if call_id not in settled),
        suspended={call_id: state for call_id, state in checkpoint.suspended.items() if call_id not in settled}
        if checkpoint.suspended
        else checkpoint.suspended,
    )


def _ids(results: Sequence[ToolMessage], waiting: dict[str, ToolMessage]) -> set[str]:
    return {result.tool_call_id for result in results} | set(waiting)


def name_calls(
    message: AssistantMessage,
    *,
    taken: set[str],
    ids: IdFactory,
    early: Mapping[int, str] = MappingProxyType({}),
    all_ours: bool = False,
) -> AssistantMessage:
    """Give each call an id that is unique in the session, and add these to `taken`.

    `early` are ids by place that were told while the turn was written: they stay.

    Providers repeat, reuse and omit ids: a call keeps the provider's where it is not empty and new, else it gets one
    of ours and the provider's is kept beside it. With `all_ours` each gets one: where a transcript was cut it does not
    show any more which ids were used, and an id is the idempotency key of what its call does.
    """
    if not message.tool_calls:
        return message
    calls: list[ToolCall] = []
    for place, call in enumerate(message.tool_calls):
        told = early.get(place)
        if told is not None and told not in taken:
            call = call if call.id == told else call.model_copy(update={"id": told, "provider_id": call.id or None})
        elif all_ours or not call.id or call.id in taken:
            call = call.model_copy(update={"id": f"call_{ids()}", "provider_id": call.id or None})
        taken.add(call.id)
        calls.append(call)
    named = tuple(calls)
    return message if named == message.tool_calls else message.model_copy(update={"tool_calls": named})


def call_ids(messages: Iterable[Message]) -> set[str]:
    """The ids of all calls that the messages hold."""
    return {call.id for message in messages if isinstance(message, AssistantMessage) for call in message.tool_calls}


def first_fault(messages: Sequence[Message]) -> str | None:
    """Say why no provider would take this transcript, or None when it is in order.

    In order means: each call has exactly one result, in call order, right after its turn.
    """
    expected: list[str] = []
    for index, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            if not expected or message.tool_call_id != expected[0]:
                return f"message {index} is a result that does not answer the next open call"
            expected.pop(0)
        elif expected:
            return f"message {index} comes before the result of {len(expected)} calls"
        elif isinstance(message, AssistantMessage):
            expected = [call.id for call in message.tool_calls]
    return f"{len(expected)} calls have no result" if expected else None
