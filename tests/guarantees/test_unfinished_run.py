"""Unfinished run (`in-progress`: it crashed, was aborted, or a store write failed). The run resumes.

If its last model turn has tool calls without a result, exactly those calls run first, through the normal tool path
(argument validation, hooks, `needs_approval`, `tool_concurrency`), without calling the model again. Then the loop
continues, with the remaining `max_steps` budget; `usage` continues from the checkpointed totals. New input is appended
as a user message after those tool results. Input that re-sends the message the run started from is a retry and is not
appended again. `input=[]` also just resumes.
"""

from typing import Any

import pytest

from durable import FinishReason, Hooks, StoreRejectedError, ToolContext, tool
from tests.support.runs import Clock, Stores, fresh_agent, memory_store, run
from tests.support.sessions import (
    FailingCheckpoints,
    asked,
    crashes,
    dying,
    look,
    pay,
    recorder,
    results,
    signal_after,
    stored,
    texts,
)

ANSWERS = [[("look", {"what": name}) for name in "abc"], "done"]


def crashed() -> Any:
    """A session whose process died with one of three results."""
    store = memory_store(clock=Clock())
    crashes(fresh_agent(ANSWERS, [look], dying(store, 1), tool_concurrency=1).send("go", session_id="s"))
    return store


def aborted() -> Any:
    store = memory_store(clock=Clock())
    agent = fresh_agent(ANSWERS, [look], store, tool_concurrency=1)
    run(agent.send("go", session_id="s", **signal_after(5)))
    return store


def failed() -> Any:
    store = memory_store(clock=Clock())
    failing = FailingCheckpoints(store.checkpoints, lambda: StoreRejectedError("PutItem", "no"), [1, 2])
    agent = fresh_agent(ANSWERS, [look], Stores(failing, store.approvals), tool_concurrency=1)
    with pytest.raises(StoreRejectedError):
        run(agent.send("go", session_id="s"))
    return store


@pytest.mark.parametrize("interrupted", [crashed, aborted, failed])
@pytest.mark.parametrize(("input", "tail"), [("go", []), ([], []), ("and?", ["and?"])])
def test_it_resumes(interrupted: Any, input: Any, tail: list[str]) -> None:
    """A retry and an empty input resume, anything else is said after the results; the model is asked once."""
    store = interrupted()
    agent = fresh_agent(ANSWERS, [look], store)
    result = run(agent.send(input, session_id="s"))
    assert (result.text, asked(agent)) == ("done", 1)
    assert results(result.messages) == (["A", "not-run", "not-run"] if interrupted is aborted else ["A", "B", "C"])
    assert texts(result.messages)[5:] == [*tail, "done"]


def test_exactly_the_calls_without_a_result_run_first() -> None:
    """Before the model is asked, the missing calls run, and only they."""
    ran: list[str] = []

    @tool(name="look")
    def looking(what: str, ctx: ToolContext) -> str:
        assert asked(agent) == 0
        ran.append(what)
        return what

    agent = fresh_agent(ANSWERS, [looking], crashed())
    run(agent.send([], session_id="s"))
    assert sorted(ran) == ["b", "c"]


def test_they_run_through_the_normal_path() -> None:
    """Validation, hooks, the approval policy and the concurrency limit hold for resumed calls as for any other."""
    running: list[int] = [0, 0]
    hooked: list[str] = []

    @tool
    async def work(name: str) -> str:
        running[0] += 1
        running[1] = max(running)
        running[0] -= 1
        return name

    gated = tool(name="gated", needs_approval=lambda arguments, context: arguments["amount"] > 5)(gated_function)
    calls = [("work", {"name": "a"}), ("work", {"nam": "b"}), ("work", {"name": "c"}), ("gated", {"amount": 3})]
    answers = [[*calls, ("gated", {"amount": 7})], "done"]
    store = memory_store(clock=Clock())
    crashes(fresh_agent(answers, [work, gated], dying(store, 0)).send("go", session_id="s"))
    hooks = Hooks(before_tool=lambda call, arguments, context: hooked.append(call.id))
    agent = fresh_agent(answers, [work, gated], store, hooks=hooks, tool_concurrency=1)
    paused = run(agent.send([], session_id="s"))
    assert (paused.finish_reason, running[1]) == (FinishReason.AWAITING_APPROVAL, 1)
    assert results(paused.messages) == ["a", "validation", "c", 3]
    assert hooked == ["call_0_0", "call_0_2", "call_0_3", "call_0_4"]
    assert stored(store).approval_id is not None


def gated_function(amount: int) -> int:
    return amount


def test_the_budget_is_what_remains() -> None:
    """Steps and usage of the run before the interruption count."""
    answers = [("look", {}), ("look", {}), ("look", {}), "done"]
    whole = run(fresh_agent(answers, [look], memory_store(clock=Clock()), max_steps=2).send("go", session_id="s"))
    for at in range(3):
        store = memory_store(clock=Clock())
        crashes(fresh_agent(answers, [look], dying(store, at), max_steps=2).send("go", session_id="s"))
        result = run(fresh_agent(answers, [look], store, max_steps=2).send([], session_id="s"))
        assert (result.finish_reason, result.steps, result.usage) == (FinishReason.MAX_STEPS, 2, whole.usage)


def test_the_budget_remains_after_an_approval() -> None:
    """The same holds for `resume_after_approval`."""
    answers = [("pay", {}), ("look", {}), "done"]
    store = memory_store(clock=Clock())
    paused = run(fresh_agent(answers, [look, pay], store, max_steps=2).send("go", session_id="s"))
    result = run(
        fresh_agent(answers, [look, pay], store, max_steps=2).approvals.resolve(paused.approval_id, approved=True)
    )
    assert (result.finish_reason, result.steps, result.usage.model_calls) == (FinishReason.MAX_STEPS, 2, 2)


def test_a_user_interrupts_and_redirects() -> None:
    """Abort, then say something else: this is how a user interrupts a run."""
    ran: list[str] = []
    store = memory_store(clock=Clock())
    answers = [[("work", {"name": "a"}), ("work", {"name": "b"})], "Then the other way."]
    agent = fresh_agent(answers, [recorder(ran)], store, tool_concurrency=1)
    run(agent.send("go left", session_id="s", **signal_after(5)))
    result = run(agent.send("no, right", session_id="s"))
    assert (result.text, results(result.messages), ran) == ("Then the other way.", ["a", "not-run"], ["a"])
    assert texts(result.messages)[-2:] == ["no, right", "Then the other way."]
