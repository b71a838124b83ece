"""Deciding an approval: what counts, what comes too late, what is said to the second one who decides.

The record is the truth. A vote is appended to the approval's stream only while it is open, before its deadline and
while its session waits for it; whoever loses the race reads what was decided. A vote is for the arguments that its
voter has named, and never counts for others.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from pydantic import JsonValue

from durable.approval_stream import Applied, Approval, ApprovalStatus, Cancelled, Expired, Requested, Voted
from durable.approvers import known
from durable.errors import (
    ApprovalClosedError,
    ApprovalNotFoundError,
    ArgumentsChangedError,
    InvalidDecisionError,
    NotAnApproverError,
    SelfApprovalError,
)
from durable.nesting import every_decision, inside
from durable.ports import ApprovalStore, CheckpointStore
from durable.questions import check_answer
from durable.records import Checkpoint, Decision, Status
from durable.results import approval_digest
from durable.tools import InvalidArguments, Tool

MAX_NOTE = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalDecision:
    """What a human says. `args` replace the arguments; `by` names who decided, `via` how it came.

    Approving a question gives an `answer`, rejecting it declines to give one. `digest` is that of the arguments that
    they have looked at (`Approval.ballot.digest`); None: the model's own.
    """

    id: str
    approved: bool
    note: str | None = None
    args: dict[str, JsonValue] | None = None
    answer: str | None = None
    digest: str | None = None
    by: str | None = None
    via: Literal["api", "callback", "task-token", "library"] = "library"
    callback: str | None = None

    def __repr__(self) -> str:
        return f"<ApprovalDecision {self.id!r} {'approved' if self.approved else 'rejected'}>"


@dataclass(frozen=True, slots=True)
class Decided:
    """The approval after a decision. `already` means that it was decided before; `same` that it was decided alike.

    It may still be pending, for more votes; `repeated` means that this vote had been counted before.
    """

    approval: Approval
    already: bool = False
    same: bool = True
    repeated: bool = False


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

    As many different principals as the approval needs must approve the same arguments; one rejection rejects. Those
    who are not known by name have one vote together. Edited arguments start the votes anew. Where approvers are named,
    they alone decide. With `separate` nobody approves what they asked for themselves: who asked and who approves must
    both be known, which the holder of a link and whoever completes a task are not. Anybody may reject then who may
    decide.

    Raises `ApprovalNotFoundError`, `ApprovalClosedError` (expired, cancelled, orphaned), `InvalidDecisionError`,
    `ArgumentsChangedError`, `NotAnApproverError` and `SelfApprovalError`; nothing is recorded then, except that a
    deadline which has come is.
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
        _check_voter(decision, approval, separate=separate)
        vote = _vote(decision, approval, tools, now)
        if vote.approved and vote.digest == approval.ballot.digest and approval.ballot.vote_of(vote.by) is not None:
            return Decided(approval, repeated=True)
        if (voted := approvals.append(vote, after=approval)) is not None:
            return Decided(voted)


def expire_if_due(approval: Approval, *, approvals: ApprovalStore, now: datetime) -> Approval:
    """Give the approval as it stands, with `expired` appended when its last deadline has come and nobody decided."""
    while approval.status is ApprovalStatus.PENDING and approval.due_by(now):
        expired = approvals.append(Expired(at=now), after=approval)
        if expired is not None:
            return expired
        reread = approvals.get(approval.id)
        if reread is None:
            raise ApprovalNotFoundError(approval.id)
        approval = reread
    return approval


def apply_deadline(approval: Approval, *, approvals: ApprovalStore, now: datetime) -> Approval:
    """Give the approval as it stands, with what a deadline that has come means on the record: the next level, or
    `expired`.

    Whoever puts a level on the record sees to it that its people are told. A decision that comes meanwhile wins.
    """
    approval = expire_if_due(approval, approvals=approvals, now=now)
    while approval.status is ApprovalStatus.PENDING and approval.late_by(now):
        if (escalated := approvals.append(approval.next_level(now), after=approval)) is not None:
            return escalated
        reread = approvals.get(approval.id)
        if reread is None:
            raise ApprovalNotFoundError(approval.id)
        approval = expire_if_due(reread, approvals=approvals, now=now)
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


def _check_voter(decision: ApprovalDecision, approval: Approval, *, separate: bool) -> None:
    request = approval.request
    if request.approvers and decision.by not in request.approvers:
        raise NotAnApproverError(decision.id, decision.by)
    if not (separate and decision.approved) or request.kind == "question":  # an answer approves nothing
        return
    if request.requested_by is None or known(decision.by) is None:
        raise SelfApprovalError(decision.id, "it is not known who asks and who approves")
    if decision.by == request.requested_by:
        raise SelfApprovalError(decision.id, "who has asked may not approve")


def _vote(decision: ApprovalDecision, approval: Approval, tools: Mapping[str, Tool], now: datetime) -> Voted:
    ballot, said = approval.ballot, decision
    check_answer(approval.request, said.answer, id=said.id, approved=said.approved, args=said.args)
    if decision.note is not None and len(decision.note) > MAX_NOTE:
        raise InvalidDecisionError(decision.id, f"the note is longer than {MAX_NOTE} characters")
    if decision.args is not None and not decision.approved:
        raise InvalidDecisionError(decision.id, "a rejection has no arguments")
    digest = _digest_of(decision, approval)
    if decision.approved and digest != ballot.digest:
        if _looked_at(decision, approval) != ballot.digest:
            raise ArgumentsChangedError(decision.id)
        _check_arguments(decision, approval, tools)
    return Voted(
        at=now,
        approved=decision.approved,
        note=decision.note,
        args=decision.args if digest != ballot.digest else None,
        answer=decision.answer,
        digest=digest if decision.approved else ballot.digest,
        by=decision.by,
        via=decision.via,
        callback=decision.callback,
    )


def _check_arguments(decision: ApprovalDecision, approval: Approval, tools: Mapping[str, Tool]) -> None:
    name = approval.request.tool_name
    if (tool := tools.get(name)) is None:
        raise InvalidDecisionError(decision.id, f"the agent has no tool {name!r} to check them against")
    try:
        tool.validate(decision.args or {})
    except InvalidArguments as error:
        raise InvalidDecisionError(decision.id, error.message) from None


def _looked_at(decision: ApprovalDecision, approval: Approval) -> str:
    """The arguments that the voter has seen. Who does not say has seen what the model gave."""
    return decision.digest or approval.request.digest


def _digest_of(decision: ApprovalDecision, approval: Approval) -> str:
    """The arguments that the voter names: those that it gives, else those that it has seen."""
    if decision.args is None:
        return _looked_at(decision, approval)
    return approval_digest(approval.request.tool_name, decision.args)


def _same(decision: ApprovalDecision, approval: Approval) -> bool:
    recorded = approval.decision
    if recorded is None or recorded.approved != decision.approved:
        return False
    if decision.answer != recorded.answer:
        return False
    return not decision.approved or recorded.digest == _digest_of(decision, approval)
