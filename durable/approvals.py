"""Deciding an approval: what counts, what comes too late, what is said to the second one who decides.

The record is the truth. A vote is appended to the approval's stream only while it is open, before its deadline and
while its session waits for it; whoever loses the race reads what was decided.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from pydantic import JsonValue

from durable.approval_stream import Applied, Approval, ApprovalStatus, Cancelled, Expired, Requested, Voted
from durable.errors import ApprovalClosedError, ApprovalNotFoundError, InvalidDecisionError, SelfApprovalError
from durable.nesting import every_decision, inside
from durable.ports import ApprovalStore, CheckpointStore
from durable.records import Checkpoint, Decision, Status
from durable.results import approval_digest
from durable.tools import InvalidArguments, Tool

MAX_NOTE = 4_000

TOKEN_HOLDER = "holder of a callback token"
"""Who decides by a link that was minted for nobody by name."""

DIRECT = "states:SendTaskSuccess"
"""Who decides by completing the waiting task itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalDecision:
    """What a human says. `args` replace the model's arguments; `by` names who decided, `via` how it came."""

    id: str
    approved: bool
    note: str | None = None
    args: dict[str, JsonValue] | None = None
    by: str | None = None
    via: Literal["api", "callback", "task-token", "library"] = "library"
    callback: str | None = None

    def __repr__(self) -> str:
        return f"<ApprovalDecision {self.id!r} {'approved' if self.approved else 'rejected'}>"


@dataclass(frozen=True, slots=True)
class Decided:
    """The approval after a decision. `already` means that it was decided before; `same` that it was decided alike."""

    approval: Approval
    already: bool = False
    same: bool = True


def decide(
    decision: ApprovalDecision,
    *,
    approvals: ApprovalStore,
    checkpoints: CheckpointStore,
    tools: Mapping[str, Tool],
    now: datetime,
    separate: bool = False,
) -> Decided:
    """Append the vote, or tell why not.

    With `separate` nobody approves what they asked for themselves: who asked and who approves must both be known, which
    the holder of a link and whoever completes a task are not. Anybody may reject.

    Raises `ApprovalNotFoundError`, `ApprovalClosedError` (expired, cancelled, orphaned), `InvalidDecisionError` and
    `SelfApprovalError`; nothing is recorded then, except that a deadline which has come is.
    """
    while True:
        approval = approvals.get(decision.id)
        if approval is None:
            raise ApprovalNotFoundError(decision.id)
        if approval.status in (ApprovalStatus.APPROVED, ApprovalStatus.REJECTED):
            return Decided(approval, already=True, same=_same(decision, approval))
        if approval.status is not ApprovalStatus.PENDING:
            raise ApprovalClosedError(decision.id, approval.status)
        if is_orphaned(approval, checkpoints):  # nor does it expire: a run that asks again renews its deadline
            raise ApprovalClosedError(decision.id, ApprovalStatus.ORPHANED)
        if approval.due_by(now):
            approvals.append(Expired(at=now), after=approval)
            continue
        if separate and decision.approved:
            _check_separate(decision, approval)
        vote = _vote(decision, approval, tools, now)
        if (decided := approvals.append(vote, after=approval)) is not None:
            return Decided(decided)


def expire_if_due(approval: Approval, *, approvals: ApprovalStore, now: datetime) -> Approval:
    """Give the approval as it stands, with `expired` appended when its deadline has come and nobody decided."""
    while approval.status is ApprovalStatus.PENDING and approval.due_by(now):
        expired = approvals.append(Expired(at=now), after=approval)
        if expired is not None:
            return expired
        reread = approvals.get(approval.id)
        if reread is None:
            raise ApprovalNotFoundError(approval.id)
        approval = reread
    return approval


def cancel(approval: Approval, *, approvals: ApprovalStore, now: datetime, by: str | None = None) -> Approval:
    """Close an open approval because its run is to stop; give it as it stands, which a decision may have been first to.

    At the deadline and after it, it expires instead.
    """
    approval = expire_if_due(approval, approvals=approvals, now=now)
    while approval.status is ApprovalStatus.PENDING:
        if (cancelled := approvals.append(Cancelled(at=now, by=by), after=approval)) is not None:
            return cancelled
        reread = approvals.get(approval.id)
        if reread is None:
            raise ApprovalNotFoundError(approval.id)
        approval = expire_if_due(reread, approvals=approvals, now=now)
    return approval


def is_orphaned(approval: Approval, checkpoints: CheckpointStore) -> bool:
    """Whether the session does not wait for this approval (a pause that never was, or a session that is gone)."""
    session_id = approval.request.session_id
    if approval.request.snapshot is not None:
        return False  # the run is kept in the record itself
    checkpoint = checkpoints.load(session_id) if session_id is not None else None
    return checkpoint is None or not waits_for(checkpoint, approval.id)


def waits_for(checkpoint: Checkpoint, approval_id: str) -> bool:
    return checkpoint.status is Status.AWAITING_APPROVAL and checkpoint.approval_id == approval_id


def with_decision(checkpoint: Checkpoint, decision: Decision, request: Requested) -> Checkpoint:
    """The paused checkpoint with the decision attached to its call: what is saved before anything is done about it.

    The call leaves `started`: a decision that comes after an interrupted start is about running it again.
    """
    call_id = request.call_id

    def attached(asking: Checkpoint) -> Checkpoint:
        return asking.but(
            decisions={**asking.decisions, call_id: decision},
            started=tuple(started for started in asking.started if started != call_id),
        )

    return inside(checkpoint, request.within, attached).but(
        status=Status.IN_PROGRESS, finish_reason=None, approval_id=None
    )


def mark_applied(approval: Approval, *, approvals: ApprovalStore, now: datetime) -> None:
    """Say on the record that the run has taken the decision. Losing the append means that somebody has said it."""
    current: Approval | None = approval
    while current is not None and not current.applied:
        if approvals.append(Applied(at=now), after=current) is not None:
            return
        current = approvals.get(approval.id)


def catch_up(checkpoint: Checkpoint, *, approvals: ApprovalStore, now: datetime) -> None:
    """Say on the records of this run's decisions that they were applied, where a crash came before it was said."""
    for decision in every_decision(checkpoint):
        approval = approvals.get(decision.approval_id)
        if approval is not None and approval.decision is not None:
            mark_applied(approval, approvals=approvals, now=now)


def _check_separate(decision: ApprovalDecision, approval: Approval) -> None:
    asked_by = approval.request.requested_by
    if asked_by is None or decision.by in (None, TOKEN_HOLDER, DIRECT):
        raise SelfApprovalError(decision.id, "it is not known who asks and who approves")
    if decision.by == asked_by:
        raise SelfApprovalError(decision.id, "who has asked may not approve")


def _vote(decision: ApprovalDecision, approval: Approval, tools: Mapping[str, Tool], now: datetime) -> Voted:
    request = approval.request
    if decision.note is not None and len(decision.note) > MAX_NOTE:
        raise InvalidDecisionError(decision.id, f"the note is longer than {MAX_NOTE} characters")
    arguments = request.arguments
    if decision.args is not None:
        if not decision.approved:
            raise InvalidDecisionError(decision.id, "a rejection has no arguments")
        if (tool := tools.get(request.tool_name)) is None:
            raise InvalidDecisionError(
                decision.id, f"the agent has no tool {request.tool_name!r} to check them against"
            )
        try:
            tool.validate(decision.args)
        except InvalidArguments as error:
            raise InvalidDecisionError(decision.id, error.message) from None
        arguments = decision.args
    return Voted(
        at=now,
        approved=decision.approved,
        note=decision.note,
        args=decision.args,
        digest=approval_digest(request.tool_name, arguments),
        by=decision.by,
        via=decision.via,
        callback=decision.callback,
    )


def _same(decision: ApprovalDecision, approval: Approval) -> bool:
    recorded = approval.decision
    return recorded is not None and (recorded.approved, recorded.args) == (decision.approved, decision.args)
