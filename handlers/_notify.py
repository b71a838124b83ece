"""Telling people that a decision is wanted: what they are told, and the channels that tell them.

The message is the only place where a callback token appears.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from durable.approval_stream import Approval, Requested
from durable.approvers import UNKNOWN
from durable.errors import DurableError
from durable.questions import offered, question_of
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
    """Tell the people of the approval's level by each of its channels. Without one it waits to be listed.

    `links` are the callback tokens by the approver that each was minted for; every approver gets a message of their
    own. One channel that fails does not silence the other; when an approver was told by none the error is raised, to be
    tried again.
    """
    channels = channels_of(app, approval)
    failures = [_tell(app, channels, approval, callback, approver, reminds) for approver, callback in links.items()]
    if failed := [error for error in failures if error is not None]:
        raise failed[0]


def channels_of(app: App, approval: Approval) -> list[str]:
    """The topics and webhooks of the approval's level: those of the deployment at first, then those the level names.

    A name that the deployment has no more is a failure that is told; the deployment's own people take its place.
    """
    known, own = app.settings.channels, [app.settings.topic_arn, app.settings.webhook_url]
    found = [known[name] for name in approval.channels if name in known]
    if missing := sorted(set(approval.channels) - set(known)):
        logger().warning("people not told", extra={"channel": missing, "reason": "the deployment has no such channel"})
        count(NotificationsFailed=len(missing))
    return found or [address for address in own if address]


def _tell(
    app: App, channels: Sequence[str], approval: Approval, callback: str, approver: str | None, reminds: bool
) -> DurableError | None:
    """Tell one approver, or whoever listens (None). The error, where no channel took the message."""
    told, failed = 0, None
    for address in channels:
        by_topic = address.startswith("arn:")
        try:
            (_publish if by_topic else _post)(app, address, approval, callback, approver, reminds)
            told += 1
        except DurableError as error:
            failed = error
            channel = "topic" if by_topic else "webhook"
            logger().warning("people not told", extra={"channel": channel, "reason": str(error)})
            count(NotificationsFailed=1)
    return None if told else failed


def _publish(app: App, topic: str, approval: Approval, callback: str, approver: str | None, reminds: bool) -> None:
    """A message for one approver says so in an attribute, which their subscription can be filtered by."""
    named: dict[str, Any] = {}
    if approver is not None:
        named = {"MessageAttributes": {"approver": {"DataType": "String", "StringValue": approver}}}
    try:
        app.topics.publish(
            TopicArn=topic,
            Subject=subject(approval, reminds=reminds),
            Message=message(app, approval, callback, approver=approver),
            **named,
        )
    except (ClientError, BotoCoreError) as error:
        raise failure("Publish", error) from error


def _post(app: App, url: str, approval: Approval, callback: str, approver: str | None, reminds: bool) -> None:
    now = app.agent.clock()
    body = webhook_body(app, approval, callback, approver=approver, reminds=reminds, now=now)
    which = "" if approver is None else f".{approval.request.approvers.index(approver)}"
    try:
        post(
            url,
            body,
            id=f"{approval.id}.{approval.revision}{which}",  # the same when the same message is sent again
            timestamp=int(now.timestamp()),
            secret=secret_named(app.settings.webhook_secret),
        )
    except WebhookFailed as error:
        raise error.as_store_error() from error


def subject(approval: Approval, *, reminds: bool = False) -> str:
    """SNS takes 100 characters of printable ASCII that begin with a letter, digit or punctuation."""
    name = "".join(c if 32 <= ord(c) < 127 else "?" for c in approval.request.tool_name)
    if approval.request.kind == "question":
        first = "Reminder: answer" if reminds else "Escalated: answer" if approval.level else "Answer"
        return f"{first} wanted: {name}"[:MAX_SUBJECT]
    first = "Reminder: approval" if reminds else "Escalated: approval" if approval.level else "Approval"
    return f"{first} wanted: {name}"[:MAX_SUBJECT]


def message(app: App, approval: Approval, callback: str, *, approver: str | None = None) -> str:
    request = approval.request
    question = request.kind == "question"
    deadline = f"Decide before {approval.deadline:%F %T} UTC." if approval.deadline else "There is no deadline."
    levels = f"Nobody has decided yet: you are level {approval.level} of {len(request.levels)}."
    wanted = "a question" if question else f"to call {request.tool_name!r}"
    return "\n".join(
        [
            f"Agent {' > '.join(request.asking)!r} asks {wanted}.",
            f"Asked by: {request.requested_by or 'unknown'}",
            f"Session: {request.session_id}",
            f"Approval: {approval.id}",
            *_votes(approval, approver),
            "",
            *(_question(request) if question else _arguments(approval)),
            "",
            *([levels] if approval.level else []),
            deadline,
            f"Look and {'answer' if question else 'decide'}: {link(app, callback)}",
        ]
    )


def _arguments(approval: Approval) -> list[str]:
    ballot = approval.ballot
    arguments = json.dumps(ballot.arguments, ensure_ascii=True, indent=2)
    if len(arguments) > MAX_PREVIEW:
        arguments = arguments[:MAX_PREVIEW] + "\n… (cut; the link shows all of it)"
    return [f"Arguments, changed by {ballot.edited.by or UNKNOWN}:" if ballot.edited else "Arguments:", arguments]


def _question(request: Requested) -> list[str]:
    """The question and its options, as the JSON that arguments are shown as: no line of it can pass for one of ours."""
    options, free_text = offered(request)
    text = json.dumps(question_of(request), ensure_ascii=False)
    cut = text if len(text) <= MAX_PREVIEW else text[:MAX_PREVIEW] + "… (cut; the link shows all of it)"
    others = ["Other answers are taken."] if free_text else []
    return ["Question:", cut, *(f"- {option}" for option in options), *others]


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
        "kind": request.kind,
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
        "deadline": approval.deadline.isoformat() if approval.deadline else None,
        "level": approval.level,
        "levels": len(request.levels),
        "link": link(app, callback),
    }
    kind = "approval.reminded" if reminds else "approval.escalated" if approval.level else "approval.requested"
    return json.dumps({"type": kind, "timestamp": now.isoformat(), "data": data}).encode()


def link(app: App, callback: str) -> str:
    return f"{app.settings.public_url}/callbacks/{callback}"
