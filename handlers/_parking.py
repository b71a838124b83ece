"""Giving up on a run for now: it keeps all that it has, says why it stands still, and goes on when somebody asks."""

from durable.records import Checkpoint, FinishReason, LastError, Status
from handlers._events import tell
from handlers._observe import count, logger
from handlers._running import not_due
from handlers._wiring import App


def park(app: App, stored: Checkpoint, *, code: str, message: str, retryable: bool = False) -> Checkpoint:
    """Save the reason on the checkpoint and take the run off recovery's list.

    A run that waits for a human goes on waiting: a decision carries it on as ever, and only nobody looks after it
    until then. Raises `StaleCheckpointError` when the run has moved, and is not to be parked.
    """
    reason = LastError(code=code, message=message, retryable=retryable, at=app.agent.clock())
    paused = stored.status is Status.AWAITING_APPROVAL
    parked = stored.but(last_error=reason, finish_reason=stored.finish_reason if paused else FinishReason.PARKED)
    parked = app.store.checkpoints.save(parked, after=stored)
    not_due(app, stored.session_id or "", stored.run_id)
    logger().error("run parked", extra={"code": code, "revision": parked.revision})
    count(RunsParked=1)
    tell(app, parked)
    return parked
