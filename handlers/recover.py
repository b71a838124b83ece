"""Scheduled: start what is due and nobody runs. A Lambda that died between accepting and handing over loses nothing.

A due mark is a hint. What is started is decided by the newest checkpoint, read strongly, and by the lease.
"""

from typing import Any

from durable.approval_stream import Approval, ApprovalStatus
from durable.approvals import catch_up
from durable.errors import DurableError, StaleCheckpointError
from durable.ports import Head, Lease
from durable.records import Checkpoint, FinishReason, Status
from handlers._deadline import LambdaContext, seconds_left
from handlers._executions import KeepsFailing, carry_on, drives
from handlers._observe import about, count, invocation, logger
from handlers._parking import park
from handlers._running import sleeps
from handlers._wiring import App, app

PAGE = 50
STOP_WITH_SECONDS_LEFT = 10

MAX_EXECUTIONS = 3
"""So many executions may start at one revision and not end in success; then the run is parked."""


def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, int]:
    application = app()
    with invocation(application, context):
        return recover(application, context)


def recover(application: App, context: LambdaContext) -> dict[str, int]:
    """Look at every due session once; what cannot be handled now is due again in a minute."""
    tally = {"started": 0, "settled": 0, "left": 0, "parked": 0, "failed": 0}
    cursor = None
    while seconds_left(context) > STOP_WITH_SECONDS_LEFT:
        page = application.store.log.heads("session", due_before=application.agent.clock(), limit=PAGE, cursor=cursor)
        for head in page.items:
            about(session_id=head.id)
            try:
                tally[_look_at(application, head)] += 1
            except DurableError as error:
                logger().warning("not recovered", extra={"code": error.code, "reason": str(error)})
                tally["failed"] += 1
            except Exception as error:  # whatever is wrong with one session, the others are looked at
                logger().error("not recovered", extra={"error": type(error).__name__}, exc_info=True)
                tally["failed"] += 1
        cursor = page.cursor
        if cursor is None:
            break
    count(Recovered=tally["started"], RecoveryFailed=tally["failed"])
    logger().info("recovery done", extra={"tally": tally})
    return tally


def _look_at(application: App, head: Head) -> str:
    """Carry on the run that the mark announces if it is the session's newest, unfinished, and nobody runs it.

    1. somebody runs it -> left alone
    2. it is over, stopped on purpose, or never came to be -> the mark goes
    3. it waits for a human who has been asked and has not answered -> it is due again after the deadline
    4. its executions keep failing at the same place -> parked, until somebody asks for it
    5. else it is woken, or an execution is started for it
    """
    lease = application.store.leases.look(head.stream)
    if lease is not None and lease.owner is not None and lease.until > application.agent.clock():
        return "left"
    stored = application.store.checkpoints.load(head.id)
    if stored is None or not _is_unfinished(stored, head):
        if stored is not None:
            catch_up(stored, approvals=application.store.approvals, now=application.agent.clock())
        application.store.log.settle(head)
        return "settled"
    if (approval := _asked(application, stored, lease)) is not None:
        sleeps(application, approval)
        return "settled"
    try:
        carry_on(application, stored, failures=MAX_EXECUTIONS)
    except KeepsFailing as failing:
        return _park(application, stored, failing)
    return "started"


def _park(application: App, stored: Checkpoint, failing: KeepsFailing) -> str:
    message = f"{failing.executions} executions started from revision {stored.revision} and did not end in success."
    try:
        park(application, stored, code="NO_PROGRESS", message=message)
    except StaleCheckpointError:
        return "left"  # it has moved after all
    return "parked"


def _is_unfinished(stored: Checkpoint, head: Head) -> bool:
    stopped = stored.finish_reason in (FinishReason.ABORTED, FinishReason.PARKED)
    return stored.run_id == head.due_run and stored.status is not Status.FINISHED and not stopped


def _asked(application: App, stored: Checkpoint, lease: Lease | None) -> Approval | None:
    """The approval that the run waits for, in a running execution and with an answer that may still come."""
    if stored.approval_id is None or lease is None or lease.execution is None:
        return None
    approval = application.store.approvals.get(stored.approval_id)
    waits = (
        approval is not None
        and approval.status is ApprovalStatus.PENDING
        and not approval.late_by(application.agent.clock())
        and approval.task_token is not None
        and approval.told
        and drives(application, lease.execution, stored.run_id)
    )
    return approval if waits else None
