"""The page behind a callback link: what will run, with which arguments, by whom it was asked, until when; and a form.

It works without JavaScript, takes nothing from anywhere else, and escapes every value: what models and users say is
shown as text. The form posts to the page's own address, so that the token stands in no markup.
"""

import base64
import hashlib
import json
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import Any
from urllib.parse import parse_qs

import pydantic_core
from aws_lambda_powertools.event_handler import Response
from pydantic import JsonValue

from durable.approval_stream import Approval, ApprovalStatus, Voted
from durable.approvals import MAX_NOTE
from durable.approvers import UNKNOWN
from handlers import _answering
from handlers._responses import RequestInvalid

HTML = "text/html; charset=utf-8"
FORM = "application/x-www-form-urlencoded"

MAX_SHOWN = 100_000
"""Characters of arguments that the page shows; larger ones are cut, and cannot be edited here."""

_STYLE = """
:root { color-scheme: light dark; --line: #8a8f98; --soft: #f2f3f5; --yes: #0b6b35; --no: #a3182a; --focus: #1456c8 }
@media (prefers-color-scheme: dark) { :root { --soft: #23262b; --yes: #157a42; --no: #b3283a; --focus: #8ab4ff } }
* { box-sizing: border-box }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 44rem; margin: 0 auto; padding: 1rem }
h1 { font-size: 1.4rem; line-height: 1.25; overflow-wrap: anywhere }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1rem }
dt { font-weight: 600 }
dd { margin: 0; overflow-wrap: anywhere }
pre, textarea { font: .9rem/1.45 ui-monospace, monospace; width: 100%; padding: .6rem; background: var(--soft);
  color: inherit; border: 1px solid var(--line); border-radius: .4rem; white-space: pre-wrap; overflow-wrap: anywhere }
label, summary { font-weight: 600; margin: 1rem 0 .25rem; cursor: pointer }
label { display: block }
.buttons { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1.25rem 0 }
button { font: inherit; font-weight: 600; flex: 1 1 9rem; min-height: 3rem; border: 0; border-radius: .4rem;
  color: #fff; cursor: pointer }
.yes { background: var(--yes) } .no { background: var(--no) }
:focus-visible { outline: 3px solid var(--focus); outline-offset: 2px }
.said { overflow-wrap: anywhere; border-left: .3rem solid var(--line); padding: .25rem .9rem; background: var(--soft) }
.asked { white-space: pre-wrap }
.option { background: #1456c8; overflow-wrap: anywhere }
.wrong { border-color: var(--no) }
@media (max-width: 30rem) { dl { grid-template-columns: 1fr; gap: 0 } dd { margin-bottom: .5rem } }
"""


@dataclass(frozen=True)
class Filled:
    """What somebody has put into the form, and what is wrong with it. `args` is the text of the edited arguments.

    `digest` is that of the arguments that the page showed.
    """

    approved: bool
    note: str | None = None
    answer: str | None = None
    args: str | None = None
    digest: str | None = None
    wrong: str | None = None


def read_form(body: str | None) -> Filled:
    """Read a posted form. Raises `RequestInvalid` for what no button of the page sends."""
    try:
        fields = parse_qs(body or "", keep_blank_values=True, strict_parsing=True, max_num_fields=10)
    except ValueError:
        raise RequestInvalid("The form cannot be read.") from None
    decision, chosen = fields.get("decision", []), fields.get("answer", [])
    note, text = (fields.get(name, [""])[0].replace("\r\n", "\n").strip() for name in ("note", "text"))
    if len(chosen) == 1 and not decision:
        return Filled(approved=True, note=note or None, answer=chosen[0])
    if decision == ["answer"] and not chosen:
        return Filled(approved=True, note=note or None, answer=text)
    if decision not in (["approve"], ["reject"]) or chosen:
        raise RequestInvalid("The form must say `approve` or `reject`, or give an answer.")
    args, digest = (fields.get(name, [None])[0] for name in ("args", "digest"))
    return Filled(approved=decision == ["approve"], note=note or None, args=args, digest=digest)


def edited(filled: Filled, arguments: JsonValue) -> dict[str, JsonValue] | None:
    """The arguments that the form asks for, None where they are as they were. Raises `RequestInvalid`."""
    if not filled.approved or filled.args is None or not filled.args.strip():
        return None
    try:
        args = pydantic_core.from_json(filled.args, allow_inf_nan=False)
    except ValueError:
        raise RequestInvalid("The changed arguments are not JSON.") from None
    if not isinstance(args, dict):
        raise RequestInvalid("The changed arguments must be a JSON object.")
    return None if args == arguments else args


def page(
    approval: Approval, *, status: str, voter: str | None = None, filled: Filled | None = None, code: int = 200
) -> Response[str]:
    """The approval with its form while it is open, else with what became of it. `voter` is whose link it is."""
    request = approval.request
    is_question = request.kind == "question"
    deadline = f"{approval.deadline:%Y-%m-%d %H:%M} UTC" if approval.deadline else "no deadline"
    rows = [
        ("Tool", request.tool_name),
        ("Agent", " > ".join(request.asking)),
        ("Asked by", request.requested_by or "unknown"),
        ("Asked at", f"{request.at:%Y-%m-%d %H:%M} UTC"),
        ("Session", request.session_id or "-"),
        ("Answer before" if is_question else "Decide before", deadline),
        *_levels(approval),
        *_answering.rows(approval),
    ]
    if voter is not None:
        rows.append(("This link is for", voter))
    shown = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows)
    about = f"<dl>{shown}</dl>"
    title, parts = (_question if is_question else _approval)(approval, about, status, voter, filled)
    return _document(title, "".join(parts), code)


def _approval(
    approval: Approval, about: str, status: str, voter: str | None, filled: Filled | None
) -> tuple[str, list[str]]:
    """The page's title and parts where a call is to be approved."""
    name, ballot = approval.request.tool_name, approval.ballot
    parts = [about, _votes(approval), *_arguments(approval)]
    if status != ApprovalStatus.PENDING:
        said = f"<p class=said role=status>{escape(_outcome(approval, status))}</p>"
        return f"{name}: {_TITLE[status]}", [said, *parts]
    vote = ballot.vote_of(voter)
    if vote is not None:
        parts.insert(0, f"<p class=said role=status>{escape(_counted(approval, vote, voter))}</p>")
    text = _text(ballot.arguments)
    form = _form(text if len(text) <= MAX_SHOWN else None, ballot.digest, filled, voted=vote is not None)
    title = f"{name}: more approvals are missing" if vote else f"Approve {name}?"
    return title, [*parts, _wrong(filled), form]


def _question(
    approval: Approval, about: str, status: str, voter: str | None, filled: Filled | None
) -> tuple[str, list[str]]:
    """The page's title and parts where a question is to be answered."""
    asking, asked = approval.request.asking[-1], _answering.asked(approval)
    if status != ApprovalStatus.PENDING:
        said = f"<p class=said role=status>{escape(_answering.outcome(approval, status))}</p>"
        return f"Question of {asking}: {_answering.TITLE[status]}", [said, asked, about]
    form = _answering.form(approval, text=filled and filled.answer, note=filled and filled.note)
    return f"{asking} asks", [asked, _wrong(filled), form, about]


def _wrong(filled: Filled | None) -> str:
    if filled is None or not filled.wrong:
        return ""
    return f'<p class="said wrong" role=alert id=wrong>{escape(filled.wrong)} Nothing was decided.</p>'


def _arguments(approval: Approval) -> list[str]:
    """The arguments that are voted on, and the model's where somebody has put others in their place."""
    ballot, shown = approval.ballot, list[str]()
    titled = [("Arguments", ballot.arguments)]
    if ballot.edited is not None:
        by = ballot.edited.by or UNKNOWN
        titled = [
            (f"Arguments, changed by {by}", ballot.arguments),
            ("What the model asked for", approval.request.arguments),
        ]
    for title, arguments in titled:
        text = _text(arguments)
        shown.append(f"<h2>{escape(title)}</h2><pre tabindex=0>{escape(text[:MAX_SHOWN])}</pre>")
        if len(text) > MAX_SHOWN:
            shown.append("<p>They are longer than this page shows. Look at all of them through the API.</p>")
    return shown


def _text(arguments: JsonValue) -> str:
    return json.dumps(arguments, indent=2, ensure_ascii=False)


def _votes(approval: Approval) -> str:
    """Who has approved these arguments and how many are missing, where one vote is not enough or not everybody's."""
    request, ballot = approval.request, approval.ballot
    if request.approvals == 1 and not request.approvers:
        return ""
    given = [
        f"{vote.by or UNKNOWN}, {vote.at:%Y-%m-%d %H:%M} UTC" + (f": {vote.note}" if vote.note else "")
        for vote in ballot.approving
    ]
    listed = "".join(f"<li>{escape(line)}</li>" for line in given)
    who = f"<p>Who may decide: {escape(', '.join(request.approvers))}</p>" if request.approvers else ""
    title = f"Approvals: {len(ballot.approving)} of {request.approvals}"
    return f"<h2>{title}</h2>" + (f"<ul>{listed}</ul>" if listed else "") + who


def _counted(approval: Approval, vote: Voted, voter: str | None) -> str:
    missing = approval.ballot.missing
    who = "You have" if voter is not None else "Somebody with a link for nobody by name has"
    more = "one more approval is" if missing == 1 else f"{missing} more approvals are"
    return f"{who} approved this at {vote.at:%Y-%m-%d %H:%M} UTC. It is counted; {more} missing, by somebody else."


def _levels(approval: Approval) -> list[tuple[str, str]]:
    """Who was told after the first people had not decided, and who is told next."""
    rows = [
        (f"Level {event.level}", f"{', '.join(event.to)}, told at {event.at:%Y-%m-%d %H:%M} UTC")
        for event in approval.escalations
    ]
    left = [", ".join(level.to) for level in approval.request.levels[approval.level :]]
    return [*rows, ("Told next", "; then ".join(left))] if left else rows


def notice(title: str, text: str, code: int) -> Response[str]:
    """A page that only says something."""
    return _document(title, f"<p>{escape(text)}</p>", code)


_TITLE = {
    "approved": "approved",
    "rejected": "rejected",
    "expired": "nobody decided in time",
    "cancelled": "no longer needed",
    "orphaned": "no longer needed",
}


def _outcome(approval: Approval, status: str) -> str:
    decision = approval.decision
    if decision is None:
        return "The run does not wait for this decision any more. Nothing is left to do."
    at = f"{decision.decided_at:%Y-%m-%d %H:%M} UTC"
    match status:
        case ApprovalStatus.EXPIRED:
            return f"Nobody had decided by the deadline, {at}. The tool did not run."
        case ApprovalStatus.CANCELLED:
            return f"The run was stopped at {at}. The tool did not run, and nothing is left to do."
        case _:
            by = " and ".join(decision.voters) or decision.by or UNKNOWN
            words = f"{status.capitalize()} by {by} at {at}."
            words += " The arguments were changed." if decision.args is not None else ""
            return words + (f" Note: {decision.note}" if decision.note else "")


def _form(arguments: str | None, digest: str, filled: Filled | None, *, voted: bool) -> str:
    """The form; who has approved already can only change their mind."""
    note = escape(filled.note or "") if filled else ""
    change = ""
    if arguments is not None and not voted:
        text = filled.args if filled and filled.args else arguments
        is_open = " open" if filled and filled.args and filled.args.strip() != arguments.strip() else ""
        rows = min(16, text.count("\n") + 2)
        change = (
            f"<details{is_open}><summary>Change the arguments</summary>"
            f"<label for=args>Arguments, as JSON</label>"
            f"<textarea id=args name=args rows={rows} spellcheck=false>{escape(text)}</textarea></details>"
        )
    approve = "<button class=yes name=decision value=approve>Approve</button>"
    return (
        "<form method=post accept-charset=utf-8>"
        f"<label for=note>Note (optional)</label>"
        f"<textarea id=note name=note rows=3 maxlength={MAX_NOTE}>{note}</textarea>{change}"
        f'<input type=hidden name=digest value="{escape(digest)}">'
        f"<div class=buttons>{'' if voted else approve}"
        f"<button class=no name=decision value=reject>{'Reject after all' if voted else 'Reject'}</button></div></form>"
    )


def _document(title: str, body: str, code: int) -> Response[str]:
    text = (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1"><meta name=robots content=noindex>'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><main><h1>{escape(title)}</h1>{body}</main></body></html>"
    )
    headers: dict[str, Any] = {
        "Content-Security-Policy": _policy(),
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
    }
    return Response(status_code=code, content_type=HTML, body=text, headers=headers)


@cache
def _policy() -> str:
    """Nothing but this page's own style, and a form that posts to where it came from."""
    style = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{style}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
