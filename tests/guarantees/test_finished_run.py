"""Finished run (`finished`). The session continues as a conversation.

The stored messages are kept and `input` becomes the next user turn. Pass only the new message(s); if you re-send the
stored history followed by new messages, the history is recognised and not duplicated. `steps`, `usage` and `tool_calls`
on the result count from zero for the new run; `messages` is the whole conversation.
"""

from typing import Any

import pytest

from durable import SystemMessage
from tests.support.runs import Clock, fresh_agent, memory_store, run
from tests.support.sessions import asked, look, stored, texts
from tests.support.transcripts import user

ANSWERS = [("look", {}), "one", "two"]
FIRST = ["go", "", "IT", "one"]


def session() -> Any:
    store = memory_store(clock=Clock())
    run(fresh_agent(ANSWERS, [look], store).send("go", session_id="s"))
    return store


INPUTS = {
    "only the new message": lambda store: "more",
    "a list": lambda store: [user("more")],
    "the whole history and the new message": lambda store: [*stored(store).messages, user("more")],
    "with a system message": lambda store: [SystemMessage(content="x"), *stored(store).messages, user("more")],
}


@pytest.mark.parametrize("input", INPUTS.values(), ids=INPUTS)
def test_the_input_is_the_next_turn(input: Any) -> None:
    """However it is sent, what is new is the next turn, and the model sees the whole conversation once."""
    store = session()
    agent = fresh_agent(ANSWERS, [look], store)
    result = run(agent.send(input(store), session_id="s"))
    assert texts(result.messages) == [*FIRST, "more", "two"]
    assert texts(agent.provider.requests[0].messages) == [*FIRST, "more"]  # type: ignore[union-attr]


def test_counts_are_those_of_the_new_run() -> None:
    """Steps, usage and tool calls count from zero, and the run has an id of its own."""
    store = session()
    first = stored(store)
    result = run(fresh_agent(ANSWERS, [look], store, ids=lambda: "second").send("more", session_id="s"))
    assert (first.step, first.usage.model_calls) == (2, 2)
    assert (result.steps, result.usage.model_calls, result.tool_calls, result.run_id) == (1, 1, 0, "second")
    assert (stored(store).turns, stored(store).committed) == (2, 6)


def test_several_messages_are_one_turn() -> None:
    """New messages that come together are answered together."""
    store = session()
    result = run(fresh_agent(ANSWERS, [look], store).send([user("more"), user("and more")], session_id="s"))
    assert texts(result.messages)[4:] == ["more", "and more", "two"]


def test_saying_the_same_is_a_new_turn() -> None:
    """A finished session does not take a repeated text for a retry."""
    store = session()
    assert run(fresh_agent(ANSWERS, [look], store).send("go", session_id="s")).text == "two"


@pytest.mark.parametrize("input", [lambda store: [], lambda store: stored(store).messages])
def test_nothing_new_gives_the_recorded_result(input: Any) -> None:
    """Where nothing is new, nothing runs: the result is given again."""
    store = session()
    agent = fresh_agent(ANSWERS, [look], store)
    again = run(agent.send(input(store), session_id="s"))
    assert (again.text, again.steps, again.tool_calls, asked(agent)) == ("one", 2, 1, 0)
