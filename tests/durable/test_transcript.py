"""Results settle in any order, the transcript keeps call order, and every call has an id of its own."""

from itertools import count, permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable import AssistantMessage, ToolCall
from durable.transcript import call_ids, first_fault, name_calls, open_turn, pending_calls, settle
from tests.support.runs import numbered
from tests.support.transcripts import calls, checkpoint, gives, open_checkpoints, says, texts, transcripts, user

IDS = ("a", "b", "c")


@pytest.mark.parametrize("order", list(permutations(IDS)))
def test_results_join_the_transcript_in_call_order(order: tuple[str, ...]) -> None:
    """In whichever order the results settle, the transcript shows them in the order of their calls."""
    run = checkpoint(user("hi"), calls(*IDS), step=1)
    for settled in order:
        run = settle(run, [gives(settled, settled)])
    assert run.messages[2:] == tuple(gives(id, id) for id in IDS)
    assert run.results == {}


def test_a_result_that_waits_for_an_earlier_one_is_kept_apart() -> None:
    """A result whose predecessor is missing is kept by call id, and joins with the predecessor."""
    waiting = settle(checkpoint(user("hi"), calls(*IDS)), [gives("b"), gives("c")])
    assert len(waiting.messages) == 2
    assert list(waiting.results) == ["b", "c"]
    assert [call.id for call in pending_calls(waiting)] == ["a"]
    assert settle(waiting, [gives("a")]).messages[2:] == (gives("a"), gives("b"), gives("c"))


def test_held_back_input_follows_the_last_result() -> None:
    """Queued input stays behind the pending calls and follows the last of their results, once."""
    run = checkpoint(user("hi"), calls("a", "b"), queued=(user("more"),))
    half = settle(run, [gives("a")])
    assert (half.messages[-1], half.queued) == (gives("a"), (user("more"),))
    whole = settle(half, [gives("b")])
    assert (whole.messages[-2:], whole.queued) == ((gives("b"), user("more")), ())


def test_a_settled_call_has_not_started_any_more() -> None:
    """What settles leaves `started`, also when it waits for an earlier result; the others stay."""
    run = checkpoint(user("hi"), calls(*IDS), started=IDS)
    assert settle(run, [gives("c")]).started == ("a", "b")
    assert settle(run, [gives("a"), gives("c")]).started == ("b",)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ((), (None, 0)),
        ((user("hi"),), (None, 0)),
        ((user("hi"), says("yes")), (says("yes"), 0)),
        ((user("hi"), calls("a", "b"), gives("a")), (calls("a", "b"), 1)),
        ((user("hi"), calls("a"), gives("a"), user("more")), (None, 0)),
    ],
)
def test_the_open_turn_is_the_last_one_that_only_results_follow(messages: Any, expected: Any) -> None:
    """A turn is open until user input follows it, and as many of its calls are answered as results follow it."""
    assert open_turn(messages) == expected


@given(open_checkpoints(), st.data())
def test_any_way_to_settle_gives_the_same_transcript(run: Any, data: st.DataObject) -> None:
    """However the missing results are grouped and ordered, the end is the same and in order for every provider."""
    missing = [gives(call.id, data.draw(texts)) for call in pending_calls(run)]
    if not missing:
        return
    at_once = settle(run, missing)
    left = list(data.draw(st.permutations(missing)))
    while left:
        size = data.draw(st.integers(1, len(left)))
        run = settle(run, left[:size])
        left = left[size:]
        assert {call.id for call in pending_calls(run)} == {result.tool_call_id for result in left}
    assert run.messages == at_once.messages
    assert (run.queued, run.results, run.started) == ((), {}, ())
    assert first_fault(run.messages) is None


@given(transcripts(), st.data())
def test_a_transcript_in_order_has_no_fault(messages: Any, data: st.DataObject) -> None:
    """A transcript with every result in its place has no fault; with one result missing, moved or doubled it has."""
    assert first_fault(messages) is None
    results = [index for index, message in enumerate(messages) if message.role == "tool"]
    if not results:
        return
    at = data.draw(st.sampled_from(results))
    without = [*messages[:at], *messages[at + 1 :]]
    assert first_fault(without) is not None
    assert first_fault([*without, messages[at]]) is not None
    assert first_fault([*messages[: at + 1], *messages[at:]]) is not None


@pytest.mark.parametrize(
    "messages",
    [
        [gives("a")],
        [calls("a")],
        [calls("a"), user("hi"), gives("a")],
        [calls("a", "b"), gives("b"), gives("a")],
        [calls("a"), gives("a"), gives("a")],
        [calls("a"), says("hello")],
    ],
)
def test_a_fault_is_named_without_showing_what_was_said(messages: Any) -> None:
    """A result without its call, a call without result and a wrong order are faults; the reason shows no content."""
    fault = first_fault(messages)
    assert fault
    assert "hi" not in fault.split()
    assert "hello" not in fault


@pytest.mark.parametrize(
    ("provided", "taken", "named"),
    [
        (["a", "b"], set(), [("a", None), ("b", None)]),
        (["a", "a"], set(), [("a", None), ("call_id1", "a")]),
        (["a"], {"a"}, [("call_id1", "a")]),
        ([""], set(), [("call_id1", None)]),
        (["", "", "a"], set(), [("call_id1", None), ("call_id2", None), ("a", None)]),
    ],
)
def test_a_call_keeps_the_providers_id_where_it_can(provided: Any, taken: set[str], named: Any) -> None:
    """An id that is empty or not new in the session is replaced by one of ours; the provider's is kept beside it."""
    message = name_calls(calls(*provided), taken=taken, ids=numbered())
    assert [(call.id, call.provider_id) for call in message.tool_calls] == named
    assert {id for id, _ in named} <= taken


def test_naming_changes_nothing_but_ids() -> None:
    """Names, argument texts and the content of the turn stay as the model wrote them."""
    turn = AssistantMessage(content="so", tool_calls=(ToolCall(id="", name="look", arguments='{"a": '),))
    [call] = name_calls(turn, taken=set(), ids=numbered()).tool_calls
    assert (call.name, call.arguments) == ("look", '{"a": ')
    assert name_calls(says("no calls"), taken=set(), ids=numbered()) == says("no calls")


@given(st.lists(st.lists(st.sampled_from(["", "x", "y", "z"]), max_size=5), max_size=4))
def test_ids_are_unique_in_the_session(turns: list[list[str]]) -> None:
    """Whatever ids a provider gives over several turns, no two calls of the session have the same one."""
    taken: set[str] = set()
    ids = count()
    named = [name_calls(calls(*turn), taken=taken, ids=lambda: str(next(ids))) for turn in turns]
    assert len(call_ids(named)) == sum(map(len, turns))
    assert call_ids(named) == taken
