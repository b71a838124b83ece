"""What bounds a run: tokens and time that were used up finish it, and it is never cut in the middle of an act."""

from datetime import timedelta
from typing import Any

import pytest

from durable import AssistantMessage, ConfigurationError, FinishReason, ModelTurn, Status, ToolCall, Usage, tool
from durable.transcript import first_fault
from tests.support.runs import Clock, fresh_agent, memory_store, run
from tests.support.sessions import asked, crashes, dying, look, pay, results, stored, texts
from tests.support.transcripts import says

CALL = AssistantMessage(tool_calls=(ToolCall(id="", name="look"),))


def turn(message: AssistantMessage = CALL, *, input: int = 0, output: int = 0, cached: int = 0) -> ModelTurn:
    usage = Usage(model_calls=1, input_tokens=input, output_tokens=output, cached_input_tokens=cached)
    return ModelTurn(message=message, usage=usage)


# --- tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("max_tokens", "turns"), [(1, 1), (30, 1), (31, 2), (60, 2), (61, 3), (None, 3)])
def test_a_run_that_has_used_its_tokens_is_finished(max_tokens: int | None, turns: int) -> None:
    """At `max_tokens` of input and output the model is not asked again; the calls of its last turn still run."""
    answers = [turn(input=20, output=10, cached=20), turn(input=20, output=10), turn(says("done"), input=1)]
    store = memory_store(clock=Clock())
    agent = fresh_agent(answers, [look], store, max_tokens=max_tokens)
    result = run(agent.send("go", session_id="s"))
    assert asked(agent) == turns
    assert result.finish_reason is (FinishReason.STOP if turns == 3 else FinishReason.BUDGET_EXCEEDED)
    assert results(result.messages) == ["IT"] * min(turns, 2)
    assert stored(store).status is Status.FINISHED
    assert first_fault(stored(store).messages) is None


def test_an_answer_over_the_budget_is_an_answer() -> None:
    """A final answer that took more than was left is kept: what was paid for is not thrown away."""
    result = run(fresh_agent([turn(says("done"), input=1_000)], [], None, max_tokens=10).send("go"))
    assert (result.finish_reason, result.text) == (FinishReason.STOP, "done")


def test_tokens_before_a_crash_count() -> None:
    """A resumed run has what is left of its tokens; the next turn begins with all of them."""
    answers = [turn(input=30), turn(input=30), turn(says("done"), input=30)]
    store = memory_store(clock=Clock())
    crashes(fresh_agent(answers, [look], dying(store, 0), max_tokens=60).send("go", session_id="s"))
    agent = fresh_agent(answers, [look], store, max_tokens=60)
    assert run(agent.send([], session_id="s")).finish_reason is FinishReason.BUDGET_EXCEEDED
    assert asked(agent) == 1
    assert run(agent.send("and?", session_id="s")).text == "done"


# --- time ------------------------------------------------------------------------------------------------------------


class Slow:
    """A model and a tool that take their time, by the clock of the test."""

    def __init__(self, *, model: float = 0, work: float = 0) -> None:
        self.clock = Clock()
        self.store: Any = memory_store(clock=self.clock)
        self.model, self.work = model, work
        self.turns = 0

    def agent(self, steps: int = 3, store: Any = None, **options: Any) -> Any:
        def answer(request: Any) -> Any:
            self.turns += 1
            self.clock.advance(seconds=self.model)
            done = sum(message.role == "assistant" for message in request.messages)
            return "done" if done == steps else [("work", {}), *([("pay", {})] if "gated" in self.asks else [])]

        @tool
        def work() -> str:
            self.clock.advance(seconds=self.work)
            return "worked"

        self.asks = options.pop("asks", ())
        given = {"max_duration": timedelta(minutes=1), **options}
        return fresh_agent(answer, [work, pay], store or self.store, clock=self.clock, **given)


@pytest.mark.parametrize(("seconds", "turns"), [(19, 4), (20, 3), (30, 2), (59.999, 2), (60, 1), (600, 1)])
def test_a_run_that_has_used_its_time_is_finished(seconds: float, turns: int) -> None:
    """At `max_duration` the model is not asked again: the run is finished, with every call answered."""
    slow = Slow(model=seconds)
    result = run(slow.agent().send("go", session_id="s"))
    assert slow.turns == turns
    assert result.finish_reason is (FinishReason.STOP if turns == 4 else FinishReason.BUDGET_EXCEEDED)
    assert results(result.messages) == ["worked"] * min(turns, 3)
    assert stored(slow.store).status is Status.FINISHED


@pytest.mark.parametrize(("seconds", "turns"), [(19, 4), (20, 3), (60, 1)])
def test_the_time_of_tools_counts(seconds: float, turns: int) -> None:
    """Time that tools take is work on the run, and is looked at before the model is asked again."""
    slow = Slow(work=seconds)
    result = run(slow.agent().send("go", session_id="s"))
    assert slow.turns == turns
    assert result.finish_reason is (FinishReason.STOP if turns == 4 else FinishReason.BUDGET_EXCEEDED)


def test_time_asleep_does_not_count() -> None:
    """The days that a human takes, or that nobody resumed a crashed run, are no work; the time before them is."""
    slow = Slow(model=20, work=15)
    agent = slow.agent(steps=1, asks="gated")
    paused = run(agent.send("go", session_id="s"))
    assert stored(slow.store).worked_seconds == 35
    slow.clock.advance(days=4)
    crashes(slow.agent(steps=1, store=dying(slow.store, 1)).approvals.resolve(paused.approval_id, approved=True))
    slow.clock.advance(days=4)
    result = run(slow.agent(steps=1).send([], session_id="s"))
    assert (result.finish_reason, stored(slow.store).worked_seconds) == (FinishReason.STOP, 55)


def test_time_before_a_crash_counts() -> None:
    """A resumed run has what is left of its time; the next turn begins with all of it."""
    slow = Slow(model=25, work=5)
    crashes(slow.agent(store=dying(slow.store, 1)).send("go", session_id="s"))
    assert stored(slow.store).worked_seconds == 30
    result = run(slow.agent().send([], session_id="s"))
    assert (result.finish_reason, slow.turns) == (FinishReason.BUDGET_EXCEEDED, 2)
    again = run(slow.agent().send("and?", session_id="s"))
    assert (again.finish_reason, again.text, slow.turns) == (FinishReason.STOP, "done", 4)
    assert stored(slow.store).worked_seconds == 25 * 2 + 5


def test_without_a_limit_nobody_counts() -> None:
    """A run whose time is not bounded keeps no time."""
    slow = Slow(model=1_000)
    result = run(slow.agent(max_duration=None).send("go", session_id="s"))
    assert (result.finish_reason, stored(slow.store).worked_seconds) == (FinishReason.STOP, 0)


def test_a_run_without_a_store_is_bounded_as_well() -> None:
    """Limits hold where nothing is kept."""
    slow = Slow(work=60)
    agent = slow.agent()
    assert run(agent.send("go")).finish_reason is FinishReason.BUDGET_EXCEEDED
    assert slow.turns == 1


# --- steps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("saves", range(4))
def test_steps_before_a_crash_or_a_pause_count(saves: int) -> None:
    """Of three steps, those that were taken before a crash or a pause are gone; a new turn has three again."""
    answers = [("look", {}), ("pay", {}), ("look", {}), "done", "again"]
    store = memory_store(clock=Clock())

    def agent(store: Any) -> Any:
        return fresh_agent(answers, [look, pay], store, max_steps=3)

    crashes(agent(dying(store, saves)).send("go", session_id="s"))
    before = stored(store)
    last = agent(store)
    if before.status is not Status.AWAITING_APPROVAL:
        paused = run(last.send([], session_id="s"))
        assert paused.steps == 2
    result = run(last.approvals.resolve(stored(store).approval_id, approved=True))
    assert (result.finish_reason, result.steps) == (FinishReason.MAX_STEPS, 3)
    assert asked(last) == 3 - before.step
    assert texts(result.messages)[-1] == "IT"
    following = run(last.send("and?", session_id="s"))
    assert (following.steps, following.text) == (1, "done")


# --- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_duration": timedelta(0)}, "max_duration"),
        ({"max_duration": timedelta(seconds=-1)}, "max_duration"),
        ({"abort_grace": -0.1}, "abort_grace"),
        ({"on_agent_drift": "panic"}, "on_agent_drift"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(options: dict[str, Any], name: str) -> None:
    """A wrong option is told where the agent is made, and by its name."""
    with pytest.raises(ConfigurationError, match=name):
        fresh_agent(["x"], [], None, **options)
