"""A checkpoint is the run's whole transcript plus its step count, usage, business state and a status.

| Moment | status |
| - | - |
| Right after each model response that asks for tools, before any tool runs | in-progress |
| Each time a tool result is recorded | in-progress |
| When the run is aborted (`signal`) | in-progress |
| When the run pauses for an approval | awaiting-approval (with `approval_id`) |
| When the run finishes (the model stopped calling tools, or `max_steps` ran out) | finished |
"""

from typing import Any

import pytest

from durable import AbortSignal, Checkpoint, FinishReason, Status, StoreRejectedError
from tests.support.runs import Clock, CrashingCheckpoints, Stores, fresh_agent, memory_store, run
from tests.support.sessions import FailingCheckpoints, look, pay, recorder, texts


class Saves(CrashingCheckpoints):
    """A checkpoint store that keeps every save."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.made: list[Checkpoint] = []

    def save(self, checkpoint: Checkpoint, *, after: Checkpoint | None) -> Checkpoint:
        saved = super().save(checkpoint, after=after)
        self.made.append(saved)
        return saved


class Watched:
    """A session, and every checkpoint that is written of it."""

    def __init__(self, answers: Any, tools: Any = (look,), **options: Any) -> None:
        self.store: Any = memory_store(clock=Clock())
        self.saves = Saves(self.store.checkpoints)
        stores = Stores(self.saves, self.store.approvals)
        self.agent = fresh_agent(answers, tools, stores, tool_concurrency=1, **options)

    def written(self) -> list[tuple[Any, Any]]:
        """The status of each save, and the last thing that its transcript says."""
        return [(saved.status.value, texts(saved.messages)[-1]) for saved in self.saves.made]


def test_after_a_response_that_asks_for_tools_and_after_each_result() -> None:
    """The turn is saved before its tools run, each result when it is there, and the answer at the end."""
    ran: list[str] = []
    watched = Watched([[("work", {"name": "a"}), ("work", {"name": "b"})], "done"], [recorder(ran)])
    run(watched.agent.send("go", session_id="s"))
    assert watched.written() == [
        ("in-progress", ""),
        ("in-progress", "a"),
        ("in-progress", "b"),
        ("finished", "done"),
    ]


def test_no_tool_runs_before_its_turn_is_saved() -> None:
    """A run whose first save fails has run no tool."""
    ran: list[str] = []
    store = memory_store(clock=Clock())
    failing = FailingCheckpoints(store.checkpoints, lambda: StoreRejectedError("PutItem", "no"), [0])
    agent = fresh_agent([("work", {}), "done"], [recorder(ran)], Stores(failing, store.approvals))
    with pytest.raises(StoreRejectedError):
        run(agent.send("go", session_id="s"))
    assert ran == []


def test_when_the_run_is_aborted() -> None:
    """An abort is one save, in progress, with the reason."""
    signal = AbortSignal()
    signal.abort()
    watched = Watched(["done"])
    run(watched.agent.send("go", session_id="s", signal=signal))
    [saved] = watched.saves.made
    assert (saved.status, saved.finish_reason) == (Status.IN_PROGRESS, FinishReason.ABORTED)


def test_when_the_run_pauses() -> None:
    """A pause is one save with the approval's id; the decision clears the mark before anything is done about it."""
    watched = Watched([("pay", {}), "done"], [pay])
    paused = run(watched.agent.send("go", session_id="s"))
    assert watched.written() == [("in-progress", ""), ("awaiting-approval", "")]
    assert watched.saves.made[-1].approval_id == paused.approval_id is not None
    run(watched.agent.approvals.resolve(paused.approval_id, approved=True))
    assert watched.written()[2] == ("in-progress", "")
    assert watched.saves.made[2].approval_id is None
    assert watched.written()[-1] == ("finished", "done")


@pytest.mark.parametrize(("max_steps", "reason"), [(10, FinishReason.STOP), (1, FinishReason.MAX_STEPS)])
def test_when_the_run_finishes(max_steps: int, reason: FinishReason) -> None:
    """The last save of a run says that it is finished and why."""
    watched = Watched([("look", {}), "done"], max_steps=max_steps)
    run(watched.agent.send("go", session_id="s"))
    last = watched.saves.made[-1]
    assert (last.status, last.finish_reason) == (Status.FINISHED, reason)


def test_what_a_checkpoint_holds() -> None:
    """Each save has the whole transcript, the steps and the usage so far, and continues from the one before."""
    watched = Watched([("look", {}), ("look", {}), "done"])
    result = run(watched.agent.send("go", session_id="s"))
    assert [saved.revision for saved in watched.saves.made] == [0, 1, 2, 3, 4]
    assert [saved.step for saved in watched.saves.made] == [1, 1, 2, 2, 3]
    assert [saved.usage.model_calls for saved in watched.saves.made] == [1, 1, 2, 2, 3]
    assert watched.saves.made[-1].messages == result.messages
