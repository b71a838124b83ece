"""GET /sessions, /sessions/{id}, its messages, its history, and two of them compared: looking, never running."""

from typing import Any

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.api_gateway import Router

from durable.errors import SessionNotFoundError
from durable.fork import find, saves_behind
from durable.nesting import KnownAgents, subagents_of
from durable.ports import HistoryEntry
from durable.records import Checkpoint, Status
from durable.rendering import render_comparison
from durable.trajectory import compare_trajectories
from handlers._deadline import LambdaContext
from handlers._http import serve, stage_prefix
from handlers._ids import path_segment, session_id_of
from handlers._observe import about, invocation
from handlers._responses import (
    NotInSession,
    RequestInvalid,
    answer_at,
    history_view,
    json_response,
    message_view,
    session_view,
)
from handlers._sizes import fitted, page, part_of, value_in, values_at
from handlers._wiring import app

router = Router()

MAX_PAGE = 100
STATUSES = ("accepted", *(status.value for status in Status))
"""What a session in the list may be; one that is accepted has not been saved yet."""

MAX_TEXT = 250_000
"""Characters of a comparison as text."""

MAX_REVISION = 10**12


def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    with invocation(app(), context):
        return serve(router, event, context)


@router.get("/sessions/<segment>")
def show(segment: str) -> Response[str]:
    checkpoint = _load(segment)
    view = session_view(checkpoint)
    return json_response(fitted(view, answer_at(stage_prefix(router), checkpoint)))


@router.get("/sessions/<segment>/messages")
def messages(segment: str) -> Response[str]:
    """The conversation in order, from index `after` + 1; `next` is the `after` of the next page."""
    checkpoint = _load(segment)
    first = _whole_number("after", default=-1, least=-1, most=len(checkpoint.messages)) + 1
    wanted = enumerate(checkpoint.messages[first : first + MAX_PAGE], first)
    shown = page(fitted(message_view(one), values_at(f"{_here(segment)}/messages/{n}")) for n, one in wanted)
    last = first + len(shown) - 1
    more = last + 1 < len(checkpoint.messages)
    return json_response({"messages": shown, "total": len(checkpoint.messages), "next": last if more else None})


@router.get("/sessions/<segment>/messages/<number>")
def message(segment: str, number: str) -> Response[str]:
    """A part of a message's JSON, or of one `value` in it, from byte `offset` on; `next` is where the next part is."""
    told = _load(segment).messages
    at = _number(number, "message")
    if at >= len(told):
        raise NotInSession(f"The session has {len(told)} messages, numbered from 0, and no {at}.")
    return _part(message_view(told[at]))


@router.get("/sessions/<segment>/history")
def history(segment: str) -> Response[str]:
    """The listed saves, newest first; `cursor` gives those before. `full=1` shows whole checkpoints."""
    session_id = session_id_of(segment)
    about(session_id=session_id)
    limit = _whole_number("limit", default=50, least=0, most=MAX_PAGE)
    before = _whole_number("cursor", default=MAX_REVISION, least=0, most=MAX_REVISION)
    full = bool(_whole_number("full", default=0, least=0, most=1))
    entries = [entry for entry in _listed(session_id) if entry.revision < before]
    views = ((entry.revision, history_view(entry, full=full)) for entry in entries[:limit])
    shown = page(fitted(view, values_at(f"{_here(segment)}/history/{revision}")) for revision, view in views)
    more = bool(shown) and len(shown) < len(entries)
    return json_response({"entries": shown, "cursor": str(shown[-1]["revision"]) if more else None})


@router.get("/sessions/<segment>/history/<revision>")
def history_entry(segment: str, revision: str) -> Response[str]:
    """One listed save with its whole checkpoint; with `value` or `offset`, a part of it as of a message."""
    session_id = session_id_of(segment)
    about(session_id=session_id)
    entry = find(_listed(session_id), session_id, revision=_number(revision, "revision"))
    view = history_view(entry, full=True)
    if {"value", "offset"} & (router.current_event.query_string_parameters or {}).keys():
        return _part(view)
    return json_response(fitted(view, values_at(f"{_here(segment)}/history/{entry.revision}")))


@router.get("/sessions/<segment>/compare/<other>")
def compare(segment: str, other: str) -> Response[str]:
    """Where two sessions part, the steps of their sub-agents included; `text` reads like a diff."""
    a, b = _load(segment), _load(other)
    comparison = compare_trajectories(a, b, subagents_a=_subagents(a), subagents_b=_subagents(b))
    text = render_comparison(comparison, a=a.session_id or "", b=b.session_id or "")
    names = {"session_ids": [a.session_id, b.session_id]}
    return json_response({**fitted({**names, **comparison.to_json()}), "text": text[:MAX_TEXT]})


@router.get("/sessions")
def listing() -> Response[str]:
    """Some of the sessions; `cursor` gives the next ones. The list may lag behind by a second or so."""
    query = router.current_event.query_string_parameters or {}
    if (status := query.get("status")) not in (None, *STATUSES):
        raise RequestInvalid(f"status must be one of {', '.join(STATUSES)}.")
    if status == Status.FINISHED and not app().settings.list_finished:
        raise RequestInvalid("status: this deployment does not list finished sessions (parameter ListFinished).")
    found = app().store.log.heads(
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
        for head in found.items
    ]
    return json_response({"sessions": sessions, "cursor": found.cursor})


def _here(segment: str) -> str:
    return f"{stage_prefix(router)}/sessions/{segment}"


def _part(view: Any) -> Response[str]:
    """What `value` points to, or all, from `offset` on."""
    pointer = (router.current_event.query_string_parameters or {}).get("value", "")
    try:
        value = value_in(view, pointer)
    except LookupError:
        raise NotInSession("There is no such value: `value` is a JSON Pointer, as in the `href` of a view.") from None
    offset = _whole_number("offset", default=0, least=0, most=MAX_REVISION)
    try:
        return json_response(part_of(value, offset))
    except LookupError:
        raise RequestInvalid("offset must be the `next` of the part before it.") from None


def _number(given: str, what: str) -> int:
    if not (given.isascii() and given.isdecimal()) or len(given) > len(str(MAX_REVISION)):
        raise RequestInvalid(f"The {what} must be a whole number.")
    return int(given)


def _listed(session_id: str) -> list[HistoryEntry]:
    """The saves that are listed, newest first; a session of which nothing is there is `SessionNotFoundError`."""
    entries = app().store.checkpoints.history(session_id)
    if not entries and app().store.checkpoints.load(session_id) is None:
        raise SessionNotFoundError(session_id)
    return entries


def _subagents(checkpoint: Checkpoint) -> KnownAgents:
    return subagents_of(saves_behind(app().store.checkpoints, checkpoint))


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
