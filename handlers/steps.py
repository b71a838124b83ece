"""The tasks of the state machine (`infra/run.asl.json`): run a slice, ask a human.

The input is versioned and carries only ids, since an execution may wait for a year while this code is deployed anew.
"""

from collections.abc import Awaitable
from datetime import datetime, timedelta
from math import ceil
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from durable.approval_stream import Approval, ApprovalStatus, Reminded, TokenAttached
from durable.approvals import ApprovalDecision, apply_deadline, catch_up, decide, expire_if_due
from durable.approvers import DIRECT
from durable.errors import (
    ApprovalError,
    ApprovalNotFoundError,
    ConfigurationError,
    DurableError,
    LeaseLostError,
    SessionBusyError,
    StaleCheckpointError,
)
from durable.executor import run_to_pause
from durable.outcome import RunResult
from durable.records import Checkpoint, FinishReason, Status
from durable.resume import resume_after_approval
from handlers._deadline import LambdaContext, bounds, end_of, leave_if_unfit
from handlers._executions import STEP_INPUT_VERSION, wake
from handlers._guard import Guard
from handlers._ids import new_callback_token, token_hash
from handlers._notify import notify
from handlers._observe import about, count, invocation, logger
from handlers._parking import park
from handlers._running import AFTER_THE_END, STOPPED, next_look, not_due, run, sleeps, stream_of, take_lease
from handlers._wiring import App, app

LONGEST_WAIT = timedelta(days=30)
"""Without a deadline the human is asked anew after this time."""

MAX_ACQUIRES = 3
"""A slice that would be the fourth to start from one revision parks the run instead."""

Outcome = Literal["finished", "awaiting-approval", "deadline", "busy", "elsewhere", "stopped", "parked", "superseded"]
GOES_ON = ("awaiting-approval", "deadline", "busy")

MOST_ROUNDS = 1_000
"""Slices of one execution: each with its wait makes about 16 events, and an execution may have 25,000."""

OLDEST = timedelta(days=300)
"""An execution may live for a year, and its next wait may take as long as `LONGEST_WAIT`."""


class Answer(BaseModel):
    """What came back from the wait for a human: which approval was asked about, and the task's output."""

    approval_id: str
    output: JsonValue = None


class RunSlice(BaseModel):
    model_config = ConfigDict(extra="ignore")

    task: Literal["run-slice"]
    v: int
    session_id: str
    run_id: str
    execution: str
    answer: Answer | dict[str, None] = {}
    rounds: int = 0
    started_at: datetime | None = None
    entered_at: datetime | None = None


class AskHuman(BaseModel):
    model_config = ConfigDict(extra="ignore")

    task: Literal["ask-human"]
    v: int
    session_id: str
    run_id: str
    approval_id: str
    task_token: str


class ParkRun(BaseModel):
    """The task of a run whose other tasks keep failing; `error` is the name of the error, as the service gives it."""

    model_config = ConfigDict(extra="ignore")

    task: Literal["park-run"]
    v: int
    session_id: str
    run_id: str
    error: str = "Unknown"


class TryAgain(Exception):
    """What a task fails with when the same task may succeed later: the state machine waits, and does it again."""


def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    leave_if_unfit()
    application = app()
    with invocation(application, context):
        task = parse(event)
        about(session_id=task.session_id, run_id=task.run_id)
        try:
            return _carried_out(application, task, context)
        except DurableError as error:
            if not error.retryable:
                raise
            count(TasksFailed=1)
            raise TryAgain(f"{error.code}: {error}") from error


def _carried_out(application: App, task: RunSlice | AskHuman | ParkRun, context: LambdaContext) -> dict[str, Any]:
    match task:
        case RunSlice():
            return or_elsewhere(application, task, _slice_or_outage(application, task, context))
        case AskHuman():
            return ask_human(application, task)
        case ParkRun():
            message = f"A task of the run's execution kept failing with {task.error[:100]}."
            return _park_after(application, task, code="TASK_FAILED", message=message)


def _slice_or_outage(application: App, task: RunSlice, context: LambdaContext) -> dict[str, Any]:
    """Run the slice; what has failed for `outage_hours` since the state was entered is parked with its reason."""
    try:
        return run_slice(application, task, context)
    except DurableError as error:
        allowed = timedelta(hours=application.settings.outage_hours)
        if not error.retryable or task.entered_at is None or application.agent.clock() - task.entered_at < allowed:
            raise
        return _park_after(application, task, code=error.code, message=str(error))


def parse(event: dict[str, Any]) -> RunSlice | AskHuman | ParkRun:
    """Read a task's input of any version so far. Raises `ConfigurationError` for one that is newer than this code."""
    model = {"ask-human": AskHuman, "park-run": ParkRun}.get(str(event.get("task")), RunSlice)
    try:
        task = model.model_validate(event)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, issue['loc']))}: {issue['msg']}" for issue in error.errors())
        raise ConfigurationError(f"The step input is not right: {wrong}.") from None
    if task.v > STEP_INPUT_VERSION:
        raise ConfigurationError(f"The step input has version {task.v}; this deployment knows {STEP_INPUT_VERSION}.")
    return task


def or_elsewhere(application: App, task: RunSlice, left: dict[str, Any]) -> dict[str, Any]:
    """What is to go on in this execution goes on in a fresh one, when this one comes near the limits of the service."""
    age = application.agent.clock() - task.started_at if task.started_at else timedelta(0)
    if left["outcome"] in GOES_ON and (task.rounds >= MOST_ROUNDS or age >= OLDEST):
        return {**left, "outcome": "elsewhere"}
    return left


def run_slice(application: App, task: RunSlice, context: LambdaContext) -> dict[str, Any]:
    """Carry the run on for as long as this invocation lasts, and say how it was left.

    1. another run has taken the session's place -> superseded, before anything is touched
    2. it is finished already -> finished; it was stopped on purpose -> stopped
    3. it waits for a human who has not answered -> awaiting-approval
    4. somebody else runs it -> busy until their lease ends
    5. slices keep dying at the same place -> parked
    6. else it runs, with the decision where there is one
    """
    stored = application.store.checkpoints.load(task.session_id)
    if stored is None or stored.run_id != task.run_id:
        return _left("superseded")
    application.store.leases.note_execution(stream_of(task.session_id), task.execution)
    if stored.status is Status.FINISHED or stored.finish_reason in STOPPED:
        catch_up(stored, approvals=application.store.approvals, now=application.agent.clock())
        not_due(application, task.session_id, task.run_id)
        return _left("finished" if stored.status is Status.FINISHED else "stopped")
    if stored.status is Status.AWAITING_APPROVAL:
        approval = _approval_now(application, stored, task)
        if approval.status is ApprovalStatus.PENDING:
            return _waits(application, approval)
    return _carry_on(application, task, stored, context)


def _carry_on(application: App, task: RunSlice, stored: Checkpoint, context: LambdaContext) -> dict[str, Any]:
    now = application.agent.clock()
    until = end_of(context, now)
    try:
        lease = take_lease(application, task.session_id, owner=task.execution, until=until, revision=stored.revision)
    except SessionBusyError as busy:
        return _left("busy", until=f"{busy.busy_until + timedelta(seconds=1):%FT%TZ}")
    if lease.attempt > MAX_ACQUIRES:
        application.store.leases.release(lease)
        message = f"{MAX_ACQUIRES} slices started from revision {stored.revision} and none of them got further."
        return _park(application, stored, code="NO_PROGRESS", message=message)
    application.store.log.announce(stream_of(task.session_id), run_id=task.run_id, due_at=until + AFTER_THE_END)
    guard = Guard(application, lease, session_id=task.session_id, run_id=task.run_id)
    try:
        result = run(application, _work(application, stored, context, guard), guard, since=stored)
    except (StaleCheckpointError, LeaseLostError):
        return _left("busy", until=f"{application.agent.clock() + timedelta(seconds=2):%FT%TZ}")
    except DurableError as error:
        if error.retryable:
            raise  # the state machine tries again, with backoff
        logger().warning("run stopped", extra={"code": error.code, "reason": str(error)})
        return _left("stopped")
    return _after(application, result)


def ask_human(application: App, task: AskHuman) -> dict[str, Any]:
    """Put the token of this wait on the approval's record, then tell the people of the level that it is at.

    A decided one wakes its own wait.
    """
    while True:
        now = application.agent.clock()
        approval = _approval(application, task.approval_id)
        approval = expire_if_due(approval, approvals=application.store.approvals, now=now)
        if approval.status is not ApprovalStatus.PENDING:
            wake(application, task.task_token)
            return {"asked": False}
        links = {approver: new_callback_token(approval.id) for approver in approval.to_tell}
        callbacks = {token_hash(token): approver for approver, token in links.items()}
        attached = TokenAttached(at=now, task_token=task.task_token, callbacks=callbacks)
        if (waiting := application.store.approvals.append(attached, after=approval)) is not None:
            break
    reminds = approval.next_reminder is not None and approval.next_reminder <= now
    notify(application, waiting, links, reminds=reminds)
    if reminds:
        waiting = application.store.approvals.append(Reminded(at=now), after=waiting) or waiting
    sleeps(application, waiting)  # last: until somebody was told, recovery looks at the run
    count(**{"ApprovalReminders" if reminds else "ApprovalsAsked": 1})
    return {"asked": True}


def _approval_now(application: App, stored: Checkpoint, task: RunSlice) -> Approval:
    """The approval that the run waits for, with a vote taken from the task's output where somebody completed it."""
    id, answer = stored.approval_id or "", task.answer
    if isinstance(answer, Answer) and answer.approval_id == id:
        _take_vote(application, id, answer.output)
    return _as_time_has_it(application, id)


def _take_vote(application: App, approval_id: str, output: JsonValue) -> None:
    """Record a task's output as a vote. A wake-up, or nonsense, is none: the record decides."""
    if not isinstance(output, dict) or set(output) != {"approved"} or not isinstance(output["approved"], bool):
        return
    said = ApprovalDecision(id=approval_id, approved=output["approved"], by=DIRECT, via="task-token")
    try:
        decide(
            said,
            approvals=application.store.approvals,
            checkpoints=application.store.checkpoints,
            tools={},  # a vote of this kind has no edited arguments to check
            now=application.agent.clock(),
            separate=application.settings.separate_approvers,
        )
    except ApprovalError as error:
        logger().warning("task output not taken as a vote", extra={"code": error.code})


def _as_time_has_it(application: App, approval_id: str) -> Approval:
    """The approval, with its next level or its end on the record where its deadline has come.

    Only a slice puts a level there: what comes next is the task that tells the people of the level that it is at.
    """
    before = _approval(application, approval_id)
    approval = apply_deadline(before, approvals=application.store.approvals, now=application.agent.clock())
    count(ApprovalsEscalated=approval.level > before.level)
    return approval


def _approval(application: App, approval_id: str) -> Approval:
    approval = application.store.approvals.get(approval_id)
    if approval is None:
        raise ApprovalNotFoundError(approval_id)
    return approval


def _work(application: App, stored: Checkpoint, context: LambdaContext, guard: Guard) -> Awaitable[RunResult]:
    limits = bounds(context, min_model_seconds=application.settings.min_model_seconds)
    if stored.status is Status.AWAITING_APPROVAL:
        return resume_after_approval(
            application.agent, stored.approval_id or "", store=application.store, bounds=limits, watch=guard.watch
        )
    return run_to_pause(
        application.agent, stored, saved=stored, store=application.store, bounds=limits, watch=guard.watch
    )


def _after(application: App, result: RunResult) -> dict[str, Any]:
    if result.finish_reason is FinishReason.DEADLINE:
        return _left("deadline")
    if result.finish_reason is FinishReason.ABORTED:
        return _left("stopped")
    if result.checkpoint.status is Status.AWAITING_APPROVAL:
        return _waits(application, _as_time_has_it(application, result.approval_id or ""))
    return _left("finished")


def _waits(application: App, approval: Approval) -> dict[str, Any]:
    """How long the state machine waits: to the next reminder or the deadline, rounded up, at least a second."""
    now = application.agent.clock()
    ends = next_look(approval, now) or now + LONGEST_WAIT
    seconds = max(1, ceil(min(ends - now, LONGEST_WAIT).total_seconds()))
    return _left("awaiting-approval", approval_id=approval.id, timeout_seconds=seconds)


def _park(application: App, stored: Checkpoint, *, code: str, message: str) -> dict[str, Any]:
    try:
        park(application, stored, code=code, message=message)
    except StaleCheckpointError:
        soon = application.agent.clock() + timedelta(seconds=2)
        return _left("busy", until=f"{soon:%FT%TZ}")  # it has moved after all
    return _left("parked")


def _park_after(application: App, task: RunSlice | ParkRun, *, code: str, message: str) -> dict[str, Any]:
    """Park the run that the task is about, if there still is something to park."""
    stored = application.store.checkpoints.load(task.session_id)
    if stored is None or stored.run_id != task.run_id:
        return _left("superseded")
    if stored.status is Status.FINISHED:
        return _left("finished")
    if stored.finish_reason in STOPPED:
        return _left("stopped")
    return _park(application, stored, code=code, message=message)


def _left(
    outcome: Outcome, *, approval_id: str | None = None, timeout_seconds: int = 0, until: str | None = None
) -> dict[str, Any]:
    return {"outcome": outcome, "approval_id": approval_id, "timeout_seconds": timeout_seconds, "until": until}
