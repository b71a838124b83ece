"""Comparing runs: what counts as a difference, where it is found, and how it reads."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable import (
    AssistantMessage,
    Comparison,
    Drift,
    FinishReason,
    ToolCall,
    ToolMessage,
    Usage,
    compare_trajectories,
    render_comparison,
)
from durable.trajectory import CallStep, steps_of
from tests.support.transcripts import calls, checkpoint, finished, gives, json_values, says, transcripts, user


def call(arguments: str, id: str = "a", name: str = "look") -> AssistantMessage:
    return AssistantMessage(tool_calls=(ToolCall(id=id, name=name, arguments=arguments),))


def fields(comparison: Comparison) -> list[str]:
    return [row.field for row in comparison.drift]


# --- steps -----------------------------------------------------------------------------------------------------------


def test_a_step_is_a_model_turn_with_the_results_of_its_calls() -> None:
    """Text, tools, parsed arguments and results, one step for each model turn; user input is no step."""
    turn = AssistantMessage(content="Let me see.", tool_calls=(ToolCall(id="a", name="look", arguments='{"x": 1}'),))
    one, two = steps_of([user("hi"), turn, gives("a", [1]), says("done")])
    assert (one.text, two.text, two.calls) == ("Let me see.", "done", ())
    [made] = one.calls
    assert (made.tool, made.arguments) == ("look", {"x": 1})
    assert made.outcome is not None
    assert (made.outcome.content, made.outcome.is_error) == ([1], False)


def test_results_that_wait_for_their_place_count() -> None:
    """A checkpoint's settled results are shown with their calls, and a call without a result has none."""
    [step] = steps_of(checkpoint(user("hi"), calls("a", "b"), results={"b": gives("b", 0)}))
    assert [made.outcome and made.outcome.content for made in step.calls] == [None, 0]


@pytest.mark.parametrize(
    ("text", "arguments"),
    [("", {}), (" ", {}), ("null", {}), ("{}", {}), ("{", "{"), ("[1]", "[1]"), ('{"x": NaN}', '{"x": NaN}')],
)
def test_arguments_are_parsed_or_stand_as_written(text: str, arguments: Any) -> None:
    """Nothing means no arguments; what is no JSON object stays the model's text."""
    [step] = steps_of([call(text)])
    assert step.calls == (CallStep("look", arguments),)


def test_very_deep_arguments_stand_as_written() -> None:
    """Text that no parser takes is compared as text."""
    deep = "[" * 100_000
    assert steps_of([call(deep)])[0].calls[0].arguments == deep


# --- what differs ----------------------------------------------------------------------------------------------------


@given(transcripts())
def test_a_run_is_equal_to_itself(messages: Any) -> None:
    """No difference is found between a transcript and itself, nor between two checkpoints of it."""
    comparison = compare_trajectories(messages, messages)
    assert (comparison.diverged_at, comparison.drift) == (None, ())
    ended = finished(*messages)
    assert compare_trajectories(ended, ended).drift == ()


@given(transcripts())
def test_ids_are_left_aside(messages: Any) -> None:
    """Two runs that differ in their call ids alone are the same."""
    text = json.dumps([message.model_dump() for message in messages])
    other = json.loads(text.replace('id": "', 'id": "other-'))
    read = {"user": type(user("")), "assistant": AssistantMessage, "tool": ToolMessage}
    renamed = [read[message["role"]].model_validate(message) for message in other]
    assert compare_trajectories(messages, renamed).diverged_at is None


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ('{"x": 1, "y": [2]}', '{"y":[2],"x":1}', True),
        ("", "{}", True),
        ("null", "{}", True),
        ('{"x": 1}', '{"x": 2}', False),
        ('{"x": 1}', '{"x": true}', False),
        ('{"x": 1}', '{"x": "1"}', False),
        ('{"x": [1, 2]}', '{"x": [2, 1]}', False),
        ("{", "{}", False),
        ("{", "{", True),
    ],
)
def test_arguments_are_compared_as_json(a: str, b: str, same: bool) -> None:
    """The order of keys and blanks mean nothing; types and the order of lists mean something."""
    comparison = compare_trajectories([call(a)], [call(b, id="other")])
    assert (comparison.diverged_at, fields(comparison)) == ((None, []) if same else (1, ["args"]))


@given(json_values, json_values)
def test_results_are_compared_as_json(a: Any, b: Any) -> None:
    """Two results are the same when their JSON is."""
    comparison = compare_trajectories([calls("a"), gives("a", a)], [calls("a"), gives("a", b)])
    assert (comparison.diverged_at is None) == (json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True))
    assert comparison.drift == ()


@given(transcripts(), st.data())
def test_the_first_step_that_differs_is_named(messages: Any, data: st.DataObject) -> None:
    """Whatever comes after it, runs part at the first step that is not the same."""
    turns = [at for at, message in enumerate(messages) if isinstance(message, AssistantMessage)]
    if not turns:
        return
    number = data.draw(st.integers(1, len(turns)))
    at = turns[number - 1]
    changed = messages[at].model_copy(update={"content": messages[at].content + "!"})
    comparison = compare_trajectories(messages, [*messages[:at], changed, *messages[at + 1 :]])
    assert comparison.diverged_at == number
    assert compare_trajectories(messages, messages[:at]).diverged_at == number


def test_a_result_that_is_an_error_is_another_result() -> None:
    """The same content as a failure and as a success are two things, and so are a result and none."""
    failed = gives("a").model_copy(update={"is_error": True})
    assert compare_trajectories([calls("a"), gives("a")], [calls("a"), failed]).diverged_at == 1
    assert compare_trajectories([calls("a"), gives("a", None)], [calls("a")]).diverged_at == 1


def test_drift_says_what_has_changed_over_all() -> None:
    """Tools in order, arguments by place, steps, finish reason and tokens, each with both values."""
    one = finished(
        user("hi"), call('{"x": 1}'), gives("a"), says("done"), usage=Usage(input_tokens=10, output_tokens=5)
    )
    other = finished(
        user("hi"),
        call('{"x": 2}', id="b"),
        gives("b"),
        calls("c", name="pay"),
        gives("c"),
        says("done"),
        finish_reason=FinishReason.LENGTH,
        usage=Usage(input_tokens=20, output_tokens=5),
    )
    comparison = compare_trajectories(one, other)
    assert comparison.diverged_at == 1
    assert comparison.drift == (
        Drift("tools", ["look"], ["look", "pay"]),
        Drift(
            "args",
            {"step": 1, "tool": "look", "arguments": {"x": 1}},
            {"step": 1, "tool": "look", "arguments": {"x": 2}},
        ),
        Drift("steps", 2, 3),
        Drift("finish_reason", "stop", "length"),
        Drift("tokens", 15, 25),
    )


def test_transcripts_have_no_finish_reason_and_no_tokens() -> None:
    """Between transcripts, or a checkpoint and a transcript, only what both have is compared."""
    one = finished(says("done"), usage=Usage(input_tokens=10))
    assert compare_trajectories(one, [says("done")]).drift == ()


# --- how it reads ----------------------------------------------------------------------------------------------------


def test_a_comparison_reads_like_a_diff() -> None:
    """Equal steps are left out but for the one before, and lines that only one run has are marked."""
    before = [user("hi"), calls("a"), gives("a"), calls("b"), gives("b")]
    one = [*before, calls("c", "d"), gives("c", 1), gives("d", {"y": 1, "x": None}), says("It is 1.")]
    other = [*before, calls("c", "d"), gives("c", 2), gives("d", {"x": None, "y": 1}), calls("e")]
    text = render_comparison(compare_trajectories(one, other), a="trip", b="trip.fork-1")
    assert text.splitlines() == [
        "--- trip",
        "+++ trip.fork-1",
        "@@ step 1: the same @@",
        "@@ step 2 @@",
        '  look({}) -> "ok"',
        "@@ step 3, where they part @@",
        "- look({}) -> 1",
        "+ look({}) -> 2",
        '  look({}) -> {"x": null, "y": 1}',
        "@@ step 4 @@",
        '- says "It is 1."',
        "+ look({}) has no result",
        "@@ what has changed @@",
        '  tools: ["look", "look", "look", "look"] -> ["look", "look", "look", "look", "look"]',
    ]


def test_equal_runs_are_said_to_be_equal() -> None:
    """A comparison without a difference says so."""
    text = render_comparison(compare_trajectories([says("hi")], [says("hi")]))
    assert text == '--- a\n+++ b\n@@ step 1 @@\n  says "hi"\n@@ every step is the same @@\n'
    assert render_comparison(compare_trajectories([], [])).endswith("@@ every step is the same @@\n")


def test_a_long_line_is_cut_and_still_told_apart() -> None:
    """Two long values that differ only at their ends do not read the same."""
    one, other = ("x" * 5_000 + end for end in "ab")
    text = render_comparison(compare_trajectories([says(one)], [says(other)]))
    minus, plus = (line for line in text.splitlines() if line.startswith(("- ", "+ ")))
    assert "(5,008 characters, " in minus
    assert minus[2:] != plus[2:]
    assert max(map(len, text.splitlines())) < 220


@given(transcripts(), transcripts())
def test_any_comparison_is_json_and_lines(a: Any, b: Any) -> None:
    """Every comparison can be sent as JSON, and none of its lines is broken by what was said."""
    comparison = compare_trajectories(a, b)
    shown = json.loads(json.dumps(comparison.to_json()))
    assert (shown["diverged_at"], len(shown["a"]), len(shown["b"])) == (
        comparison.diverged_at,
        len(comparison.a),
        len(comparison.b),
    )
    lines = render_comparison(comparison).split("\n")
    assert all(line[:2] in ("--", "++", "@@", "- ", "+ ", "  ", "") for line in lines)


def test_a_pending_call_has_no_result_in_json() -> None:
    """No result and the result null are told apart."""
    pending, null = (
        compare_trajectories(m, m).to_json()["a"][0]["calls"][0] for m in ([calls("a")], [calls("a"), gives("a", None)])
    )
    assert "result" not in pending
    assert (null["result"], null["is_error"]) == (None, False)
