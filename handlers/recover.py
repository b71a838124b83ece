"""Scheduled: start what is due and nobody runs. A Lambda that died between accepting and handing over loses nothing.

A due mark is a hint. What is started is decided by the newest checkpoint, read strongly, and by the lease.
"""

from typing import Any

from durable.errors import DurableError
from durable.ports import Head
from durable.records import FinishReason, Status
from handlers._deadline import LambdaContext, seconds_left
from handlers._executions import hand_over
from handlers._observe import about, count, invocation, logger
from handlers._wiring import App, app

PAGE = 50
STOP_WITH_SECONDS_LEFT = 10


def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, int]:
    application = app()
    with invocation(application, context):
        return recover(application, context)


def recover(application: App, context: LambdaContext) -> dict[str, int]:
    """Look at every due session once; what cannot be handled now is due again in a minute."""
    tally = {"started": 0, "settled": 0, "left": 0, "failed": 0}
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
        cursor = page.cursor
        if cursor is None:
            break
    count(Recovered=tally["started"])
    logger().info("recovery done", extra={"tally": tally})
    return tally


def _look_at(application: App, head: Head) -> str:
    """Start the run that the mark announces if it is the session's newest, unfinished, and nobody runs it."""
    stored = application.store.checkpoints.load(head.id)
    lease = application.store.leases.look(head.stream)
    if lease is not None and lease.owner is not None and lease.until > application.agent.clock():
        return "left"
    at_rest = (
        stored is None
        or stored.run_id != head.due_run
        or stored.status is Status.FINISHED
        or stored.finish_reason in (FinishReason.ABORTED, FinishReason.PARKED)
    )
    if stored is None or at_rest:
        application.store.log.settle(head)
        return "settled"
    hand_over(application, session_id=head.id, run_id=stored.run_id, revision=stored.revision)
    return "started"
