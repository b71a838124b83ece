"""A checkpointed model turn is never generated again.

If the process dies after the model answered, the resumed run executes that answer's tool calls instead of asking the
model again (no extra cost, no different plan).
"""

from typing import Any

import pytest

from durable import AssistantMessage, ModelTurn, ToolCall, Usage
from tests.support.runs import Clock, Crash, fresh_agent, memory_store, run
from tests.support.sessions import asked, crashes, dying, look, pay, results, stored, to_the_end


def turn(name: str, tokens: int) -> ModelTurn:
    message = AssistantMessage(tool_calls=(ToolCall(id="", name="look", arguments=f'{{"what": "{name}"}}'),))
    return ModelTurn(message=message, usage=Usage(model_calls=1, input_tokens=tokens))


def test_the_plan_that_was_saved_is_carried_out() -> None:
    """A model that would answer otherwise now is not asked about the turn that is there."""
    store = memory_store(clock=Clock())
    crashes(fresh_agent([turn("first plan", 10)], [look], dying(store, 0)).send("go", session_id="s"))
    agent = fresh_agent([turn("another plan", 500), "done"], [look], store)
    result = run(agent.send("go", session_id="s"))
    assert (results(result.messages), asked(agent)) == (["FIRST PLAN"], 1)


def test_it_costs_nothing_again() -> None:
    """The usage of the whole run is what an uninterrupted one takes."""
    answers = [turn("a", 10), turn("b", 20), "done"]
    whole = run(fresh_agent(answers, [look], memory_store(clock=Clock())).send("go", session_id="s"))
    for at in range(4):
        store = memory_store(clock=Clock())
        crashes(fresh_agent(answers, [look], dying(store, at)).send("go", session_id="s"))
        result = run(fresh_agent(answers, [look], store).send([], session_id="s"))
        assert (result.usage, result.steps) == (whole.usage, whole.steps)


def try_once(agent: Any) -> None:
    try:
        to_the_end(agent)
    except Crash:
        return


@pytest.mark.parametrize("at", range(10))
def test_wherever_the_process_dies(at: int) -> None:
    """Each position of the conversation is asked about once by all processes together, if its answer was saved."""
    answers = [("look", {}), [("pay", {}), ("look", {})], ("look", {}), "done"]
    store = memory_store(clock=Clock())
    first = fresh_agent(answers, [look, pay], dying(store, at), tool_concurrency=1)
    try_once(first)
    saved = sum(message.role == "assistant" for message in stored(store).messages)
    second = fresh_agent(answers, [look, pay], store, tool_concurrency=1)
    to_the_end(second)
    positions = [sum(m.role == "assistant" for m in request.messages) for request in second.provider.requests]  # type: ignore[union-attr]
    assert positions == list(range(saved, 4))
