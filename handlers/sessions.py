"""GET /sessions, /sessions/{id}, its messages and its history: looking, never running."""

from typing import Any

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.api_gateway import Router

from durable.errors import SessionNotFoundError
from durable.records import Checkpoint, Status
from handlers._deadline import LambdaContext
from handlers._http import serve
from handlers._ids import path_segment, session_id_of
from handlers._observe import about, invocation
from handlers._responses import RequestInvalid, history_view, json_response, session_view
from handlers._wiring import app

router = Router()

MAX_PAGE = 100
STATUSES = ("accepted", *(status.value for status in Status))
"""What a session in the list may be; one that is accepted has not been saved yet."""

MAX_BYTES = 4_000_000
"""A page of messages ends before its JSON is larger than this; a Lambda may answer 6 MB."""


def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    with invocation(app(), context):
        return serve(router, event, context)


@router.get("/sessions/<segment>")
def show(segment: str) -> Response[str]:
    return json_response(session_view(_load(segment)))


@router.get("/sessions/<segment>/messages")
def messages(segment: str) -> Response[str]:
    """The conversation in order, from index `after` + 1; `next` is the `after` of the next page."""
    checkpoint = _load(segment)
    first = _whole_number("after", default=-1, least=-1, most=len(checkpoint.messages)) + 1
    page: list[Any] = []
    size = 0
    for message in checkpoint.messages[first : first + MAX_PAGE]:
        size += len(message.model_dump_json().encode())
        if page and size > MAX_BYTES:
            break
        page.append(message.model_dump(mode="json"))
    last = first + len(page) - 1
    more = last + 1 < len(checkpoint.messages)
    return json_response({"messages": page, "total": len(checkpoint.messages), "next": last if more else None})


@router.get("/sessions/<segment>/history")
def history(segment: str) -> Response[str]:
    """The listed saves, newest first."""
    checkpoint = _load(segment)
    limit = _whole_number("limit", default=50, least=0, most=MAX_PAGE)
    entries = app().store.checkpoints.history(checkpoint.session_id or "", limit=limit)
    return json_response({"entries": [history_view(entry) for entry in entries]})


@router.get("/sessions")
def listing() -> Response[str]:
    """Some of the sessions; `cursor` gives the next ones. The list may lag behind by a second or so."""
    query = router.current_event.query_string_parameters or {}
    if (status := query.get("status")) not in (None, *STATUSES):
        raise RequestInvalid(f"status must be one of {', '.join(STATUSES)}.")
    page = app().store.log.heads(
        "session",
        status=status,
        limit=_whole_number("limit", default=50, least=1, most=MAX_PAGE),
        cursor=query.get("cursor"),
    )
    sessions = [
        {
            "session_id": head.id,
            "segment": path_segment(head.id),
            "status": head.status,
            "updated_at": head.updated_at.isoformat(),
        }
        for head in page.items
    ]
    return json_response({"sessions": sessions, "cursor": page.cursor})


def _load(segment: str) -> Checkpoint:
    session_id = session_id_of(segment)
    about(session_id=session_id)
    checkpoint = app().store.checkpoints.load(session_id)
    if checkpoint is None:
        raise SessionNotFoundError(session_id)
    return checkpoint


def _whole_number(name: str, *, default: int, least: int, most: int) -> int:
    given = (router.current_event.query_string_parameters or {}).get(name)
    if given is None:
        return default
    try:
        number = int(given)
    except ValueError:
        raise RequestInvalid(f"{name} must be a whole number.") from None
    if not least <= number <= most:
        raise RequestInvalid(f"{name} must be from {least} to {most}.")
    return number
