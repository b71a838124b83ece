"""Running an agent: from an input, or from a checkpoint, to where the run finishes, waits or has to stop.

The plan is `durable/plan.py`, the loop over it `durable/loop.py`.
"""

from dataclasses import replace

from pydantic import JsonValue

from durable.admission import Input, admitted, as_messages
from durable.approvals import catch_up
from durable.bounds import UNBOUNDED, UNWATCHED, Bounds, Watch
from durable.counting import counted
from durable.crossing import cross
from durable.definition import AgentDefinition
from durable.errors import (
    ConfigurationError,
    SessionAwaitingApprovalError,
)
from durable.hooks import asked
from durable.loop import Loop
from durable.outcome import RunResult, result_of
from durable.ports import ApprovalStore, Store
from durable.records import Checkpoint, Status, check_session_id
from durable.resolving import resolve


async def execute(
    agent: AgentDefinition,
    input: Input,
    *,
    session_id: str | None = None,
    store: Store | None = None,
    approvals: ApprovalStore | None = None,
    requested_by: str | None = None,
    context: JsonValue = None,
    bounds: Bounds = UNBOUNDED,
    watch: Watch = UNWATCHED,
) -> RunResult:
    """Run the agent on `input` until it finishes, waits for an approval, is aborted or is out of time.

    With a `session_id` and a `store` the run survives: called again with the same id it resumes, continues or refuses
    by what is stored (SEMANTICS 1). Without them nothing is kept, but for a run that waits for an approval, where there
    are `approvals`: it sleeps in the approval's record. `context` is what a dynamic agent is made for.
    Raises `SessionAwaitingApprovalError`, `ConfigurationError`, `AgentDriftError`, a `StoreError`, a `ProviderError`,
    or what a hook or a `PropagatingToolError` ends the run with; what was saved before stays.
    """
    if (session_id is None) != (store is None):
        raise ConfigurationError("session_id and store go together: give both, or none.")
    with counted():
        stored = None
        if store is not None:
            stored = await cross(store.checkpoints.load, check_session_id(session_id))
        checkpoint = admitted(
            agent, stored, as_messages(input), session_id=session_id, requested_by=requested_by, context=context
        )
        return await run_to_pause(
            agent, checkpoint, saved=stored, store=store, approvals=approvals, bounds=bounds, watch=watch
        )


async def run_to_pause(
    agent: AgentDefinition,
    checkpoint: Checkpoint,
    *,
    saved: Checkpoint | None,
    store: Store | None,
    approvals: ApprovalStore | None = None,
    bounds: Bounds = UNBOUNDED,
    watch: Watch = UNWATCHED,
) -> RunResult:
    """Run from `checkpoint` (stored as `saved`, or newer than it) until the run finishes, pauses or has to stop."""
    if checkpoint.status is Status.FINISHED:
        return result_of(checkpoint, output=agent.output_adapter)
    if checkpoint.status is Status.AWAITING_APPROVAL:
        raise SessionAwaitingApprovalError(checkpoint.session_id, checkpoint.approval_id)
    resolved = await resolve(agent, checkpoint)
    if store is not None and checkpoint.decisions:
        await cross(catch_up, checkpoint, approvals=store.approvals, now=agent.clock())
    with counted(join=True) as tally:
        loop = Loop(
            agent,
            resolved,
            checkpoint,
            saved=saved,
            store=store,
            approvals=store.approvals if store is not None else approvals,
            bounds=bounds,
            watch=watch,
            tally=tally,
        )
        result = replace(result_of(await loop.run(), output=agent.output_adapter), consumed=loop.consumed())
    await asked(agent.hooks.on_run_end, result)
    return result
