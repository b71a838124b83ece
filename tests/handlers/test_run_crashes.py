"""Wherever a handler dies between taking a request in and the end of its run: the run ends, or never began.

A process dies at every point it has: before and after each call to the log, the leases, Step Functions, SNS and
EventBridge. Nobody sends anything again; recovery looks every minute, and what it starts runs. At the end:

    1. what was accepted is finished, once, and what was not leaves nothing that runs
    2. no recorded result was produced twice: a tool ran at most once more than its process died
    3. nothing is due any more
"""

from collections.abc import Callable
from typing import Any

import pytest

from durable import Status
from durable.transcript import first_fault
from tests.handlers.conftest import Deployment

Clouds = Callable[[], Deployment]
LOOK: Any = ("look", {"what": "it"})
SCRIPT: list[Any] = [LOOK, LOOK, "Seen twice."]
MOST = 200


def made(clouds: Clouds) -> Deployment:
    cloud = clouds()
    cloud.script = SCRIPT
    cloud.cold_start()
    return cloud


def goes_on(cloud: Deployment) -> None:
    """Let the dead one's time pass; recovery looks, and what is unfinished gets its slice."""
    for _ in range(6):
        cloud.clock.advance(minutes=20)
        cloud.recover()
        stored = cloud.store.checkpoints.load("s")
        if stored is not None and stored.status is not Status.FINISHED:
            cloud.slice()


def ended(cloud: Deployment, *, accepted: bool | None = None) -> None:
    stored = cloud.store.checkpoints.load("s")
    if stored is None:
        assert accepted is not True
        assert cloud.asked == 0
    else:
        assert (stored.status, stored.messages[-1].content) == (Status.FINISHED, "Seen twice.")
        assert [message.role for message in stored.messages] == ["user", *["assistant", "tool"] * 2, "assistant"]
        assert first_fault(stored.messages) is None
        assert len(stored.requests) == 1
    cloud.clock.advance(days=1)
    assert cloud.recover()["started"] == 0
    head = cloud.head()
    assert head is None or head.due_run is None


@pytest.mark.parametrize("prefer", ["", "respond-async"])
@pytest.mark.parametrize("seconds", [29.0, 4.0])
def test_a_request_dies(clouds: Clouds, prefer: str, seconds: float) -> None:
    """Run here, handed over at once, or handed over for want of time: an accepted request is carried out."""
    headers = {"Idempotency-Key": "once", "Prefer": prefer}
    for at in range(1, MOST):
        cloud = made(clouds)
        died = cloud.dies(lambda: cloud.send("hi", headers=headers, seconds=seconds), at=at)  # noqa: B023
        goes_on(cloud)
        ended(cloud, accepted=None if died else True)
        if not died:
            assert at > 10
            return
    raise AssertionError("there is no end to it")


def test_a_request_that_comes_again_is_the_same_run(clouds: Clouds) -> None:
    """Whoever got no answer sends the request again, with its key: wherever the first one died there is one run."""
    headers = {"Idempotency-Key": "once"}
    for at in range(1, MOST):
        cloud = made(clouds)
        died = cloud.dies(lambda: cloud.send("hi", headers=headers), at=at)  # noqa: B023
        cloud.clock.advance(minutes=1)
        assert cloud.send("hi", headers=headers).status in (200, 202)
        goes_on(cloud)
        ended(cloud, accepted=True)
        if not died:
            return
    raise AssertionError("there is no end to it")


def test_a_slice_dies(clouds: Clouds) -> None:
    """A slice that dies anywhere is followed by another, and no recorded result is produced again."""
    for at in range(1, MOST):
        cloud = made(clouds)
        cloud.send("hi", headers={"Idempotency-Key": "once", "Prefer": "respond-async"})
        died = cloud.dies(cloud.slice, at=at)
        goes_on(cloud)
        ended(cloud, accepted=True)
        assert cloud.asked <= 3 + died
        if not died:
            assert at > 20
            return
    raise AssertionError("there is no end to it")


def test_recovery_dies(clouds: Clouds) -> None:
    """The one that makes up for others is made up for by the next."""
    for at in range(1, MOST):
        cloud = made(clouds)
        cloud.dies(
            lambda: cloud.send("hi", headers={"Idempotency-Key": "once", "Prefer": "respond-async"}),  # noqa: B023
            at=20,
        )
        cloud.clock.advance(minutes=2)
        died = cloud.dies(cloud.recover, at=at)
        goes_on(cloud)
        ended(cloud)
        if not died:
            return
    raise AssertionError("there is no end to it")
