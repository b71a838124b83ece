"""Where an agent's owner may look in and step in.

A hook is a function, synchronous or not; one that raises ends the run.
Hooks are code of this process, so they run again for what runs again after a crash.
"""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from pydantic import JsonValue

from durable.messages import ToolCall, ToolMessage
from durable.outcome import RunResult
from durable.ports import ModelRequest, ModelTurn
from durable.tools import Arguments, ToolContext

T = TypeVar("T")
Maybe = T | None | Awaitable[T | None]


@dataclass(frozen=True, slots=True)
class Deny:
    """The call does not run; the model is told why."""

    reason: str


@dataclass(frozen=True, slots=True)
class ReplaceArguments:
    """The call runs with these arguments. They are validated, and approval is asked for them."""

    arguments: Arguments = field(repr=False)


@dataclass(frozen=True, slots=True)
class GiveResult:
    """The call does not run; this is its result."""

    content: JsonValue = field(repr=False)


Intervention = Deny | ReplaceArguments | GiveResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """All optional.

    `before_model` may give another request, `after_model` another turn, `after_tool` another result of the same call.
    `before_tool` gets the validated arguments and may deny the call, replace them, or give the result. `on_run_end` is
    told how a run comes back: finished, paused, aborted or out of time; a recorded result that is given again is not.
    """

    before_model: Callable[[ModelRequest], Maybe[ModelRequest]] | None = None
    after_model: Callable[[ModelRequest, ModelTurn], Maybe[ModelTurn]] | None = None
    before_tool: Callable[[ToolCall, Arguments, ToolContext], Maybe[Intervention]] | None = None
    after_tool: Callable[[ToolCall, ToolMessage, ToolContext], Maybe[ToolMessage]] | None = None
    on_run_end: Callable[[RunResult], Maybe[None]] | None = None


def inherited(own: Hooks, lead: Hooks) -> Hooks:
    """The hooks of a sub-agent: its own, and those of its lead where it has none. A run ends once, for the lead."""
    there = {each.name: getattr(own, each.name) for each in fields(Hooks) if getattr(own, each.name) is not None}
    return replace(lead, **{**there, "on_run_end": None})


async def asked(hook: Callable[..., Any] | None, *arguments: Any) -> Any:
    """What the hook says; None where there is none."""
    if hook is None:
        return None
    answer = hook(*arguments)
    return await answer if inspect.isawaitable(answer) else answer


NO_HOOKS = Hooks()
