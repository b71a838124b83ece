"""Wherever a process dies, or is overtaken, between a question and what came of it: every approval ends.

Each test lets a process die, or another one come in between, at every point it has: before and after each call to the
log, the leases, Step Functions and SNS. What then goes on goes on by itself: the state machine tries its task again,
recovery looks every minute, people press the button once more. At the end:

    1. the run is finished, its approval is closed and applied, and nothing is due
    2. an approved call ran once, or had started when its process died and is reported as `unknown-outcome`
    3. a rejected, expired or cancelled call never ran
    4. no result was recorded twice
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from durable import ApprovalStatus, FinishReason, Status
from durable.records import Checkpoint
from durable.transcript import first_fault
from tests.handlers.conftest import Deployment

Clouds = Callable[[], Deployment]
MOST = 200
"""More points than any of the processes here has."""


def waiting(clouds: Clouds, **terms: Any) -> tuple[Deployment, str]:
    """A run that waits in an execution; its approval."""
    cloud = clouds()
    cloud.approval_timeout = terms.pop("timeout", None)
    cloud.approval_terms = terms
    id = cloud.pause()
    cloud.slice()
    cloud.states.wait("token-1")
    cloud.ask(id, "token-1")
    return cloud, id


def decide(cloud: Deployment, id: str, *, approved: bool = True) -> Any:
    return cloud.request("POST", f"/approvals/{id}/decision", body={"approved": approved})


def press_again(cloud: Deployment, id: str, *, approved: bool) -> None:
    """Somebody who got no answer decides once more."""
    if cloud.approval(id).status is ApprovalStatus.PENDING:
        decide(cloud, id, approved=approved)


def goes_on(cloud: Deployment) -> Checkpoint:
    """Let time pass, recovery look, and executions do what they were started or woken for."""
    for _ in range(5):
        cloud.clock.advance(minutes=2)
        cloud.recover()
        stored = cloud.stored()
        if stored.status is not Status.FINISHED and stored.finish_reason is not FinishReason.ABORTED:
            cloud.slice()
    return cloud.stored()


def came_to_an_end(cloud: Deployment, id: str) -> None:
    stored, approval = cloud.stored(), cloud.approval(id)
    assert stored.status is Status.FINISHED or stored.finish_reason is FinishReason.ABORTED
    assert first_fault(stored.messages) is None
    assert approval.status is not ApprovalStatus.PENDING
    assert approval.applied
    cloud.clock.advance(days=1)
    assert cloud.recover()["started"] == 0
    [result] = [message for message in stored.messages if message.role == "tool"]
    if approval.status is ApprovalStatus.APPROVED and stored.finish_reason is not FinishReason.ABORTED:
        assert len(cloud.paid) <= 1
        assert cloud.paid or result.content["kind"] == "unknown-outcome"
        assert result.is_error == (result.content.get("kind") == "unknown-outcome")
    else:
        assert len(cloud.paid) <= (approval.status is ApprovalStatus.APPROVED)
    if approval.status is not ApprovalStatus.APPROVED:
        assert cloud.paid == []


def at_every_point(clouds: Clouds, try_at: Callable[[int], bool]) -> int:
    """Try it at each point, until there are no more; how many there were."""
    for at in range(1, MOST):
        if not try_at(at):
            return at - 1
    raise AssertionError("there is no end to it")


@pytest.mark.parametrize("approved", [True, False])
def test_deciding_dies(clouds: Clouds, approved: bool) -> None:
    """A decision that was recorded is applied without anybody's help; one that was not is made again."""

    def try_at(at: int) -> bool:
        cloud, id = waiting(clouds)
        died = cloud.dies(lambda: decide(cloud, id, approved=approved), at=at)
        press_again(cloud, id, approved=approved)
        goes_on(cloud)
        came_to_an_end(cloud, id)
        assert cloud.approval(id).status == ("approved" if approved else "rejected")
        assert cloud.paid == ([5] if approved else [])
        return died

    assert at_every_point(clouds, try_at) > 10


@pytest.mark.parametrize("approved", [True, False])
def test_applying_dies(clouds: Clouds, approved: bool) -> None:
    """The state machine tries the slice again, and no recorded result is produced twice."""

    def try_at(at: int) -> bool:
        cloud, id = waiting(clouds)
        decide(cloud, id, approved=approved)
        died = cloud.dies(cloud.slice, at=at)
        goes_on(cloud)
        came_to_an_end(cloud, id)
        return died

    assert at_every_point(clouds, try_at) > 20


def test_asking_dies(clouds: Clouds) -> None:
    """The task that asks people is tried again: somebody is told, and can decide."""

    def try_at(at: int) -> bool:
        cloud = clouds()
        id = cloud.pause()
        cloud.slice()
        cloud.states.wait("token-1")
        died = cloud.dies(lambda: cloud.ask(id, "token-1"), at=at)
        if died:
            cloud.ask(id, "token-1")
        answered = cloud.request("POST", f"/callbacks/{cloud.callback()}", body={"approved": True}, caller=None)
        assert answered.status == 200
        goes_on(cloud)
        came_to_an_end(cloud, id)
        assert cloud.paid == [5]
        return died

    assert at_every_point(clouds, try_at) > 5


@pytest.mark.parametrize("on_timeout", ["reject", "halt"])
def test_expiring_dies(clouds: Clouds, on_timeout: str) -> None:
    """A slice that dies while it applies a time-out is tried again, whichever policy it is."""

    def try_at(at: int) -> bool:
        cloud, id = waiting(clouds, timeout=timedelta(hours=1), on_timeout=on_timeout)
        cloud.clock.advance(hours=1)
        died = cloud.dies(cloud.slice, at=at)
        if died:
            cloud.slice()
        goes_on(cloud)
        came_to_an_end(cloud, id)
        assert cloud.approval(id).status is ApprovalStatus.EXPIRED
        return died

    assert at_every_point(clouds, try_at) > 10


def test_pausing_dies(clouds: Clouds) -> None:
    """A pause that is cut short is made up for, and people are asked about one approval."""

    def try_at(at: int) -> bool:
        cloud = clouds()
        cloud.script = [("pay", {"amount": 5}), "Paid."]
        cloud.cold_start()
        died = cloud.dies(lambda: cloud.send("pay", headers={"Idempotency-Key": "once"}), at=at)
        cloud.clock.advance(minutes=2)
        cloud.send("pay", headers={"Idempotency-Key": "once"})
        for _ in range(3):
            cloud.recover()
            cloud.slice()
            cloud.clock.advance(minutes=2)
        id = cloud.stored().approval_id or ""
        cloud.states.wait("token-1")
        cloud.ask(id, "token-1")
        decide(cloud, id)
        goes_on(cloud)
        came_to_an_end(cloud, id)
        assert cloud.paid == [5]
        return died

    assert at_every_point(clouds, try_at) > 20


RACES: dict[str, tuple[Callable[[Deployment, str], Any], Callable[[Deployment, str], Any]]] = {
    "approve and reject": (lambda cloud, id: decide(cloud, id), lambda cloud, id: decide(cloud, id, approved=False)),
    "approve twice": (lambda cloud, id: decide(cloud, id), lambda cloud, id: decide(cloud, id)),
    "approve and abort": (
        lambda cloud, id: decide(cloud, id),
        lambda cloud, id: cloud.request("POST", "/sessions/s/abort", request_id="r2"),
    ),
    "abort and approve": (
        lambda cloud, id: cloud.request("POST", "/sessions/s/abort", request_id="r2"),
        lambda cloud, id: decide(cloud, id),
    ),
    "approve and expire": (lambda cloud, id: decide(cloud, id), lambda cloud, id: expire(cloud)),
    "expire and approve": (lambda cloud, id: expire(cloud), lambda cloud, id: decide(cloud, id)),
    "abort and expire": (
        lambda cloud, id: cloud.request("POST", "/sessions/s/abort", request_id="r2"),
        lambda cloud, id: expire(cloud),
    ),
}


def expire(cloud: Deployment) -> Any:
    """The execution's wait ends at the deadline, and its slice finds nobody's answer."""
    cloud.clock.advance(hours=1)
    return cloud.slice()


@pytest.mark.parametrize("race", RACES)
def test_two_at_once(clouds: Clouds, race: str) -> None:
    """Whoever comes in between, and wherever: one of them counts, and the other is told."""
    first, second = RACES[race]

    def try_at(at: int) -> bool:
        cloud, id = waiting(clouds, timeout=timedelta(hours=1))
        met = cloud.overtaken(lambda: first(cloud, id), at=at, by=lambda: second(cloud, id))
        press_again(cloud, id, approved=False)
        goes_on(cloud)
        came_to_an_end(cloud, id)
        closing = [event for event in cloud.approval(id).events if event.event in ("voted", "expired", "cancelled")]
        assert len(closing) == 1
        return met

    assert at_every_point(clouds, try_at) > 5


def test_two_slices_apply_one_decision(clouds: Clouds) -> None:
    """Two executions drive one run: the lease lets one of them apply, and the other waits for it."""

    def try_at(at: int) -> bool:
        cloud, id = waiting(clouds)
        decide(cloud, id)

        def other() -> None:
            cloud.slice(execution="arn:2")

        met = cloud.overtaken(lambda: cloud.slice(execution="arn:1"), at=at, by=other)
        goes_on(cloud)
        came_to_an_end(cloud, id)
        assert cloud.paid == [5]
        return met

    assert at_every_point(clouds, try_at) > 20
