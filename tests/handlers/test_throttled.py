"""From any point of a request, a slice, recovery or a decision on, the table refuses every call, and then it is back.

Unlike a process that dies, one that is refused still runs: it retries, cleans up, and says that it failed. Clients and
the state machine try again, recovery looks every minute. At the end:

    1. what was accepted is finished, once, and what was not leaves nothing that runs
    2. at most the model turn, or the call, whose save was refused was made twice
    3. nothing was parked, and nothing is due any more
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from durable import Status, StoreUnavailableError
from handlers import steps
from handlers.steps import TryAgain
from tests.handlers.conftest import Deployment
from tests.handlers.test_approval_crashes import at_every_point, came_to_an_end, decide, waiting
from tests.handlers.test_approval_crashes import goes_on as approval_goes_on
from tests.handlers.test_run_crashes import ended, goes_on, made
from tests.support.deaths import Death, mortal_store
from tests.support.events import Context

Clouds = Callable[[], Deployment]
ONCE = {"Idempotency-Key": "once"}


class Outage(Death):
    """From its `at`-th point on every call fails: before it is carried out, and the first one perhaps after that."""

    def pass_point(self) -> None:
        self.points += 1
        if self.at is not None and self.points >= self.at:
            self.passed = True
            raise StoreUnavailableError("Operation", "ThrottlingException")


async def no_time(seconds: float) -> None:
    """The pauses between attempts."""


@contextmanager
def throttled(cloud: Deployment, at: int) -> Iterator[Outage]:
    outage, whole = Outage(), cloud.store
    outage.reset(at)
    cloud.store, cloud.sleep = mortal_store(whole, outage), no_time
    cloud.cold_start()
    try:
        yield outage
    finally:
        cloud.store = whole
        cloud.cold_start()


def attempted(cloud: Deployment, task: dict[str, Any], at: int) -> bool:
    """Let a task of the state machine meet the outage; whether it did. What it fails with is to be tried again."""
    with throttled(cloud, at) as outage:
        try:
            steps.handler(task, Context(seconds=900.0))
        except TryAgain:
            pass
    return outage.passed


@pytest.mark.parametrize("comes_again", [True, False])
@pytest.mark.parametrize("prefer", ["", "respond-async"])
@pytest.mark.parametrize("seconds", [29.0, 4.0])
def test_a_request(clouds: Clouds, prefer: str, seconds: float, comes_again: bool) -> None:
    """It is answered with what was done, or with an error that may be retried; with its key it is one run."""

    def try_at(at: int) -> bool:
        cloud = made(clouds)
        headers = {**ONCE, "Prefer": prefer}
        with throttled(cloud, at) as outage:
            answered = cloud.send("hi", headers=headers, seconds=seconds)
        assert answered.status in (200, 202, 503), answered
        if answered.status == 503:
            assert answered.json["retryable"] is True
        if comes_again:
            cloud.clock.advance(seconds=30)
            assert cloud.send("hi", headers=headers).status in (200, 202)
        goes_on(cloud)
        ended(cloud, accepted=True if comes_again or answered.status != 503 else None)
        assert cloud.asked <= 3 + outage.passed
        return outage.passed

    assert at_every_point(clouds, try_at) > 10


def test_a_slice(clouds: Clouds) -> None:
    """The state machine tries again at once, and the next slice takes the lease of the one before over."""

    def try_at(at: int) -> bool:
        cloud = made(clouds)
        cloud.send("hi", headers={**ONCE, "Prefer": "respond-async"})
        passed = attempted(cloud, cloud.slice_task(), at)
        assert cloud.slice()["outcome"] == "finished"
        ended(cloud, accepted=True)
        assert cloud.asked <= 3 + passed
        return passed

    assert at_every_point(clouds, try_at) > 20


def test_recovery(clouds: Clouds) -> None:
    """What it could not look at, or not start, is due again in a minute."""

    def try_at(at: int) -> bool:
        cloud = made(clouds)
        cloud.dies(lambda: cloud.send("hi", headers=ONCE), at=20)
        cloud.clock.advance(minutes=2)
        with throttled(cloud, at) as outage:
            try:
                cloud.recover()
            except StoreUnavailableError:
                pass
        goes_on(cloud)
        ended(cloud)
        return outage.passed

    assert at_every_point(clouds, try_at) > 5


@pytest.mark.parametrize("approved", [True, False])
def test_a_decision(clouds: Clouds, approved: bool) -> None:
    """One that was recorded is applied; who was told that it was not decides once more."""

    def try_at(at: int) -> bool:
        cloud, id = waiting(clouds)
        with throttled(cloud, at) as outage:
            answered = decide(cloud, id, approved=approved)
        assert answered.status in (200, 503), answered
        if answered.status == 503:
            assert decide(cloud, id, approved=approved).status == 200
        approval_goes_on(cloud)
        came_to_an_end(cloud, id)
        assert cloud.paid == ([5] if approved else [])
        return outage.passed

    assert at_every_point(clouds, try_at) > 5


def test_applying_a_decision(clouds: Clouds) -> None:
    """A payment that was made is recorded or reported, and never made again."""

    def try_at(at: int) -> bool:
        cloud, id = waiting(clouds)
        decide(cloud, id)
        passed = attempted(cloud, cloud.slice_task(), at)
        assert cloud.slice()["outcome"] == "finished"
        approval_goes_on(cloud)
        came_to_an_end(cloud, id)
        return passed

    assert at_every_point(clouds, try_at) > 10


def test_asking(clouds: Clouds) -> None:
    """The task is tried again until people were told and the wait has its token."""

    def try_at(at: int) -> bool:
        cloud: Any = clouds()
        id = cloud.pause()
        cloud.slice()
        passed = attempted(cloud, cloud.ask_task(id, "token-1"), at)
        cloud.states.wait("token-2")
        cloud.ask(id, "token-2")
        assert cloud.approval(id).task_token == "token-2"
        assert decide(cloud, id).status == 200
        assert cloud.slice()["outcome"] == "finished"
        assert (cloud.stored().status, cloud.paid) == (Status.FINISHED, [5])
        return passed

    assert at_every_point(clouds, try_at) > 2
