"""A conversation as its users see it: the finished turns of a checkpoint, what is pending, and where it may be cut.

Pure functions. A session is a view of its checkpoint, and there is no second copy of a transcript.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal

from pydantic import JsonValue

from durable.errors import InvalidInputError, SessionAwaitingApprovalError, TurnPendingError
from durable.messages import AssistantMessage, Conversational, Message, Part, TextPart, ToolMessage, UserMessage
from durable.plan import run_input
from durable.records import Checkpoint, FinishReason, ForkedFrom, Record, Status, Timestamp, Usage


class Origin(Record):
    """The session that a session was forked from, and how many of its messages came along."""

    id: str
    message_count: int


class Pending(Record):
    """A turn that was accepted and is not finished: it runs, waits for a human, or was interrupted."""

    run_id: str
    input: str
    started_at: Timestamp


class ConversationSessionRecord(Record):
    """A session: `messages` are those of its finished turns, which the agent sees in the next one.

    The system prompt is none of them. An unfinished or failed turn is `pending` and leaves them as they are.
    """

    run_id: str
    type: Literal["conversation-session"] = "conversation-session"
    id: str
    messages: tuple[Conversational, ...] = ()
    turns: int
    created_at: Timestamp
    updated_at: Timestamp
    forked_from: Origin | None = None
    pending: Pending | None = None


def record_of(checkpoint: Checkpoint) -> ConversationSessionRecord:
    id, origin = checkpoint.session_id or "", checkpoint.forked_from
    return ConversationSessionRecord(
        run_id=f"session:{id}",
        id=id,
        messages=checkpoint.messages[: checkpoint.committed],
        turns=checkpoint.turns,
        created_at=checkpoint.created_at,
        updated_at=checkpoint.updated_at,
        forked_from=Origin(id=origin.session_id, message_count=origin.message_count or 0) if origin else None,
        pending=pending_of(checkpoint),
    )


def pending_of(checkpoint: Checkpoint) -> Pending | None:
    """The unfinished turn, if there is one."""
    if checkpoint.status is Status.FINISHED:
        return None
    said = [message.text for message in run_input(checkpoint) if isinstance(message, UserMessage)]
    started_at = checkpoint.began_at or checkpoint.updated_at
    return Pending(run_id=checkpoint.run_id, input="\n".join(said), started_at=started_at)


_NOTHING_LEFT: Final[Mapping[str, Any]] = {
    "status": Status.FINISHED,
    "finish_reason": FinishReason.STOP,
    "step": 0,
    "results": {},
    "started": (),
    "queued": (),
    "usage": Usage(),
    "approval_id": None,
    "decisions": {},
    "suspended": {},
    "last_error": None,
    "consumed": None,
}
"""How a conversation stands between two turns, of which nothing is left but its messages."""


def without_pending(checkpoint: Checkpoint) -> Checkpoint:
    """The session as if its unfinished turn had not been sent."""
    if checkpoint.status is Status.FINISHED:
        return checkpoint
    requests = {key: one for key, one in checkpoint.requests.items() if one.run_id != checkpoint.run_id}
    kept = checkpoint.messages[: checkpoint.committed]
    cut = checkpoint.was_cut or len(kept) < len(checkpoint.messages)
    return checkpoint.but(**_NOTHING_LEFT, messages=kept, requests=requests, was_cut=cut)


def replaceable(checkpoint: Checkpoint) -> Checkpoint:
    """The session as a turn that replaces an interrupted one finds it. One that waits for a human is not replaced."""
    return checkpoint if checkpoint.status is Status.AWAITING_APPROVAL else without_pending(checkpoint)


def truncated(checkpoint: Checkpoint, count: int) -> Checkpoint:
    """The session with its first `count` messages; raises what `check_cut` raises.

    A recorded request whose answer is cut off has none any more: another message will stand in its place.
    """
    check_cut(checkpoint, count)
    kept = checkpoint.messages[:count]
    requests = {
        key: one if one.answer is None or one.answer < count else one.but(answer=None)
        for key, one in checkpoint.requests.items()
    }
    left = {"messages": kept, "committed": count, "turns": count_turns(kept), "requests": requests}
    return checkpoint.but(**_NOTHING_LEFT, **left, was_cut=True)


def forked(checkpoint: Checkpoint, count: int | None, *, run_id: str, now: datetime) -> Checkpoint:
    """A new session, not named yet, that begins with the first `count` messages (None: all), to the byte."""
    count = checkpoint.committed if count is None else count
    whole = count == len(checkpoint.messages)
    check_cut(checkpoint, count)
    return Checkpoint(
        session_id=None,
        agent=checkpoint.agent,
        run_id=run_id,
        status=Status.FINISHED,
        finish_reason=FinishReason.STOP,
        messages=checkpoint.messages[:count],
        was_cut=checkpoint.was_cut or not whole,
        committed=count,
        turns=checkpoint.turns if whole else count_turns(checkpoint.messages[:count]),
        business_state=checkpoint.business_state,
        forked_from=ForkedFrom(
            session_id=checkpoint.session_id or "",
            revision=checkpoint.revision,
            step=checkpoint.step,
            message_count=count,
        ),
        began_at=now,
        created_at=now,
        updated_at=now,
    )


def check_cut(checkpoint: Checkpoint, count: object) -> None:
    """Raise unless the session is between two turns and may be cut after its first `count` messages.

    A turn that waits for a human is `SessionAwaitingApprovalError`, another unfinished one `TurnPendingError`; a count
    that is none, or would separate a call from its result, is an `InvalidInputError` that names the nearest that would
    not.
    """
    if checkpoint.status is Status.AWAITING_APPROVAL:
        raise SessionAwaitingApprovalError(checkpoint.session_id, checkpoint.approval_id)
    if checkpoint.status is not Status.FINISHED:
        raise TurnPendingError(checkpoint.session_id or "", checkpoint.run_id)
    last = len(checkpoint.messages)
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= last:
        raise InvalidInputError(f"message_count must be a whole number from 0 to {last}, not {count!r}.")
    if count in (allowed := allowed_cuts(checkpoint.messages)):
        return
    below, above = max(cut for cut in allowed if cut < count), min(cut for cut in allowed if cut > count)
    raise InvalidInputError(
        f"message_count {count} would separate a tool call from its result: the nearest that do not are {below} and "
        f"{above}."
    )


def allowed_cuts(messages: Sequence[Conversational]) -> tuple[int, ...]:
    """The counts of first messages that have every call together with its result, 0 and all included."""
    cuts, waiting = [0], 0
    for count, message in enumerate(messages, 1):
        if isinstance(message, AssistantMessage):
            waiting = len(message.tool_calls)
        elif isinstance(message, ToolMessage):
            waiting -= 1
        if not waiting:
            cuts.append(count)
    return tuple(cuts)


def with_parts(input: tuple[Message, ...], parts: Sequence[Part]) -> tuple[Message, ...]:
    """The input with these parts at the end of its last message, which must be the user's."""
    last = input[-1] if input else UserMessage(content="")
    if not isinstance(last, UserMessage):
        raise InvalidInputError("Attachments go with a message of the user.")
    said = last.content
    own = ((TextPart(text=said),) if said else ()) if isinstance(said, str) else said
    return (*input[:-1], UserMessage(content=(*own, *parts)))


def digest_of(input: Sequence[Message], context: JsonValue) -> str:
    """What tells two requests of one key apart."""
    said = [message.model_dump(mode="json", exclude_defaults=True) for message in input]
    return hashlib.sha256(json.dumps([said, context], sort_keys=True, default=str).encode()).hexdigest()


def count_turns(messages: Sequence[Conversational]) -> int:
    """How many turns have their final reply here."""
    return sum(isinstance(message, AssistantMessage) and not message.tool_calls for message in messages)
