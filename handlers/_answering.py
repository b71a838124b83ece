"""What the page behind a callback link says where the approval is a question: the question, and a form for the answer.

Options are buttons. Free text goes into an area, in which the enter key sends nothing: in a field it would press the
first button.
"""

from html import escape

from durable.approval_stream import Approval, ApprovalStatus
from durable.approvals import MAX_NOTE
from durable.approvers import UNKNOWN
from durable.questions import MAX_ANSWER, offered, question_of

TITLE = {
    "approved": "answered",
    "rejected": "declined",
    "expired": "nobody answered in time",
    "cancelled": "no longer needed",
    "orphaned": "no longer needed",
}


def rows(approval: Approval) -> list[tuple[str, str]]:
    """What stands beside the question about its end."""
    default = approval.request.default
    return [] if default is None else [("If nobody answers", default)]


def asked(approval: Approval) -> str:
    """The question, as text."""
    return f'<p class="said asked">{escape(question_of(approval.request))}</p>'


def outcome(approval: Approval, status: str) -> str:
    """What became of the question, as text."""
    decision = approval.decision
    if decision is None:
        return "The run does not wait for this answer any more. Nothing is left to do."
    at = f"{decision.decided_at:%Y-%m-%d %H:%M} UTC"
    note = f" Note: {decision.note}" if decision.note else ""
    match status:
        case ApprovalStatus.EXPIRED if decision.answer is not None:
            return f"Nobody had answered by the deadline, {at}. The answer is the default: {decision.answer}"
        case ApprovalStatus.EXPIRED:
            return f"Nobody had answered by the deadline, {at}."
        case ApprovalStatus.CANCELLED:
            return f"The run was stopped at {at}. Nothing is left to do."
        case ApprovalStatus.APPROVED:
            return f"Answered by {decision.by or UNKNOWN} at {at}: {decision.answer}{note}"
        case _:
            return f"Declined by {decision.by or UNKNOWN} at {at}.{note}"


def form(approval: Approval, *, text: str | None, note: str | None) -> str:
    """The options as buttons, an area for other words where they are taken, and a way to decline."""
    options, free_text = offered(approval.request)
    buttons = "".join(
        f'<button class=option name=answer value="{escape(option)}">{escape(option)}</button>' for option in options
    )
    area = (
        f"<label for=text>{'Another answer' if options else 'Your answer'}</label>"
        f"<textarea id=text name=text rows=3 maxlength={MAX_ANSWER}>\n{escape(text or '')}</textarea>"
    )
    send = "<button class=yes name=decision value=answer>Send this answer</button>"
    return (
        "<form method=post accept-charset=utf-8>"
        + (f"<div class=buttons>{buttons}</div>" if options else "")
        + (f"{area}<div class=buttons>{send}</div>" if free_text else "")
        + f"<label for=note>Note (optional)</label>"
        f"<textarea id=note name=note rows=2 maxlength={MAX_NOTE}>\n{escape(note or '')}</textarea>"
        "<div class=buttons><button class=no name=decision value=reject>Decline to answer</button></div></form>"
    )
