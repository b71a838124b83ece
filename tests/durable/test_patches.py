"""What a patch changes about a checkpoint, and what it refuses."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable import ConfigurationError, Message, Patch, PatchedResult, SystemMessage, ToolCall
from durable.patches import patched
from durable.transcript import first_fault, pending_calls
from tests.support.transcripts import calls, checkpoint, finished, gives, json_values, open_checkpoints, says, user

AT_WORK = checkpoint(user("a task"), calls("deep"), agent="below")


def result(call_id: str, value: Any, **more: Any) -> Patch:
    return Patch(tool_result=PatchedResult(call_id, value, **more))


def test_nothing_is_changed_by_an_empty_patch() -> None:
    """A patch that says nothing gives the checkpoint itself."""
    stored = checkpoint(user("hi"), calls("a"))
    assert patched(stored, Patch()) is stored


def test_a_result_is_replaced_where_it_stands() -> None:
    """Position, call id and tool name stay, and so does everything after it."""
    stored = checkpoint(user("hi"), calls("a", "b"), gives("a"), gives("b"), says("done"))
    after = patched(stored, result("a", {"other": [1]}))
    assert after.messages == (*stored.messages[:2], gives("a", {"other": [1]}), *stored.messages[3:])


def test_a_result_that_waits_for_its_place_is_replaced_there() -> None:
    """A result that had settled before an earlier call's keeps waiting, with its new value."""
    stored = checkpoint(user("hi"), calls("a", "b"), results={"b": gives("b")})
    after = patched(stored, result("b", 7))
    assert (after.messages, after.results) == (stored.messages, {"b": gives("b", 7)})


def test_a_call_of_a_sub_agent_is_given_a_result() -> None:
    """A call that a sub-agent waits for, at any depth, gets its result there."""
    middle = checkpoint(user("a task"), calls("b"), agent="middle", suspended={"b": AT_WORK})
    stored = checkpoint(user("hi"), calls("a"), suspended={"a": middle})
    after = patched(stored, result("deep", 7))
    assert after.suspended["a"].suspended["b"].messages == (*AT_WORK.messages, gives("deep", 7))
    assert (after.messages, after.suspended["a"].messages) == (stored.messages, middle.messages)


def test_a_call_without_a_result_is_given_one() -> None:
    """It is recorded as if the call had given it, and what waited behind it follows, held back input included."""
    stored = checkpoint(user("hi"), calls("a", "b"), results={"b": gives("b")}, queued=(user("and?"),))
    after = patched(stored, result("a", None))
    assert after.messages == (*stored.messages, gives("a", None), gives("b"), user("and?"))
    assert (after.results, after.queued) == ({}, ())


@pytest.mark.parametrize("settled", [(), (gives("a"),)])
def test_a_patched_call_has_not_begun(settled: Sequence[Any]) -> None:
    """It leaves the calls that had begun, and a sub-agent that was paused in it is gone."""
    stored = checkpoint(
        user("hi"), calls("a", "b"), *settled, started=("a", "b"), suspended={"a": AT_WORK, "b": AT_WORK}
    )
    after = patched(stored, result("a", "x"))
    assert (after.started, after.suspended) == (("b",), {"b": AT_WORK})


@pytest.mark.parametrize("call_id", ["", "c", "A"])
def test_a_call_that_is_not_there_cannot_be_patched(call_id: str) -> None:
    """An unknown call id is the caller's mistake, and is named."""
    with pytest.raises(ConfigurationError, match="there is no call"):
        patched(checkpoint(user("hi"), calls("a", "b"), gives("a")), result(call_id, 1))


def test_an_error_may_be_the_result() -> None:
    """What the tool had said may also be that it failed."""
    after = patched(checkpoint(user("hi"), calls("a")), result("a", "down", is_error=True))
    assert after.messages[-1] == gives("a", "down").model_copy(update={"is_error": True})


@given(json_values)
def test_a_value_is_kept_as_json(value: Any) -> None:
    """State and result are any JSON value, the empty ones told apart."""
    after = patched(
        checkpoint(user("hi"), calls("a")), Patch(business_state=value, tool_result=PatchedResult("a", value))
    )
    assert (after.business_state, after.messages[-1].content) == (value, value)


def test_a_value_is_converted_once() -> None:
    """What has a JSON form is kept in it; what has none is refused, and the field is named."""
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    assert patched(checkpoint(), Patch(business_state={"at": moment})).business_state == {"at": "2030-01-01T00:00:00Z"}
    with pytest.raises(ConfigurationError, match="business_state"):
        patched(checkpoint(), Patch(business_state=object()))
    with pytest.raises(ConfigurationError, match="tool_result"):
        patched(checkpoint(user("hi"), calls("a")), result("a", object()))


def test_appended_input_is_sent_after_what_is_pending() -> None:
    """It is held back behind the open calls and behind input that was held back before."""
    stored = checkpoint(user("hi"), calls("a"), queued=(user("first"),))
    after = patched(stored, Patch(append_input="second"))
    assert (after.messages, after.queued) == (stored.messages, (user("first"), user("second")))
    assert patched(after, result("a", 1)).messages[-2:] == (user("first"), user("second"))


def test_patches_are_applied_in_order() -> None:
    """The result is looked for in the rewritten transcript, and the appended input comes last."""
    stored = checkpoint(user("hi"), calls("a"), gives("a"), says("done"))
    patch = Patch(
        messages=lambda messages: messages[:2],
        business_state={"n": 1},
        tool_result=PatchedResult("a", "new"),
        append_input="more",
    )
    after = patched(stored, patch)
    assert after.messages == (user("hi"), calls("a"), gives("a", "new"))
    assert (after.business_state, after.queued) == ({"n": 1}, (user("more"),))


# --- another transcript ----------------------------------------------------------------------------------------------


def test_a_transcript_is_given_or_made_of_the_old_one() -> None:
    """Messages may be a list or a function."""
    stored = checkpoint(user("hi"), says("hello"))
    new = [user("good day")]
    assert patched(stored, Patch(messages=new)).messages == tuple(new)
    assert patched(stored, Patch(messages=lambda old: [*old, user("more")])).messages == (
        *stored.messages,
        user("more"),
    )


TWICE = ToolCall(id="a", name="look")
WRONG: list[tuple[list[Message], str]] = [
    ([user("hi"), gives("a")], "does not answer"),
    ([user("hi"), calls("a", "b"), gives("b")], "does not answer"),
    ([calls("a"), user("hi")], "before the result"),
    ([calls("a"), gives("a"), calls("a")], "call ids"),
    ([calls("")], "call ids"),
    ([SystemMessage(content="be good"), user("hi")], "instructions belong to the agent"),
]


@pytest.mark.parametrize(("messages", "reason"), WRONG)
def test_a_transcript_that_no_provider_takes_is_refused(messages: list[Message], reason: str) -> None:
    """Results out of place, repeated call ids and system messages are the caller's mistake."""
    with pytest.raises(ConfigurationError, match=reason):
        patched(checkpoint(user("hi")), Patch(messages=messages))


def test_what_is_known_about_calls_that_are_gone_is_gone() -> None:
    """Results, starts and paused sub-agents of calls that the new transcript does not wait for are dropped."""
    stored = checkpoint(
        user("hi"),
        calls("a", "b"),
        results={"b": gives("b")},
        started=("a",),
        suspended={"a": AT_WORK},
        queued=(user("x"),),
    )
    after = patched(stored, Patch(messages=[user("hi"), calls("c", "b")]))
    assert (after.results, after.started, after.suspended) == ({"b": gives("b")}, (), {})
    gone = patched(stored, Patch(messages=[user("hi")]))
    assert (gone.results, gone.started) == ({}, ())


def test_finished_turns_end_where_the_new_transcript_parts_from_the_old() -> None:
    """`committed` is the last answer that both have, so that a turn that fails later is not cut back too far."""
    stored = finished(user("1"), says("one"), user("2"), says("two"), user("3"), says("three"))
    assert patched(stored, Patch(messages=lambda old: [*old[:5], says("other")])).committed == 4
    assert patched(stored, Patch(messages=lambda old: old[:3])).committed == 2
    assert patched(stored, Patch(messages=lambda old: [user("0"), *old])).committed == 0


@given(open_checkpoints(), st.integers(0, 20))
def test_any_beginning_of_a_transcript_can_be_gone_on_from(stored: Any, length: int) -> None:
    """However a transcript is cut, what comes out is in order once its open calls have results, or is refused."""
    try:
        after = patched(stored, Patch(messages=lambda old: old[:length]))
    except ConfigurationError:
        return
    open_calls = pending_calls(after)
    for call in open_calls:
        after = patched(after, result(call.id, 1))
    assert pending_calls(after) == ()
    assert first_fault(after.messages) is None
    assert first_fault(after.messages[: after.committed]) is None


def test_a_patch_does_not_show_what_it_says() -> None:
    """The repr names the parts that are there and none of their content."""
    secret = Patch(business_state={"k": "secret"}, append_input="secret", tool_result=PatchedResult("a", "secret"))
    assert "secret" not in repr(secret)
    assert "business_state" in repr(secret)
    assert repr(Patch()) == "<Patch nothing>"
