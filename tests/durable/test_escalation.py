"""Escalation: levels that are told one after the other, each with its own time, and the policy at the end."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from durable import (
    Agent,
    Approval,
    ApprovalDecision,
    ApprovalStatus,
    ConfigurationError,
    Escalation,
    Level,
    RunResult,
    SessionAwaitingApprovalError,
    decide,
    escalate,
    level,
    tool,
)
from durable.approvals import apply_deadline, cancel
from durable.errors import ApprovalClosedError
from durable.providers.scripted import Scripted
from durable.resume import resume_after_approval
from tests.support.runs import Clock, memory_store, numbered

HOUR = timedelta(hours=1)
TICK = timedelta(microseconds=1)
LEVELS = (level("leads", "pager", wait=2 * HOUR), level("cfo", wait=4 * HOUR))


class Desk:
    """A run that waits for a payment to be approved, first for an hour."""

    def __init__(self, policy: Any = None, **terms: Any) -> None:
        self.clock, self.paid = Clock(), 0
        self.store = memory_store(clock=self.clock)
        policy = policy or escalate(*LEVELS)

        @tool(needs_approval=True, approval_timeout=HOUR, on_timeout=policy, **terms)
        def pay() -> str:
            self.paid += 1
            return "paid"

        self.agent = Agent(
            provider=Scripted([("pay", {}), "Done."]),
            tools=[pay],
            store=self.store,
            clock=self.clock,
            ids=numbered("run"),
        )

    def pause(self, session: str | None = "s") -> str:
        return asyncio.run(self.agent.send("pay", session_id=session)).approval_id or ""

    def approval(self, id: str) -> Approval:
        approval = self.store.approvals.get(id)
        assert approval is not None
        return approval

    def wait(self, span: timedelta) -> None:
        self.clock.now += span

    def apply(self, id: str) -> Approval:
        return apply_deadline(self.approval(id), approvals=self.store.approvals, now=self.clock())

    def resume(self, id: str) -> RunResult:
        return asyncio.run(resume_after_approval(self.agent, id, store=self.store))

    def decide(self, id: str, *, approved: bool = True) -> Approval:
        said = ApprovalDecision(id=id, approved=approved, by="ada")
        return decide(
            said, approvals=self.store.approvals, checkpoints=self.store.checkpoints, tools={}, now=self.clock()
        ).approval


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: escalate(), "at least one level"),
        (lambda: escalate(level("leads", wait=timedelta(0))), "wait must be positive"),
        (lambda: escalate(level("leads", wait=HOUR), level("cfo", wait=-HOUR)), "Level 2"),
        (lambda: escalate(level(wait=HOUR)), "must name whom it tells"),
        (lambda: escalate(level("leads", " ", wait=HOUR)), "must name whom it tells"),
        (lambda: level(["leads"], wait=HOUR), "must be names"),  # type: ignore[arg-type]
        (lambda: level("leads", wait=60), "must be a timedelta"),  # type: ignore[arg-type]
        (lambda: escalate(*LEVELS, then="escalate"), "ends with one of"),  # type: ignore[arg-type]
        (lambda: Escalation(()), "at least one level"),
        (lambda: Escalation((Level(to=("leads",), wait=float("nan")),)), "wait must be positive"),
        (lambda: tool(needs_approval=True, on_timeout=escalate(*LEVELS))(lambda: None), "give approval_timeout"),
    ],
)
def test_an_escalation_that_makes_no_sense_is_refused(make: Any, names: str) -> None:
    """Levels, whom they tell, their waits and the end policy are checked where they are made."""
    with pytest.raises(ConfigurationError, match=names):
        make()


def test_each_level_has_its_own_time() -> None:
    """At a deadline the next level is on the record, with whom it tells and a wait that begins then; a tick before it
    nothing is."""
    desk = Desk()
    id = desk.pause()
    asked = desk.approval(id)
    assert (asked.level, asked.channels, asked.deadline, asked.closes_at) == (
        0,
        (),
        desk.clock() + HOUR,
        desk.clock() + 7 * HOUR,
    )
    desk.wait(HOUR - TICK)
    assert desk.apply(id) == asked

    desk.wait(TICK)
    first = desk.apply(id)
    assert (first.level, first.channels, first.deadline) == (1, ("leads", "pager"), desk.clock() + 2 * HOUR)
    assert desk.apply(id) == first

    desk.wait(3 * HOUR)  # an hour late: the next ones have all of their time all the same
    second = desk.apply(id)
    assert (second.level, second.channels, second.deadline) == (2, ("cfo",), desk.clock() + 4 * HOUR)
    assert [event.event for event in second.events] == ["requested", "escalated", "escalated"]


@pytest.mark.parametrize(("then", "ended"), [("reject", "stop"), ("halt", "guardrail")])
def test_after_the_last_level_comes_its_policy(then: Any, ended: str) -> None:
    """When the last level has not decided, the approval expires and the call is rejected, or the run ends."""
    desk = Desk(escalate(*LEVELS, then=then))
    id = desk.pause()
    for hours in (1, 2):
        desk.wait(hours * HOUR)
        with pytest.raises(SessionAwaitingApprovalError):
            desk.resume(id)
    desk.wait(4 * HOUR - TICK)
    assert desk.apply(id).status is ApprovalStatus.PENDING
    desk.wait(TICK)
    result = desk.resume(id)
    assert (result.finish_reason, desk.paid) == (ended, 0)
    assert desk.approval(id).status is ApprovalStatus.EXPIRED
    with pytest.raises(ApprovalClosedError):
        desk.decide(id)


@pytest.mark.parametrize("levels", [0, 1, 2])
@pytest.mark.parametrize("late", [False, True])
def test_a_decision_at_any_level_wins(levels: int, late: bool) -> None:
    """Whoever decides first decides, at each level, and also when the next one should have been told already."""
    desk = Desk()
    id = desk.pause()
    for hours in (1, 2)[:levels]:
        desk.wait(hours * HOUR)
        desk.apply(id)
    if late and levels < 2:
        desk.wait(10 * HOUR)
    decided = desk.decide(id)
    assert (decided.status, decided.level) == (ApprovalStatus.APPROVED, levels)
    desk.wait(10 * HOUR)
    assert desk.apply(id) == decided
    desk.resume(id)
    assert desk.paid == 1


def test_an_abort_of_an_escalated_run_cancels_it() -> None:
    """A run that is to stop while its next level is due asks nobody any more."""
    desk = Desk()
    id = desk.pause()
    desk.wait(HOUR)
    cancelled = cancel(desk.approval(id), approvals=desk.store.approvals, now=desk.clock())
    assert (cancelled.status, cancelled.level) == (ApprovalStatus.CANCELLED, 0)


def test_a_request_that_is_repeated_begins_with_its_first_people() -> None:
    """A pause that is made again asks from the start: the levels that were told for the earlier one do not count."""
    desk = Desk()
    id = desk.pause()
    desk.wait(HOUR)
    escalated = desk.apply(id)
    again = desk.store.approvals.request(id, escalated.request.but(at=desk.clock(), deadline=desk.clock() + HOUR))
    assert (again.level, again.deadline) == (0, desk.clock() + HOUR)
    desk.wait(HOUR)
    assert desk.apply(id).level == 1


def test_a_run_without_a_session_escalates_too() -> None:
    """Its record carries run and levels, and the last deadline applies to it as to any other."""
    desk = Desk()
    id = desk.pause(None)
    for hours in (1, 2):
        desk.wait(hours * HOUR)
        with pytest.raises(SessionAwaitingApprovalError):
            desk.resume(id)
    assert desk.approval(id).level == 2
    desk.wait(4 * HOUR)
    desk.resume(id)
    assert (desk.approval(id).status, desk.paid) == (ApprovalStatus.EXPIRED, 0)


def test_a_program_asks_whom_to_tell() -> None:
    """`approvals.check` puts on the record what the time has brought and says who is to be told now."""
    desk = Desk()
    id = desk.pause()
    assert asyncio.run(desk.agent.approvals.check(id)).channels == ()
    desk.wait(HOUR)
    assert asyncio.run(desk.agent.approvals.check(id)).channels == ("leads", "pager")


def test_reminders_go_on_at_a_level() -> None:
    """A level is reminded after it was told, and not at its own deadline."""
    desk = Desk(remind_every=HOUR)
    id = desk.pause()
    assert desk.approval(id).next_reminder is None
    desk.wait(HOUR)
    assert desk.apply(id).next_reminder == desk.clock() + HOUR
