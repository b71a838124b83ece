"""Approvals through Step Functions: deadlines, reminders, what stops a run that waits, and Lambdas that die."""

import threading
from typing import Any

import pytest

from tests.e2e.conftest import World, until

pytestmark = pytest.mark.e2e


def paused(world: World, script: str = "pay") -> tuple[str, str]:
    """A run that waits in its execution, and people were told; session and approval."""
    session = world.new_session()
    approval_id = world.start(session, script).json()["approval_id"]
    world.mail(approval_id)
    return session, approval_id


def decide(world: World, approval_id: str, **decision: Any) -> Any:
    return world.call("POST", f"/approvals/{approval_id}/decision", decision)


def trail(world: World, approval_id: str) -> list[str]:
    return [event["event"] for event in world.call("GET", f"/approvals/{approval_id}").json()["trail"]]


def test_deadlines(world: World) -> None:
    """At the deadline one tool's call is rejected and the model is told, another one's ends the run: neither runs."""
    rejected, first = paused(world, "hurry")
    halted, second = paused(world, "stop")
    assert world.until(rejected, "finished")["text"] == "Nobody said yes."
    assert world.until(halted, "finished")["finish_reason"] == "guardrail"
    for session, approval_id in ((rejected, first), (halted, second)):
        assert trail(world, approval_id) == ["requested", "token-attached", "expired", "applied"]
        late = decide(world, approval_id, approved=True)
        assert (late.status_code, late.json()["code"]) == (409, "APPROVAL_CLOSED")
        assert world.ledger.count(session, "pay") == 0


def test_a_reminder(world: World) -> None:
    """The wait ends for a reminder, which brings a new link, and the first link still decides."""
    session, approval_id = paused(world, "remind")
    link = world.callback_path(approval_id)
    until(lambda: "reminded" in trail(world, approval_id))
    assert world.call("POST", link, {"approved": True}, sign=False).status_code == 200
    assert world.until(session, "finished")["text"] == "Paid at last."
    assert world.ledger.count(session, "pay") == 1


def test_an_escalation(world: World) -> None:
    """When nobody decides in time the next level is told by its own topic, with a new link; the first link decides."""
    session, approval_id = paused(world, "escalate")
    link = world.callback_path(approval_id)
    world.mail(approval_id, says="you are level 1 of 2")
    world.mail(approval_id, says="you are level 2 of 2")
    assert world.call("POST", link, {"approved": True}, sign=False).status_code == 200
    world.until(session, "finished")
    asked = ["requested", "token-attached", "escalated", "token-attached", "escalated", "token-attached"]
    assert trail(world, approval_id) == [*asked, "voted", "applied"]
    assert world.ledger.count(session, "pay") == 1


def test_questions(world: World) -> None:
    """An answer that comes by link is the result, and the batch goes on; nobody's is the default, at the deadline."""
    session, approval_id = paused(world, "ask")
    late, unanswered = paused(world, "hurry_up")
    link = world.callback_path(approval_id)
    refused = world.call("POST", link, {"answer": " "}, sign=False)
    assert (refused.status_code, refused.json()["options"]) == (422, ["red", "deep blue"])
    for _ in range(2):
        answered = world.call("POST", link, {"answer": "deep blue"}, sign=False)
        assert (answered.status_code, answered.json()["decision"]["answer"]) == (200, "deep blue")
    assert world.until(session, "finished")["text"] == "As you say."
    results = [message["content"] for message in messages(world, session) if message["role"] == "tool"]
    assert results == [{"answer": "deep blue", "answered_by": "holder of a callback token"}, "after done"]
    assert world.ledger.count(session, "after") == 1
    assert world.until(late, "finished")["text"] == "Then so."
    assert messages(world, late)[2]["content"]["default"] is True
    assert world.call("POST", f"/approvals/{unanswered}/decision", {"answer": "red"}).status_code == 409


def messages(world: World, session: str) -> list[dict[str, Any]]:
    return world.call("GET", f"/sessions/{session}/messages").json()["messages"]


def test_edited_arguments_run(world: World) -> None:
    """What was approved is what runs, and both versions stay on the record."""
    session, approval_id = paused(world)
    assert decide(world, approval_id, approved=True, args={"amount": 3}).status_code == 200
    world.until(session, "finished")
    shown = world.call("GET", f"/approvals/{approval_id}").json()
    assert (shown["arguments"], shown["decision"]["args"]) == ({"amount": 5}, {"amount": 3})
    assert world.call("GET", f"/sessions/{session}/messages").json()["messages"][3]["content"]["paid"] == 3


def test_an_abort_cancels(world: World) -> None:
    """The approval is closed as cancelled, its execution ends, and the session takes a new message."""
    session, approval_id = paused(world)
    running = len(world.executions("RUNNING"))
    stopped = world.call("POST", f"/sessions/{session}/abort")
    assert (stopped.status_code, stopped.json()["finish_reason"]) == (200, "aborted")
    assert trail(world, approval_id)[-2:] == ["cancelled", "applied"]
    assert decide(world, approval_id, approved=True).status_code == 409
    until(lambda: len(world.executions("RUNNING")) < running)
    assert world.start(session, "talk").json()["text"] == "Hello."
    assert world.ledger.count(session, "pay") == 0


def test_deleting_the_session_cancels(world: World) -> None:
    """A session that is gone asks nobody any more."""
    session, approval_id = paused(world)
    deleted = world.call("DELETE", f"/sessions/{session}")
    assert (deleted.status_code, deleted.text) == (204, "")
    assert decide(world, approval_id, approved=True).status_code == 409
    assert world.call("GET", f"/sessions/{session}").status_code == 404
    assert world.ledger.count(session, "pay") == 0


def test_a_decision_after_the_execution_was_stopped(world: World) -> None:
    """Somebody stops the execution that waits: the decision starts a new one."""
    session, approval_id = paused(world)
    world.stop(session)
    assert decide(world, approval_id, approved=True).status_code == 200
    assert world.until(session, "finished")["text"] == "Paid."
    assert world.ledger.count(session, "pay") == 1


def test_a_lambda_killed_while_it_applies_a_decision(world: World) -> None:
    """The state machine tries the slice again: the call that had started is reported, and does not run twice."""
    session, approval_id = paused(world)
    gate = world.ledger.hold(session, "pay")
    thread = threading.Thread(target=lambda: decide(world, approval_id, approved=True))
    thread.start()
    gate.wait()
    world.cloud.kill_function("StepsFunction")
    gate.open()
    thread.join(30)
    assert world.until(session, "finished")["text"] == "Paid."
    assert world.ledger.count(session, "pay") == 1
    messages = world.call("GET", f"/sessions/{session}/messages").json()["messages"]
    assert messages[3]["content"]["kind"] == "unknown-outcome"
    assert trail(world, approval_id)[-1] == "applied"
