"""What a run gives back."""

from dataclasses import dataclass, field

from durable.messages import AssistantMessage, Message
from durable.records import Checkpoint, FinishReason, Status, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run stands when `execute` comes back.

    `text` is the final answer (empty unless the run finished with one). `steps`, `usage` and `tool_calls` count from
    this run's start; `messages` is the whole conversation.
    """

    session_id: str | None
    run_id: str
    finish_reason: FinishReason
    text: str = field(repr=False)
    steps: int
    usage: Usage
    tool_calls: int
    approval_id: str | None
    messages: tuple[Message, ...] = field(repr=False)
    checkpoint: Checkpoint = field(repr=False)


def result_of(checkpoint: Checkpoint) -> RunResult:
    """The result that a stored checkpoint stands for."""
    last = checkpoint.messages[-1] if checkpoint.messages else None
    finished = checkpoint.status is Status.FINISHED
    turns = [m for m in checkpoint.messages if isinstance(m, AssistantMessage)]
    return RunResult(
        session_id=checkpoint.session_id,
        run_id=checkpoint.run_id,
        finish_reason=checkpoint.finish_reason or FinishReason.DEADLINE,
        text=last.content if finished and isinstance(last, AssistantMessage) else "",
        steps=checkpoint.step,
        usage=checkpoint.usage,
        tool_calls=sum(len(turn.tool_calls) for turn in turns[len(turns) - checkpoint.step :]),
        approval_id=checkpoint.approval_id,
        messages=checkpoint.messages,
        checkpoint=checkpoint,
    )
