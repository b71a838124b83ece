"""Looking at approvals and deciding them: by the API's own paths (IAM), or by a callback token.

Only POST decides. A GET of a callback link shows what would be decided, since mail scanners follow links.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.api_gateway import Router
from pydantic import BaseModel, ConfigDict, JsonValue, model_validator

from durable.agent import tools_for
from durable.approval_stream import Approval, ApprovalStatus
from durable.approvals import ApprovalDecision, Decided, decide, is_orphaned, waits_for
from durable.approvers import TOKEN_HOLDER
from durable.errors import (
    ApprovalClosedError,
    ApprovalNotFoundError,
    ArgumentsChangedError,
    InvalidDecisionError,
    NotAnApproverError,
    SelfApprovalError,
)
from durable.tools import Tool
from handlers._deadline import LambdaContext
from handlers._executions import HANDED_OVER, carry_on
from handlers._http import caller, serve
from handlers._ids import approval_id_of, approval_of_token, token_hash
from handlers._observe import about, count, invocation
from handlers._responses import RequestInvalid, approval_view, json_response, parse_body, status_of
from handlers._review import FORM, edited, notice, page, read_form
from handlers._wiring import App, app

router = Router()

MAX_PAGE = 100

NO_SUCH_LINK = ("This link does not work", "It may be incomplete, or too old. Ask for a new one.", 404)


CHANGED = "Somebody has changed the arguments meanwhile. Look at them, and decide again."


class DecisionRequest(BaseModel):
    """The body of a decision. `args` replace the arguments; `digest` is of those that were looked at.

    A question takes an `answer` instead; `approved: false` declines to give one.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    approved: bool | None = None
    answer: str | None = None
    note: str | None = None
    args: dict[str, JsonValue] | None = None
    digest: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.approved is None and self.answer is None:
            raise ValueError("give `approved`, or to a question an `answer`")
        return self

    @property
    def says_yes(self) -> bool:
        return self.approved is not False if self.answer is not None else bool(self.approved)


def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    with invocation(app(), context):
        return serve(router, event, context)


@router.get("/approvals")
def listing() -> Response[str]:
    query = router.current_event.query_string_parameters or {}
    try:
        status = ApprovalStatus(query.get("status", ApprovalStatus.PENDING))
        limit = int(query.get("limit", "50"))
    except ValueError:
        raise RequestInvalid("status must be that of an approval and limit a whole number.") from None
    if not 1 <= limit <= MAX_PAGE:
        raise RequestInvalid(f"limit must be from 1 to {MAX_PAGE}.")
    page = app().store.approvals.list(status=status, limit=limit, cursor=query.get("cursor"))
    return json_response({"approvals": [_as_it_stands(app(), item) for item in page.items], "cursor": page.cursor})


@router.get("/approvals/<segment>")
def show(segment: str) -> Response[str]:
    return json_response(_as_it_stands(app(), _load(app(), approval_id_of(segment))))


@router.post("/approvals/<segment>/decision")
def decision(segment: str) -> Response[str]:
    body = parse_body(DecisionRequest, router.current_event.decoded_body)
    said = ApprovalDecision(
        id=approval_id_of(segment),
        approved=body.says_yes,
        answer=body.answer,
        note=body.note,
        args=body.args,
        digest=body.digest,
        by=caller(router),
        via="api",
    )
    return _decision_view(_decide(app(), said))


@router.get("/callbacks/<token>")
def preview(token: str) -> Response[str]:
    """What would be decided: as JSON, or for a browser as the page with the form."""
    if not _wants_page():
        approval, approver = _opened(app(), token)
        return json_response({**_as_it_stands(app(), approval), "approver": approver})
    try:
        approval, approver = _opened(app(), token)
    except ApprovalNotFoundError:
        return notice(*NO_SUCH_LINK)
    return page(approval, status=_status(app(), approval), voter=approver)


@router.post("/callbacks/<token>")
def answer(token: str) -> Response[str]:
    """A decision: JSON like that of the API, or the page's form, which is answered by a page."""
    event = router.current_event
    if event.headers.get("Content-Type", "").partition(";")[0].strip().lower() == FORM:
        return _answered_by_form(app(), token, event.decoded_body)
    body = parse_body(DecisionRequest, event.decoded_body)
    approval, approver = _opened(app(), token)
    outcome = _decide(app(), _said(approval, approver, token, body))
    return _decision_view(outcome)


def _answered_by_form(application: App, token: str, body: str | None) -> Response[str]:
    try:
        approval, approver = _opened(application, token)
    except ApprovalNotFoundError:
        return notice(*NO_SUCH_LINK)
    filled, wrong = read_form(body), None
    try:
        args = edited(filled, approval.ballot.arguments)
        request = DecisionRequest(
            approved=filled.approved, answer=filled.answer, note=filled.note, args=args, digest=filled.digest
        )
        approval = _decide(application, _said(approval, approver, token, request)).approval
    except ApprovalClosedError:
        approval = _load(application, approval.id)
    except ArgumentsChangedError as error:
        approval, wrong = _load(application, approval.id), error
        filled = replace(filled, args=None, wrong=CHANGED)
    except (RequestInvalid, InvalidDecisionError, SelfApprovalError, NotAnApproverError) as error:
        wrong = error
        filled = replace(filled, wrong=str(error) if isinstance(error, RequestInvalid) else f"{error.reason}.")
    status = _status(application, approval)
    if wrong is None:
        return page(approval, status=status, voter=approver)
    return page(approval, status=status, voter=approver, filled=filled, code=status_of(wrong))


def _said(approval: Approval, approver: str | None, token: str, body: DecisionRequest) -> ApprovalDecision:
    return ApprovalDecision(
        id=approval.id,
        approved=body.says_yes,
        answer=body.answer,
        note=body.note,
        args=body.args,
        digest=body.digest,
        by=approver or TOKEN_HOLDER,
        via="callback",
        callback=token_hash(token),
    )


def _wants_page() -> bool:
    return "text/html" in router.current_event.headers.get("Accept", "").lower()


def _load(application: App, approval_id: str) -> Approval:
    about(approval_id=approval_id)
    approval = application.store.approvals.get(approval_id)
    if approval is None:
        raise ApprovalNotFoundError(approval_id)
    return approval


def _opened(application: App, token: str) -> tuple[Approval, str | None]:
    """The approval that the token opens, and whom it was minted for. A wrong token opens nothing and learns nothing."""
    approval_id = approval_of_token(token)
    approval = application.store.approvals.get(approval_id)
    known, approver = approval.callback_approver(token_hash(token)) if approval else (False, None)
    if approval is None or not known:
        raise ApprovalNotFoundError("of this link")
    about(approval_id=approval_id)
    return approval, approver


def _as_it_stands(application: App, approval: Approval) -> dict[str, Any]:
    return approval_view(approval, _status(application, approval))


def _status(application: App, approval: Approval) -> ApprovalStatus:
    pending = approval.status is ApprovalStatus.PENDING
    orphaned = pending and is_orphaned(approval, application.store.checkpoints)
    return ApprovalStatus.ORPHANED if orphaned else approval.status


def _decide(application: App, said: ApprovalDecision) -> Decided:
    """Vote, then see to it that the run goes on if that decides it; while votes are missing it sleeps on.

    Only its wait begins anew where the vote has edited the arguments, so that people are told of them. The run is
    marked due before the vote: if this process dies right after it, recovery does the rest.
    """
    about(approval_id=said.id)
    before = application.store.approvals.get(said.id)
    if before is not None and before.status is ApprovalStatus.PENDING and before.request.session_id is not None:
        due_at = application.agent.clock() + HANDED_OVER
        application.store.log.announce(
            f"session/{before.request.session_id}", run_id=before.request.run_id, due_at=due_at
        )
    outcome = decide(
        said,
        approvals=application.store.approvals,
        checkpoints=application.store.checkpoints,
        tools=_tools(application, said),
        now=application.agent.clock(),
        separate=application.settings.separate_approvers,
    )
    pending = outcome.approval.status is ApprovalStatus.PENDING
    if not (outcome.already or outcome.repeated):
        count(**{"Votes" if pending else "Decisions": 1})
    if pending and outcome.approval.told:
        return outcome
    waiting = application.store.checkpoints.load(outcome.approval.request.session_id or "")
    if waiting is not None and waits_for(waiting, outcome.approval.id):
        carry_on(application, waiting)
    return outcome


def _decision_view(outcome: Decided) -> Response[str]:
    """200 for a vote that counts, decisive or not: `status` and `missing` say which."""
    already = {"already_decided": outcome.already, "already_voted": outcome.repeated}
    body = {**approval_view(outcome.approval), **already}
    return json_response(body, status=200 if outcome.same else 409)


def _tools(application: App, said: ApprovalDecision) -> Mapping[str, Tool]:
    """The tools of the run that waits: edited arguments are checked against them."""
    if said.args is None:
        return {}
    return asyncio.run(tools_for(application.agent, application.store, said.id))
