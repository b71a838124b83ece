"""Messages and checkpoints, short to write, and Hypothesis strategies for them."""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from durable import AssistantMessage, Checkpoint, SystemMessage, ToolCall, ToolMessage, UserMessage
from durable.messages import Conversational, Message
from durable.records import FinishReason, LastError, Status
from durable.transcript import settle
from tests.support.runs import START


def user(text: str) -> UserMessage:
    return UserMessage(content=text)


def says(text: str) -> AssistantMessage:
    return AssistantMessage(content=text)


def calls(*ids: str, name: str = "look") -> AssistantMessage:
    """A model turn that asks for calls with these ids."""
    return AssistantMessage(tool_calls=tuple(ToolCall(id=id, name=name) for id in ids))


def gives(call_id: str, content: Any = "ok") -> ToolMessage:
    return ToolMessage(tool_call_id=call_id, tool_name="look", content=content)


def checkpoint(*messages: Conversational, **fields: Any) -> Checkpoint:
    """A checkpoint of session `s` that is in progress unless it says otherwise."""
    given = {"session_id": "s", "agent": "t", "run_id": "run0", "created_at": START, "updated_at": START, **fields}
    return Checkpoint(messages=messages, **given)


def finished(*messages: Conversational, **fields: Any) -> Checkpoint:
    given = {"status": Status.FINISHED, "finish_reason": FinishReason.STOP, "committed": len(messages), **fields}
    return checkpoint(*messages, **given)


def failed(code: str, *, retryable: bool = False) -> LastError:
    return LastError(code=code, message="It failed.", retryable=retryable, at=START)


# --- strategies ------------------------------------------------------------------------------------------------------

texts = st.text(max_size=3)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
any_message: st.SearchStrategy[Message] = st.one_of(
    st.builds(SystemMessage, content=texts),
    st.builds(UserMessage, content=texts),
    st.builds(AssistantMessage, content=texts),
    st.builds(calls, st.sampled_from("abc")),
    st.builds(gives, st.sampled_from("abc"), texts),
)


@st.composite
def transcripts(draw: st.DrawFn, *, turns: int = 3) -> tuple[Conversational, ...]:
    """A transcript in order whose last message is an answer, or nothing."""
    messages: list[Conversational] = []
    for turn in range(draw(st.integers(0, turns))):
        messages += [user(text) for text in draw(st.lists(texts, min_size=1, max_size=2))]
        for step in range(draw(st.integers(0, 2))):
            ids = [f"{turn}-{step}-{number}" for number in range(draw(st.integers(1, 3)))]
            messages += [calls(*ids), *(gives(id, draw(texts)) for id in ids)]
        messages.append(says(draw(texts)))
    return tuple(messages)


@st.composite
def open_checkpoints(draw: st.DrawFn) -> Checkpoint:
    """A run in progress: before its first model turn, or with a turn whose calls have settled in part, in any order."""
    before = draw(transcripts(turns=2))
    said = [user(text) for text in draw(st.lists(texts, min_size=1, max_size=2))]
    if draw(st.booleans()):
        return checkpoint(*before, committed=len(before), queued=tuple(said), turns=len(before))
    ids = [f"open-{number}" for number in range(draw(st.integers(1, 4)))]
    settled = draw(st.permutations(ids))[: draw(st.integers(0, len(ids)))]
    queued = tuple(user(text) for text in draw(st.lists(texts, max_size=2)))
    running = checkpoint(*before, *said, calls(*ids), committed=len(before), queued=queued, step=1)
    return settle(running, [gives(id, draw(texts)) for id in settled])


def stored_checkpoints() -> st.SearchStrategy[Checkpoint]:
    """A checkpoint of any status."""
    ended = st.builds(lambda messages: finished(*messages), transcripts())
    poisoned = open_checkpoints().map(lambda made: made.but(last_error=failed("PROVIDER_REQUEST")))
    paused = open_checkpoints().map(lambda made: made.but(status=Status.AWAITING_APPROVAL, approval_id="apr_1"))
    return st.one_of(ended, open_checkpoints(), poisoned, paused)


def inputs(stored: Checkpoint | None) -> st.SearchStrategy[Sequence[Message]]:
    """Any messages, or a part of what the session knows with anything behind it."""
    known = (*stored.messages, *stored.queued) if stored else ()
    rest = st.lists(any_message, max_size=3)
    return rest | st.tuples(st.integers(0, len(known)), rest).map(lambda drawn: [*known[: drawn[0]], *drawn[1]])
