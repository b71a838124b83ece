"""Carrying a run on after its approval was decided, in any process."""

from durable import transitions
from durable.approval_stream import Applied, Approval, ApprovalStatus
from durable.approvals import apply_deadline, mark_applied, waits_for, with_decision
from durable.bounds import UNBOUNDED, UNWATCHED, Bounds, Watch
from durable.counting import counted
from durable.crossing import cross, save_checkpoint
from durable.definition import AgentDefinition
from durable.errors import (
    ApprovalClosedError,
    ApprovalNotFoundError,
    SessionAwaitingApprovalError,
    SessionNotFoundError,
)
from durable.executor import run_to_pause
from durable.outcome import RunResult, result_of
from durable.ports import Store
from durable.records import Checkpoint, Decision, FinishReason, Status, check_session_id
from durable.resolving import check_agents


async def resume_after_approval(
    agent: AgentDefinition, id: str, *, store: Store, bounds: Bounds = UNBOUNDED, watch: Watch = UNWATCHED
) -> RunResult:
    """Apply what was decided about approval `id` to the run that waits for it, and carry on with the run.

    The decision is saved on the checkpoint before anything is done about it. A decision that has been applied is not
    applied again: the run as it stands is carried on if it is unfinished, else its result comes back. An approval past
    its deadline goes to its next level, or is closed as expired, which rejects the call or ends the run, as its tool
    says; a cancelled one leaves the run aborted, until a new message or a resume. Raises `SessionAwaitingApprovalError`
    while it is open; an agent that must not resume the run (`AgentDriftError`, `ResumeToolMissingError`) leaves
    everything as it was.
    """
    with counted():
        return await _resumed(agent, id, store, bounds, watch)


async def _resumed(agent: AgentDefinition, id: str, store: Store, bounds: Bounds, watch: Watch) -> RunResult:
    approval = await cross(store.approvals.get, id)
    if approval is None:
        raise ApprovalNotFoundError(id)
    if approval.request.snapshot is not None:
        return await _resumed_from_record(agent, approval, approval.request.snapshot, store, bounds, watch)
    session_id = check_session_id(approval.request.session_id)
    checkpoint = await cross(store.checkpoints.load, session_id)
    if checkpoint is None:
        raise SessionNotFoundError(session_id)
    waits = waits_for(checkpoint, id)
    if waits:
        approval = await cross(apply_deadline, approval, approvals=store.approvals, now=agent.clock())
    decision = approval.decision
    if waits:
        if decision is None:
            raise SessionAwaitingApprovalError(session_id, id)
        stops = approval.halts or approval.status is ApprovalStatus.CANCELLED
        if not stops:
            await check_agents(agent, checkpoint)
        checkpoint = await save_checkpoint(agent, store, applied(approval, decision, checkpoint), after=checkpoint)
    if decision is not None:
        await cross(mark_applied, approval, approvals=store.approvals, now=agent.clock())
    cancelled = approval.status is ApprovalStatus.CANCELLED and checkpoint.finish_reason is FinishReason.ABORTED
    if checkpoint.status is not Status.IN_PROGRESS or cancelled:
        return result_of(checkpoint, output=agent.output_adapter)
    return await run_to_pause(agent, checkpoint, saved=checkpoint, store=store, bounds=bounds, watch=watch)


async def _resumed_from_record(
    agent: AgentDefinition, approval: Approval, checkpoint: Checkpoint, store: Store, bounds: Bounds, watch: Watch
) -> RunResult:
    """Carry on a run without a session. The record says that it was applied before anything runs: that is once.

    What comes of it is kept nowhere, so a crash loses it, as it loses any run without a session.
    """
    approval = await cross(apply_deadline, approval, approvals=store.approvals, now=agent.clock())
    decision = approval.decision
    if decision is None:
        raise SessionAwaitingApprovalError(checkpoint.session_id, approval.id)
    await check_agents(agent, checkpoint)
    if approval.applied or await cross(store.approvals.append, Applied(at=agent.clock()), after=approval) is None:
        raise ApprovalClosedError(approval.id, "applied")
    checkpoint = applied(approval, decision, checkpoint)
    if checkpoint.status is not Status.IN_PROGRESS or checkpoint.finish_reason is FinishReason.ABORTED:
        return result_of(checkpoint, output=agent.output_adapter)
    return await run_to_pause(
        agent, checkpoint, saved=None, store=None, approvals=store.approvals, bounds=bounds, watch=watch
    )


def applied(approval: Approval, decision: Decision, checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint that waited, with what came of its approval: what is saved before anything is done about it.

    A call that had begun before somebody was asked stays named as begun where the run stops: it may have happened.
    """
    call_id = approval.request.call_id
    stopped = checkpoint.but(decisions={**checkpoint.decisions, call_id: decision})
    if approval.status is ApprovalStatus.CANCELLED:
        return transitions.aborted(stopped)
    return transitions.halted(stopped) if approval.halts else with_decision(checkpoint, decision, approval.request)
