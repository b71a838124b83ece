"""Whether a call may start: decided for each pending call of a turn, in call order.

1. an unknown tool -> an error result, nothing runs
2. a rejected call -> a `rejected` result, nothing runs
3. a call whose agent is at work -> goes on, and nobody is asked again whether it may
4. a call that had begun before a crash and must not run twice -> `unknown-outcome`
5. arguments that cannot be read or do not fit -> `validation`, nothing runs
6. the `before_tool` hook may deny it, give its result, or replace its arguments (which must fit, too)
7. an approved call -> runs, if its final arguments are those that were approved
8. a call that needs approval, or that had begun and asks -> it waits, and so does everything after it
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, cast

from durable.approvers import ApprovalTerms
from durable.hooks import NO_HOOKS, Deny, GiveResult, Hooks, Intervention, ReplaceArguments, asked
from durable.messages import ToolCall, ToolMessage
from durable.questions import Question
from durable.records import Decision
from durable.results import approval_digest, error_result
from durable.tools import (
    ApprovalGrant,
    Arguments,
    InvalidArguments,
    Tool,
    ToolContext,
    parse_arguments,
    to_json_value,
    to_output,
    tool_message,
)


@dataclass(frozen=True, slots=True)
class Ready:
    """A call that may start."""

    call: ToolCall
    tool: Tool
    arguments: Mapping[str, Any] = field(repr=False)
    context: ToolContext


@dataclass(frozen=True, slots=True)
class Ask:
    """A call that waits for a human, with its final arguments and the terms on which it may run.

    `edited` are arguments that an earlier decision has put in the place of the model's. Where a sub-agent asks,
    `within` are the calls that run it and those above it, and `path` the agents' names, both from the outermost one
    inwards.
    """

    call: ToolCall
    tool: Tool
    arguments: Arguments = field(repr=False)
    terms: ApprovalTerms
    edited: Arguments | None = field(default=None, repr=False)
    within: tuple[str, ...] = ()
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What is known about the calls of a turn before they start."""

    tools: Mapping[str, Tool]
    decisions: Mapping[str, Decision]
    started: Sequence[str]
    at_work: Collection[str] = ()
    context: Callable[[ToolCall, ApprovalGrant | None], ToolContext]
    hooks: Hooks = NO_HOOKS
    approvers: Sequence[str] = ()

    async def sort(self, calls: Sequence[ToolCall]) -> tuple[list[ToolMessage], list[Ready], Ask | None]:
        """The results of those that do not run, those that may start, and the first that must be asked about."""
        results: list[ToolMessage] = []
        ready: list[Ready] = []
        for call in calls:
            match await self._one(call):
                case Ready() as start:
                    ready.append(start)
                case ToolMessage() as result:
                    results.append(result)
                case Ask() as ask:
                    return results, ready, ask
        return results, ready, None

    async def _one(self, call: ToolCall) -> Ready | Ask | ToolMessage:
        tool, decision = self.tools.get(call.name), self.decisions.get(call.id)
        if tool is None:
            return error_result(call, "not-found", f"There is no tool {call.name!r}; there are: {sorted(self.tools)!r}")
        if decision is not None and not decision.approved:
            return error_result(call, "rejected", decision.note or _rejection(tool), note=decision.note)
        if call.id in self.at_work:
            return Ready(call, tool, {}, self.context(call, None))
        if call.id in self.started and tool.recovery == "report":
            return error_result(
                call, "unknown-outcome", "The call had started when the run was interrupted; it may have happened."
            )
        grant = decision and _grant(decision)
        context = self.context(call, grant)
        try:
            edited = decision and deepcopy(decision.args)  # a hook that changes them in place changes a copy
            arguments = edited if edited is not None else parse_arguments(call.arguments)
            final = tool.validate(arguments)
            if self.hooks.before_tool is not None:
                match await self._intervention(call, arguments, context):
                    case ToolMessage() as result:
                        return result
                    case ReplaceArguments(arguments):
                        pass
                    case None:
                        pass
                final = tool.validate(arguments)
                arguments = cast(Arguments, to_json_value(arguments))  # what is asked about is kept
            return await self._allowed(Ready(call, tool, final, context), arguments, decision)
        except InvalidArguments as error:
            return error_result(call, "validation", error.message, issues=error.issues)

    async def _intervention(
        self, call: ToolCall, arguments: Arguments, context: ToolContext
    ) -> ToolMessage | ReplaceArguments | None:
        intervention: Intervention | None = await asked(self.hooks.before_tool, call, arguments, context)
        match intervention:
            case Deny(reason):
                return error_result(call, "denied", reason, reason=reason)
            case GiveResult(content):
                return tool_message(call, to_output(content))
            case _:
                return intervention

    async def _allowed(
        self, start: Ready, arguments: Arguments, decision: Decision | None
    ) -> Ready | Ask | ToolMessage:
        call, tool = start.call, start.tool
        if call.id in self.started and tool.recovery == "ask":
            # Begun after it was approved, if it was: the decision is used up, but for the arguments that it had edited.
            terms = await tool.needs_human(arguments, start.context) or tool.terms
            return Ask(call, tool, arguments, terms.among(self.approvers), decision.args if decision else None)
        if decision is not None:
            if decision.digest is not None and decision.digest != approval_digest(tool.name, arguments):
                return error_result(call, "validation", "The arguments are not those that were approved.")
            return start
        terms = await tool.needs_human(arguments, start.context)
        return start if terms is None else Ask(call, tool, arguments, terms.among(self.approvers))


def _rejection(tool: Tool) -> str:
    return "The question was declined." if isinstance(tool, Question) else "The call was rejected."


def _grant(decision: Decision) -> ApprovalGrant:
    voters = decision.voters or (() if decision.by is None else (decision.by,))
    return ApprovalGrant(decision.approval_id, decision.note, decision.by, voters, decision.answer, decision.via)
