"""Telling people that a decision is wanted: an SNS message, the only place where a callback token appears."""

import json

from botocore.exceptions import BotoCoreError, ClientError

from durable.approval_stream import Approval
from handlers._executions import failure
from handlers._wiring import App

MAX_SUBJECT = 100
MAX_PREVIEW = 2_000
"""Characters of the arguments that a message shows; SNS takes 256 KB, and nobody reads more in a mail."""


def notify(app: App, approval: Approval, callback: str) -> None:
    """Publish the request. Without a topic nobody is told: the approval waits in the API's list."""
    if not app.settings.topic_arn:
        return
    try:
        app.topics.publish(
            TopicArn=app.settings.topic_arn, Subject=subject(approval), Message=message(app, approval, callback)
        )
    except (ClientError, BotoCoreError) as error:
        raise failure("Publish", error) from error


def subject(approval: Approval) -> str:
    """SNS takes 100 characters of printable ASCII that begin with a letter, digit or punctuation."""
    name = "".join(c if 32 <= ord(c) < 127 else "?" for c in approval.request.tool_name)
    return f"Approval wanted: {name}"[:MAX_SUBJECT]


def message(app: App, approval: Approval, callback: str) -> str:
    request = approval.request
    arguments = json.dumps(request.arguments, ensure_ascii=True, indent=2)
    if len(arguments) > MAX_PREVIEW:
        arguments = arguments[:MAX_PREVIEW] + "\n… (cut; the link shows all of it)"
    deadline = f"Decide before {request.deadline:%F %T} UTC." if request.deadline else "There is no deadline."
    return "\n".join(
        [
            f"Agent {request.agent!r} asks to call {request.tool_name!r}.",
            f"Asked by: {request.requested_by or 'unknown'}",
            f"Session: {request.session_id}",
            f"Approval: {approval.id}",
            "",
            "Arguments:",
            arguments,
            "",
            deadline,
            f"Look and decide: {app.settings.public_url}/callbacks/{callback}",
        ]
    )
