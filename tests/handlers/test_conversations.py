"""Sessions over HTTP: cut back, deleted, forked by their messages, and shown with what is pending."""

from collections.abc import Callable
from typing import Any

import pytest

from durable import FinishReason, Status, ToolCall
from durable.messages import AssistantMessage
from durable.transcript import first_fault
from tests.handlers.conftest import Deployment
from tests.support.sessions import texts

LOOKS: Any = AssistantMessage(tool_calls=(ToolCall(id="a", name="look"), ToolCall(id="b", name="look")))
PATH = "/sessions/s"


def talk(cloud: Deployment) -> None:
    """Two turns: 0 hi, 1 Hello, 2 look, 3 two calls, 4 5 results, 6 Seen."""
    cloud.script = ["Hello.", LOOKS, "Seen.", "And on."]
    cloud.cold_start()
    for number, text in enumerate(("hi", "look")):
        assert cloud.send(text, headers={"Idempotency-Key": f"k{number}"}, request_id=f"t{number}").status == 200


def truncate(cloud: Deployment, count: Any, **event: Any) -> Any:
    return cloud.request("POST", f"{PATH}/truncate", body={"message_count": count}, **event)


def delete(cloud: Deployment, **event: Any) -> Any:
    return cloud.request("DELETE", PATH, **event)


# --- looking ---------------------------------------------------------------------------------------------------------


def test_a_session_shows_what_is_pending(cloud: Deployment) -> None:
    """While a turn is unfinished the session shows its run, input and begin; `committed` counts what stands."""
    talk(cloud)
    shown = cloud.get(PATH).json
    assert (shown["turns"], shown["messages"], shown["committed"], shown["pending"]) == (2, 7, 7, None)
    cloud.clock.advance(hours=1)
    cloud.send("more", headers={"Prefer": "respond-async"})
    shown = cloud.get(PATH).json
    assert (shown["turns"], shown["committed"]) == (2, 7)
    assert shown["pending"] == {
        "run_id": cloud.stored().run_id,
        "input": "more",
        "started_at": "2030-01-01T01:00:00+00:00",
    }


# --- truncate --------------------------------------------------------------------------------------------------------


def test_a_truncation_keeps_the_first_messages(cloud: Deployment) -> None:
    """The first messages stay, turns are counted anew, and the next message goes on from there."""
    talk(cloud)
    answered = truncate(cloud, 2)
    assert (answered.status, answered.json["messages"], answered.json["turns"]) == (200, 2, 1)
    assert (cloud.lease().owner, cloud.head().due_at) == (None, None)
    assert cloud.send("again", request_id="r9").status == 200
    assert first_fault(cloud.stored().messages) is None
    assert texts(cloud.stored().messages)[:3] == ["hi", "Hello.", "again"]


@pytest.mark.parametrize("count", range(8))
def test_a_truncation_at_every_index(cloud: Deployment, count: int) -> None:
    """A cut between a call and its result is 400 with the nearest counts that are allowed, and nothing changes."""
    talk(cloud)
    before = cloud.stored()
    answered = truncate(cloud, count)
    if count in (4, 5):
        assert (answered.status, answered.json["code"]) == (400, "INPUT_INVALID")
        assert "3 and 6" in answered.json["detail"]
        assert cloud.stored() == before
    else:
        assert (answered.status, answered.json["messages"]) == (200, count)


def test_a_request_whose_answer_was_cut_off_is_never_answered_by_another(cloud: Deployment) -> None:
    """Its key gives 410, also when a new message stands where the answer was; the others' answers are still there."""
    talk(cloud)
    truncate(cloud, 2)
    cloud.script = ["Hello.", "Else.", "Else."]
    cloud.cold_start()
    for number in range(3):
        cloud.send(f"more {number}", request_id=f"m{number}")
    again = cloud.send("look", headers={"Idempotency-Key": "k1"}, request_id="r8")
    assert (again.status, again.json["code"]) == (410, "RESULT_EXPIRED")
    first = cloud.send("hi", headers={"Idempotency-Key": "k0"}, request_id="r9")
    assert (first.status, first.json["text"]) == (200, "Hello.")


@pytest.mark.parametrize(
    ("make", "status", "code"),
    [
        (lambda cloud: None, 404, "SESSION_NOT_FOUND"),
        (lambda cloud: cloud.pause(), 409, "SESSION_AWAITING_APPROVAL"),
        (lambda cloud: cloud.send("hi", headers={"Prefer": "respond-async"}), 409, "TURN_PENDING"),
        (lambda cloud: (talk(cloud), cloud.hold(seconds=9)), 409, "SESSION_BUSY"),
    ],
    ids=["absent", "paused", "pending", "busy"],
)
def test_a_truncation_that_is_refused(cloud: Deployment, make: Callable[[Any], Any], status: int, code: str) -> None:
    """What is not there, waits, has an unfinished turn or is somebody else's is not cut, and the lease is let go of."""
    make(cloud)
    held = cloud.lease()
    refused = truncate(cloud, 0, request_id="r7")
    assert (refused.status, refused.json["code"]) == (status, code)
    assert code == "SESSION_BUSY" or cloud.lease().owner is None or cloud.lease() == held


@pytest.mark.parametrize("count", [-1, "two", 1.5, None])
def test_a_count_must_be_a_number(cloud: Deployment, count: Any) -> None:
    """A body without a whole number from 0 up is 400 `REQUEST_INVALID`."""
    talk(cloud)
    assert truncate(cloud, count).json["code"] == "REQUEST_INVALID"
    assert truncate(cloud, 8).status == 400


# --- delete ----------------------------------------------------------------------------------------------------------


def test_a_deleted_session_is_gone(cloud: Deployment) -> None:
    """It is 404 and in no list, deleting it again is 204 like the first time, and a new message starts over."""
    talk(cloud)
    for number in range(2):
        assert delete(cloud, request_id=f"d{number}").status == 204
    assert cloud.get(PATH).status == 404
    assert cloud.get(f"{PATH}/messages").status == 404
    assert cloud.get("/sessions").json["sessions"] == []
    assert cloud.send("hi", request_id="r9").json["text"] == "Hello."
    assert cloud.stored().turns == 1


def test_what_a_deleted_session_waited_for_is_cancelled(cloud: Deployment) -> None:
    """The approval is closed before the session goes, a late decision is told so, and the execution ends."""
    approval_id = cloud.pause()
    cloud.ask(approval_id)
    run_id = cloud.stored().run_id
    assert delete(cloud).status == 204
    assert cloud.approval(approval_id).status == "cancelled"
    assert cloud.get(PATH).status == 404
    late = cloud.request("POST", f"/approvals/{approval_id}/decision", body={"approved": True}, request_id="r9")
    assert (late.status, late.json["code"]) == (409, "APPROVAL_CLOSED")
    assert cloud.slice(run_id=run_id)["outcome"] == "superseded"
    assert cloud.paid == []
    cloud.clock.advance(days=1)
    assert cloud.recover()["started"] == 0


def test_a_live_run_of_a_deleted_session_stops(cloud: Deployment) -> None:
    """Whoever runs the session when it is deleted is told to stop, cannot save any more, and leaves nothing behind."""
    ran: list[int] = []

    def says(request: Any) -> Any:
        ran.append(1)
        assert delete(cloud, request_id="d1").status == 204
        return ("look", {})

    cloud.script = says
    answered = cloud.send("hi")
    assert answered.json["code"] in ("STALE_CHECKPOINT", "LEASE_LOST")
    assert ran == [1]
    assert cloud.get(PATH).status == 404
    cloud.clock.advance(days=1)
    assert cloud.recover()["started"] == 0
    assert cloud.get(PATH).status == 404


def test_an_accepted_run_of_a_deleted_session_is_never_started(cloud: Deployment) -> None:
    """A run that was accepted and not begun goes with its session: neither its slice nor recovery runs it."""
    cloud.send("hi", headers={"Prefer": "respond-async"})
    run_id = cloud.stored().run_id
    delete(cloud, request_id="d1")
    assert cloud.slice(run_id=run_id)["outcome"] == "superseded"
    cloud.clock.advance(days=1)
    assert cloud.recover()["started"] == 0
    assert cloud.asked == 0


@pytest.mark.parametrize("state", ["finished", "paused", "accepted"])
def test_a_crash_anywhere_in_a_delete(clouds: Callable[[], Deployment], state: str) -> None:
    """Wherever the process dies: the session is there and in order, or gone; deleting once more makes it gone."""
    at = died = 0
    while died == at:
        at += 1
        cloud = clouds()
        if state == "finished":
            talk(cloud)
        elif state == "paused":
            cloud.ask(cloud.pause())
        else:
            cloud.send("hi", headers={"Prefer": "respond-async"})
        died += cloud.dies(lambda: delete(cloud, request_id="d1"), at=at)  # noqa: B023
        there = cloud.store.checkpoints.load("s")
        if there is not None:
            assert there.status is Status.AWAITING_APPROVAL or first_fault(there.messages) is None
            stopped = there.status is Status.IN_PROGRESS and there.finish_reason is FinishReason.ABORTED
            unmoved = {"finished": Status.FINISHED, "paused": Status.AWAITING_APPROVAL}.get(state, Status.IN_PROGRESS)
            assert stopped or there.status is unmoved
        cloud.clock.advance(minutes=5)
        assert delete(cloud, request_id="d2").status == 204
        assert cloud.get(PATH).status == 404
        assert cloud.send("hi", request_id="r9").status in (200, 202)
    assert at > 5


def test_a_crash_anywhere_in_a_truncation(clouds: Callable[[], Deployment]) -> None:
    """Wherever the process dies: the session is as before or cut, and once the dead one's time is up, usable."""
    at = died = 0
    while died == at:
        at += 1
        cloud = clouds()
        talk(cloud)
        died += cloud.dies(lambda: truncate(cloud, 2, request_id="d1"), at=at)  # noqa: B023
        assert len(cloud.stored().messages) in (2, 7)
        cloud.clock.advance(minutes=5)
        assert truncate(cloud, 2, request_id="d2").status == 200
        assert cloud.send("again", request_id="r9").status == 200
    assert at > 5


# --- forks by message count ------------------------------------------------------------------------------------------


def fork(cloud: Deployment, key: str | None = None, **body: Any) -> Any:
    headers = {"Idempotency-Key": key} if key else {}
    return cloud.request("POST", f"{PATH}/forks", body=body, headers=headers)


def test_a_fork_of_the_first_messages(cloud: Deployment) -> None:
    """The fork is a finished conversation of the first messages, with a link; a message goes on from it."""
    talk(cloud)
    before = cloud.stored()
    answered = fork(cloud, message_count=3, session_id="t")
    assert (answered.status, answered.json["status"], answered.json["forked_from"]["message_count"]) == (
        201,
        "finished",
        3,
    )
    assert cloud.stored("t").messages == before.messages[:3]
    assert cloud.send("more", session="t", request_id="r9").status == 200
    assert cloud.stored() == before
    assert fork(cloud, message_count=2, session_id="t").json["code"] == "SESSION_EXISTS"
    assert fork(cloud, message_count=2).json["session_id"] == "s.fork-1"


def test_a_fork_that_is_sent_again_is_the_same_fork(cloud: Deployment) -> None:
    """With a key the fork is made once, however often the request comes."""
    talk(cloud)
    first, again = fork(cloud, "once", message_count=2), fork(cloud, "once", message_count=2)
    assert first.json == again.json
    assert fork(cloud, "once", message_count=3).status == 422


@pytest.mark.parametrize(
    "body",
    [
        {"message_count": 4},
        {"message_count": 99},
        {"message_count": 2, "from_step": 1},
        {"message_count": 2, "patch": {"append_input": "x"}},
    ],
)
def test_a_fork_of_messages_that_is_refused(cloud: Deployment, body: dict[str, Any]) -> None:
    """A cut between call and result, a count that is none, and anything of a fork by step beside it are 400."""
    talk(cloud)
    assert fork(cloud, **body).status == 400
    assert cloud.store.checkpoints.load("s.fork-1") is None
