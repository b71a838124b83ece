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


def test_a_resume_waits_like_a_message(cloud: Deployment, slept: list[float]) -> None:
    """A resume is refused while somebody runs the session, or waits for it, and then carries the run on."""
    cloud.send("hi", headers={"Prefer": "respond-async"})
    cloud.hold(seconds=5)
    for body in (None, {}, {"on_busy": "reject"}):
        refused = cloud.request("POST", "/sessions/s/resume", body=body)
        assert (refused.status, refused.json["code"]) == (409, "SESSION_BUSY")
    assert slept == []
    resumed = cloud.request("POST", "/sessions/s/resume", body={"on_busy": "wait"})
    assert (resumed.status, resumed.json["text"]) == (200, "Hello.")
    assert 5 <= sum(slept) <= 7


def test_a_truncation_waits_like_a_message(cloud: Deployment, slept: list[float]) -> None:
    """A session is cut when nobody runs it any more, if the request waits; else it is refused and left as it is."""
    cloud.send("hi")
    cloud.hold(seconds=5)
    refused = cloud.request("POST", "/sessions/s/truncate", body={"message_count": 0})
    assert (refused.status, len(cloud.stored().messages)) == (409, 2)
    cut = cloud.request("POST", "/sessions/s/truncate", body={"message_count": 0, "on_busy": "wait"})
    assert (cut.status, len(cloud.stored().messages)) == (200, 0)
    assert 5 <= sum(slept) <= 7


def test_a_fork_waits_for_nobody(cloud: Deployment, slept: list[float]) -> None:
    """A fork is made of what is saved, whoever runs the session, and can itself be waited for."""
    cloud.send("hi")
    cloud.hold(seconds=20)
    made = cloud.request("POST", "/sessions/s/forks", body={"message_count": 2, "session_id": "f"})
    assert (made.status, slept) == (201, [])
    cloud.hold("f", seconds=5)
    answered = cloud.request("POST", "/sessions/f/runs", body={"input": "and?", "on_busy": "wait"})
    assert (answered.status, answered.json["text"]) == (200, "Again.")


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
    for path, body in (("runs", {"input": "hi"}), ("resume", {}), ("truncate", {"message_count": 0})):
        answered = cloud.request("POST", f"/sessions/s/{path}", body={**body, "on_busy": "queue"})
        assert (answered.status, answered.json["code"]) == (400, "REQUEST_INVALID")


def test_a_thousand_redeliveries_are_one_run(cloud: Deployment) -> None:
    """The same request, sent again while it runs, after its hand-over and after its end, runs once and never fails."""
    key = {"Idempotency-Key": "k", "Prefer": "respond-async"}
    first = cloud.send("hi", headers=key)
    assert first.status == 202

    def again(times: int) -> set[tuple[int, str]]:
        answers = [cloud.send("hi", headers=key) for _ in range(times)]
        return {(answered.status, answered.json["run_id"]) for answered in answers}

    run_id = cloud.stored().run_id
    assert again(300) == {(202, run_id)}
    lease = cloud.hold(seconds=600)
    assert again(300) == {(202, run_id)}
    cloud.store.leases.release(lease)
    assert len(cloud.states.running) == 1
    assert cloud.slice(execution=cloud.states.running[0])["outcome"] == "finished"
    assert again(400) == {(200, run_id)}
    assert (cloud.asked, len(cloud.states.executions), len(cloud.stored().messages)) == (1, 1, 2)


def test_fifty_sessions_are_kept_apart(cloud: Deployment) -> None:
    """Fifty sessions that were accepted before the first of them ran end in any order, each with its own."""
    for number in range(50):
        assert cloud.send(f"hi {number}", session=f"s{number}", headers={"Prefer": "respond-async"}).status == 202
    assert len(cloud.states.running) == 50
    for number in reversed(range(50)):
        assert cloud.slice(f"s{number}", execution=f"arn:{number}")["outcome"] == "finished"
    assert [cloud.stored(f"s{number}").messages[0].content for number in range(50)] == [f"hi {n}" for n in range(50)]
    assert cloud.asked == 50
