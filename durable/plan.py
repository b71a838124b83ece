"""What to do, decided without doing it.

`admit` decides what an input means for a session; `next_step` decides what a run does next. Both are pure: the executor
acts on the value that they give.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from durable.errors import (
    DurableError,
    InvalidInputError,
    ProviderContextLengthError,
    ProviderRefusedError,
    ProviderRequestError,
    SessionAwaitingApprovalError,
)
from durable.messages import Conversational, Message, SystemMessage, ToolCall, UserMessage, same_message
from durable.records import Checkpoint, FinishReason, Status
from durable.transcript import answered_part, first_fault, pending_calls

POISON = frozenset({ProviderRequestError.code, ProviderContextLengthError.code, ProviderRefusedError.code})
"""Errors that the same transcript would meet again, so that a new message replaces the turn that met them. A missing
key, an empty account or a wrong model is none of them: the turn goes on once that is put right."""


@dataclass(frozen=True, slots=True)
class Start:
    """A new run: of a new session, or the next turn of a finished one. `keep` messages of the session stay."""

    keep: int
    history: tuple[Conversational, ...]
    input: tuple[UserMessage, ...]


@dataclass(frozen=True, slots=True)
class Resume:
    """The unfinished run goes on, with `input` behind its pending results."""

    input: tuple[UserMessage, ...] = ()


@dataclass(frozen=True, slots=True)
class Recorded:
    """Nothing new was said to a finished run: its recorded result is the answer."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Nothing may happen."""

    error: DurableError


Admission = Start | Resume | Recorded | Refuse


def admit(stored: Checkpoint | None, incoming: Sequence[Message], *, session_id: str | None = None) -> Admission:
    """Decide what `incoming` means for a session (SEMANTICS 1). System messages in it do not count.

    A history that goes back behind a compaction is taken for the conversation as it is now.

    1. A paused session takes nothing.
    2. No session: the input starts it; nothing is nothing to run.
    3. An unfinished turn that its provider refused for good is cut off by new input; then as finished.
    4. Input that starts with everything the session knows: what follows is new.
    5. Unfinished: a history that shares its first two messages or ends inside the known ones (a copy that lags): what
       follows the shared part; the input that the run started from (a retry): nothing; anything else is new input.
    6. Finished: nothing gives the recorded result; anything else is the next turn.
    """
    said = tuple(message for message in incoming if not isinstance(message, SystemMessage))
    if stored is not None:
        said = _as_summarized((*stored.messages, *stored.queued), said)
    if stored is None:
        return _start(said, keep=0) if said else Refuse(InvalidInputError(f"Nothing to run: {session_id!r} is new."))
    if stored.status is Status.AWAITING_APPROVAL:
        return Refuse(SessionAwaitingApprovalError(stored.session_id, stored.approval_id))
    if said and is_poisoned(stored):
        kept = answered_part(stored.messages[: stored.committed])  # what no turn has answered may be what was refused
        shared = _shared(kept, said)
        return _start(said[shared:] if shared == len(kept) else said, keep=len(kept))

    known = (*stored.messages, *stored.queued)
    shared = _shared(known, said)
    finished = stored.status is Status.FINISHED
    if shared == len(known):
        return _next(stored, said[shared:])
    if finished or len(said) < 2:
        return _next(stored, () if not finished and _is_retry(stored, said) else said)
    if shared >= 2 or shared == len(said):
        return _next(stored, said[shared:])
    return _next(stored, () if _is_retry(stored, said) else said)


def is_poisoned(stored: Checkpoint) -> bool:
    return stored.status is Status.IN_PROGRESS and stored.last_error is not None and stored.last_error.code in POISON


def run_input(checkpoint: Checkpoint) -> tuple[Message, ...]:
    """The user messages that the current run started from."""
    said: list[Message] = []
    for message in (*checkpoint.messages[checkpoint.committed :], *checkpoint.queued):
        if not isinstance(message, UserMessage):
            break
        said.append(message)
    return tuple(said)


def _as_summarized(known: Sequence[Message], said: tuple[Conversational, ...]) -> tuple[Conversational, ...]:
    """A history from before a compaction, with the summary in place of the turns that it stands for.

    It is one if, some way in, it has the known messages behind the summary, or ends inside them having two of them.
    """
    summary, kept = (known[0], known[1:]) if known else (None, ())
    if not isinstance(summary, UserMessage) or not summary.summary_of:
        return said
    for start in range(1, len(said)):
        shared = _shared(kept, said[start:])
        if shared and (shared == len(kept) or (shared == len(said) - start and shared >= 2)):
            return (summary, *said[start:])
    return said


def _is_retry(stored: Checkpoint, said: Sequence[Message]) -> bool:
    started_from = run_input(stored)
    return len(said) == len(started_from) == _shared(started_from, said)


def _next(stored: Checkpoint, new: tuple[Conversational, ...]) -> Admission:
    if stored.status is Status.FINISHED:
        return _start(new, keep=len(stored.messages)) if new else Recorded()
    if all(isinstance(message, UserMessage) for message in new):
        return Resume(tuple(message for message in new if isinstance(message, UserMessage)))
    return Refuse(InvalidInputError("Only user messages can be added to a run that is not finished."))


def _start(said: tuple[Conversational, ...], *, keep: int) -> Admission:
    """The trailing user messages are the input; what comes before them is a history that the caller brings along."""
    split = len(said)
    while split and isinstance(said[split - 1], UserMessage):
        split -= 1
    history, said_last = said[:split], said[split:]
    if fault := first_fault(history):
        return Refuse(InvalidInputError(f"The input is not a valid transcript: {fault}."))
    if not said_last:
        return Refuse(InvalidInputError("The input must end with a user message."))
    return Start(keep, history, tuple(message for message in said_last if isinstance(message, UserMessage)))


def _shared(known: Sequence[Message], said: Sequence[Message]) -> int:
    count = 0
    for ours, theirs in zip(known, said, strict=False):
        if not same_message(ours, theirs):
            break
        count += 1
    return count


@dataclass(frozen=True, slots=True)
class CallModel:
    """Every call has its result: ask the model."""


@dataclass(frozen=True, slots=True)
class RunCalls:
    """These calls have no result yet."""

    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """The run is over."""

    reason: FinishReason


Step = CallModel | RunCalls | Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds a run. Reaching `max_tokens` or `max_seconds` finishes it as `budget-exceeded`."""

    max_steps: int
    max_tokens: int | None = None
    max_seconds: float | None = None


def next_step(checkpoint: Checkpoint, limits: Limits) -> Step:
    """Decide what an in-progress run does next: pending calls first, then the model while its budget lasts."""
    if calls := pending_calls(checkpoint):
        return RunCalls(calls)
    if checkpoint.step >= limits.max_steps:
        return Finish(FinishReason.MAX_STEPS)
    return Finish(FinishReason.BUDGET_EXCEEDED) if over_budget(checkpoint, limits) else CallModel()


def over_budget(checkpoint: Checkpoint, limits: Limits) -> bool:
    """Whether the tokens or the time are used up; those of sub-agents count."""
    spent = checkpoint.usage.input_tokens + checkpoint.usage.output_tokens
    if limits.max_tokens is not None and spent >= limits.max_tokens:
        return True
    return limits.max_seconds is not None and checkpoint.worked_seconds >= limits.max_seconds
