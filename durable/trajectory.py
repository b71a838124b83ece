"""Where two runs part: their steps side by side, the first that differs, and what has changed over all.

Pure. Ids are left aside, since they belong to a run; arguments and results are compared as JSON.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from pydantic import JsonValue

from durable.messages import AssistantMessage, Message, ToolCall, ToolMessage, shown_result
from durable.records import Checkpoint

Transcript: TypeAlias = Checkpoint | Sequence[Message]
DriftField = Literal["tools", "args", "steps", "finish_reason", "tokens"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a call; images and files in it are described, not shown."""

    content: JsonValue = field(repr=False)
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class CallStep:
    """A call of a step: `arguments` are parsed, or the text as the model wrote it where that is no JSON."""

    tool: str
    arguments: JsonValue = field(repr=False)
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class TrajectoryStep:
    """One model turn: what it said, and its calls with the results that they got."""

    text: str = field(repr=False)
    calls: tuple[CallStep, ...] = ()


@dataclass(frozen=True, slots=True)
class Drift:
    """One thing that differs between two runs."""

    field: DriftField
    a: JsonValue
    b: JsonValue

    def __repr__(self) -> str:
        return f"<Drift {self.field}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two runs side by side. `diverged_at` is the first step that differs, from 1 on; None when none does."""

    a: tuple[TrajectoryStep, ...]
    b: tuple[TrajectoryStep, ...]
    diverged_at: int | None
    drift: tuple[Drift, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "diverged_at": self.diverged_at,
            "drift": [{"field": row.field, "a": row.a, "b": row.b} for row in self.drift],
            "a": [_step_json(step) for step in self.a],
            "b": [_step_json(step) for step in self.b],
        }


def compare_trajectories(a: Transcript, b: Transcript) -> Comparison:
    """Compare two checkpoints or two transcripts, step by step; `render_comparison` shows the outcome as text.

    Rows of `drift` are in the order of `Drift.field`: the tools called, in order; the arguments of each call that both
    made at the same place; the number of steps; and, between two checkpoints, finish reason and tokens.
    """
    steps_a, steps_b = steps_of(a), steps_of(b)
    return Comparison(
        a=steps_a, b=steps_b, diverged_at=_diverged_at(steps_a, steps_b), drift=tuple(_drift(a, b, steps_a, steps_b))
    )


def steps_of(run: Transcript) -> tuple[TrajectoryStep, ...]:
    """The model turns of a run. A checkpoint's results that still wait for their place in the transcript count."""
    messages = run.messages if isinstance(run, Checkpoint) else run
    results = {message.tool_call_id: message for message in messages if isinstance(message, ToolMessage)}
    if isinstance(run, Checkpoint):
        results = {**results, **run.results}
    return tuple(
        TrajectoryStep(message.content, tuple(_call_step(call, results.get(call.id)) for call in message.tool_calls))
        for message in messages
        if isinstance(message, AssistantMessage)
    )


def canonical(value: object) -> str:
    """The one text of a JSON value: keys sorted, `1` and `1.0` and `true` told apart."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(", ", ": "))


def step_text(step: TrajectoryStep) -> list[str]:
    """What a step did, a line for each thing; two steps are the same when their lines are."""
    said = [f"says {canonical(step.text)}"] if step.text or not step.calls else []
    return [*said, *map(_call_text, step.calls)]


def _call_text(call: CallStep) -> str:
    given = call.arguments
    arguments = canonical(given) if not isinstance(given, str) else f"not JSON: {canonical(given)}"
    if call.outcome is None:
        return f"{call.tool}({arguments}) has no result"
    arrow = "failed:" if call.outcome.is_error else "->"
    return f"{call.tool}({arguments}) {arrow} {canonical(call.outcome.content)}"


def _call_step(call: ToolCall, result: ToolMessage | None) -> CallStep:
    return CallStep(
        call.name, _arguments(call.arguments), Outcome(shown_result(result), result.is_error) if result else None
    )


def _arguments(text: str) -> JsonValue:
    """What a call was given. Nothing and `null` mean no arguments; text stands for what cannot be read."""
    if not text.strip():
        return {}
    try:
        value: JsonValue = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return text
    if value is None:
        return {}
    return value if isinstance(value, dict) else text


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _diverged_at(a: Sequence[TrajectoryStep], b: Sequence[TrajectoryStep]) -> int | None:
    for at, (one, other) in enumerate(zip(a, b, strict=False), start=1):
        if step_text(one) != step_text(other):
            return at
    return None if len(a) == len(b) else min(len(a), len(b)) + 1


def _drift(
    a: Transcript, b: Transcript, steps_a: Sequence[TrajectoryStep], steps_b: Sequence[TrajectoryStep]
) -> list[Drift]:
    rows: list[Drift] = []
    tools_a, tools_b = _tools(steps_a), _tools(steps_b)
    if tools_a != tools_b:
        rows.append(Drift("tools", tools_a, tools_b))
    rows += _args(steps_a, steps_b)
    if len(steps_a) != len(steps_b):
        rows.append(Drift("steps", len(steps_a), len(steps_b)))
    if isinstance(a, Checkpoint) and isinstance(b, Checkpoint):
        if a.finish_reason != b.finish_reason:
            rows.append(Drift("finish_reason", a.finish_reason, b.finish_reason))
        if _tokens(a) != _tokens(b):
            rows.append(Drift("tokens", _tokens(a), _tokens(b)))
    return rows


def _tools(steps: Sequence[TrajectoryStep]) -> list[JsonValue]:
    return [call.tool for step in steps for call in step.calls]


def _args(a: Sequence[TrajectoryStep], b: Sequence[TrajectoryStep]) -> list[Drift]:
    """A row for each call that both runs made at the same place, with other arguments."""
    return [
        Drift("args", _arguments_at(at, one), _arguments_at(at, other))
        for at, (step_a, step_b) in enumerate(zip(a, b, strict=False), start=1)
        for one, other in zip(step_a.calls, step_b.calls, strict=False)
        if one.tool == other.tool and canonical(one.arguments) != canonical(other.arguments)
    ]


def _arguments_at(step: int, call: CallStep) -> JsonValue:
    return {"step": step, "tool": call.tool, "arguments": call.arguments}


def _tokens(checkpoint: Checkpoint) -> int:
    return checkpoint.usage.input_tokens + checkpoint.usage.output_tokens


_NO_RESULT: Final[dict[str, Any]] = {}


def _step_json(step: TrajectoryStep) -> dict[str, Any]:
    return {"text": step.text, "calls": [_call_json(call) for call in step.calls]}


def _call_json(call: CallStep) -> dict[str, Any]:
    outcome = call.outcome
    result = _NO_RESULT if outcome is None else {"result": outcome.content, "is_error": outcome.is_error}
    return {"tool": call.tool, "arguments": call.arguments, **result}
