"""What is kept of a run: frozen, strict, and silent about what people and models say."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from durable import (
    Approval,
    ApprovalDecision,
    ApprovalGrant,
    ApprovalStatus,
    AssistantMessage,
    Checkpoint,
    Decision,
    HistoryEntry,
    InvalidSessionIdError,
    ModelRequest,
    ModelTurn,
    SystemMessage,
    ToolCall,
    ToolContext,
    ToolMessage,
    Usage,
    UserMessage,
    tool,
)
from durable.approval_stream import Applied, Cancelled, Expired, Requested, TokenAttached, Voted
from durable.approvals import Decided
from durable.gate import Ask, Gate, Ready
from durable.outcome import result_of
from durable.plan import RunCalls, Start
from durable.ports import Entry
from durable.records import AcceptedRequest, check_session_id
from tests.support.runs import START
from tests.support.transcripts import json_values

SECRET = "open-sesame"
CALL = ToolCall(id="c1", name="pay", arguments=json.dumps({"to": SECRET}))
TURN = AssistantMessage(content=SECRET, tool_calls=(CALL,))
RESULT = ToolMessage(tool_call_id="c1", tool_name="pay", content={"said": SECRET})
DECISION = Decision(approval_id="apr_1", approved=True, note=SECRET, args={"to": SECRET}, decided_at=START)
CHECKPOINT = Checkpoint(
    session_id="s",
    agent="t",
    run_id="r",
    messages=(UserMessage(content=SECRET), TURN, RESULT),
    results={"c1": RESULT},
    queued=(UserMessage(content=SECRET),),
    business_state={"card": SECRET},
    instructions=SECRET,
    decisions={"c1": DECISION},
    requests={"key": AcceptedRequest(digest=SECRET, run_id="r")},
    created_at=START,
    updated_at=START,
)
REQUESTED = Requested(
    at=START,
    session_id="s",
    run_id="r",
    agent="t",
    call_id="c1",
    tool_name="pay",
    arguments={"to": SECRET},
    digest="d",
)
ATTACHED = TokenAttached(at=START, task_token=SECRET, callbacks={SECRET: SECRET})
VOTED = Voted(at=START, approved=True, note=SECRET, args={"to": SECRET}, digest="d", via="api", callback=SECRET)
APPROVAL = Approval(id="apr_1", revision=2, events=(REQUESTED, ATTACHED, VOTED))
CONTEXT = ToolContext(
    tool_call_id="c1",
    session_id="s",
    run_id="r",
    step=1,
    approval=ApprovalGrant("apr_1", SECRET, "ada"),
    business_state={"card": SECRET},
)


@tool
def send(to: str) -> None: ...


SILENT: list[Any] = [
    CALL,
    TURN,
    RESULT,
    UserMessage(content=SECRET),
    SystemMessage(content=SECRET),
    DECISION,
    CHECKPOINT,
    REQUESTED,
    ATTACHED,
    VOTED,
    APPROVAL,
    CONTEXT,
    ApprovalGrant("apr_1", SECRET, "ada"),
    ApprovalDecision(id="apr_1", approved=True, note=SECRET, args={"to": SECRET}, callback=SECRET),
    Decided(APPROVAL),
    result_of(CHECKPOINT),
    HistoryEntry(1, 1, START, CHECKPOINT.status, CHECKPOINT),
    ModelRequest(instructions=SECRET, messages=CHECKPOINT.messages),
    ModelTurn(message=TURN),
    Entry(1, "delta", 0, "id", START, SECRET.encode()),
    Start(0, (TURN, RESULT), (UserMessage(content=SECRET),)),
    RunCalls((CALL,)),
    Ask(CALL, send, {"to": SECRET}, send.terms),
    Ready(CALL, send, {"to": SECRET}, CONTEXT),
    Gate(tools={}, decisions={"c1": DECISION}, started=(), context=lambda call, grant: CONTEXT),
]
RECORDS = [value for value in SILENT if isinstance(value, BaseModel)]


@pytest.mark.parametrize("value", SILENT, ids=lambda value: type(value).__name__)
def test_a_repr_never_shows_what_was_said(value: Any) -> None:
    """No message body, argument, result, note, state or token appears in the repr or the text of any of our values."""
    assert SECRET not in repr(value)
    assert SECRET not in str(value)
    assert SECRET not in f"{value}"
    assert SECRET not in repr([value])


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (CHECKPOINT, "<Checkpoint session_id=s run_id=r revision=-1 status=in-progress step=0>"),
        (APPROVAL, "<Approval id=apr_1 revision=2>"),
        (CALL, "<ToolCall 'pay' 'c1'>"),
        (RESULT, "<ToolMessage 'pay' 'c1'>"),
        (Usage(model_calls=1, input_tokens=2, output_tokens=3), "<Usage calls=1 in=2 out=3>"),
    ],
)
def test_a_repr_says_which_one_it_is(value: Any, shown: str) -> None:
    """A repr shows the ids and the state that a reader of a log needs."""
    assert repr(value) == shown


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (UserMessage, {"content": [SECRET]}),
        (ToolCall, {"id": "c", "name": "n", "arguments": {"to": SECRET}}),
        (Checkpoint, {"session_id": "s", "agent": "t", "run_id": "r", "messages": SECRET}),
        (Voted, {"at": START, "approved": SECRET}),
    ],
)
def test_a_record_that_cannot_be_made_does_not_show_its_values(model: type[BaseModel], fields: dict[str, Any]) -> None:
    """The error that a wrong value gives names the field and never shows the value."""
    with pytest.raises(ValidationError) as refused:
        model(**fields)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("value", RECORDS, ids=lambda value: type(value).__name__)
def test_a_record_is_frozen_and_strict(value: BaseModel) -> None:
    """No field of a record can be changed, and a field that it does not have is refused."""
    name = next(iter(type(value).model_fields))
    with pytest.raises(ValidationError):
        setattr(value, name, getattr(value, name))
    with pytest.raises(ValidationError):
        type(value).model_validate({**value.model_dump(), "surprise": 1})


@pytest.mark.parametrize("value", RECORDS, ids=lambda value: type(value).__name__)
def test_a_record_survives_json(value: BaseModel) -> None:
    """A record that is written as JSON and read again is the same."""
    assert type(value).model_validate_json(value.model_dump_json()) == value


def test_a_newer_format_is_refused() -> None:
    """A checkpoint of a format number that this version does not know is not read."""
    with pytest.raises(ValidationError):
        Checkpoint.model_validate({**CHECKPOINT.model_dump(), "v": 2})


@given(json_values)
def test_a_result_is_any_json_value(value: Any) -> None:
    """A tool's result keeps its JSON type through writing and reading."""
    message = ToolMessage(tool_call_id="c", tool_name="t", content=value)
    again = ToolMessage.model_validate_json(message.model_dump_json()).content
    assert json.dumps(again) == json.dumps(value)


def test_usage_adds_up() -> None:
    """The sum of two usages is the sum of each of their numbers."""
    numbers = {name: number for number, name in enumerate(Usage.model_fields, start=1)}
    assert Usage(**numbers) + Usage(**numbers) == Usage(**{name: 2 * number for name, number in numbers.items()})


# --- approvals: computed from their events ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "status"),
    [
        ([], ApprovalStatus.PENDING),
        ([ATTACHED], ApprovalStatus.PENDING),
        ([VOTED], ApprovalStatus.APPROVED),
        ([VOTED.but(approved=False)], ApprovalStatus.REJECTED),
        ([Expired(at=START)], ApprovalStatus.EXPIRED),
        ([Cancelled(at=START)], ApprovalStatus.CANCELLED),
        ([VOTED, Applied(at=START)], ApprovalStatus.APPROVED),
        ([Expired(at=START), VOTED], ApprovalStatus.EXPIRED),
        ([VOTED.but(approved=False), VOTED], ApprovalStatus.REJECTED),
    ],
)
def test_the_first_closing_event_is_the_outcome(events: Any, status: ApprovalStatus) -> None:
    """An approval is pending until it is voted on, expired or cancelled, and what comes later changes nothing."""
    approval = Approval(id="apr_1", revision=len(events), events=(REQUESTED, *events))
    assert approval.status is status
    assert (approval.decision is None) is (status is ApprovalStatus.PENDING)
    assert approval.decision is None or approval.decision.approved is (status is ApprovalStatus.APPROVED)


def test_a_repeated_request_renews_the_deadline() -> None:
    """The newest request is the one that counts, and a deadline has come at its very moment."""
    later = REQUESTED.but(deadline=START)
    approval = Approval(id="apr_1", revision=1, events=(REQUESTED, later))
    assert not Approval(id="apr_1", revision=0, events=(REQUESTED,)).due_by(START)
    assert approval.due_by(START)
    assert not approval.due_by(START.replace(year=2029))


def test_a_callback_token_is_known_by_its_hash() -> None:
    """A token opens the approval that it was minted for, and names its approver; the newest task token waits."""
    tokens = (
        TokenAttached(at=START, task_token="one", callbacks={"h1": None}),
        TokenAttached(at=START, task_token="two", callbacks={"h2": "ada"}),
    )
    approval = Approval(id="apr_1", revision=2, events=(REQUESTED, *tokens))
    assert approval.callback_approver("h1") == (True, None)
    assert approval.callback_approver("h2") == (True, "ada")
    assert approval.callback_approver("h3") == (False, None)
    assert approval.task_token == "two"
    assert Approval(id="apr_1", revision=0, events=(REQUESTED,)).task_token is None


# --- session ids -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("session_id", ["a", "x" * 256, "é" * 256, "a/b", "..", " ", "👍🏽", "\u2028", "\xa0"])
def test_a_session_id_is_a_text_of_1_to_256_characters(session_id: str) -> None:
    """Any valid Unicode of that length without control characters is a session id, and stays as it is."""
    assert check_session_id(session_id) == session_id


@pytest.mark.parametrize(
    "session_id", ["", "x" * 257, "a\x00", "\x1f", "\x7f", "\x80", "\x9f", "a\tb", "\ud800", None, 5, b"a", ["a"]]
)
def test_anything_else_is_no_session_id(session_id: Any) -> None:
    """Ids that are empty, too long, of another type, with control characters or half a surrogate pair are refused."""
    with pytest.raises(InvalidSessionIdError) as refused:
        check_session_id(session_id)
    assert refused.value.code == "SESSION_ID_INVALID"
    assert refused.value.hint


@given(st.text(max_size=300))
def test_a_session_id_is_taken_or_refused(session_id: str) -> None:
    """Any text is a session id or `InvalidSessionIdError`; what is taken can be written as UTF-8."""
    try:
        assert check_session_id(session_id).encode()
    except InvalidSessionIdError:
        return


def test_what_is_inside_is_frozen_too() -> None:
    """The values that pass between the parts of a run cannot be changed."""
    for value in (Start(0, (), ()), CONTEXT, ApprovalDecision(id="a", approved=True)):
        name = dataclasses.fields(value)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, name, None)
