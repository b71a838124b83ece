"""Telling other systems how a run was left: one event on the deployment's EventBridge bus.

An event is a hint to look at the session, and carries ids and numbers, no text. It is sent after the save that it is
about: one that cannot be sent is counted and logged, and the run is what it is.
"""

import json
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from durable.errors import StoreRejectedError
from durable.records import Checkpoint, FinishReason, Status
from handlers._executions import failure
from handlers._observe import count, logger
from handlers._wiring import App

SOURCE = "durable-agents"


def kind_of(checkpoint: Checkpoint) -> str | None:
    """The event's detail type; None for a run that simply goes on."""
    if checkpoint.status is Status.FINISHED:
        return "Run finished"
    if checkpoint.finish_reason is FinishReason.PARKED:
        return "Run parked"
    if checkpoint.finish_reason is FinishReason.ABORTED:
        return "Run aborted"
    return "Run paused" if checkpoint.status is Status.AWAITING_APPROVAL else None


def tell(app: App, checkpoint: Checkpoint) -> None:
    """Send the event of a run that finished, waits for a human, was aborted or is parked; else nothing."""
    kind = kind_of(checkpoint)
    if kind is None or not app.settings.event_bus:
        return
    entry = {
        "EventBusName": app.settings.event_bus,
        "Source": SOURCE,
        "DetailType": kind,
        "Detail": json.dumps(detail(checkpoint)),
    }
    try:
        answer = app.events.put_events(Entries=[entry])
        if answer.get("FailedEntryCount"):
            raise StoreRejectedError("PutEvents", str(answer["Entries"][0].get("ErrorCode", "Unknown")))
    except (ClientError, BotoCoreError) as error:
        _not_sent(kind, failure("PutEvents", error).code)
    except StoreRejectedError as error:
        _not_sent(kind, error.code)


def detail(checkpoint: Checkpoint) -> dict[str, Any]:
    """What the event says of the run."""
    error = checkpoint.last_error
    return {
        "session_id": checkpoint.session_id,
        "run_id": checkpoint.run_id,
        "revision": checkpoint.revision,
        "status": checkpoint.status,
        "finish_reason": checkpoint.finish_reason,
        "approval_id": checkpoint.approval_id,
        "step": checkpoint.step,
        "usage": checkpoint.usage.model_dump(),
        "last_error": error.code if error is not None else None,
    }


def _not_sent(kind: str, code: str) -> None:
    logger().warning("event not sent", extra={"event_kind": kind, "code": code})
    count(EventsFailed=1)
