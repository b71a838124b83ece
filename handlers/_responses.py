"""Answers: JSON views of what is stored, and errors as RFC 9457 problem documents."""

import json
import math
from typing import Any, TypeVar

import pydantic_core
from aws_lambda_powertools.event_handler import Response
from pydantic import BaseModel, ValidationError

from durable import errors
from durable.approval_stream import Approval
from durable.capacity import NOTHING, Capacity
from durable.conversation import pending_of
from durable.fork import Fork
from durable.messages import Message
from durable.nesting import agents_at_work
from durable.outcome import RunResult, result_of
from durable.ports import HistoryEntry
from durable.records import Checkpoint
from durable.story import story
from durable.tools import UnserializableResult, to_json_value
from handlers._ids import path_segment
from handlers._sizes import MAX_BODY, Link, fitted

Body = TypeVar("Body", bound=BaseModel)

JSON = "application/json"
PROBLEM = "application/problem+json"


class RequestInvalid(errors.ConfigurationError):
    """The request is not what the path takes."""

    code = "REQUEST_INVALID"
    hint = "Correct the request: the message names what is wrong."


class NoSuchPath(errors.DurableError):
    code = "PATH_NOT_FOUND"
    hint = "Check the path and the method."


class NotInSession(errors.DurableError):
    code = "VALUE_NOT_FOUND"
    hint = "Look at the messages or the history again: the session may have moved."


class InternalError(errors.DurableError):
    code = "INTERNAL"
    hint = "This is a fault of the service; its log has the details under the request id."


_STATUS: dict[type[errors.DurableError], int] = {
    NoSuchPath: 404,
    NotInSession: 404,
    RequestInvalid: 400,
    errors.InvalidInputError: 400,
    errors.InvalidSessionIdError: 400,
    errors.ResumeToolMissingError: 409,
    errors.AgentDriftError: 409,
    errors.PropagatingToolError: 502,
    errors.SessionNotFoundError: 404,
    errors.SessionExistsError: 409,
    errors.CheckpointNotFoundError: 404,
    errors.SessionAwaitingApprovalError: 409,
    errors.SessionBusyError: 409,
    errors.TurnPendingError: 409,
    errors.WaitAbortedError: 409,
    errors.RequestConflictError: 422,
    errors.ResultExpiredError: 410,
    errors.ApprovalNotFoundError: 404,
    errors.ApprovalClosedError: 409,
    errors.InvalidDecisionError: 422,
    errors.ArgumentsChangedError: 409,
    errors.NotAnApproverError: 403,
    errors.SelfApprovalError: 403,
    errors.StaleCheckpointError: 409,
    errors.LeaseLostError: 409,
    errors.StaleReplicaError: 503,
    errors.StoreUnavailableError: 503,
    errors.ProviderRateLimitError: 503,
    errors.ProviderUnavailableError: 503,
    errors.ProviderError: 502,
}
"""The HTTP status of each error; an error takes the entry of its nearest base, and 500 without one."""


def status_of(error: errors.DurableError) -> int:
    return next((_STATUS[base] for base in type(error).__mro__ if base in _STATUS), 500)


def json_response(body: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response[str]:
    """The answer, whose large values are truncated where they are not yet."""
    return Response(status, JSON, json.dumps(fitted(body, limit=MAX_BODY), ensure_ascii=False), headers)


def problem(error: errors.DurableError, **members: Any) -> Response[str]:
    """The error as `application/problem+json`: RFC 9457's members, our `code`, `hint` and `retryable`, and more."""
    status = status_of(error)
    retry_after = getattr(error, "retry_after", None) or (5 if error.retryable else None)
    body = {
        "type": "about:blank",
        "title": error.code.replace("_", " ").capitalize(),
        "status": status,
        "detail": str(error),
        "code": error.code,
        "hint": error.hint,
        "retryable": error.retryable,
        **members,
    }
    if isinstance(error, errors.SessionAwaitingApprovalError):
        body["approval_id"] = error.approval_id
    if isinstance(error, errors.CheckpointNotFoundError):
        body |= {"steps": error.steps, "revisions": error.revisions}
    if isinstance(error, errors.InvalidDecisionError) and error.options is not None:
        body["options"] = list(error.options)
    headers = {"Retry-After": str(math.ceil(retry_after))} if retry_after else None
    return Response(status, PROBLEM, json.dumps(body, ensure_ascii=False), headers)


def parse_body(model: type[Body], body: str | None) -> Body:
    """Read a request body. Raises `RequestInvalid` that names the fields, never their values."""
    text = body or "{}"
    try:
        to_json_value(pydantic_core.from_json(text.encode()))  # what no store could keep is refused here
        return model.model_validate_json(text)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, issue['loc'])) or 'body'}: {issue['msg']}" for issue in error.errors())
    except (ValueError, UnserializableResult) as error:
        wrong = str(error)
    raise RequestInvalid(f"The request body is not right: {wrong}.")


def capacity_view(capacity: Capacity) -> dict[str, float]:
    return {
        "requests": capacity.requests,
        "write_units": round(capacity.write_units, 1),
        "read_units": round(capacity.read_units, 1),
    }


def location(session_id: str) -> str:
    return f"/sessions/{path_segment(session_id)}"


def result_view(result: RunResult) -> dict[str, Any]:
    """A run as an answer shows it: text, status, usage and ids."""
    return {
        "session_id": result.session_id,
        "run_id": result.run_id,
        "status": result.checkpoint.status,
        "finish_reason": result.checkpoint.finish_reason,
        "text": result.text,
        "steps": result.steps,
        "tool_calls": result.tool_calls,
        "usage": result.usage.model_dump(),
        "approval_id": result.approval_id,
    }


def answer_at(prefix: str, checkpoint: Checkpoint) -> Link:
    """The `Link` of a run's views: the text is the content of the conversation's last message."""
    last = f"{prefix}{location(checkpoint.session_id or '')}/messages/{len(checkpoint.messages) - 1}"
    return lambda pointer: f"{last}?value=%2Fcontent" if pointer == "/text" else None


def session_view(checkpoint: Checkpoint) -> dict[str, Any]:
    """A session: its newest run, how much it holds (`committed` messages are of finished turns), what is pending."""
    pending = pending_of(checkpoint)
    return {
        **result_view(result_of(checkpoint)),
        "turns": checkpoint.turns,
        "messages": len(checkpoint.messages),
        "committed": checkpoint.committed,
        "pending": pending.model_dump(mode="json") if pending else None,
        "agents": agents_view(checkpoint),
        "revision": checkpoint.revision,
        "store": capacity_view(checkpoint.consumed or NOTHING),
        "forked_from": checkpoint.forked_from.model_dump() if checkpoint.forked_from else None,
        "last_error": checkpoint.last_error.model_dump(mode="json") if checkpoint.last_error else None,
        "created_at": checkpoint.created_at.isoformat(),
        "updated_at": checkpoint.updated_at.isoformat(),
    }


def agents_view(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """The sub-agents at work: the path of agents to each, its model turns so far, and its calls without a result."""
    return [
        {
            "path": list(agent.path),
            "step": agent.checkpoint.step,
            "open_calls": [{"id": call.id, "tool": call.name} for call in agent.open_calls],
        }
        for agent in agents_at_work(checkpoint)
    ]


def fork_view(made: Fork) -> dict[str, Any]:
    """A fork: its id and link, where it comes from, and how it stands."""
    checkpoint = made.checkpoint
    return {
        "session_id": made.session_id,
        "segment": path_segment(made.session_id),
        "run_id": checkpoint.run_id,
        "step": made.step,
        "status": checkpoint.status,
        "finish_reason": checkpoint.finish_reason,
        "forked_from": checkpoint.forked_from.model_dump() if checkpoint.forked_from else None,
    }


def message_view(message: Message) -> dict[str, Any]:
    """A message. What only its provider can read stays in the store: `?full=1` of the history shows it."""
    view = message.model_dump(mode="json", exclude={"native"})
    return {name: value for name, value in view.items() if value or name not in ("parts", "summary_of")}


def history_view(entry: HistoryEntry, *, full: bool = False) -> dict[str, Any]:
    """A listed save in short, or with its whole checkpoint."""
    checkpoint = entry.checkpoint
    whole = {"checkpoint": checkpoint.model_dump(mode="json")} if full else {}
    return {
        "revision": entry.revision,
        "step": entry.step,
        "saved_at": entry.saved_at.isoformat(),
        "status": entry.status,
        "finish_reason": checkpoint.finish_reason,
        "messages": len(checkpoint.messages),
        "approval_id": checkpoint.approval_id,
        "agents": agents_view(checkpoint),
        **whole,
    }


UNTOLD = {"task_token", "callbacks", "callback", "arguments", "edited", "snapshot", "levels", "default"}
"""What an approval's events do not show: tokens, and what the approval itself shows."""


def approval_view(approval: Approval, status: str | None = None) -> dict[str, Any]:
    """An approval with its audit trail and how its votes stand. Tokens never leave the table.

    `arguments` are the model's, `edited` those that somebody has put in their place; `digest` is of the ones that are
    voted on, and `votes` are for them.
    """
    request, ballot = approval.request, approval.ballot
    decision = approval.decision
    return {
        "id": approval.id,
        "kind": request.kind,
        "status": status or approval.status,
        "session_id": request.session_id,
        "run_id": request.run_id,
        "agent": request.agent,
        "path": list(request.asking),
        "tool": request.tool_name,
        "arguments": request.arguments,
        "edited": ballot.edited.args if ballot.edited else None,
        "digest": ballot.digest,
        "approvals": request.approvals,
        "approvers": list(request.approvers),
        "votes": [{"by": vote.by, "via": vote.via, "at": vote.at.isoformat()} for vote in ballot.approving],
        "missing": ballot.missing,
        "requested_by": request.requested_by,
        "requested_at": request.at.isoformat(),
        "deadline": approval.deadline.isoformat() if approval.deadline else None,
        "on_timeout": request.on_timeout,
        "default": request.default,
        "level": approval.level,
        "levels": [level.model_dump(mode="json") for level in request.levels],
        "decision": decision.model_dump(mode="json", exclude={"digest", "approval_id"}) if decision else None,
        "applied": approval.applied,
        "trail": [
            {**event.model_dump(mode="json", exclude=UNTOLD), "text": sentence}
            for event, sentence in zip(approval.events, story(approval), strict=True)
        ],
    }
