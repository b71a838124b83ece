"""An agent as a tool of another: the lead hands it a task, and its answer is the result of the call.

researcher = Agent(name="researcher", description="Looks things up.", tools=[search])
lead = Agent(name="desk", subagents=[researcher], tools=[refund])

The call runs through the same loop as the lead does, on a part of the lead's checkpoint: see `durable/nesting.py`. The
model gives the task and nothing else. Session, run, context, hooks, abort, deadline, approvals and budgets are those
of the lead; instructions, tools and limits are the agent's own, and so is its model if it has one.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from durable.errors import ConfigurationError
from durable.escalation import Escalation, OnTimeout
from durable.hooks import inherited
from durable.messages import ToolCall, ToolMessage
from durable.outcome import output_of, text_of
from durable.records import Checkpoint, FinishReason
from durable.results import error_result
from durable.tools import ApprovalPolicy, Tool, UnserializableResult, terms_of, to_json_value, tool_message

if TYPE_CHECKING:
    from durable.definition import AgentDefinition, Resolved

MAX_DEPTH = 3
"""How many levels of sub-agents an agent may have below it, unless it says otherwise."""


class Task(BaseModel):
    """The arguments of a call that runs an agent."""

    model_config = ConfigDict(extra="forbid")

    task: str = Field(description="What to do, with everything that is needed for it: nothing else is known there.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubAgent(Tool):
    """A tool that runs an agent. Made by `Agent.as_tool`.

    A call that was interrupted goes on where its agent was, so its `recovery` is always `rerun`: nothing that has a
    result runs again, and the agent's own tools say what an interruption means for them.
    """

    agent: "AgentDefinition" = field(repr=False)
    function: Any = field(default=None, repr=False)
    arguments: type[BaseModel] = field(default=Task, repr=False)


def as_subagent(
    agent: "AgentDefinition",
    *,
    name: str | None = None,
    description: str | None = None,
    needs_approval: bool | ApprovalPolicy = False,
    approvals: int = 1,
    approvers: Sequence[str] = (),
    approval_timeout: timedelta | None = None,
    on_timeout: OnTimeout | Escalation = "reject",
    remind_every: timedelta | None = None,
) -> SubAgent:
    """Give the agent as a tool. The name is the agent's with `_` for what no model takes, the description its own."""
    schema = Task.model_json_schema()
    name = name or re.sub(r"[^A-Za-z0-9_-]", "_", agent.name)
    return SubAgent(
        agent=agent,
        name=name,
        description=description or agent.description or f"Hands a task to the agent {agent.name!r}.",
        parameters={key: value for key, value in schema.items() if key not in ("title", "description")},
        needs_approval=needs_approval,
        terms=terms_of(name, approvals, approvers),
        approval_timeout=approval_timeout,
        on_timeout=on_timeout,
        remind_every=remind_every,
    )


def check_depth(path: Sequence[str], tools: Iterable[Tool], *, max_depth: int) -> None:
    """Raise `ConfigurationError` for an agent that has itself below it, or too many levels of agents.

    Agents are told apart by their names, which events and approvals give. Tools that are made for a run are looked at
    when it runs.
    """
    if len(set(path)) < len(path):
        raise ConfigurationError(f"Agents go round in a circle, or two have one name: {' > '.join(path)}.")
    if len(path) - 1 > max_depth:
        raise ConfigurationError(
            f"{' > '.join(path)} are {len(path) - 1} levels of sub-agents; max_depth allows {max_depth}."
        )
    for tool in tools:
        if isinstance(tool, SubAgent):
            check_depth((*path, tool.agent.name), tool.agent.known_tools.values(), max_depth=max_depth)


def all_tools(agent: "AgentDefinition", *, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Tool]]:
    """The tools of an agent and of every agent below it that are known before any run, each with the agents' names."""
    path = (*above, agent.name)
    for tool in agent.known_tools.values():
        yield path, tool
        if isinstance(tool, SubAgent):
            yield from all_tools(tool.agent, above=path)


def check_terms(agent: str, tools: Iterable[Tool], approvers: Sequence[str]) -> None:
    """Raise `ConfigurationError` for a tool that needs more approvals than there are approvers, at any level.

    `approvers` are those of the agent, which hold below it where nobody else is named.
    """
    for tool in tools:
        try:
            tool.terms.among(approvers)
        except ConfigurationError as error:
            raise ConfigurationError(f"Agent {agent!r}, tool {tool.name!r}: {error}") from None
        if isinstance(tool, SubAgent):
            check_terms(tool.agent.name, tool.agent.known_tools.values(), tool.agent.approvers or approvers)


def in_charge(agent: "AgentDefinition", lead: "AgentDefinition", resolved: "Resolved") -> "AgentDefinition":
    """The agent as it works for a lead: with what it has not of its own, and what is the same for all of a run."""
    strict = "error" in (agent.on_agent_drift, lead.on_agent_drift)
    return replace(
        agent,
        **({} if callable(agent.tools) else {"tools": tuple(agent.toolset.values()), "subagents": ()}),
        provider=agent.provider or resolved.provider,
        make_provider=agent.make_provider or lead.make_provider,
        approvers=agent.approvers or lead.approvers,
        hooks=inherited(agent.hooks, lead.hooks),
        on_agent_drift="error" if strict else agent.on_agent_drift,
        clock=lead.clock,
        ids=lead.ids,
        sleep=lead.sleep,
        random=lead.random,
    )


def result_of_task(call: ToolCall, agent: "AgentDefinition", checkpoint: Checkpoint) -> ToolMessage:
    """What the lead is told: the answer, as a value where the agent has an `output_type`; else why there is none."""
    reason, text, adapter = checkpoint.finish_reason, text_of(checkpoint), agent.output_adapter
    if reason is FinishReason.STOP:
        if adapter is None:
            return tool_message(call, text)
        try:
            return tool_message(call, to_json_value(adapter.dump_python(output_of(adapter, text), mode="json")))
        except UnserializableResult as error:
            return error_result(call, "execution", f"The answer of agent {agent.name!r} is not JSON: {error}")
    ended = f"Agent {agent.name!r} ended without an answer: {reason}."
    return error_result(call, "execution", ended, finish_reason=reason, text=text or None)
