"""Telling people that a decision is wanted: what they are told, and the channels that tell them.

The message is the only place where a callback token appears.
"""

import json
from datetime import datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from durable.approval_stream import Approval
from durable.errors import DurableError
from handlers._executions import failure
from handlers._observe import count, logger
from handlers._webhook import WebhookFailed, post, secret_named
from handlers._wiring import App

MAX_SUBJECT = 100
MAX_PREVIEW = 2_000
"""Characters of the arguments that a mail shows; SNS takes 256 KB, and nobody reads more in a mail."""

MAX_ARGUMENTS = 100_000
"""Bytes of arguments that a webhook gets; larger ones are behind the link."""


def notify(app: App, approval: Approval, callback: str, *, reminds: bool = False) -> None:
    """Tell people by every channel that is set up: a topic, a webhook. Without one the approval waits to be listed.

    One channel that fails does not silence the other; when nobody was told the error is raised, to be tried again.
    """
    told: list[bool] = []
    failed: DurableError | None = None
    for channel in (_publish, _post):
        try:
            told.append(channel(app, approval, callback, reminds))
        except DurableError as error:
            failed = error
            logger().warning("people not told", extra={"channel": channel.__name__.strip("_"), "reason": str(error)})
            count(NotificationsFailed=1)
    if failed is not None and not any(told):
        raise failed


def _publish(app: App, approval: Approval, callback: str, reminds: bool) -> bool:
    if not app.settings.topic_arn:
        return False
    try:
        app.topics.publish(
            TopicArn=app.settings.topic_arn,
            Subject=subject(approval, reminds=reminds),
            Message=message(app, approval, callback),
        )
    except (ClientError, BotoCoreError) as error:
        raise failure("Publish", error) from error
    return True


def _post(app: App, approval: Approval, callback: str, reminds: bool) -> bool:
    settings = app.settings
    if not settings.webhook_url:
        return False
    now = app.agent.clock()
    body = webhook_body(app, approval, callback, reminds=reminds, now=now)
    try:
        post(
            settings.webhook_url,
            body,
            id=f"{approval.id}.{approval.revision}",  # the same when the same message is sent again
            timestamp=int(now.timestamp()),
            secret=secret_named(settings.webhook_secret),
        )
    except WebhookFailed as error:
        raise error.as_store_error() from error
    return True


def subject(approval: Approval, *, reminds: bool = False) -> str:
    """SNS takes 100 characters of printable ASCII that begin with a letter, digit or punctuation."""
    name = "".join(c if 32 <= ord(c) < 127 else "?" for c in approval.request.tool_name)
    return f"{'Reminder: approval' if reminds else 'Approval'} wanted: {name}"[:MAX_SUBJECT]


def message(app: App, approval: Approval, callback: str) -> str:
    request = approval.request
    arguments = json.dumps(request.arguments, ensure_ascii=True, indent=2)
    if len(arguments) > MAX_PREVIEW:
        arguments = arguments[:MAX_PREVIEW] + "\n… (cut; the link shows all of it)"
    deadline = f"Decide before {request.deadline:%F %T} UTC." if request.deadline else "There is no deadline."
    return "\n".join(
        [
            f"Agent {' > '.join(request.asking)!r} asks to call {request.tool_name!r}.",
            f"Asked by: {request.requested_by or 'unknown'}",
            f"Session: {request.session_id}",
            f"Approval: {approval.id}",
            "",
            "Arguments:",
            arguments,
            "",
            deadline,
            f"Look and decide: {link(app, callback)}",
        ]
    )


def webhook_body(app: App, approval: Approval, callback: str, *, reminds: bool, now: datetime) -> bytes:
    """The event in the shape of Standard Webhooks: type, timestamp, data."""
    request = approval.request
    arguments = json.dumps(request.arguments)
    data: dict[str, Any] = {
        "approval_id": approval.id,
        "session_id": request.session_id,
        "run_id": request.run_id,
        "agent": request.agent,
        "path": list(request.asking),
        "tool": request.tool_name,
        "arguments": request.arguments if len(arguments) <= MAX_ARGUMENTS else None,
        "arguments_cut": len(arguments) > MAX_ARGUMENTS,
        "requested_by": request.requested_by,
        "deadline": request.deadline.isoformat() if request.deadline else None,
        "link": link(app, callback),
    }
    kind = "approval.reminded" if reminds else "approval.requested"
    return json.dumps({"type": kind, "timestamp": now.isoformat(), "data": data}).encode()


def link(app: App, callback: str) -> str:
    return f"{app.settings.public_url}/callbacks/{callback}"
