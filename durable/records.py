"""What is kept of a run: the checkpoint, the approval and their parts.

Everything here is frozen. A change is a new value (`checkpoint.model_copy(update=…)`), so that a store can tell what
is new by comparing two of them. Format numbers of a checkpoint, one line per version:

    0   no number yet; `status` and `fingerprint` may be missing, a pause may name its `remaining_calls`
    1   first number; what remains of a pause follows from the transcript
"""

import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, PlainSerializer

from durable.capacity import Capacity
from durable.errors import InvalidSessionIdError, RecordFormatError
from durable.messages import Conversational, ToolCall, ToolMessage, UserMessage
from durable.results import error_result

FORMAT: Final = 1
"""The number of the record format that this version writes. It reads every older one and refuses a newer one."""

MAX_ACCEPTED = 100
"""How many accepted requests a checkpoint remembers for redelivery."""

Timestamp = Annotated[datetime, PlainSerializer(lambda moment: moment.isoformat(), return_type=str)]


class Status(StrEnum):
    IN_PROGRESS = "in-progress"
    AWAITING_APPROVAL = "awaiting-approval"
    FINISHED = "finished"


class FinishReason(StrEnum):
    """Why a run stopped. The last three leave the run in progress: it can be resumed."""

    STOP = "stop"
    LENGTH = "length"
    CONTENT_FILTER = "content-filter"
    MAX_STEPS = "max-steps"
    BUDGET_EXCEEDED = "budget-exceeded"
    OUTPUT_INVALID = "output-invalid"
    GUARDRAIL = "guardrail"
    AWAITING_APPROVAL = "awaiting-approval"
    DEADLINE = "deadline"
    ABORTED = "aborted"
    PARKED = "parked"


_SHOWN = ("id", "session_id", "run_id", "revision", "status", "step")


class Record(BaseModel):
    """Frozen, strict about unknown fields, and silent about its content in a repr."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    def __repr__(self) -> str:
        shown = [name for name in _SHOWN if name in type(self).model_fields]
        return f"<{type(self).__name__} {' '.join(f'{name}={getattr(self, name)}' for name in shown)}>"

    __str__ = __repr__

    def but(self, **changes: Any) -> Self:
        """Give a copy with some fields changed (not validated: the caller's types are checked by pyright)."""
        return self.model_copy(update=changes)


class Usage(Record):
    """What the model calls of a run took, in tokens, and how many there were."""

    model_calls: int = 0
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            model_calls=self.model_calls + other.model_calls,
            input_tokens=self.input_tokens + other.input_tokens,
            cached_input_tokens=self.cached_input_tokens + other.cached_input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
        )

    def __sub__(self, other: "Usage") -> "Usage":
        return Usage(
            model_calls=self.model_calls - other.model_calls,
            input_tokens=self.input_tokens - other.input_tokens,
            cached_input_tokens=self.cached_input_tokens - other.cached_input_tokens,
            output_tokens=self.output_tokens - other.output_tokens,
        )

    def __repr__(self) -> str:
        return f"<Usage calls={self.model_calls} in={self.input_tokens} out={self.output_tokens}>"


class LastError(Record):
    """The error that stopped a run, in words that are safe to show."""

    code: str
    message: str
    retryable: bool = False
    at: Timestamp


class Decision(Record):
    """What was decided about one call, as the run applies it.

    `args` are edited arguments in place of the model's, `answer` is that to a question. `digest` binds the decision
    to the tool's name and the final arguments: see `approval_digest`. `by` is whose vote decided it, `voters` who
    approved where it took several. `via` says how it came: api, callback, task-token or library, `timeout` when
    nobody answered, `cancelled` when the run was aborted.
    """

    approval_id: str
    approved: bool
    note: str | None = None
    args: dict[str, JsonValue] | None = None
    answer: str | None = None
    by: str | None = None
    voters: tuple[str, ...] = ()
    via: str = "library"
    digest: str | None = None
    decided_at: Timestamp


class AcceptedRequest(Record):
    """A request that a deployment has accepted: its body's hash, its run, and how that run ended."""

    digest: str
    run_id: str
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    answer: int | None = Field(default=None, description="Index of the message that holds the answer.")


class ForkedFrom(Record):
    """Where a session comes from; `message_count` is how many of its messages it began with."""

    session_id: str
    revision: int
    step: int
    message_count: int | None = None


class Checkpoint(Record):
    """Everything a run needs to go on in another process, days later.

    `results` holds the settled results that wait for an earlier call, by call id; `started` the ids of calls that must
    not silently run twice and have begun; `queued` the user input held back behind pending calls; `suspended` the state
    of each sub-agent at work, by the id of the call that runs it (see `durable/nesting.py`). `committed` is how many
    messages the last finished turn left; `step` counts the model turns of this run, `turns` the finished runs.
    `worked_seconds` is the time spent on this run where the agent bounds it, `output_retries` how often the model was
    told that its final answer does not validate. `consumed` is what the run's store calls had taken when it was last
    left: each call that carries the run on adds its own, but for the save that tells so. `began_at` is when the run
    began. `was_cut` says that messages were taken out of the transcript, and with them the ids of their calls.
    """

    v: Literal[1] = FORMAT
    session_id: str | None
    agent: str
    run_id: str
    revision: int = -1
    status: Status = Status.IN_PROGRESS
    finish_reason: FinishReason | None = None
    step: int = 0
    messages: tuple[Conversational, ...] = ()
    results: dict[str, ToolMessage] = Field(default_factory=dict[str, ToolMessage])
    started: tuple[str, ...] = ()
    queued: tuple[UserMessage, ...] = ()
    usage: Usage = Usage()
    business_state: JsonValue = None
    instructions: str | None = None
    approval_id: str | None = None
    decisions: dict[str, Decision] = Field(default_factory=dict[str, Decision])
    fingerprint: dict[str, JsonValue] | None = None
    run_config: dict[str, JsonValue] | None = None
    suspended: dict[str, "Checkpoint"] = Field(default_factory=dict[str, "Checkpoint"])
    turns: int = 0
    committed: int = 0
    requests: dict[str, AcceptedRequest] = Field(default_factory=dict[str, AcceptedRequest])
    requested_by: str | None = None
    pauses: int = 0
    forked_from: ForkedFrom | None = None
    last_error: LastError | None = None
    worked_seconds: float = 0.0
    output_retries: int = 0
    consumed: Capacity | None = None
    began_at: Timestamp | None = None
    was_cut: bool = False
    created_at: Timestamp
    updated_at: Timestamp


def upgrade(record: Mapping[str, Any]) -> dict[str, Any]:
    """Give a stored checkpoint, as JSON values of any older format, in today's: `Checkpoint` validates it then.

    A newer format is refused with `RecordFormatError`.
    """
    version = record.get("v", 0)
    if not isinstance(version, int) or version > FORMAT:
        reason = f"has format {version!r}, and this version reads up to {FORMAT}"
        raise RecordFormatError(f"Checkpoint of session {record.get('session_id')!r}", reason)
    upgraded = dict(record) if version else _with_what_remains(record)
    return {**upgraded, "v": FORMAT}


def _with_what_remains(record: Mapping[str, Any]) -> dict[str, Any]:
    """0 to 1. A call behind the paused one that the pause does not name never runs: it is closed as `not-run`."""
    fields = {name: value for name, value in record.items() if name != "remaining_calls"}
    if record.get("status") != Status.AWAITING_APPROVAL:
        return fields
    turn = max(index for index, message in enumerate(record["messages"]) if message["role"] == "assistant")
    settled = {message["tool_call_id"] for message in record["messages"][turn + 1 :]} | set(record.get("results", ()))
    waiting = [call for call in record["messages"][turn]["tool_calls"] if call["id"] not in settled]
    for call in waiting[1:]:
        if call["id"] not in record.get("remaining_calls", ()):
            asked = ToolCall.model_construct(id=call["id"], name=call["name"])
            closed = error_result(asked, "not-run", "The call stood behind an approval and was not run.")
            fields["results"] = {**fields.get("results", {}), call["id"]: closed.model_dump()}
    return fields


MAX_SESSION_ID: Final = 256

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def check_session_id(session_id: object) -> str:
    """Give the id back, or raise `InvalidSessionIdError` (SEMANTICS 11)."""
    if not isinstance(session_id, str):
        raise InvalidSessionIdError(f"must be a string, not {type(session_id).__name__}")
    if not 1 <= len(session_id) <= MAX_SESSION_ID:
        raise InvalidSessionIdError(f"must have 1 to {MAX_SESSION_ID} characters, not {len(session_id)}")
    if _CONTROL.search(session_id):
        raise InvalidSessionIdError("has a control character")
    try:
        session_id.encode()
    except UnicodeEncodeError:
        raise InvalidSessionIdError("is not valid Unicode") from None
    return session_id
