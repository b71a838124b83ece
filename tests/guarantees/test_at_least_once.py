"""A tool that was running when the process died has no recorded result, so it runs again on resume.

Tool execution is therefore at-least-once, not exactly-once. For tools with side effects either gate them with
`needs_approval` or make them idempotent. Each call's `ctx.tool_call_id` (unchanged when it is re-run on resume) works
as an idempotency key.
"""

from collections import Counter
from typing import Any

import pytest

from durable import AssistantMessage, FinishReason, ToolCall, ToolContext, tool
from durable.tools import Recovery
from tests.support.runs import Clock, fresh_agent, memory_store, run
from tests.support.sessions import crashes, dying, results, stored


class Payments:
    """A service that takes an idempotency key, and a tool that charges through it."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.charges: dict[str, int] = {}

    def charge(self, amount: int, *, idempotency_key: str) -> str:
        self.requests.append(idempotency_key)
        self.charges.setdefault(idempotency_key, amount)
        return f"charge {len(self.charges)}"

    def tool(self, **options: Any) -> Any:
        @tool(**options)
        async def charge_card(amount: int, ctx: ToolContext) -> str:
            return self.charge(amount, idempotency_key=ctx.tool_call_id)

        return charge_card


CHARGE = [("charge_card", {"amount": 5}), "done"]


def test_a_tool_that_was_running_runs_again_and_charges_once() -> None:
    """The call is made twice, with the same id; whoever uses it as a key has the effect once."""
    payments, store = Payments(), memory_store(clock=Clock())
    crashes(fresh_agent(CHARGE, [payments.tool()], dying(store, 1, after=False)).send("go", session_id="s"))
    result = run(fresh_agent(CHARGE, [payments.tool()], store).send("go", session_id="s"))
    assert payments.requests == ["call_0_0", "call_0_0"]
    assert payments.charges == {"call_0_0": 5}
    assert results(result.messages) == ["charge 1"]


@pytest.mark.parametrize("provided", ["call_abc", "", "toolu_1"])
def test_the_id_is_the_same_in_every_run_of_the_call(provided: str) -> None:
    """The id is the model's where it gives one, ours where it does not, and never another one after a crash."""
    payments, store = Payments(), memory_store(clock=Clock())
    turn = AssistantMessage(tool_calls=(ToolCall(id=provided, name="charge_card", arguments='{"amount": 5}'),))
    for _ in range(3):
        crashes(
            fresh_agent([turn, "done"], [payments.tool()], dying(store, len(payments.requests) == 0, after=False)).send(
                "go", session_id="s"
            )
        )
    run(fresh_agent([turn, "done"], [payments.tool()], store).send("go", session_id="s"))
    assert len(payments.requests) == 4
    assert len(payments.charges) == 1
    assert not provided or set(payments.charges) == {provided}


def test_two_calls_have_two_ids() -> None:
    """The same call made twice by the model is two charges."""
    payments = Payments()
    answers = [[("charge_card", {"amount": 5})] * 2, ("charge_card", {"amount": 5}), "done"]
    run(fresh_agent(answers, [payments.tool()], memory_store(clock=Clock())).send("go", session_id="s"))
    assert Counter(payments.charges.values()) == Counter({5: 3})


@pytest.mark.parametrize("recovery", ["report", "ask"])
def test_a_tool_may_say_that_it_must_not_run_twice(recovery: Recovery) -> None:
    """With `report` the model is told that the outcome is unknown, with `ask` a human decides; neither runs unasked."""
    payments, store = Payments(), memory_store(clock=Clock())
    crashes(
        fresh_agent(CHARGE, [payments.tool(recovery=recovery)], dying(store, 2, after=False)).send("go", session_id="s")
    )
    assert stored(store).started == ("call_0_0",)
    agent = fresh_agent(CHARGE, [payments.tool(recovery=recovery)], store)
    result = run(agent.send("go", session_id="s"))
    assert payments.requests == ["call_0_0"]
    if recovery == "report":
        assert results(result.messages) == ["unknown-outcome"]
        return
    assert result.finish_reason is FinishReason.AWAITING_APPROVAL
    run(agent.approvals.resolve(result.approval_id, approved=True))
    assert payments.requests == ["call_0_0", "call_0_0"]


def test_a_gated_tool_does_not_run_twice_by_itself() -> None:
    """A tool with `needs_approval` is of recovery `report` unless it says otherwise."""
    payments, store = Payments(), memory_store(clock=Clock())
    gated = payments.tool(needs_approval=True)
    paused = run(fresh_agent(CHARGE, [gated], store).send("go", session_id="s"))
    dies = fresh_agent(CHARGE, [gated], dying(store, 2, after=False))
    crashes(dies.approvals.resolve(paused.approval_id, approved=True))
    result = run(fresh_agent(CHARGE, [gated], store).resume("s"))
    assert (payments.requests, results(result.messages)) == (["call_0_0"], ["unknown-outcome"])
