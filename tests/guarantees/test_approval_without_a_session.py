"""An approval of a run without a session: the record carries the run, and any process applies it, once."""

from datetime import timedelta
from typing import Any

import pytest

from durable import (
    Agent,
    ApprovalClosedError,
    ApprovalStatus,
    ConfigurationError,
    FinishReason,
    SessionAwaitingApprovalError,
    execute,
    resume_after_approval,
    tool,
)
from durable.providers.scripted import Scripted
from tests.support.runs import Clock, memory_store, run

BATCH = [[("look", {}), ("pay", {"amount": 5}), ("look", {})], ("pay", {"amount": 7}), "Paid."]


class Shop:
    """A store, and agents that are made anew for each process."""

    def __init__(self, **terms: Any) -> None:
        self.clock = Clock()
        self.store = memory_store(clock=self.clock)
        self.paid: list[int] = []
        self.looked = 0
        self.terms = terms

    @property
    def agent(self) -> Agent:
        @tool
        def look() -> str:
            self.looked += 1
            return "seen"

        @tool(needs_approval=True, **self.terms)
        def pay(amount: int) -> str:
            self.paid.append(amount)
            return "paid"

        return Agent(tools=[look, pay], provider=Scripted(BATCH), store=self.store, clock=self.clock)


def test_it_sleeps_in_the_record_and_goes_on_in_another_process() -> None:
    """What is before the call is kept, what is behind it runs after the decision, and a second pause works the same."""
    shop = Shop()
    paused = run(shop.agent.send("pay twice"))
    assert (paused.finish_reason, paused.session_id, shop.looked) == (FinishReason.AWAITING_APPROVAL, None, 1)
    again = run(shop.agent.approvals.resolve(paused.approval_id or "", approved=True))
    assert (again.finish_reason, shop.paid, shop.looked) == (FinishReason.AWAITING_APPROVAL, [5], 2)
    assert again.approval_id != paused.approval_id
    done = run(shop.agent.approvals.resolve(again.approval_id or "", approved=True, args={"amount": 6}))
    assert (done.text, shop.paid) == ("Paid.", [5, 6])


def test_it_is_applied_once() -> None:
    """Whoever comes second is told so, and nothing runs."""
    shop = Shop()
    id = run(shop.agent.send("pay")).approval_id or ""
    run(shop.agent.approvals.resolve(id, approved=True))
    with pytest.raises(ApprovalClosedError, match="applied"):
        run(shop.agent.approvals.resolve(id, approved=True))
    assert shop.paid == [5]


def test_without_a_decision_it_stays_pending() -> None:
    """A resume decides nothing."""
    shop = Shop()
    id = run(shop.agent.send("pay")).approval_id or ""
    with pytest.raises(SessionAwaitingApprovalError):
        run(resume_after_approval(shop.agent, id, store=shop.store))
    assert shop.paid == []


@pytest.mark.parametrize(("on_timeout", "reason"), [("reject", "awaiting-approval"), ("halt", "guardrail")])
def test_it_expires(on_timeout: str, reason: str) -> None:
    """At the deadline the policy of the tool decides, as with a session."""
    shop = Shop(approval_timeout=timedelta(hours=1), on_timeout=on_timeout)
    id = run(shop.agent.send("pay")).approval_id or ""
    shop.clock.advance(hours=1)
    assert run(resume_after_approval(shop.agent, id, store=shop.store)).finish_reason == reason
    approval = shop.store.approvals.get(id)
    assert approval is not None
    assert (approval.status, approval.applied, shop.paid) == (ApprovalStatus.EXPIRED, True, [])


def test_with_nowhere_to_sleep_it_is_refused() -> None:
    """Without a store a gated tool cannot wait, and the error says what to give."""
    with pytest.raises(ConfigurationError, match="needs an approval: run with a store"):
        run(execute(Shop().agent, "pay"))
