"""Checkpoints and entries to write, small and large."""

from datetime import timedelta

from pydantic import JsonValue

from durable.messages import (
    AssistantMessage,
    Conversational,
    NativeBlock,
    NativeTurn,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from durable.ports import Entry, EntryKind
from durable.records import Checkpoint
from stores.contract.backend import START

AWKWARD_IDS = [
    *("a", "a/b", "a#b", "A", "..", "a/checkpoint", "a/history/000000000000", "session/a", " ", "%2F"),
    *("ä", "a\u0308", "日本語", "🦔", "x" * 256, "é" * 256, "🦔" * 256),
]
"""Ids that a careless key would mix up, cut or refuse."""

JSON_KINDS: list[JsonValue] = ["", 0, False, [], None, {}, 0.0, "0", "null", [None], {"": None}]
"""Values that careless code takes for one another."""


NATIVE_TURN = AssistantMessage(
    content="Let me see.",
    tool_calls=(ToolCall(id="c1", name="weather", arguments='{"city":"Oslo"}'),),
    native=NativeTurn(
        origin="anthropic",
        fields={"": None, "unknown": {"deep": [1.0, 1, True, -0.0, 1e-7, 2**70, "\u2028", "é\x00", {}, []]}},
        blocks=(
            NativeBlock(
                kind="own", value={"type": "thinking", "thinking": "Hm…", "signature": "EqEE/+==", "z": 1, "a": 2}
            ),
            NativeBlock(kind="text", chars=11, value={"citations": None}),
            NativeBlock(kind="own", value={"type": "redacted_thinking", "data": "🦔" * 50}),
            NativeBlock(kind="call", value={"caller": {"type": "direct"}}),
        ),
    ),
)
"""A turn with everything that only its provider understands, and with JSON that careless code changes."""


def entry(revision: int, body: bytes = b"{}", *, kind: EntryKind = "delta", save_id: str | None = None) -> Entry:
    return Entry(
        revision=revision,
        kind=kind,
        base=0,
        save_id=save_id or f"save-{revision}",
        written_at=START,
        body=body,
        fresh_until=START + timedelta(days=1, microseconds=7),
        expires_at=START.replace(microsecond=0) + timedelta(days=2),
    )


def checkpoint(session_id: str | None = "s", *messages: Conversational, **fields: object) -> Checkpoint:
    first = messages or (UserMessage(content="What is the weather in Oslo?"),)
    new = Checkpoint(
        session_id=session_id, agent="weather", run_id="r1", messages=first, created_at=START, updated_at=START
    )
    return new.but(**fields)


def with_messages(before: Checkpoint, *messages: Conversational, **fields: object) -> Checkpoint:
    return before.but(messages=(*before.messages, *messages), **fields)


def turn(call_id: str, text: str = "") -> AssistantMessage:
    return AssistantMessage(
        content=text, tool_calls=(ToolCall(id=call_id, name="weather", arguments='{"city":"Oslo"}'),)
    )


def result(call_id: str, content: JsonValue = "4 degrees") -> ToolMessage:
    return ToolMessage(tool_call_id=call_id, tool_name="weather", content=content)
