"""Events: what a run tells, in which order, and that telling it changes nothing."""

import dataclasses
from typing import Any

import pytest

from durable import (
    AgentDrift,
    ApprovalRequested,
    AssistantMessage,
    Bounds,
    CheckpointSaved,
    Event,
    FinishReason,
    ProviderUnavailableError,
    RunDone,
    RunStart,
    Status,
    StepStart,
    TextDelta,
    ToolCall,
    ToolDone,
    ToolFailed,
    ToolStart,
    Watch,
    events,
    execute,
    tool,
)
from tests.support.runs import Clock, fresh_agent, memory_store, run
from tests.support.sessions import crashes, dying, kinds, look, pay, recorder, results, stored


@tool
def fail() -> None:
    raise RuntimeError("down")


def watched(agent: Any, input: Any = "go") -> tuple[list[Event], Any]:
    seen: list[Event] = []
    return seen, run(agent.send(input, session_id="s", listener=seen.append))


def gapless(seen: list[Event]) -> bool:
    return [event.seq for event in seen] == list(range(1, len(seen) + 1))


def test_a_run_tells_what_it_does_in_order() -> None:
    """A run with tools, a failure and a pause tells each act as it happens, and the save that follows it."""
    store = memory_store(clock=Clock())
    answers = [[("look", {}), ("fail", {}), ("nonsense", {}), ("pay", {})], "Paid."]
    agent = fresh_agent(answers, [look, fail, pay], store, tool_concurrency=1)
    seen, paused = watched(agent)
    assert [dataclasses.replace(event, seq=0, path=()) for event in seen] == [
        RunStart(session_id="s", run_id="run1", resumed=False),
        StepStart(step=1),
        CheckpointSaved(revision=0, status=Status.IN_PROGRESS),
        ToolFailed(tool_call_id="call_0_2", tool_name="nonsense", kind="not-found"),
        CheckpointSaved(revision=1, status=Status.IN_PROGRESS),
        ToolStart(tool_call_id="call_0_0", tool_name="look"),
        ToolDone(tool_call_id="call_0_0", tool_name="look"),
        CheckpointSaved(revision=2, status=Status.IN_PROGRESS),
        ToolStart(tool_call_id="call_0_1", tool_name="fail"),
        ToolFailed(tool_call_id="call_0_1", tool_name="fail", kind="execution"),
        CheckpointSaved(revision=3, status=Status.IN_PROGRESS),
        CheckpointSaved(revision=4, status=Status.AWAITING_APPROVAL),
        ApprovalRequested(approval_id=paused.approval_id, tool_call_id="call_0_3", tool_name="pay"),
        RunDone(finish_reason=FinishReason.AWAITING_APPROVAL),
    ]
    assert gapless(seen)
    seen.clear()
    run(agent.approvals.resolve(paused.approval_id, approved=True, listener=seen.append))
    assert [dataclasses.replace(event, seq=0, path=()) for event in seen] == [
        RunStart(session_id="s", run_id="run1", resumed=True),
        CheckpointSaved(revision=6, status=Status.IN_PROGRESS),
        ToolStart(tool_call_id="call_0_3", tool_name="pay"),
        ToolDone(tool_call_id="call_0_3", tool_name="pay"),
        CheckpointSaved(revision=7, status=Status.IN_PROGRESS),
        StepStart(step=2),
        TextDelta(text="Paid."),
        CheckpointSaved(revision=8, status=Status.FINISHED),
        RunDone(finish_reason=FinishReason.STOP),
    ]
    assert gapless(seen)
    assert {event.path for event in seen} == {("t",)}


def test_every_kind_of_event_has_its_own_name() -> None:
    """The types are the ones that a client matches on, each once, and all of them are public."""
    made = {
        value.type: value for value in vars(events).values() if isinstance(value, type) and issubclass(value, Event)
    }
    assert sorted(made) == [
        "agent.drift",
        "approval.requested",
        "arguments.delta",
        "checkpoint.saved",
        "compaction.failed",
        "event",
        "reasoning.delta",
        "run.done",
        "run.start",
        "session.compacted",
        "step.start",
        "text.delta",
        "tool.done",
        "tool.error",
        "tool.start",
    ]
    assert made["agent.drift"] is AgentDrift


def test_an_event_never_shows_what_was_said() -> None:
    """The repr of an event has ids and kinds; the text of an answer is not in it."""
    assert "secret" not in repr(TextDelta(text="secret"))


def test_what_was_saved_is_stored_when_it_is_told() -> None:
    """`checkpoint.saved` comes after the save: whoever hears it finds that revision."""
    store = memory_store(clock=Clock())
    found: list[bool] = []

    def listener(event: Event) -> None:
        if isinstance(event, CheckpointSaved):
            found.append((stored(store).revision, stored(store).status) == (event.revision, event.status))

    run(fresh_agent([("look", {}), "done"], [look], store).send("go", session_id="s", listener=listener))
    assert found == [True, True, True]


def test_an_approval_is_told_when_it_can_be_decided() -> None:
    """`approval.requested` comes after the checkpoint that waits for it."""
    store = memory_store(clock=Clock())

    def listener(event: Event) -> None:
        if isinstance(event, ApprovalRequested):
            assert stored(store).approval_id == event.approval_id
            assert store.approvals.get(event.approval_id) is not None
            told.append(event.approval_id)

    told: list[str] = []
    result = run(fresh_agent([("pay", {})], [pay], store).send("go", session_id="s", listener=listener))
    assert told == [result.approval_id]


def test_a_run_that_stops_says_why() -> None:
    """The last event of a run that comes back is `run.done` with its reason; a run that rejects has none."""
    store = memory_store(clock=Clock())
    agent = fresh_agent([("look", {}), ProviderUnavailableError("scripted", "down")], [look], store)
    seen: list[Event] = []
    late = Bounds(remaining=lambda: 1.0)
    run(execute(agent, "go", session_id="s", store=store, bounds=late, watch=Watch(listener=seen.append)))
    assert seen[-1] == RunDone(seq=3, path=("t",), finish_reason=FinishReason.DEADLINE)
    seen.clear()
    with pytest.raises(ProviderUnavailableError):
        run(agent.send("go", session_id="s", listener=seen.append))
    assert kinds(seen)[-2:] == ["step.start", "checkpoint.saved"]
    assert gapless(seen)


def test_a_run_without_a_store_tells_no_save() -> None:
    """Where nothing is saved nothing is told of saves, and there is no session."""
    seen: list[Event] = []
    run(fresh_agent([("look", {}), "done"], [look], None).send("go", listener=seen.append))
    assert kinds(seen) == [
        "run.start",
        "step.start",
        "tool.start",
        "tool.done",
        "step.start",
        "text.delta",
        "run.done",
    ]
    start: Any = seen[0]
    assert start.session_id is None


def test_a_recorded_result_tells_nothing() -> None:
    """A finished run that is asked again does not run, and tells so by silence."""
    store = memory_store(clock=Clock())
    run(fresh_agent(["done"], [], store).send("go", session_id="s"))
    seen, _ = watched(fresh_agent([], [], store), [])
    assert seen == []


def test_text_beside_calls_is_told() -> None:
    """What the model says with its calls is told like its answer."""
    turn = AssistantMessage(content="Let me look.", tool_calls=(ToolCall(id="c", name="look"),))
    seen, _ = watched(fresh_agent([turn, "done"], [look], memory_store(clock=Clock())))
    assert [event.text for event in seen if isinstance(event, TextDelta)] == ["Let me look.", "done"]


# --- listeners that raise --------------------------------------------------------------------------------------------


class Deaf(Exception):
    pass


SAID = ["run.start", "step.start", "text.delta", "tool.start", "tool.done", "checkpoint.saved", "run.done"]


@pytest.mark.parametrize("kind", SAID)
def test_a_listener_that_raises_ends_the_run(kind: str) -> None:
    """The run ends with the listener's own error, nothing that was saved is lost, and the run can be resumed."""
    ran: list[str] = []

    def listener(event: Event) -> None:
        if event.type == kind:
            raise Deaf

    store = memory_store(clock=Clock())
    answers = [[("work", {"name": "a"}), ("work", {"name": "b"})], "done"]
    with pytest.raises(Deaf):
        run(fresh_agent(answers, [recorder(ran)], store).send("go", session_id="s", listener=listener))
    result = run(fresh_agent(answers, [recorder(ran)], store).send("go" if kind in SAID[:2] else [], session_id="s"))
    assert (result.text, results(result.messages)) == ("done", ["a", "b"])
    assert sorted(ran) == ["a", "b"]


def test_a_result_whose_listener_raises_is_kept() -> None:
    """What a tool gave is saved before the error of the listener ends the run; calls that wait do not start."""
    ran: list[str] = []

    def listener(event: Event) -> None:
        if isinstance(event, ToolDone):
            raise Deaf

    store = memory_store(clock=Clock())
    answers = [[("work", {"name": name}) for name in "abc"], "done"]
    agent = fresh_agent(answers, [recorder(ran)], store, tool_concurrency=1)
    with pytest.raises(Deaf):
        run(agent.send("go", session_id="s", listener=listener))
    assert (results(stored(store).messages), ran) == (["a"], ["a"])


def test_a_crashed_run_tells_that_it_resumes() -> None:
    """`run.start` says whether the run goes on from a checkpoint or begins."""
    store = memory_store(clock=Clock())
    answers = [("look", {}), "done"]
    crashes(fresh_agent(answers, [look], dying(store, 0)).send("go", session_id="s"))
    seen, _ = watched(fresh_agent(answers, [look], store, ids=lambda: "another"), [])
    assert seen[0] == RunStart(seq=1, path=("t",), session_id="s", run_id="run1", resumed=True)
    seen, _ = watched(fresh_agent(lambda request: "bye", [look], store, ids=lambda: "another"), "next")
    assert seen[0] == RunStart(seq=1, path=("t",), session_id="s", run_id="another", resumed=False)
