"""Running an agent: from an input, or from a checkpoint, to where the run finishes, waits or has to stop.

The plan is `durable/plan.py`, the loop over it `durable/loop.py`.
"""

from dataclasses import replace

import anyio
from pydantic import JsonValue

from durable import transitions
from durable.admission import Input, admitted, as_messages
from durable.approvals import catch_up
from durable.bounds import UNBOUNDED, UNWATCHED, Bounds, Watch
from durable.counting import counted
from durable.crossing import cross
from durable.definition import AgentDefinition
from durable.errors import ConfigurationError, DurableError, ProviderError, SessionAwaitingApprovalError
from durable.events import ApprovalRequested, Emitter, RunDone
from durable.gate import Ask
from durable.hooks import asked
from durable.loop import Loop
from durable.outcome import RunResult, result_of
from durable.places import RootPlace
from durable.ports import ApprovalStore, Store
from durable.records import Checkpoint, FinishReason, LastError, Status, check_session_id
from durable.resolving import check_agents, resolve
from durable.results import approval_id


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
    if checkpoint.suspended:  # before anything runs beside them
        await check_agents(agent, checkpoint)
    if store is not None and (checkpoint.decisions or checkpoint.suspended):
        await cross(catch_up, checkpoint, approvals=store.approvals, now=agent.clock())
    with counted(join=True) as tally:
        emit = Emitter(watch.listener, (agent.name,))
        place = RootPlace(agent, checkpoint, saved=saved, store=store, tally=tally, emit=emit)
        loop = Loop(agent, resolved, place, emit=emit, bounds=bounds, watch=watch)
        run = _Run(agent, place, approvals=store.approvals if store is not None else approvals, emit=emit)
        result = replace(result_of(await run.to_pause(loop), output=agent.output_adapter), consumed=place.consumed())
    await asked(agent.hooks.on_run_end, result)
    return result


class _Run:
    """A whole run in this process, and what becomes of it where its loop ends."""

    def __init__(
        self, agent: AgentDefinition, place: RootPlace, *, approvals: ApprovalStore | None, emit: Emitter
    ) -> None:
        self._agent = agent
        self._place = place
        self._approvals = approvals
        self._emit = emit

    async def to_pause(self, loop: Loop) -> Checkpoint:
        """Run until the run is over, waits, or has to stop; the newest checkpoint, saved."""
        try:
            match await loop.run():
                case None:
                    pass
                case Ask() as ask:
                    with anyio.CancelScope(shield=True):
                        await self._pause(ask)
                case reason:
                    await self._stop(reason)
        except ProviderError as error:
            await self._note(error)
            raise
        checkpoint = self._place.checkpoint
        self._emit(RunDone(finish_reason=checkpoint.finish_reason or FinishReason.STOP))
        return checkpoint

    async def _pause(self, ask: Ask) -> None:
        """Write the approval, then the checkpoint that names it: never a checkpoint that names a missing approval.

        A run without a session has no other place for its checkpoint than the approval's record.
        """
        checkpoint = self._place.checkpoint
        if self._approvals is None:
            raise ConfigurationError(f"Tool {ask.tool.name!r} needs an approval: run with a store.")
        id = approval_id(
            session_id=checkpoint.session_id, run_id=checkpoint.run_id, call_id=ask.call.id, pause=checkpoint.pauses
        )
        request = transitions.request_for(checkpoint, ask, now=self._agent.clock())
        paused = transitions.paused(checkpoint, id, ask)
        if not self._place.stored:
            request = request.but(snapshot=paused)
        await cross(self._approvals.request, id, request)
        await self._place.save(lambda _: paused)
        self._emit.inside(*ask.path)(
            ApprovalRequested(approval_id=id, tool_call_id=ask.call.id, tool_name=ask.tool.name)
        )

    async def _stop(self, reason: FinishReason) -> None:
        """Leave the run in progress, and say why. Aborted, its open calls are closed; out of time, they stay open.

        Saying the same again makes no save: slices that get nowhere are counted by the revision that they start from.
        """
        checkpoint, saved = self._place.checkpoint, self._place.saved
        aborted = reason is FinishReason.ABORTED
        stopped = transitions.aborted(checkpoint) if aborted else checkpoint.but(finish_reason=reason)
        await self._place.save(lambda _: stopped, write=stopped != saved)

    async def _note(self, error: DurableError) -> None:
        """Keep on the checkpoint why the run stopped. A run that has saved nothing yet leaves nothing behind."""
        if self._place.saved is not None:
            failed = LastError(code=error.code, message=str(error), retryable=error.retryable, at=self._agent.clock())
            await self._place.save(lambda newest: newest.but(last_error=failed))
