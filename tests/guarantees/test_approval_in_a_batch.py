"""When one model turn asks for several tools and one of them needs approval, the calls before it run and are recorded,
and the run pauses on it.

`resume_after_approval()` then:

1. records the paused call's result: the tool's result if approved, or a structured rejection result if rejected;
2. runs the remaining calls through the same batch logic: they can run, fail validation, or pause the run again on
   another approval (a new `approval_id`; resolve it the same way, as many times as needed);
3. calls the model once every call of the turn has exactly one result.
"""

from typing import Any

import pytest

from durable import FinishReason, resume_after_approval
from tests.support.runs import Clock, fresh_agent, memory_store, run
from tests.support.sessions import asked, pay, recorder, results, stored

ANSWERS = [
    [
        ("work", {"name": "before"}),
        ("pay", {"amount": 1}),
        ("work", {"name": "behind"}),
        ("work", {"nam": "misfit"}),
        ("pay", {"amount": 2}),
        ("work", {"name": "last"}),
    ],
    "done",
]


class Desk:
    """A run that pauses twice in one batch; each step is taken by a new process."""

    def __init__(self) -> None:
        self.store: Any = memory_store(clock=Clock())
        self.ran: list[str] = []
        self.agent = self.new_agent()
        self.paused = run(self.agent.send("go", session_id="s"))

    def new_agent(self) -> Any:
        return fresh_agent(ANSWERS, [recorder(self.ran), pay], self.store, tool_concurrency=1)

    def decide(self, approved: bool, **more: Any) -> Any:
        self.agent = self.new_agent()
        self.paused = run(self.agent.approvals.resolve(self.paused.approval_id, approved=approved, **more))
        return self.paused


def test_the_calls_before_it_run_and_are_recorded() -> None:
    """The pause holds the results of what stands before the call, and nothing of what stands behind it."""
    desk = Desk()
    assert desk.paused.finish_reason is FinishReason.AWAITING_APPROVAL
    assert (desk.ran, results(stored(desk.store).messages)) == (["before"], ["before"])


@pytest.mark.parametrize(
    ("approved", "result"),
    [
        (True, {"paid": 1}),
        (False, {"error": True, "kind": "rejected", "tool_name": "pay", "message": "no", "note": "no"}),
    ],
)
def test_the_decision_is_the_result_and_the_rest_runs(approved: bool, result: Any) -> None:
    """The paused call is recorded first; then the others run, fail validation, and the next gated one pauses again."""
    desk = Desk()
    first = desk.paused.approval_id
    second = desk.decide(approved, note=None if approved else "no")
    assert (second.finish_reason, asked(desk.agent)) == (FinishReason.AWAITING_APPROVAL, 0)
    assert second.approval_id != first
    assert stored(desk.store).messages[3].content == result
    assert results(stored(desk.store).messages)[2:] == ["behind", "validation"]
    assert desk.ran == ["before", "behind"]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
def test_the_model_is_called_when_every_call_has_one_result(first: bool, second: bool) -> None:
    """As many decisions as needed, then one model call with the results of the whole turn in call order."""
    desk = Desk()
    desk.decide(first)
    result = desk.decide(second)
    assert (result.text, asked(desk.agent)) == ("done", 1)
    paid = [{"paid": 1} if first else "rejected", {"paid": 2} if second else "rejected"]
    assert results(result.messages) == ["before", paid[0], "behind", "validation", paid[1], "last"]
    assert desk.ran == ["before", "behind", "last"]


def test_an_earlier_decision_does_not_decide_the_next_call() -> None:
    """Applying the first decision once more, while the second is open, leaves the run paused on the second."""
    desk = Desk()
    first = desk.paused.approval_id
    second = desk.decide(True)
    again = run(resume_after_approval(desk.new_agent(), first, store=desk.store))
    assert (again.finish_reason, again.approval_id) == (FinishReason.AWAITING_APPROVAL, second.approval_id)
    assert desk.ran == ["before", "behind"]
