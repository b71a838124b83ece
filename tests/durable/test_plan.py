"""What an input means for a session, row by row, and what a run does next."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable import Checkpoint, ConfigurationError, FinishReason, SessionAwaitingApprovalError, Status, SystemMessage
from durable.admission import as_messages
from durable.messages import Message
from durable.plan import (
    CallModel,
    Finish,
    Limits,
    Recorded,
    Refuse,
    Resume,
    RunCalls,
    Start,
    admit,
    is_poisoned,
    next_step,
    run_input,
)
from durable.transcript import first_fault, settle
from tests.support.transcripts import (
    calls,
    checkpoint,
    failed,
    finished,
    gives,
    inputs,
    open_checkpoints,
    says,
    stored_checkpoints,
    texts,
    transcripts,
    user,
)

HI, HELLO, MORE, BYE = user("hi"), says("hello"), user("more"), user("bye")

DONE = finished(HI, HELLO)
RUNNING = checkpoint(HI, HELLO, MORE, calls("a", "b"), gives("a"), committed=2, step=1)
ACCEPTED = checkpoint(HI, HELLO, committed=2, queued=(MORE,))
PAUSED = RUNNING.but(status=Status.AWAITING_APPROVAL, approval_id="apr_1")
POISONED = checkpoint(HI, HELLO, MORE, committed=2, last_error=failed("PROVIDER_REQUEST"))
UNANSWERED = checkpoint(HI, HELLO, MORE, BYE, committed=3, last_error=failed("PROVIDER_REQUEST"))
OUT_OF_REACH = POISONED.but(last_error=failed("PROVIDER_UNAVAILABLE", retryable=True))


def start(keep: int, *said: Any, history: tuple[Any, ...] = ()) -> Start:
    return Start(keep, history, said)


def resume(*said: Any) -> Resume:
    return Resume(said)


def known(stored: Checkpoint) -> tuple[Message, ...]:
    return (*stored.messages, *stored.queued)


ROWS: dict[str, tuple[Checkpoint | None, Sequence[Message], Any]] = {
    "no session, a text": (None, [HI], start(0, HI)),
    "no session, a history": (None, [HI, HELLO, MORE], start(0, MORE, history=(HI, HELLO))),
    "no session, several texts": (None, [HI, MORE], start(0, HI, MORE)),
    "poisoned, new text": (POISONED, [BYE], start(2, BYE)),
    "poisoned, the same text": (POISONED, [MORE], start(2, MORE)),
    "poisoned, what is kept and new text": (POISONED, [HI, HELLO, BYE], start(2, BYE)),
    "poisoned, all of known": (POISONED, known(POISONED), start(2, MORE)),
    "poisoned, perhaps by input that was never answered": (UNANSWERED, [BYE], start(2, BYE)),
    "poisoned, nothing": (POISONED, [], resume()),
    "not poisoned by a passing error": (OUT_OF_REACH, [BYE], resume(BYE)),
    "finished, all of known and new text": (DONE, [HI, HELLO, MORE], start(2, MORE)),
    "finished, all of known": (DONE, [HI, HELLO], Recorded()),
    "in progress, all of known and new text": (RUNNING, [*known(RUNNING), BYE], resume(BYE)),
    "in progress, all of known": (RUNNING, known(RUNNING), resume()),
    "accepted, all of known with what is queued": (ACCEPTED, [HI, HELLO, MORE], resume()),
    "in progress, a copy that lags, new text": (RUNNING, [HI, HELLO, BYE], resume(BYE)),
    "in progress, a copy that lags": (RUNNING, [HI, HELLO, MORE], resume()),
    "in progress, what the run started from": (RUNNING, [MORE], resume()),
    "accepted, what the run started from": (ACCEPTED, [MORE], resume()),
    "in progress, another text": (RUNNING, [BYE], resume(BYE)),
    "in progress, several other texts": (RUNNING, [BYE, HI], resume(BYE, HI)),
    "in progress, texts that begin like the session": (RUNNING, [HI, BYE], resume(HI, BYE)),
    "in progress, nothing": (RUNNING, [], resume()),
    "finished, nothing": (DONE, [], Recorded()),
    "finished, the same text again": (DONE, [HI], start(2, HI)),
    "finished, a history that differs": (DONE, [HI, says("oh"), BYE], start(2, BYE, history=(HI, says("oh")))),
}


@pytest.mark.parametrize(("stored", "incoming", "expected"), ROWS.values(), ids=ROWS)
def test_an_input_means(stored: Checkpoint | None, incoming: Sequence[Message], expected: Any) -> None:
    """Each row of the table of inputs gives its admission, with and without a system message in the input."""
    assert admit(stored, incoming, session_id="s") == expected
    assert admit(stored, [SystemMessage(content="be kind"), *incoming], session_id="s") == expected


@pytest.mark.parametrize("incoming", [[], [HI], known(PAUSED), [*known(PAUSED), BYE]])
def test_a_paused_session_takes_nothing(incoming: Sequence[Message]) -> None:
    """Whatever is sent to a session that waits for a decision is refused, and the error names the approval."""
    refused = admit(PAUSED, incoming)
    assert isinstance(refused, Refuse)
    assert isinstance(refused.error, SessionAwaitingApprovalError)
    assert refused.error.approval_id == "apr_1"


REFUSED: dict[str, tuple[Checkpoint | None, Sequence[Message]]] = {
    "no session, nothing": (None, []),
    "no session, a history without a question": (None, [HI, HELLO]),
    "no session, a result of no call": (None, [HI, gives("a"), BYE]),
    "no session, a call without result": (None, [HI, calls("a"), BYE]),
    "finished, an answer without a question": (DONE, [HI, HELLO, MORE, says("x")]),
    "in progress, a history that differs": (RUNNING, [HI, HELLO, says("oh"), BYE]),
    "in progress, a result from outside": (RUNNING, [*known(RUNNING), gives("b")]),
    "poisoned, only what is kept": (POISONED, [HI, HELLO]),
}


@pytest.mark.parametrize(("stored", "incoming"), REFUSED.values(), ids=REFUSED)
def test_what_no_run_can_go_on_with_is_refused(stored: Checkpoint | None, incoming: Sequence[Message]) -> None:
    """An input without a question, or one that would make an invalid transcript, is a configuration error."""
    refused = admit(stored, incoming, session_id="s")
    assert isinstance(refused, Refuse)
    assert isinstance(refused.error, ConfigurationError)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [(calls("a"), says("")), (gives("a"), gives("a", "other")), (gives("a"), gives("b")), (user(""), says(""))],
)
def test_messages_are_equal_by_role_content_and_call_id(theirs: Message, ours: Message) -> None:
    """A copy without tool calls is recognised; another content, role or call id is another message."""
    stored = checkpoint(HI, *([calls("a", "b"), gives("a")] if theirs == gives("a") else [theirs]), step=1)
    same = theirs == calls("a")
    lagging = (*stored.messages[:-1], ours, BYE)
    admission = admit(stored, lagging)
    assert (admission == resume(BYE)) is same


def test_a_string_is_one_user_message() -> None:
    """An input that is a string means the same as a list with one user message."""
    assert as_messages("hi") == (HI,)
    assert as_messages([HI, HELLO]) == (HI, HELLO)


def test_what_a_run_started_from() -> None:
    """The input of a run is the user messages after the last finished turn, queued or already in the transcript."""
    assert run_input(ACCEPTED) == run_input(RUNNING) == (MORE,)
    assert run_input(RUNNING.but(queued=(BYE,))) == (MORE,)
    assert run_input(DONE) == ()


@given(st.data())
def test_an_input_is_never_an_exception(data: st.DataObject) -> None:
    """Any input to any session is admitted or refused, and what is admitted makes a transcript that is in order."""
    stored = data.draw(st.none() | stored_checkpoints())
    incoming = data.draw(inputs(stored))
    match admit(stored, incoming, session_id="s"):
        case Start(keep, history, said):
            assert said
            assert stored is None or keep in (stored.committed, len(stored.messages))
            kept = stored.messages[:keep] if stored else ()
            assert first_fault((*kept, *history, *said)) is None
        case Resume(said):
            assert stored is not None
            assert stored.status is Status.IN_PROGRESS
            assert set(said) <= set(incoming)
        case Recorded():
            assert stored is not None
            assert stored.status is Status.FINISHED
        case Refuse(error):
            assert error.code in ("INPUT_INVALID", "SESSION_AWAITING_APPROVAL")


@given(stored_checkpoints(), st.lists(texts, min_size=1, max_size=2))
def test_a_client_that_sends_everything_says_only_what_is_new(stored: Checkpoint, new: list[str]) -> None:
    """The whole history with new user messages behind it means those messages, whatever the session is doing."""
    said = tuple(user(text) for text in new)
    admission = admit(stored, [*known(stored), *said])
    if stored.status is Status.AWAITING_APPROVAL:
        assert isinstance(admission, Refuse)
    elif stored.status is Status.FINISHED:
        assert admission == Start(len(stored.messages), (), said)
    elif not is_poisoned(stored):
        assert admission == Resume(said)


@given(transcripts(), texts)
def test_a_repeated_text_is_a_new_turn_of_a_finished_session(messages: Any, text: str) -> None:
    """A finished session takes any one user message as its next turn, also one that was said before."""
    stored = finished(HI, HELLO, *messages)
    assert admit(stored, [user(text)]) == Start(len(stored.messages), (), (user(text),))


@given(open_checkpoints(), st.integers(1, 3))
def test_pending_calls_come_before_the_model(stored: Checkpoint, max_steps: int) -> None:
    """A run first runs the calls without a result, in call order; then it asks the model while its budget lasts."""
    step = next_step(stored, Limits(max_steps=max_steps))
    turn = next((m for m in reversed(stored.messages) if m.role == "assistant"), None)
    answered = {m.tool_call_id for m in stored.messages if m.role == "tool"} | set(stored.results)
    missing = [] if turn is None or stored.step == 0 else [call for call in turn.tool_calls if call.id not in answered]
    if missing:
        assert step == RunCalls(tuple(missing))
        return
    assert step == (Finish(FinishReason.MAX_STEPS) if stored.step >= max_steps else CallModel())


def test_the_budget_is_looked_at_only_when_every_call_has_its_result() -> None:
    """A run at its last step still runs the calls of that step, and is over when they have settled."""
    assert next_step(RUNNING, Limits(max_steps=1)) == RunCalls(RUNNING.messages[3].tool_calls[1:])  # type: ignore[union-attr]
    assert next_step(settle(RUNNING, [gives("b")]), Limits(max_steps=1)) == Finish(FinishReason.MAX_STEPS)
    assert next_step(settle(RUNNING, [gives("b")]), Limits(max_steps=2)) == CallModel()
