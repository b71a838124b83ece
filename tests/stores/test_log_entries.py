"""Checkpoints as log entries: what is written, and that a replay gives back what was saved."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable.messages import AssistantMessage, Conversational, ToolCall, ToolMessage, UserMessage
from durable.ports import Entry
from durable.records import AcceptedRequest, Checkpoint, Decision, FinishReason, LastError, Status, Usage
from stores import _replay
from stores._log import delta_body, reset_body
from stores._replay import Replay
from stores.contract.backend import START
from stores.contract.samples import checkpoint, result, turn, with_messages


def content(body: bytes | None) -> dict[str, Any]:
    assert body is not None
    return json.loads(body)


def replayed(bodies: list[tuple[str, bytes]]) -> Checkpoint:
    replay = Replay("session/s")
    for revision, (kind, body) in enumerate(bodies):
        replay.apply(Entry(revision, kind, 0, "save", START, body))  # type: ignore[arg-type]
    return replay.checkpoint()


def test_a_delta_holds_only_what_is_new() -> None:
    """A delta of a new turn is the turn and the fields that changed with it."""
    before = checkpoint(instructions="Be brief.", fingerprint={"v": 1})
    after = with_messages(before, turn("c1", "Let me look."), step=1, usage=Usage(model_calls=1))
    call = {"id": "c1", "name": "weather", "arguments": '{"city":"Oslo"}'}
    assert content(delta_body(after, before)) == {
        "v": 1,
        "fields": {"step": 1, "usage": {"model_calls": 1}},
        "messages": [{"role": "assistant", "content": "Let me look.", "tool_calls": [call]}],
    }


def test_nothing_new_is_next_to_nothing() -> None:
    """A delta without a change holds the format number alone."""
    same = checkpoint(results={"c": result("c")}, business_state={"a": 1})
    assert delta_body(same.but(revision=5), same) == b'{"v":1}'
    copy = Checkpoint.model_validate_json(same.model_dump_json())
    assert delta_body(copy, same) == b'{"v":1}'


def test_a_body_is_compact_and_always_the_same() -> None:
    """The bytes of a body have no blanks, keep the order of keys and are the same for the same checkpoint."""
    body = reset_body(checkpoint(business_state={"b": "é", "a": [1, 2.0]}))
    assert '"business_state":{"b":"é","a":[1,2.0]}'.encode() in body
    assert body == reset_body(checkpoint(business_state={"b": "é", "a": [1, 2.0]}))


def test_a_large_result_is_written_once_in_its_life() -> None:
    """A result that waits for an earlier call is written when it settles, and only named when its turn comes."""
    large = result("c2", "large " * 10_000)
    held = checkpoint("s", turn("c1"), turn("c2"))
    settled = held.but(results={"c2": large})
    both = with_messages(settled, result("c1"), large, results={})
    assert len(delta_body(settled, held) or b"") > 60_000
    first = {"role": "tool", "tool_call_id": "c1", "tool_name": "weather", "content": "4 degrees"}
    assert content(delta_body(both, settled)) == {
        "v": 1,
        "messages": [first, {"result": "c2"}],
        "keys": {"results": {"gone": ["c2"]}},
    }


def test_queued_input_is_written_once_in_its_life() -> None:
    """Input that was held back is only named when it moves into the transcript, and what stays queued is, too."""
    inputs = tuple(UserMessage(content=f"{number} " * 1000) for number in range(3))
    held = checkpoint("s", turn("c1")).but(queued=inputs)
    moved = with_messages(held, inputs[0], queued=inputs[1:])
    assert content(delta_body(moved, held)) == {
        "v": 1,
        "messages": [{"queued": 0}],
        "queued": [{"queued": 1}, {"queued": 2}],
    }
    assert replayed([("reset", reset_body(held)), ("delta", delta_body(moved, held) or b"")]).queued == inputs[1:]


@pytest.mark.parametrize("value", [0, False, "", [], {}, 0.0])
def test_a_value_that_python_takes_for_the_same_is_new(value: Any) -> None:
    """`0`, `False` and `0.0` are equal in Python and different in JSON: a change between them is written."""
    others: list[Any] = [0, False, "", [], {}, 0.0, None]
    for other in others:
        before = checkpoint("s", result("c", other), business_state=other, results={"d": result("d", other)})
        changed = before.but(business_state=value, results={"d": result("d", value)})
        same = repr(other) == repr(value)
        assert (content(delta_body(changed, before)) == {"v": 1}) == same
        replaced = before.but(messages=(result("c", value),))
        assert (delta_body(replaced, before) is not None) == same


def test_equal_messages_that_are_other_objects_are_not_written_again() -> None:
    """What is new is found by equality where objects are not shared: a checkpoint that went through JSON."""
    before = checkpoint("s", UserMessage(content="a"), turn("c1"), result("c1", {"a": [1, None]}))
    copy = Checkpoint.model_validate_json(before.model_dump_json())
    after = with_messages(copy, UserMessage(content="b"))
    assert content(delta_body(after, before)) == {"v": 1, "messages": [{"role": "user", "content": "b"}]}


@pytest.mark.parametrize("change", ["shorter", "other", "replaced"])
def test_a_transcript_that_does_not_extend_is_a_reset(change: str) -> None:
    """A transcript that was cut, compacted or patched has no delta."""
    before = checkpoint("s", UserMessage(content="a"), turn("c1"), result("c1"))
    messages = {
        "shorter": before.messages[:-1],
        "other": (UserMessage(content="summary"), *before.messages[1:]),
        "replaced": (*before.messages[:-1], result("c1", "5 degrees"), UserMessage(content="b")),
    }[change]
    assert delta_body(before.but(messages=messages), before) is None


def test_every_message_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay of many deltas, with a checkpoint taken after each, parses each message a single time."""
    parsed = 0

    @dataclass
    class Counting:
        adapter: Any

        def validate_python(self, messages: list[Any]) -> Any:
            nonlocal parsed
            parsed += len(messages)
            return self.adapter.validate_python(messages)

    monkeypatch.setattr(_replay, "_messages", Counting(_replay._messages))
    held = checkpoint()
    replay = Replay("session/s")
    replay.apply(Entry(0, "reset", 0, "save", START, reset_body(held)))
    for number in range(1, 200):
        now = with_messages(held, turn(f"c{number}"))
        replay.apply(Entry(number, "delta", 0, "save", START, delta_body(now, held) or b""))
        assert len(replay.checkpoint().messages) == number + 1
        held = now
    assert parsed == 200


# --- a random walk ---------------------------------------------------------------------------------------------------

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
calls = st.builds(ToolCall, id=names, name=names, arguments=names, provider_id=st.none() | names)
tool_messages = st.builds(ToolMessage, tool_call_id=names, tool_name=names, content=values, is_error=st.booleans())
user_messages = st.builds(UserMessage, content=names)
turns = st.builds(AssistantMessage, content=names, tool_calls=st.lists(calls, max_size=2).map(tuple))
messages: st.SearchStrategy[Conversational] = st.one_of(user_messages, turns, tool_messages)
decisions = st.builds(
    Decision,
    approval_id=names,
    approved=st.booleans(),
    args=st.none() | st.dictionaries(names, values, max_size=2),
    decided_at=st.just(START),
)
accepted = st.builds(AcceptedRequest, digest=names, run_id=names, answer=st.none() | st.integers(0, 9))

FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "run_id": names,
    "status": st.sampled_from(Status),
    "finish_reason": st.none() | st.sampled_from(FinishReason),
    "step": st.integers(0, 3),
    "started": st.lists(names, max_size=2).map(tuple),
    "usage": st.builds(Usage, model_calls=st.integers(0, 2)),
    "business_state": values,
    "instructions": st.none() | names,
    "approval_id": st.none() | names,
    "fingerprint": st.none() | st.dictionaries(names, values, max_size=2),
    "run_config": st.none() | st.dictionaries(names, values, max_size=2),
    "last_error": st.none() | st.builds(LastError, code=names, message=names, at=st.just(START)),
    "results": st.dictionaries(names, tool_messages, max_size=3),
    "decisions": st.dictionaries(names, decisions, max_size=2),
    "suspended": st.dictionaries(names, st.deferred(lambda: states), max_size=2),
    "requests": st.dictionaries(names, accepted, max_size=3),
    "queued": st.lists(user_messages, max_size=3).map(tuple),
}


@st.composite
def _states(draw: st.DrawFn) -> Checkpoint:
    """The state of a sub-agent, which may have others below it."""
    chosen = draw(st.lists(st.sampled_from(sorted(FIELDS)), max_size=2, unique=True))
    made = checkpoint(None, *draw(st.lists(messages, max_size=2)), agent=draw(names), run_id="")
    return made.but(**{name: draw(FIELDS[name]) for name in chosen})


states = _states()


@st.composite
def changes(draw: st.DrawFn, now: Checkpoint) -> Checkpoint:
    """Draw what a run may do next: grow the transcript, also by what waits, change fields, replace the transcript.

    Each of them may as well happen inside a sub-agent, at any depth.
    """
    match draw(
        st.sampled_from(["grow", "move", "fields", "keys", "replace", *(["inside"] * 3 if now.suspended else [])])
    ):
        case "inside":
            key = draw(st.sampled_from(sorted(now.suspended)))
            return now.but(suspended={**now.suspended, key: draw(changes(now.suspended[key]))})
        case "grow":
            return with_messages(now, *draw(st.lists(messages, max_size=3)))
        case "move":
            waiting = [*now.results.values(), *now.queued]
            moved = draw(st.lists(st.sampled_from(waiting), max_size=2)) if waiting else []
            keys = [message.tool_call_id for message in moved if isinstance(message, ToolMessage)]
            return with_messages(
                now,
                *moved,
                results={key: value for key, value in now.results.items() if key not in keys},
                queued=tuple(message for message in now.queued if message not in moved),
            )
        case "keys":
            name = draw(st.sampled_from(["results", "decisions", "suspended", "requests"]))
            items = dict(getattr(now, name))
            for key in draw(st.lists(st.sampled_from(sorted(items)), max_size=2)) if items else []:
                items.pop(key, None)
            return now.but(**{name: items | draw(FIELDS[name])})
        case "replace":
            return now.but(messages=tuple(draw(st.lists(messages, max_size=2))))
        case _:
            chosen = draw(st.lists(st.sampled_from(sorted(FIELDS)), max_size=4, unique=True))
            return now.but(**{name: draw(FIELDS[name]) for name in chosen})


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_replay_gives_what_was_saved(data: st.DataObject) -> None:
    """After any sequence of changes, the replay of what was written is the checkpoint, byte for byte as JSON."""
    held = checkpoint()
    bodies = [("reset", reset_body(held))]
    for _ in range(data.draw(st.integers(0, 8))):
        now = data.draw(changes(held))
        delta = delta_body(now, held)
        bodies.append(("delta", delta) if delta is not None else ("reset", reset_body(now)))
        held = now
        expected = held.but(revision=len(bodies) - 1)
        assert replayed(bodies).model_dump_json() == expected.model_dump_json()


def test_what_a_sub_agent_does_is_written_once() -> None:
    """Two levels down, 80 steps of 200 bytes each take what they are, and no step is written again with a later one."""

    def lead_of(worker: Checkpoint) -> Checkpoint:
        return checkpoint(suspended={"c1": checkpoint(None, agent="middle", suspended={"c2": worker})})

    worker = checkpoint(None, agent="worker", business_state="x" * 50_000)
    held, written = lead_of(worker), [("reset", reset_body(lead_of(worker)))]
    for step in range(80):
        worker = with_messages(worker, AssistantMessage(content=f"{step:0>200}"), step=step + 1)
        now = lead_of(worker)
        body = delta_body(now, held)
        assert body is not None
        assert len(body) < 400
        written.append(("delta", body))
        held = now
    assert replayed(written) == held.but(revision=80)


def test_a_sub_agent_that_another_one_replaced_is_written_whole() -> None:
    """A state that does not go on from the one before is written anew, and the old one is gone."""
    before = checkpoint(suspended={"c": checkpoint(None, UserMessage(content="one"), agent="a")})
    after = checkpoint(suspended={"c": checkpoint(None, UserMessage(content="two"), agent="b")})
    delta = delta_body(after, before)
    assert content(delta)["keys"]["suspended"]["set"].keys() == {"c"}
    assert delta is not None
    assert replayed([("reset", reset_body(before)), ("delta", delta)]) == after.but(revision=1)
