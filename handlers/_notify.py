"""Telling people that a decision is wanted: what they are told, and the channels that tell them.

The message is the only place where a callback token appears.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from durable.approval_stream import Approval
from durable.approvers import UNKNOWN
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


def notify(app: App, approval: Approval, links: Mapping[str | None, str], *, reminds: bool = False) -> None:
    """Tell people by every channel that is set up: a topic, a webhook. Without one the approval waits to be listed.

    `links` are the callback tokens by the approver that each was minted for; every approver gets a message of their
    own. One channel that fails does not silence the other; when an approver was told by none the error is raised, to be
    tried again.
    """
    failures = [_tell(app, approval, callback, approver, reminds) for approver, callback in links.items()]
    if failed := [error for error in failures if error is not None]:
        raise failed[0]


def _tell(app: App, approval: Approval, callback: str, approver: str | None, reminds: bool) -> DurableError | None:
    """Tell one approver, or whoever listens (None). The error, where no channel took the message."""
    told: list[bool] = []
    failed: DurableError | None = None
    for channel in (_publish, _post):
        try:
            told.append(channel(app, approval, callback, approver, reminds))
        except DurableError as error:
            failed = error
            logger().warning("people not told", extra={"channel": channel.__name__.strip("_"), "reason": str(error)})
            count(NotificationsFailed=1)
    return None if any(told) else failed


def _publish(app: App, approval: Approval, callback: str, approver: str | None, reminds: bool) -> bool:
    """A message for one approver says so in an attribute, which their subscription can be filtered by."""
    if not app.settings.topic_arn:
        return False
    named: dict[str, Any] = {}
    if approver is not None:
        named = {"MessageAttributes": {"approver": {"DataType": "String", "StringValue": approver}}}
    try:
        app.topics.publish(
            TopicArn=app.settings.topic_arn,
            Subject=subject(approval, reminds=reminds),
            Message=message(app, approval, callback, approver=approver),
            **named,
        )
    except (ClientError, BotoCoreError) as error:
        raise failure("Publish", error) from error
    return True


def _post(app: App, approval: Approval, callback: str, approver: str | None, reminds: bool) -> bool:
    settings = app.settings
    if not settings.webhook_url:
        return False
    now = app.agent.clock()
    body = webhook_body(app, approval, callback, approver=approver, reminds=reminds, now=now)
    which = "" if approver is None else f".{approval.request.approvers.index(approver)}"
    try:
        post(
            settings.webhook_url,
            body,
            id=f"{approval.id}.{approval.revision}{which}",  # the same when the same message is sent again
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


def message(app: App, approval: Approval, callback: str, *, approver: str | None = None) -> str:
    request, ballot = approval.request, approval.ballot
    arguments = json.dumps(ballot.arguments, ensure_ascii=True, indent=2)
    if len(arguments) > MAX_PREVIEW:
        arguments = arguments[:MAX_PREVIEW] + "\n… (cut; the link shows all of it)"
    deadline = f"Decide before {request.deadline:%F %T} UTC." if request.deadline else "There is no deadline."
    return "\n".join(
        [
            f"Agent {' > '.join(request.asking)!r} asks to call {request.tool_name!r}.",
            f"Asked by: {request.requested_by or 'unknown'}",
            f"Session: {request.session_id}",
            f"Approval: {approval.id}",
            *_votes(approval, approver),
            "",
            f"Arguments, changed by {ballot.edited.by or UNKNOWN}:" if ballot.edited else "Arguments:",
            arguments,
            "",
            deadline,
            f"Look and decide: {link(app, callback)}",
        ]
    )


def _votes(approval: Approval, approver: str | None) -> list[str]:
    """What is said about votes where more than one matters, and about whose link it is."""
    lines: list[str] = []
    if approval.request.approvals > 1:
        given = ", ".join(vote.by or UNKNOWN for vote in approval.ballot.approving)
        lines.append(f"Needs {approval.request.approvals} approvals. Given by: {given or 'nobody yet'}")
    if approver is not None:
        lines.append(f"For: {approver}. The link decides in that name: do not pass it on.")
    return lines


def webhook_body(
    app: App, approval: Approval, callback: str, *, approver: str | None = None, reminds: bool, now: datetime
) -> bytes:
    """The event in the shape of Standard Webhooks: type, timestamp, data. `approver` is whose link it is."""
    request, ballot = approval.request, approval.ballot
    arguments = json.dumps(ballot.arguments)
    data: dict[str, Any] = {
        "approval_id": approval.id,
        "session_id": request.session_id,
        "run_id": request.run_id,
        "agent": request.agent,
        "path": list(request.asking),
        "tool": request.tool_name,
        "arguments": ballot.arguments if len(arguments) <= MAX_ARGUMENTS else None,
        "arguments_cut": len(arguments) > MAX_ARGUMENTS,
        "edited_by": (ballot.edited.by or UNKNOWN) if ballot.edited else None,
        "approver": approver,
        "approvals": request.approvals,
        "missing": ballot.missing,
        "requested_by": request.requested_by,
        "deadline": request.deadline.isoformat() if request.deadline else None,
        "link": link(app, callback),
    }
    kind = "approval.reminded" if reminds else "approval.requested"
    return json.dumps({"type": kind, "timestamp": now.isoformat(), "data": data}).encode()


def link(app: App, callback: str) -> str:
    return f"{app.settings.public_url}/callbacks/{callback}"
