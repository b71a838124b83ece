"""The seams: what a run needs from the outside, each a small protocol.

Stores are synchronous; the executor crosses into them in one place. Providers and tools are asynchronous. Time, ids and
randomness are arguments, so a test moves the clock and never sleeps.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, Literal, Protocol, TypeVar, runtime_checkable

from pydantic import JsonValue

from durable.approval_stream import Approval, ApprovalEvent, ApprovalStatus, Requested
from durable.capacity import Capacity
from durable.messages import AssistantMessage, Message
from durable.records import Checkpoint, FinishReason, Status, Usage

Clock = Callable[[], datetime]
"""Gives the time, aware and in UTC."""

IdFactory = Callable[[], str]
"""Gives an id that was never given before."""


# --- checkpoints, history, approvals: what the executor and the handlers use -----------------------------------------


class CheckpointStore(Protocol):
    """Where the newest checkpoint of each session is kept. Three methods are all that a custom store needs.

    `save` writes what is new in `checkpoint` since `after` (what the caller loaded or last saved; None for a session
    that it found absent) and gives the checkpoint with its new revision. When the session has moved since `after`, it
    raises `StaleCheckpointError` and nothing is written. A save whose response was lost counts as made when it is
    repeated by the store itself. `load` gives None for a session that was never saved, deleted or has expired.

    A store that cannot tell whether the session has moved says so with an attribute `single_writer = True`: it is for
    one process, and a deployment refuses it. One that only works in memory may say `blocks = False`: it is then called
    in the event loop's thread instead of a worker's.
    """

    def load(self, session_id: str) -> Checkpoint | None: ...
    def save(self, checkpoint: Checkpoint, *, after: Checkpoint | None) -> Checkpoint: ...
    def delete(self, session_id: str) -> None: ...


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One listed save. `checkpoint` is a copy of the whole checkpoint as it was then."""

    revision: int
    step: int
    saved_at: datetime
    status: Status
    checkpoint: Checkpoint


@runtime_checkable
class CheckpointHistory(Protocol):
    """An optional ability of a checkpoint store: the newest saves of a session, newest first; `[]` when unknown."""

    def history(self, session_id: str, *, limit: int | None = None) -> list[HistoryEntry]: ...


@runtime_checkable
class MaintainedCheckpoints(Protocol):
    """An optional ability of a checkpoint store: to keep long sessions short to load, called after a finished turn.

    `after` is the checkpoint that the caller holds; it goes on with the one that comes back.
    """

    def maintain(self, session_id: str, *, after: Checkpoint) -> Checkpoint: ...


class ApprovalStore(Protocol):
    """Approvals, each a stream of events.

    `request` appends `requested` to a new stream; for one that exists and is open it appends the new request, which
    renews the deadline, and for a decided one it appends nothing; the approval as it stands is given either way.
    `append` puts an event after the approval that the caller read: it gives the new approval, or None when somebody
    else appended first (read again and decide anew). `get` gives None for an unknown id.
    """

    def request(self, approval_id: str, event: Requested) -> Approval: ...
    def get(self, approval_id: str) -> Approval | None: ...
    def append(self, event: ApprovalEvent, *, after: Approval) -> Approval | None: ...
    def list(
        self, *, status: ApprovalStatus | None = None, limit: int = 50, cursor: str | None = None
    ) -> "Page[Approval]": ...


# --- the log: what a backend implements, and nothing else ------------------------------------------------------------

T = TypeVar("T")
EntryKind = Literal["delta", "reset", "base", "cleared", "tombstone"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One numbered entry of a stream.

    `body` is the JSON of what is new; its size is not limited, a backend splits it where it must. `base` is the
    revision of the newest reset or base at or before this entry: both hold everything, and a base is one that nobody
    saved, written to keep loads short. `save_id` is new for each save and the same for its retries.
    The entry counts as there until `fresh_until` and may be physically removed after `expires_at` (None: never).
    """

    revision: int
    kind: EntryKind
    base: int
    save_id: str
    written_at: datetime
    body: bytes
    fresh_until: datetime | None = None
    expires_at: datetime | None = None

    def __repr__(self) -> str:
        return f"<Entry {self.revision} {self.kind} {len(self.body)} bytes>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A hint about a stream: what a list shows, where a load may start, what recovery should look at.

    A head decides nothing. `due_at` names the time from which recovery looks at the stream and `due_run` the run that
    the mark announces; such a mark leaves `revision` as it is, -1 for a stream that has no entry yet.
    """

    kind: str
    id: str
    status: str
    revision: int = -1
    base: int = 0
    listed_from: int = 0
    due_at: datetime | None = None
    due_run: str | None = None
    updated_at: datetime
    fresh_until: datetime | None = None
    expires_at: datetime | None = None

    @property
    def stream(self) -> str:
        return f"{self.kind}/{self.id}"


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some of the items, and the cursor that gives the next ones (None: there are no more)."""

    items: Sequence[T]
    cursor: str | None = None


class Log(Protocol):
    """Streams of numbered entries with compare-and-append. A stream is named `<kind>/<id>`.

    `append` gives False when the stream already has `entry.revision`, written by another save; its own save id there
    means an earlier attempt was applied and counts as success. `read` gives entries with a revision above `after`,
    in order or newest first, strongly consistent, expired ones included as long as they exist: the reader decides.
    `drop` removes the entries up to and including `until`, except tombstones, which stay for their time, and may be
    repeated; what was dropped stays taken for a week at least, so that a writer who was overtaken long ago still finds
    out. Without `until` everything goes, the head too, as if the stream had never been.
    `expire` gives the entries up to and including `until` an end: those that would count or be there longer do so until
    `fresh_until` and `expires_at`, oldest first; it may be repeated and never prolongs.

    The head has two owners, who never touch each other's part. `mark` writes what the store knows (status, revision,
    base, listed_from, times) unless that would lower the revision of a head that is still fresh at `updated_at`; it
    leaves the due mark alone. `announce` sets the due mark and nothing else, making a head of revision -1 and status
    `accepted` where there is none. `settle` removes the due mark if it is still the one in the head that the caller
    read, and with it a head that only announced a run. `heads` lists, in no promised order, by kind and optionally by
    status or by a due time before `due_before`; what it shows may be late. Heads of status `deleted` are listed only
    when they are due or asked for.

    Raises `StoreUnavailableError` and `StoreRejectedError`, nothing of the backend's own.
    """

    def append(self, stream: str, entry: Entry) -> bool: ...
    def read(
        self, stream: str, *, after: int = -1, newest_first: bool = False, limit: int | None = None
    ) -> Iterable[Entry]: ...
    def drop(self, stream: str, *, until: int | None = None) -> None: ...
    def expire(self, stream: str, *, until: int, fresh_until: datetime, expires_at: datetime) -> None: ...
    def head(self, stream: str) -> Head | None: ...
    def mark(self, head: Head) -> None: ...
    def announce(self, stream: str, *, run_id: str, due_at: datetime) -> None: ...
    def settle(self, head: Head) -> None: ...
    def heads(
        self,
        kind: str,
        *,
        status: str | None = None,
        due_before: datetime | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[Head]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Who runs a session at the moment, and what must survive from one holder to the next.

    `fence` rises with every acquire. `attempt` counts the acquires that found the session at the same `revision` as
    the one before. `execution` is the ARN of the Step Functions execution that drives the run, `abort_run` the run
    that somebody asked to stop.
    """

    stream: str
    owner: str | None
    until: datetime
    fence: int
    attempt: int = 0
    revision: int = -1
    execution: str | None = None
    abort_run: str | None = None


class Leases(Protocol):
    """One small record per session, next to its log. It orders the holders; the log alone keeps the data safe.

    `acquire` gives None while another owner's lease is live (the owner itself takes it over with a higher fence). With
    a `revision` below 0 it is no attempt to get further, and the count starts over.
    `look` gives the record whoever holds it. `note_execution` and `request_abort` change only their own field.
    `release` ends the lease if its fence is still the newest, and keeps the record. With `counts=False` the attempt is
    taken back: what kept the holder from getting further was not the session's own fault.
    """

    def acquire(self, stream: str, owner: str, *, until: datetime, revision: int) -> Lease | None: ...
    def look(self, stream: str) -> Lease | None: ...
    def note_execution(self, stream: str, execution: str) -> None: ...
    def request_abort(self, stream: str, run_id: str) -> None: ...
    def release(self, lease: Lease, *, counts: bool = True) -> None: ...


class Metered(Protocol):
    """An optional ability of a log: what its calls have taken since it was made."""

    def consumed(self) -> Capacity: ...


class Store(Protocol):
    """What an agent is given to sleep in."""

    @property
    def checkpoints(self) -> CheckpointStore: ...
    @property
    def approvals(self) -> ApprovalStore: ...


# --- models ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model is told of it; `parameters` is a JSON Schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One question to the model. `timeout` bounds the whole call, retries included, in seconds.

    `output_schema` is the JSON Schema that a final answer must fit, told to a model that can be held to it.
    `parallel_tool_calls` says whether a turn may have several calls (None: as the provider does).
    """

    instructions: str | None
    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    timeout: float | None = None
    output_schema: Mapping[str, JsonValue] | None = field(default=None, repr=False)
    parallel_tool_calls: bool | None = None

    def __repr__(self) -> str:
        return f"<ModelRequest {len(self.messages)} messages, {len(self.tools)} tools>"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTurn:
    """One answer of the model: tool calls keep the provider's own ids, however odd (the executor makes them unique)."""

    message: AssistantMessage
    usage: Usage = field(default_factory=lambda: Usage(model_calls=1))
    finish_reason: FinishReason = FinishReason.STOP
    model: str | None = None


class Provider(Protocol):
    """A model behind some protocol. `name` is `<protocol>:<model>`.

    `generate` raises a `ProviderError` and nothing else; it has done its own retries by then.
    """

    @property
    def name(self) -> str: ...
    async def generate(self, request: ModelRequest) -> ModelTurn: ...


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a turn while it is written. Pieces of `arguments` belong to the `call`-th tool call of the turn, which
    has this `name` and, where the provider has said it by then, this `id`."""

    kind: Literal["text", "reasoning", "arguments"]
    text: str = field(repr=False)
    call: int = 0
    id: str | None = None
    name: str = ""


@runtime_checkable
class StreamingProvider(Provider, Protocol):
    """An optional ability of a provider: to tell the pieces of a turn while it is written.

    `stream` gives the same turn as `generate`, once the stream's last event has come; else it raises a `ProviderError`
    and nothing of what was told counts. `tell` is called in the event loop. After the first piece nothing is tried
    again.
    """

    async def stream(self, request: ModelRequest, tell: Callable[[Delta], None]) -> ModelTurn: ...


@runtime_checkable
class NativeProvider(Protocol):
    """An optional ability of a provider: to say whose native turns it sends back (`NativeTurn.origin`)."""

    @property
    def origin(self) -> str: ...
