"""The agent that carries on a run: made for the run's own context, and still able to do what the run waits for."""

from durable.definition import AgentDefinition, Resolved, RunContext
from durable.errors import ResumeToolMissingError
from durable.fingerprint import had_tool
from durable.records import Checkpoint
from durable.transcript import pending_calls


async def resolve(agent: AgentDefinition, checkpoint: Checkpoint) -> Resolved:
    """The agent as it is for this run: made for the context and the model that the run began with."""
    return await agent.resolve(context_of(checkpoint))


def context_of(checkpoint: Checkpoint) -> RunContext:
    """What the agent of this run is made for."""
    config = checkpoint.run_config or {}
    model = config.get("model")
    return RunContext(
        session_id=checkpoint.session_id,
        run_id=checkpoint.run_id,
        context=config.get("context"),
        model=model if isinstance(model, str) else None,
    )


def check_tools(checkpoint: Checkpoint, agent: Resolved) -> None:
    """A call that waits for its result must still have its tool; a name that never was one is told to the model."""
    gone = {call.name for call in pending_calls(checkpoint) if call.name not in agent.toolset}
    if gone := sorted(name for name in gone if had_tool(checkpoint, name)):
        raise ResumeToolMissingError(checkpoint.session_id, gone)
