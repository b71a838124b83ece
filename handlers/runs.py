"""POST /sessions/{id}/runs, resume, abort, forks and truncate, DELETE /sessions/{id}: what makes a session or moves it.

An input is accepted, run here as far as time allows, and the rest is handed over. A resume is the same without input.
What only forks, cuts and deletions need is imported with the first of them: a run's cold start does not wait for it.
"""

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.api_gateway import Router
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from durable.admission import as_messages, recorded_answer
from durable.errors import DurableError, LeaseLostError, ResultExpiredError, SessionNotFoundError
from durable.executor import run_to_pause
from durable.messages import Message
from durable.outcome import RunResult, result_of
from durable.ports import Lease
from durable.records import AcceptedRequest, Checkpoint, FinishReason, Status
from handlers._aborting import abort_run, is_under_way
from handlers._deadline import LambdaContext, bounds, end_of, leave_if_unfit
from handlers._executions import hand_over
from handlers._guard import Guard
from handlers._http import caller, serve, stage_prefix
from handlers._ids import session_id_of
from handlers._observe import about, count, invocation
from handlers._responses import (
    RequestInvalid,
    answer_at,
    capacity_view,
    fork_view,
    json_response,
    location,
    parse_body,
    problem,
    result_view,
    session_view,
)
from handlers._running import STOPPED, Accepted, Known, Redelivered, accept, run
from handlers._sizes import fitted
from handlers._waiting import BusyPolicy, when_free
from handlers._wiring import App, app

router = Router()

MAX_KEY = 255


class RunRequest(BaseModel):
    """The body: what the user says, as a text or as messages (a history that is known is recognised).

    `context` is what a dynamic agent is made for; a run that is resumed keeps its own.
    """

    model_config = ConfigDict(extra="forbid")

    input: Annotated[str, Field(max_length=1_000_000)] | list[Message]
    context: JsonValue = None
    on_busy: BusyPolicy = "reject"


class ResumeRequest(BaseModel):
    """The body of a resume, which may be left out."""

    model_config = ConfigDict(extra="forbid")

    on_busy: BusyPolicy = "reject"


def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    leave_if_unfit()
    with invocation(app(), context):
        return serve(router, event, context)


@router.post("/sessions/<segment>/runs")
def start(segment: str) -> Response[str]:
    """Answer 200 with the result, or 202 with a Location when the run waits for a human or goes on elsewhere."""
    application, event = app(), router.current_event
    session_id = session_id_of(segment)
    about(session_id=session_id)
    request = parse_body(RunRequest, event.decoded_body)
    return _carry_out(
        application,
        as_messages(request.input),
        session_id=session_id,
        request=_request_key(event.headers.get("Idempotency-Key"), event.decoded_body or ""),
        run_context=request.context,
        on_busy=request.on_busy,
    )


@router.post("/sessions/<segment>/resume")
def resume(segment: str) -> Response[str]:
    """Carry an unfinished run on; a finished one gives its recorded result. Answers like a run."""
    session_id = session_id_of(segment)
    about(session_id=session_id)
    request = parse_body(ResumeRequest, router.current_event.decoded_body)
    if app().store.checkpoints.load(session_id) is None:
        raise SessionNotFoundError(session_id)
    return _carry_out(app(), (), session_id=session_id, on_busy=request.on_busy)


@router.post("/sessions/<segment>/abort")
def abort(segment: str) -> Response[str]:
    """Stop the unfinished run: 200 with how it stands, or 202 while its runner still has to notice.

    The runner looks before each model call and before tools start. What has finished keeps its result; a new message,
    or a resume, goes on from there. A session without an unfinished run is left as it is: 200.
    """
    application, context, session_id = app(), router.lambda_context, session_id_of(segment)
    about(session_id=session_id)
    checkpoint = abort_run(
        application,
        session_id,
        by=caller(router),
        owner=f"request/{context.aws_request_id}",
        until=end_of(context, application.agent.clock()),
    )
    if is_under_way(checkpoint):
        return _running(result_of(checkpoint), session_id)
    return json_response(result_view(result_of(checkpoint)))


@router.post("/sessions/<segment>/forks")
def forks(segment: str) -> Response[str]:
    """Make a session of a step of another one's history: 201 with its link. Nothing runs until it is resumed."""
    from handlers._forking import ForkRequest, make_fork

    event, session_id = router.current_event, session_id_of(segment)
    about(session_id=session_id)
    made = make_fork(
        app(),
        session_id,
        parse_body(ForkRequest, event.decoded_body),
        requested_by=caller(router),
        request=_request_key(event.headers.get("Idempotency-Key"), event.decoded_body or ""),
    )
    count(Forks=1)
    link = stage_prefix(router) + location(made.session_id)
    return json_response(fork_view(made), status=201, headers={"Location": link})


@router.post("/sessions/<segment>/truncate")
def truncate(segment: str) -> Response[str]:
    """Keep the first messages of a session whose turns are all finished: 200 with how it stands."""
    from handlers._conversations import TruncateRequest, truncate_session

    context, session_id = router.lambda_context, session_id_of(segment)
    about(session_id=session_id)
    checkpoint = truncate_session(
        app(),
        session_id,
        parse_body(TruncateRequest, router.current_event.decoded_body),
        owner=f"request/{context.aws_request_id}",
        until=end_of(context, app().agent.clock()),
    )
    return json_response(fitted(session_view(checkpoint), answer_at(stage_prefix(router), checkpoint)))


@router.delete("/sessions/<segment>")
def delete(segment: str) -> Response[str]:
    """Delete a session with all that is kept of it: 204, also where there is none."""
    from handlers._conversations import delete_session

    context, session_id = router.lambda_context, session_id_of(segment)
    about(session_id=session_id)
    delete_session(
        app(),
        session_id,
        by=caller(router),
        owner=f"request/{context.aws_request_id}",
        until=end_of(context, app().agent.clock()),
    )
    return Response(204, body="")  # a gateway may not take null


def _carry_out(
    application: App,
    incoming: Sequence[Message],
    *,
    session_id: str,
    request: tuple[str, str] | None = None,
    run_context: JsonValue = None,
    on_busy: BusyPolicy,
) -> Response[str]:
    """Accept the input under the session's lease and run on it."""
    event, context = router.current_event, router.lambda_context
    until = end_of(context, application.agent.clock())

    def take() -> Accepted | Known | Redelivered:
        return accept(
            application,
            incoming,
            run_context=run_context,
            session_id=session_id,
            request=request,
            requested_by=caller(router),
            owner=f"request/{context.aws_request_id}",
            until=until,
        )

    match when_free(application, take, on_busy=on_busy, until=until):
        case Known(checkpoint):
            view = result_view(result_of(checkpoint))
            return json_response(fitted(view, answer_at(stage_prefix(router), checkpoint)))
        case Redelivered(checkpoint, known):
            return _again(application, checkpoint, known)
        case Accepted(checkpoint, lease):
            about(run_id=checkpoint.run_id)
            count(RunsAccepted=1)
            if "respond-async" in event.headers.get("Prefer", "").lower():
                application.store.leases.release(lease)
                return _handed_over(application, checkpoint)
            return _run_here(application, checkpoint, lease)


def _run_here(application: App, checkpoint: Checkpoint, lease: Lease) -> Response[str]:
    session_id = checkpoint.session_id or ""
    limits = bounds(router.lambda_context, min_model_seconds=application.settings.min_model_seconds)
    guard = Guard(application, lease, session_id=session_id, run_id=checkpoint.run_id)
    work = run_to_pause(
        application.agent, checkpoint, saved=checkpoint, store=application.store, bounds=limits, watch=guard.watch
    )
    try:
        result = run(application, work, guard, since=checkpoint)
    except LeaseLostError:
        return _running(result_of(checkpoint), session_id)
    except DurableError as error:
        if not error.retryable:
            raise
        return _handed_over(application, checkpoint)  # accepted is accepted: the state machine tries again
    if result.checkpoint.status is not Status.FINISHED and result.finish_reason is not FinishReason.ABORTED:
        return _handed_over(application, result.checkpoint)
    view = {**result_view(result), "store": capacity_view(result.consumed)}
    return json_response(fitted(view, answer_at(stage_prefix(router), result.checkpoint)))


def _handed_over(application: App, checkpoint: Checkpoint) -> Response[str]:
    """The run goes on in the state machine, which waits for the human where there is one to wait for."""
    session_id = checkpoint.session_id or ""
    hand_over(application, session_id=session_id, run_id=checkpoint.run_id, revision=checkpoint.revision)
    count(HandedOver=1)
    return _running(result_of(checkpoint), session_id)


def _running(result: RunResult, session_id: str) -> Response[str]:
    link = stage_prefix(router) + location(session_id)
    return json_response(result_view(result), status=202, headers={"Location": link, "Retry-After": "2"})


def _again(application: App, checkpoint: Checkpoint, known: AcceptedRequest) -> Response[str]:
    """A request that came before: its recorded outcome, or where to find it; never a second run."""
    session_id = checkpoint.session_id or ""
    if known.finish_reason is None and known.run_id == checkpoint.run_id:
        if checkpoint.finish_reason in STOPPED:
            return json_response(result_view(result_of(checkpoint)))
        lease = application.store.leases.look(f"session/{session_id}")
        if lease is None or lease.owner is None or lease.until <= application.agent.clock():
            return _handed_over(application, checkpoint)
        return _running(result_of(checkpoint), session_id)
    outcome = {
        "session_id": session_id,
        "run_id": known.run_id,
        "finish_reason": known.finish_reason,
        "usage": known.usage.model_dump() if known.usage else None,
    }
    try:
        text = recorded_answer(checkpoint, known)
    except ResultExpiredError as error:
        return problem(error, **outcome)
    return json_response({**outcome, "status": Status.FINISHED, "text": text})


def _request_key(key: str | None, body: str) -> tuple[str, str] | None:
    if key is None:
        return None
    if not 1 <= len(key) <= MAX_KEY or not key.isprintable():
        raise RequestInvalid(f"The Idempotency-Key must have 1 to {MAX_KEY} printable characters.")
    return key, hashlib.sha256(body.encode()).hexdigest()
