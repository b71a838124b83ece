"""The audit trail of an approval, as sentences.

2030-01-01 09:00  bob asks for pay({"amount": 500}); 2 of ada, cy, dan must approve
2030-01-01 09:00  ada, cy and dan are told
2030-01-01 09:12  ada approves: "as agreed" (1 of 2)
2030-01-01 09:30  cy approves with {"amount": 450}, the votes start anew (1 of 2)
2030-01-01 09:31  ada is told
2030-01-01 10:02  ada approves (2 of 2): approved
2030-01-01 10:02  the run goes on
"""

import json
from collections.abc import Sequence

from pydantic import JsonValue

from durable.approval_stream import (
    Applied,
    Approval,
    ApprovalEvent,
    Cancelled,
    Escalated,
    Expired,
    Reminded,
    Requested,
    TokenAttached,
    Voted,
    count,
)
from durable.approvers import UNKNOWN

WIDTH = 160
"""Characters that are shown of arguments and of a note."""


def render_approval(approval: Approval) -> str:
    """The whole trail as text, a line for each event, in UTC to the minute."""
    told = zip(approval.events, story(approval), strict=True)
    return "".join(f"{event.at:%Y-%m-%d %H:%M}  {sentence}\n" for event, sentence in told)


def story(approval: Approval) -> tuple[str, ...]:
    """A sentence for each event of the trail, in order."""
    return tuple(_sentence(event, approval.events[:at]) for at, event in enumerate(approval.events))


def _sentence(event: ApprovalEvent, before: Sequence[ApprovalEvent]) -> str:
    match event:
        case Requested():
            return _asks(event, again=any(isinstance(one, Requested) for one in before))
        case TokenAttached():
            named = sorted({name for name in event.callbacks.values() if name is not None})
            return f"{_listed(named)} {'is' if len(named) == 1 else 'are'} told" if named else "people are told"
        case Reminded():
            return "that was a reminder"
        case Escalated(level=level, to=to):
            return f"nobody has decided in time: level {level} is next, {_listed(to)}"
        case Voted():
            return _votes(event, before)
        case Expired():
            return _expires([one for one in before if isinstance(one, Requested)][-1])
        case Cancelled(by=by):
            return f"{by or UNKNOWN} stops the run: cancelled"
        case Applied():
            return "the run goes on"


def _asks(event: Requested, *, again: bool) -> str:
    who, asks = event.requested_by or UNKNOWN, "asks again" if again else "asks"
    if event.kind == "question":
        among = f"; {', '.join(event.approvers)} may answer" if event.approvers else ""
        return f"{event.asking[-1]} {asks}: {_short(event.arguments)}{among}"
    sentence = f"{who} {asks} for {event.tool_name}({_short(event.arguments)})"
    if event.path:
        sentence += f" in {' > '.join(event.path)}"
    if event.approvers:
        return f"{sentence}; {event.approvals} of {', '.join(event.approvers)} must approve"
    return f"{sentence}; {event.approvals} must approve" if event.approvals > 1 else sentence


def _expires(request: Requested) -> str:
    if request.default is not None:
        return f'nobody has answered in time: "{_cut(request.default)}" is the default'
    return "nobody has decided in time: expired"


def _votes(event: Voted, before: Sequence[ApprovalEvent]) -> str:
    ballot = count((*before, event))
    by = event.by or UNKNOWN
    note = "" if event.note is None else f': "{_cut(event.note)}"'
    if event.answer is not None:
        return f'{by} answers "{_cut(event.answer)}"{note}'
    if not event.approved:
        return f"{by} rejects{note}: rejected"
    needed = len(ballot.approving) + ballot.missing
    counted = f" ({len(ballot.approving)} of {needed})" if needed > 1 else ""
    edited = "" if event.args is None else f" with {_short(event.args)}"
    anew = ", the votes start anew" if event.args is not None and count(before).approving else ""
    return f"{by} approves{edited}{anew}{note}{counted}{'' if ballot.missing else ': approved'}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _short(arguments: JsonValue) -> str:
    return _cut(json.dumps(arguments, ensure_ascii=False))


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= WIDTH else f"{text[:WIDTH]}… ({len(text)} characters)"
