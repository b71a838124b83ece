"""What a run tells while it runs. Events are for watching: what must survive is in the checkpoint.

`seq` counts from 1 without a gap within one call of `execute`, `stream` or `resume_after_approval`. `path` names the
agents from the outermost one to the one that the event is about.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import ClassVar

from durable.records import FinishReason, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events."""

    type: ClassVar[str] = "event"
    seq: int = 0
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart(Event):
    type: ClassVar[str] = "run.start"
    session_id: str | None
    run_id: str
    resumed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStart(Event):
    """A model call begins. `step` counts the model turns of the run from 1."""

    type: ClassVar[str] = "step.start"
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta(Event):
    type: ClassVar[str] = "text.delta"
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningDelta(Event):
    """A piece of what the model thinks, where it shows that. It is not part of the answer."""

    type: ClassVar[str] = "reasoning.delta"
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentsDelta(Event):
    """A piece of a call's arguments while the model writes them. Nothing runs before the turn is whole and saved."""

    type: ClassVar[str] = "arguments.delta"
    tool_call_id: str
    tool_name: str
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStart(Event):
    type: ClassVar[str] = "tool.start"
    tool_call_id: str
    tool_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDone(Event):
    type: ClassVar[str] = "tool.done"
    tool_call_id: str
    tool_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFailed(Event):
    """The call has an error result, of this kind; it may not have run at all."""

    type: ClassVar[str] = "tool.error"
    tool_call_id: str
    tool_name: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved(Event):
    type: ClassVar[str] = "checkpoint.saved"
    revision: int
    status: Status


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequested(Event):
    type: ClassVar[str] = "approval.requested"
    approval_id: str
    tool_call_id: str
    tool_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDrift(Event):
    """The agent that resumes differs from the one that started the run. `model` is (then, now) where it changed.

    `native_dropped` counts the turns whose provider-bound parts, such as signed reasoning, this model's provider cannot
    read: they are left out of its requests and stay on record. A new run of a session tells that, too.
    """

    type: ClassVar[str] = "agent.drift"
    model: tuple[str | None, str | None] | None = None
    tools_added: tuple[str, ...] = ()
    tools_removed: tuple[str, ...] = ()
    tools_changed: tuple[str, ...] = ()
    instructions: bool = False
    native_dropped: int = 0

    def in_words(self) -> str:
        parts = [f"model {self.model[0]!r} -> {self.model[1]!r}"] if self.model else []
        for what in ("added", "removed", "changed"):
            if names := getattr(self, f"tools_{what}"):
                parts.append(f"tools {what} {list(names)!r}")
        if self.instructions:
            parts.append("instructions")
        if self.native_dropped:
            parts.append(f"provider-bound parts of {self.native_dropped} turns left out")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCompacted(Event):
    """Old turns were replaced by a summary, and that is saved."""

    type: ClassVar[str] = "session.compacted"
    messages_before: int
    messages_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionFailed(Event):
    """No summary could be made, for an error of this type: the conversation is as it was, and the run goes on."""

    type: ClassVar[str] = "compaction.failed"
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDone(Event):
    type: ClassVar[str] = "run.done"
    finish_reason: FinishReason


Listener = Callable[[Event], None]
"""Called in the run's event loop; it must not block. What it raises ends the run."""


class Emitter:
    """Numbers events and hands them on."""

    def __init__(self, listener: Listener | None, path: tuple[str, ...], numbers: Iterator[int] | None = None) -> None:
        self._listener = listener
        self._path = path
        self._numbers = numbers if numbers is not None else count(1)

    @property
    def heard(self) -> bool:
        """Whether anybody listens."""
        return self._listener is not None

    def inside(self, *agents: str) -> "Emitter":
        """Tell what an agent below does, in the same count."""
        return Emitter(self._listener, (*self._path, *agents), self._numbers)

    def __call__(self, event: Event) -> None:
        if self._listener is not None:
            self._listener(replace(event, seq=next(self._numbers), path=self._path))
