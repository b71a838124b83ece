"""Where two runs part: their steps side by side, the first that differs, and what has changed over all.

Pure. Ids are left aside, since they belong to a run; arguments and results are compared as JSON. The steps of a
sub-agent belong to the call that ran it: where they differ, the step with that call does.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

from pydantic import JsonValue

from durable.messages import AssistantMessage, Message, ToolCall, ToolMessage, shown_result
from durable.nesting import KnownAgents
from durable.records import Checkpoint, Status

Transcript: TypeAlias = Checkpoint | Sequence[Message]
NONE_KNOWN: Final[KnownAgents] = {}
DriftField = Literal["tools", "args", "steps", "finish_reason", "tokens"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a call; images and files in it are described, not shown."""

    content: JsonValue = field(repr=False)
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class CallStep:
    """A call of a step: `arguments` are parsed, or the text as the model wrote it where that is no JSON.

    `steps` are those of the agent that the call ran, without the turn that gave its result; None: nothing is known of
    any, as of every other call that has its result.
    """

    tool: str
    arguments: JsonValue = field(repr=False)
    outcome: Outcome | None = None
    steps: "tuple[TrajectoryStep, ...] | None" = ()


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


def compare_trajectories(
    a: Transcript, b: Transcript, *, subagents_a: KnownAgents = NONE_KNOWN, subagents_b: KnownAgents = NONE_KNOWN
) -> Comparison:
    """Compare two checkpoints or two transcripts, step by step; `render_comparison` shows the outcome as text.

    Rows of `drift` are in the order of `Drift.field`: the tools called, in order; the arguments of each call that both
    made at the same place; the number of steps; and, between two checkpoints, finish reason and tokens.
    A checkpoint has the steps of sub-agents that are at work; those of earlier ones are compared where both runs'
    `subagents_of` their history is given and knows them.
    """
    steps_a, steps_b = _comparable(steps_of(a, subagents_a), steps_of(b, subagents_b))
    return Comparison(
        a=steps_a, b=steps_b, diverged_at=_diverged_at(steps_a, steps_b), drift=tuple(_drift(a, b, steps_a, steps_b))
    )


def steps_of(run: Transcript, subagents: KnownAgents = NONE_KNOWN) -> tuple[TrajectoryStep, ...]:
    """The model turns of a run. A checkpoint's results that still wait for their place in the transcript count."""
    messages = run.messages if isinstance(run, Checkpoint) else run
    results = {message.tool_call_id: message for message in messages if isinstance(message, ToolMessage)}
    at_work: KnownAgents = NONE_KNOWN
    if isinstance(run, Checkpoint):
        results, at_work = {**results, **run.results}, run.suspended

    def call_step(call: ToolCall) -> CallStep:
        result = results.get(call.id)
        outcome = Outcome(shown_result(result), result.is_error) if result else None
        return CallStep(call.name, _arguments(call.arguments), outcome, _steps_below(call, outcome, at_work, subagents))

    return tuple(
        TrajectoryStep(message.content, tuple(map(call_step, message.tool_calls)))
        for message in messages
        if isinstance(message, AssistantMessage)
    )


def _steps_below(
    call: ToolCall, outcome: Outcome | None, at_work: KnownAgents, known: KnownAgents
) -> tuple[TrajectoryStep, ...] | None:
    """The steps of the agent of a call, as the run itself has them, or else as is known from before.

    Whether the turn that an agent ended with was saved depends on what was saved beside it, so it never counts.
    """
    if (child := at_work.get(call.id)) is not None:
        return steps_of(child, known)
    if outcome is None:
        return ()
    if (child := known.get(call.id)) is None:
        return () if call.id in known else None
    steps = steps_of(child, known)
    return steps[:-1] if child.status is Status.FINISHED and steps and not steps[-1].calls else steps


def _comparable(
    a: tuple[TrajectoryStep, ...], b: tuple[TrajectoryStep, ...]
) -> tuple[tuple[TrajectoryStep, ...], tuple[TrajectoryStep, ...]]:
    """The steps of both, without those of an agent that only one of the two histories knows of."""
    pairs = [_comparable_step(one, other) for one, other in zip(a, b, strict=False)]
    return (*(one for one, _ in pairs), *a[len(pairs) :]), (*(other for _, other in pairs), *b[len(pairs) :])


def _comparable_step(a: TrajectoryStep, b: TrajectoryStep) -> tuple[TrajectoryStep, TrajectoryStep]:
    calls_a, calls_b = list(a.calls), list(b.calls)
    for at, (one, other) in enumerate(zip(a.calls, b.calls, strict=False)):
        if one.tool != other.tool:
            continue
        below: tuple[Any, Any] = (None, None)
        if one.steps is not None and other.steps is not None:
            below = _comparable(one.steps, other.steps)
        calls_a[at], calls_b[at] = replace(one, steps=below[0]), replace(other, steps=below[1])
    return replace(a, calls=tuple(calls_a)), replace(b, calls=tuple(calls_b))


def canonical(value: object) -> str:
    """The one text of a JSON value: keys sorted, `1` and `1.0` and `true` told apart."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(", ", ": "))


def step_text(step: TrajectoryStep) -> list[str]:
    """What a step did, a line for each thing; two steps are the same when their lines are."""
    said = [f"says {canonical(step.text)}"] if step.text or not step.calls else []
    return [*said, *(line for call in step.calls for line in (_call_text(call), *_text_below(call)))]


def _text_below(call: CallStep) -> Iterator[str]:
    """What the agent of a call did, indented, each line with the number of its step."""
    for number, step in enumerate(call.steps or (), start=1):
        yield from (f"  {line}" if line.startswith("  ") else f"  {number}: {line}" for line in step_text(step))


def _call_text(call: CallStep) -> str:
    given = call.arguments
    arguments = canonical(given) if not isinstance(given, str) else f"not JSON: {canonical(given)}"
    if call.outcome is None:
        return f"{call.tool}({arguments}) has no result"
    arrow = "failed:" if call.outcome.is_error else "->"
    return f"{call.tool}({arguments}) {arrow} {canonical(call.outcome.content)}"


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
    return [*_tools_of(steps, "")]


def _tools_of(steps: Sequence[TrajectoryStep], above: str) -> Iterator[str]:
    for step in steps:
        for call in step.calls:
            yield above + call.tool
            yield from _tools_of(call.steps or (), f"{above}{call.tool} > ")


def _args(a: Sequence[TrajectoryStep], b: Sequence[TrajectoryStep]) -> list[Drift]:
    """A row for each call that both runs made at the same place, with other arguments."""
    return [
        row
        for at, (step_a, step_b) in enumerate(zip(a, b, strict=False), start=1)
        for row in _args_of(step_a, step_b, at, "")
    ]


def _args_of(a: TrajectoryStep, b: TrajectoryStep, step: int, above: str) -> Iterator[Drift]:
    for one, other in zip(a.calls, b.calls, strict=False):
        if one.tool != other.tool:
            continue
        name = above + one.tool
        if canonical(one.arguments) != canonical(other.arguments):
            given = ({"step": step, "tool": name, "arguments": call.arguments} for call in (one, other))
            yield Drift("args", *given)
        for step_a, step_b in zip(one.steps or (), other.steps or (), strict=False):
            yield from _args_of(step_a, step_b, step, f"{name} > ")


def _tokens(checkpoint: Checkpoint) -> int:
    return checkpoint.usage.input_tokens + checkpoint.usage.output_tokens


_NO_RESULT: Final[dict[str, Any]] = {}


def _step_json(step: TrajectoryStep) -> dict[str, Any]:
    return {"text": step.text, "calls": [_call_json(call) for call in step.calls]}


def _call_json(call: CallStep) -> dict[str, Any]:
    outcome = call.outcome
    result = _NO_RESULT if outcome is None else {"result": outcome.content, "is_error": outcome.is_error}
    below = {"steps": [_step_json(step) for step in call.steps]} if call.steps else {}
    return {"tool": call.tool, "arguments": call.arguments, **result, **below}
