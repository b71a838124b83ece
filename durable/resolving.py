"""The agents that carry on a run: made for the run's own context, and still able to do what the run waits for."""

from collections.abc import AsyncIterator, Mapping, Sequence

from durable.definition import AgentDefinition, Resolved, RunContext
from durable.errors import AgentDriftError, ResumeToolMissingError
from durable.fingerprint import drift, fingerprint, had_tool
from durable.messages import ToolCall
from durable.records import Checkpoint
from durable.subagents import SubAgent, in_charge
from durable.tools import Tool
from durable.transcript import pending_calls


async def resolve(agent: AgentDefinition, checkpoint: Checkpoint) -> Resolved:
    """The agent as it is for this run: made for the context and the model that the run began with."""
    return await agent.resolve(context_of(checkpoint))


def context_of(checkpoint: Checkpoint, *, root: Checkpoint | None = None) -> RunContext:
    """What the agent of this checkpoint is made for, which is a sub-agent's where `root` is given for the run's."""
    config = checkpoint.run_config or {}
    model = config.get("model")
    root = root or checkpoint
    return RunContext(
        session_id=root.session_id,
        run_id=root.run_id,
        context=config.get("context"),
        model=model if isinstance(model, str) else None,
    )


def check_tools(checkpoint: Checkpoint, agent: Resolved, *, session_id: str | None) -> None:
    """A call that waits for its result must still have its tool; a name that never was one is told to the model."""
    gone = {call.name for call in pending_calls(checkpoint) if call.name not in agent.toolset}
    gone = {name for name in gone if had_tool(checkpoint, name)}
    gone |= {call.name for call in at_work(checkpoint) if not isinstance(agent.toolset.get(call.name), SubAgent)}
    if gone:
        raise ResumeToolMissingError(session_id, sorted(gone))


def at_work(checkpoint: Checkpoint) -> tuple[ToolCall, ...]:
    """The calls whose sub-agents are under way, in call order."""
    return tuple(call for call in pending_calls(checkpoint) if call.id in checkpoint.suspended)


async def check_agents(agent: AgentDefinition, checkpoint: Checkpoint) -> None:
    """Refuse what the run itself would refuse when it goes on, of its agent and of every sub-agent under way."""
    async for level, resolved, state in _levels(agent, checkpoint, root=checkpoint):
        check_tools(state, resolved, session_id=checkpoint.session_id)
        if level.on_agent_drift == "error":
            now = fingerprint(model=resolved.provider.name, tools=resolved.specs, instructions=resolved.instructions)
            if (found := drift(state.fingerprint, now)) is not None:
                raise AgentDriftError(checkpoint.session_id, found.in_words())


async def tools_at(agent: AgentDefinition, checkpoint: Checkpoint, within: Sequence[str]) -> Mapping[str, Tool]:
    """The tools of the agent that works for these calls, from the outermost one inwards; none when it is gone."""
    tools, state = await agent.tools_for(context_of(checkpoint)), checkpoint
    for call_id in within:
        call = next((call for call in at_work(state) if call.id == call_id), None)
        tool = tools.get(call.name) if call is not None else None
        if not isinstance(tool, SubAgent):
            return {}
        state = state.suspended[call_id]
        tools = await tool.agent.tools_for(context_of(state, root=checkpoint))
    return tools


async def _levels(
    agent: AgentDefinition, state: Checkpoint, *, root: Checkpoint
) -> AsyncIterator[tuple[AgentDefinition, Resolved, Checkpoint]]:
    resolved = await agent.resolve(context_of(state, root=root))
    yield agent, resolved, state
    for call in at_work(state):
        if isinstance(tool := resolved.toolset.get(call.name), SubAgent):
            below = in_charge(tool.agent, agent, resolved)
            async for level in _levels(below, state.suspended[call.id], root=root):
                yield level
