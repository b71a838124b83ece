"""Stopping a run from another process than the one that runs it."""

import asyncio
from datetime import datetime

from durable.approval_stream import Approval, ApprovalStatus
from durable.approvals import cancel
from durable.errors import (
    ApprovalNotFoundError,
    SessionBusyError,
    SessionNotFoundError,
    StaleCheckpointError,
    StoreError,
)
from durable.ports import Lease
from durable.records import Checkpoint, FinishReason, Status
from durable.resume import resume_after_approval
from durable.transitions import aborted
from handlers._events import tell
from handlers._executions import HANDED_OVER, wake
from handlers._observe import count, logger
from handlers._running import not_due, stream_of, take_lease
from handlers._wiring import App


def abort_run(app: App, session_id: str, *, by: str | None, owner: str, until: datetime) -> Checkpoint:
    """Stop the session's unfinished run, or see to it that its runner does; the checkpoint as it stands.

    1. it is over, or was stopped already -> nothing
    2. it waits for a human -> the approval is cancelled, unless a decision was first; the abort is saved here
    3. somebody runs it -> the flag on the lease: the runner sees it before its next model call and before tools start
    4. nobody does -> the abort is saved here, under the lease

    The flag comes first: whoever takes the run up between our look and our lease finds it. So does the cancelling: a
    slice, or recovery, that finds a cancelled approval saves the abort as this does.
    """
    stored = _stored(app, session_id)
    if not is_under_way(stored):
        return stored
    approval = _cancelled(app, stored, by) if stored.status is Status.AWAITING_APPROVAL else None
    if approval is None or approval.status is not ApprovalStatus.CANCELLED:
        app.store.leases.request_abort(stream_of(session_id), stored.run_id)
    try:
        lease = take_lease(app, session_id, owner=owner, until=until)
    except SessionBusyError:
        return stored
    try:
        return _stop(app, stored, lease)
    except StaleCheckpointError:
        return stored  # somebody who outlived their lease still runs it, and finds the flag
    finally:
        app.store.leases.release(lease)
        if approval is not None and approval.task_token is not None:
            _end_wait(app, approval.task_token)


def is_under_way(checkpoint: Checkpoint) -> bool:
    """Whether something may still move the run by itself."""
    return checkpoint.status is not Status.FINISHED and checkpoint.finish_reason is not FinishReason.ABORTED


def _stop(app: App, seen: Checkpoint, lease: Lease) -> Checkpoint:
    """Save the abort, if the run is still the one that was seen and nothing else decides how it goes on."""
    session_id = seen.session_id or ""
    stored = _stored(app, session_id)
    if stored.run_id != seen.run_id or not is_under_way(stored):
        return stored
    if stored.status is Status.AWAITING_APPROVAL:
        approval = _approval(app, stored)
        if approval.status is not ApprovalStatus.CANCELLED:
            return stored  # decided: whoever applies it finds the flag
        stored = asyncio.run(resume_after_approval(app.agent, approval.id, store=app.store)).checkpoint
    else:
        stored = app.store.checkpoints.save(aborted(stored), after=stored)
    count(RunsAborted=1)
    tell(app, stored)
    not_due(app, session_id, stored.run_id)
    return stored


def _end_wait(app: App, task_token: str) -> None:
    """Wake the execution that waited for the decision, after the abort was saved: it finds nothing to do and ends."""
    try:
        wake(app, task_token)
    except StoreError as error:  # it ends with its wait, and costs nothing until then
        logger().warning("execution not woken", extra={"code": error.code})


def _cancelled(app: App, stored: Checkpoint, by: str | None) -> Approval:
    """Marked due first: if this process dies right after the cancelling, recovery sees to it that it is applied."""
    due_at = app.agent.clock() + HANDED_OVER
    app.store.log.announce(stream_of(stored.session_id or ""), run_id=stored.run_id, due_at=due_at)
    return cancel(_approval(app, stored), approvals=app.store.approvals, now=app.agent.clock(), by=by)


def _approval(app: App, stored: Checkpoint) -> Approval:
    approval = app.store.approvals.get(stored.approval_id or "")
    if approval is None:
        raise ApprovalNotFoundError(stored.approval_id or "")
    return approval


def _stored(app: App, session_id: str) -> Checkpoint:
    stored = app.store.checkpoints.load(session_id)
    if stored is None:
        raise SessionNotFoundError(session_id)
    return stored
