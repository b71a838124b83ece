"""The results that are not a tool's own, and the digest that binds a decision to a call."""

import hashlib
import json
from typing import Literal

from pydantic import JsonValue

from durable.messages import ToolCall, ToolMessage

ErrorKind = Literal["execution", "validation", "not-found", "rejected", "denied", "not-run", "unknown-outcome"]

MAX_MESSAGE = 2_000


def error_result(call: ToolCall, kind: ErrorKind, message: str, **more: JsonValue) -> ToolMessage:
    """Tell the model what happened instead of a result: what, never where in our code."""
    message = message.encode(errors="replace").decode()  # an error's text may hold half a surrogate pair, JSON may not
    if len(message) > MAX_MESSAGE:
        message = message[: MAX_MESSAGE - 1] + "…"
    content: dict[str, JsonValue] = {"error": True, "kind": kind, "tool_name": call.name, "message": message}
    content |= {name: value for name, value in more.items() if value not in (None, [])}
    return ToolMessage(tool_call_id=call.id, tool_name=call.name, content=content, is_error=True)


def approval_digest(tool_name: str, arguments: JsonValue) -> str:
    """SHA-256, in hex, of a tool's name and its arguments as key-sorted JSON: what a decision is about."""
    text = json.dumps([tool_name, arguments], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def approval_id(*, session_id: str | None, run_id: str, call_id: str, pause: int) -> str:
    """Derived, so that a pause repeated after a crash finds the record of the first try."""
    text = json.dumps([session_id, run_id, call_id, pause], ensure_ascii=False)
    return f"apr_{hashlib.sha256(text.encode()).hexdigest()[:32]}"
