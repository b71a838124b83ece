"""Two requests that want one session: who is refused, who waits, and for how long."""

import pytest

from durable.records import Status
from tests.handlers.conftest import Deployment


@pytest.fixture
def slept(cloud: Deployment) -> list[float]:
    """The pauses of those who wait; the clock moves instead."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        cloud.clock.advance(seconds=seconds)

    cloud.sleep = sleep
    cloud.cold_start()
    return pauses


def test_a_busy_session_refuses_by_default(cloud: Deployment, slept: list[float]) -> None:
    """Without a policy, and with `reject`, the answer is 409 at once, with the time to come back at."""
    cloud.hold(seconds=20)
    for body in ({"input": "hi"}, {"input": "hi", "on_busy": "reject"}):
        answered = cloud.request("POST", "/sessions/s/runs", body=body)
        assert (answered.status, answered.json["code"], answered.headers["Retry-After"]) == (409, "SESSION_BUSY", "20")
    assert slept == []


def test_who_waits_runs_when_the_session_is_free(cloud: Deployment, slept: list[float]) -> None:
    """With `wait` the request runs as soon as the lease of the other one is over, with pauses that get longer."""
    cloud.hold(seconds=10)
    answered = cloud.request("POST", "/sessions/s/runs", body={"input": "hi", "on_busy": "wait"})
    assert (answered.status, answered.json["text"]) == (200, "Hello.")
    assert 10 <= sum(slept) <= 12
    assert max(slept) <= 2


def test_a_wait_ends_before_the_request_does(cloud: Deployment, slept: list[float]) -> None:
    """A session that stays busy is refused while there is time to say so, and nothing of the input was stored."""
    cloud.hold(seconds=900)
    answered = cloud.request("POST", "/sessions/s/runs", body={"input": "hi", "on_busy": "wait"})
    assert (answered.status, answered.json["code"]) == (409, "SESSION_BUSY")
    assert 20 <= sum(slept) < 27
    assert cloud.store.checkpoints.load("s") is None


def test_who_waits_is_accepted_by_what_the_session_is_then(cloud: Deployment, slept: list[float]) -> None:
    """What the input means is decided when the lease is there: a run that paused meanwhile takes nothing."""
    cloud.pause()
    cloud.hold(seconds=5)
    answered = cloud.request("POST", "/sessions/s/runs", body={"input": "hi", "on_busy": "wait"})
    assert (answered.status, answered.json["code"]) == (409, "SESSION_AWAITING_APPROVAL")
    assert cloud.stored().status is Status.AWAITING_APPROVAL


def test_another_policy_is_refused(cloud: Deployment) -> None:
    """A policy that does not exist is a fault of the request."""
    answered = cloud.request("POST", "/sessions/s/runs", body={"input": "hi", "on_busy": "queue"})
    assert answered.status == 400
