"""What a run gives back."""

from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from durable.capacity import NOTHING, Capacity
from durable.messages import AssistantMessage, Message
from durable.records import Checkpoint, FinishReason, Status, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run stands when `execute` comes back.

    `text` is the final answer (empty unless the run finished with one), `output` the same as the agent's `output_type`
    where it has one and the answer validates. `steps`, `usage`, `tool_calls`, `consumed` count from this run's start;
    `messages` is the whole conversation. `consumed` is what the run's store calls have taken, in every process that
    carried it on and was not killed: nothing for a store that does not count.
    """

    session_id: str | None
    run_id: str
    finish_reason: FinishReason
    text: str = field(repr=False)
    output: Any = field(default=None, repr=False)
    steps: int
    usage: Usage
    tool_calls: int
    approval_id: str | None
    messages: tuple[Message, ...] = field(repr=False)
    checkpoint: Checkpoint = field(repr=False)
    consumed: Capacity = NOTHING


def result_of(checkpoint: Checkpoint, *, output: TypeAdapter[Any] | None = None) -> RunResult:
    """The result that a stored checkpoint stands for."""
    turns = [m for m in checkpoint.messages if isinstance(m, AssistantMessage)]
    text = text_of(checkpoint)
    return RunResult(
        session_id=checkpoint.session_id,
        run_id=checkpoint.run_id,
        finish_reason=checkpoint.finish_reason or FinishReason.DEADLINE,
        text=text,
        output=output_of(output, text) if checkpoint.finish_reason is FinishReason.STOP else None,
        steps=checkpoint.step,
        usage=checkpoint.usage,
        tool_calls=sum(len(turn.tool_calls) for turn in turns[len(turns) - checkpoint.step :]),
        approval_id=checkpoint.approval_id,
        messages=checkpoint.messages,
        checkpoint=checkpoint,
        consumed=checkpoint.consumed or NOTHING,
    )


def text_of(checkpoint: Checkpoint) -> str:
    """The final answer; empty unless the run finished with one."""
    last = checkpoint.messages[-1] if checkpoint.messages else None
    return last.content if checkpoint.status is Status.FINISHED and isinstance(last, AssistantMessage) else ""


def output_of(output: TypeAdapter[Any] | None, text: str) -> Any:
    """The answer as the output type; None without one, or where today's type does not take a recorded answer."""
    return output.validate_json(text) if output is not None and output_fault(output, text) is None else None


def output_fault(output: TypeAdapter[Any], text: str) -> str | None:
    """Say why an answer does not validate, or None when it does."""
    try:
        output.validate_json(text)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        return "; ".join(f"{'.'.join(map(str, issue['loc'])) or 'answer'}: {issue['msg']}" for issue in found[:5])
    return None
