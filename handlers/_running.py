"""A run under its lease: accepted, run as far as time allows, and how it was left.

Two Lambdas may want one session. The lease keeps them apart in the common case; the log's compare-and-append keeps the
data right in every case, since the one that did not move the session first cannot move it at all.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import ceil

from pydantic import JsonValue

from durable.admission import admitted, redelivered
from durable.approval_stream import Approval
from durable.errors import DurableError, LeaseLostError, SessionBusyError, StaleCheckpointError
from durable.messages import Message
from durable.outcome import RunResult
from durable.ports import Head, Lease
from durable.records import AcceptedRequest, Checkpoint, FinishReason, Status
from durable.transitions import aborted
from handlers._events import tell
from handlers._guard import Guard
from handlers._observe import count, logger
from handlers._wiring import App

AFTER_THE_END = timedelta(seconds=60)
"""How long after the end of the invocation that runs a session recovery leaves it alone."""

AFTER_THE_DEADLINE = timedelta(minutes=5)
"""How long after an approval's deadline recovery leaves the run to the execution that waits."""

STOPPED = (FinishReason.ABORTED, FinishReason.PARKED)
"""Reasons of an unfinished run that nothing carries on by itself: somebody has to ask for it."""

NO_RUN = ""
"""What an abort flag names when it was used up."""

TIME_TO_MAINTAIN = timedelta(seconds=10)
"""A session is not maintained with less time left than this: the answer to the request comes first."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The input is saved and the lease is held: run it, or hand it over."""

    checkpoint: Checkpoint
    lease: Lease


@dataclass(frozen=True, slots=True)
class Known:
    """Nothing new was said to a finished run."""

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class Redelivered:
    """The session has accepted this very request before."""

    checkpoint: Checkpoint
    request: AcceptedRequest


def stream_of(session_id: str) -> str:
    return f"session/{session_id}"


def accept(
    app: App,
    incoming: Sequence[Message],
    *,
    session_id: str,
    request: tuple[str, str] | None,
    requested_by: str | None,
    run_context: JsonValue = None,
    owner: str,
    until: datetime,
) -> Accepted | Known | Redelivered:
    """Take the input in: after this returns nothing of it lives only in memory.

    The lease comes first: what is read under it stays true until the save, and the due mark that is set is nobody
    else's. `request` is the idempotency key with the body's digest, `until` the end of this invocation. Raises
    `SessionBusyError` while somebody else runs the session, and what the plan refuses with.

    What has come before takes no lease: a slice that finds one waits until its end, and clients may be impatient.
    """
    if (again := _redelivered(app, session_id, request)) is not None:
        return again
    try:
        lease = take_lease(app, session_id, owner=owner, until=until)
    except SessionBusyError:
        if (again := _redelivered(app, session_id, request)) is not None:
            return again
        raise
    taken: Accepted | Known | Redelivered | None = None
    try:
        taken = _take_in(
            app,
            incoming,
            session_id=session_id,
            request=request,
            requested_by=requested_by,
            run_context=run_context,
            lease=lease,
        )
        return taken
    except StaleCheckpointError:
        raise moved_meanwhile(app, session_id) from None
    finally:
        if not isinstance(taken, Accepted):
            app.store.leases.release(lease)


def _redelivered(app: App, session_id: str, request: tuple[str, str] | None) -> Redelivered | None:
    if request is None or (stored := app.store.checkpoints.load(session_id)) is None:
        return None
    known = redelivered(stored, *request)
    return Redelivered(stored, known) if known is not None else None


def _take_in(
    app: App,
    incoming: Sequence[Message],
    *,
    session_id: str,
    request: tuple[str, str] | None,
    requested_by: str | None,
    run_context: JsonValue,
    lease: Lease,
) -> Accepted | Known | Redelivered:
    stored = app.store.checkpoints.load(session_id)
    if stored is not None and request is not None and (known := redelivered(stored, *request)) is not None:
        return Redelivered(stored, known)
    if stored is not None and lease.abort_run == stored.run_id and stored.status is not Status.AWAITING_APPROVAL:
        stored = _abort_first(app, stored)
    checkpoint = admitted(
        app.agent,
        stored,
        incoming,
        session_id=session_id,
        requested_by=requested_by,
        request=request,
        context=run_context,
    )
    if checkpoint.status is Status.FINISHED:
        return Known(checkpoint)
    app.store.log.announce(lease.stream, run_id=checkpoint.run_id, due_at=lease.until + AFTER_THE_END)
    if checkpoint.finish_reason in STOPPED:
        checkpoint = checkpoint.but(finish_reason=None)  # so that a slice knows that somebody wants it to go on
    if checkpoint is not stored:
        checkpoint = app.store.checkpoints.save(checkpoint, after=stored)
    return Accepted(checkpoint, lease)


def _abort_first(app: App, stored: Checkpoint) -> Checkpoint:
    """What was to stop before this input came has stopped, and the flag is used up: the run may go on."""
    if stored.status is Status.IN_PROGRESS and stored.finish_reason is not FinishReason.ABORTED:
        stored = app.store.checkpoints.save(aborted(stored), after=stored)
    app.store.leases.request_abort(stream_of(stored.session_id or ""), NO_RUN)
    return stored


def take_lease(app: App, session_id: str, *, owner: str, until: datetime, revision: int = -1) -> Lease:
    """Hold the session until `until`, or raise `SessionBusyError`.

    `revision` is what the caller found, for counting slices that get nowhere; a request does not count.
    """
    stream = stream_of(session_id)
    lease = app.store.leases.acquire(stream, owner, until=until, revision=revision)
    if lease is not None:
        return lease
    held, now = app.store.leases.look(stream), app.agent.clock()
    raise busy(session_id, until=held.until if held else now, now=now)


def busy(session_id: str, *, until: datetime, now: datetime) -> SessionBusyError:
    return SessionBusyError(session_id, busy_until=until, retry_after=max(1, ceil((until - now).total_seconds())))


def moved_meanwhile(app: App, session_id: str) -> SessionBusyError:
    """What to say when somebody who outlived their lease is still saving."""
    now = app.agent.clock()
    return busy(session_id, until=now + timedelta(seconds=1), now=now)


def run(app: App, work: Awaitable[RunResult], guard: Guard, *, since: Checkpoint) -> RunResult:
    """Carry the run on from `since` and let go of the lease. A run that is over, or refused for good, is not due any
    more.

    A session whose run is over is kept short to load before the lease goes. What was lost to somebody else, or to an
    outage, is no attempt that got nowhere: the lease takes it back.
    """
    counts = True
    try:
        result = asyncio.run(guard.run(work))
        if result.checkpoint.status is Status.FINISHED:
            _over(app, guard)
            result = _maintained(app, result, guard.lease)
        elif result.finish_reason is FinishReason.ABORTED:
            _over(app, guard)
        _tell_how(app, result, since)
        return result
    except (StaleCheckpointError, LeaseLostError) as error:
        counts = False  # another writer has the session and its marks
        count(**{"StaleWrites" if isinstance(error, StaleCheckpointError) else "LeasesLost": 1})
        raise
    except DurableError as error:
        counts = not error.retryable
        if counts:
            _over(app, guard)
        raise
    finally:
        app.store.leases.release(guard.lease, counts=counts)


def _tell_how(app: App, result: RunResult, since: Checkpoint) -> None:
    """Count what this invocation did for the run, and tell other systems where it has come to."""
    now, asleep = result.checkpoint, since.status is Status.AWAITING_APPROVAL
    usage, before = now.usage, since.usage
    count(
        StepsDone=max(0, now.step - since.step),
        InputTokens=max(0, usage.input_tokens - before.input_tokens),
        OutputTokens=max(0, usage.output_tokens - before.output_tokens),
        RunsFinished=now.status is Status.FINISHED,
        RunsPaused=now.status is Status.AWAITING_APPROVAL and not (asleep and now.approval_id == since.approval_id),
        RunsResumed=asleep and now.status is not Status.AWAITING_APPROVAL,
        RunsAborted=result.finish_reason is FinishReason.ABORTED,
    )
    tell(app, now)


def _over(app: App, guard: Guard) -> None:
    """Take the run off recovery's list. The mark is the one that this invocation set, so nothing is read for it.

    Where somebody has set another one since, recovery looks at the session once and takes it off.
    """
    due_at, now = guard.lease.until + AFTER_THE_END, app.agent.clock()
    kind, _, identity = guard.lease.stream.partition("/")
    mark = Head(kind=kind, id=identity, status="", due_at=due_at, due_run=guard.run_id, updated_at=now)
    app.store.log.settle(mark)


def _maintained(app: App, result: RunResult, lease: Lease) -> RunResult:
    """Write a new base where one is due. What fails here is left for the next turn: the run is saved and over."""
    checkpoint = result.checkpoint
    if lease.until - app.agent.clock() < TIME_TO_MAINTAIN:
        return result
    try:
        maintained = app.store.checkpoints.maintain(checkpoint.session_id or "", after=checkpoint)
    except DurableError as error:
        logger().warning("session not maintained", extra={"code": error.code, "reason": str(error)})
        return result
    return replace(result, checkpoint=maintained)


def not_due(app: App, session_id: str, run_id: str) -> None:
    """Take the run off recovery's list, if it is this run that stands there."""
    head = app.store.log.head(stream_of(session_id))
    if head is not None and head.due_run == run_id:
        app.store.log.settle(head)


def next_look(approval: Approval, now: datetime) -> datetime | None:
    """When the wait for the approval has to end: for a reminder, or at its level's deadline; None: never.

    A reminder that is due already is what the wait begins with, so the next one counts.
    """
    reminder = approval.next_reminder
    if reminder is not None and reminder <= now:
        reminder = now + timedelta(seconds=approval.request.remind_every or 0)
    times = [moment for moment in (reminder, approval.deadline) if moment is not None]
    return min(times, default=None)


def sleeps(app: App, approval: Approval) -> None:
    """While a human decides, the run is due only some time after its wait should have ended, if it ever has to."""
    request, ends = approval.request, next_look(approval, app.agent.clock())
    if ends is None:
        not_due(app, request.session_id or "", request.run_id)
    else:
        due_at = ends + AFTER_THE_DEADLINE
        app.store.log.announce(stream_of(request.session_id or ""), run_id=request.run_id, due_at=due_at)
