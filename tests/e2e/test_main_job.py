"""The main job over HTTP, on the deployed template: run, survive a kill, wait for a human, finish."""

import threading
import time
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import REQUEST_SECONDS, World, until

pytestmark = pytest.mark.e2e


def paused(world: World, script: str = "pay") -> tuple[str, str]:
    """A session that waits for its approval in a state machine, and that approval's id."""
    session = world.new_session()
    answer = world.start(session, script)
    assert answer.status_code == 202, answer.text
    approval_id = answer.json()["approval_id"]
    world.mail(approval_id)  # by now the wait has its token
    return session, approval_id


def decide(world: World, approval_id: str, **decision: Any) -> httpx.Response:
    return world.call("POST", f"/approvals/{approval_id}/decision", decision)


def in_background(call: Any, *arguments: Any) -> tuple[threading.Thread, list[Any]]:
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(call(*arguments)))
    thread.start()
    return thread, answers


def test_a_run_that_finishes_answers_200(world: World) -> None:
    """A run that needs nobody is done within its request, and each of its steps happened once."""
    session = world.new_session()
    answer = world.start(session, "steps")
    assert answer.status_code == 200, answer.text
    assert answer.json()["text"] == "Both done."
    assert [world.ledger.count(session, name) for name in ("model-0", "one", "model-1", "two", "model-2")] == [1] * 5
    history = world.call("GET", f"/sessions/{session}/history").json()["entries"]
    assert [entry["status"] for entry in history] == ["finished"] + ["in-progress"] * 5


def test_a_pause_answers_202_and_sleeps_in_step_functions(world: World) -> None:
    """A run that waits answers 202 with a Location, its approval is listed, and an execution waits without a Lambda."""
    session = world.new_session()
    answer = world.start(session, "pay")
    assert answer.status_code == 202
    assert answer.headers["Location"].endswith(f"/sessions/{session}")
    approval_id = answer.json()["approval_id"]
    world.mail(approval_id)
    assert approval_id in [item["id"] for item in world.call("GET", "/approvals").json()["approvals"]]
    assert world.executions("RUNNING")
    until(lambda: not [worker for worker in world.cloud.workers("StepsFunction") if worker["busy"]])
    refused = world.start(session, "talk")
    assert (refused.status_code, refused.json()["code"]) == (409, "SESSION_AWAITING_APPROVAL")
    assert world.ledger.count(session, "pay") == 0


def test_approved_through_the_api(world: World) -> None:
    """The decision path approves: the call runs once, then the rest of the batch, then the model."""
    session, approval_id = paused(world)
    assert decide(world, approval_id, approved=True, note="fine").status_code == 200
    shown = world.until(session, "finished")
    assert shown["text"] == "Paid."
    assert [world.ledger.count(session, name) for name in ("model-0", "one", "pay", "two", "model-1")] == [1] * 5
    messages = world.call("GET", f"/sessions/{session}/messages").json()["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool", "tool", "assistant"]
    assert messages[3]["content"]["paid"] == 5
    approval = world.call("GET", f"/approvals/{approval_id}").json()
    assert (approval["status"], approval["applied"]) == ("approved", True)
    assert [event["event"] for event in approval["trail"]] == ["requested", "token-attached", "voted", "applied"]


def test_approved_through_a_callback_token(world: World) -> None:
    """A callback link needs no signature: following it shows the approval, and only a POST decides, once."""
    session, approval_id = paused(world)
    path = world.callback_path(approval_id)
    looked = world.call("GET", path, sign=False)
    assert (looked.status_code, looked.json()["status"]) == (200, "pending")
    assert world.call("POST", path + "x", {"approved": True}, sign=False).status_code == 404
    assert world.call("POST", path, {"approved": True}, sign=False).status_code == 200
    assert world.until(session, "finished")["text"] == "Paid."
    again = world.call("POST", path, {"approved": False}, sign=False)
    assert (again.status_code, again.json()["already_decided"]) == (409, True)
    assert world.ledger.count(session, "pay") == 1


def test_approved_by_completing_the_task(world: World) -> None:
    """`send-task-success` with the task token and `{"approved": true}` counts as a vote, and the record says so."""
    session, approval_id = paused(world)
    states = world.cloud.client("stepfunctions")
    states.send_task_success(taskToken=world.task_token(approval_id), output='{"approved": true}')
    assert world.until(session, "finished")["text"] == "Paid."
    decision = world.call("GET", f"/approvals/{approval_id}").json()["decision"]
    assert (decision["approved"], decision["by"], decision["via"]) == (True, "states:SendTaskSuccess", "task-token")
    assert world.ledger.count(session, "pay") == 1


def test_a_nonsense_task_output_is_no_vote(world: World) -> None:
    """Whatever else completes the task leads back to the human, with a new token."""
    session, approval_id = paused(world)
    states = world.cloud.client("stepfunctions")
    first = world.task_token(approval_id)
    states.send_task_success(taskToken=first, output='{"approved": "yes"}')
    deadline = time.monotonic() + 30
    while world.task_token(approval_id) == first and time.monotonic() < deadline:
        time.sleep(0.1)
    assert world.task_token(approval_id) != first
    assert world.call("GET", f"/approvals/{approval_id}").json()["status"] == "pending"
    decide(world, approval_id, approved=True)
    assert world.until(session, "finished")["text"] == "Paid."
    assert world.ledger.count(session, "pay") == 1


def test_rejected(world: World) -> None:
    """A rejected tool never runs; the model is told why, and the rest of the batch goes on."""
    session, approval_id = paused(world)
    assert decide(world, approval_id, approved=False, note="too much").status_code == 200
    assert world.until(session, "finished")["text"] == "Paid."
    assert [world.ledger.count(session, name) for name in ("pay", "two")] == [0, 1]
    result = world.call("GET", f"/sessions/{session}/messages").json()["messages"][3]["content"]
    assert (result["kind"], result["note"]) == ("rejected", "too much")


def test_a_decision_sent_twice_resumes_once(world: World) -> None:
    """The same decision again is 200 and changes nothing; another one is 409 and is shown the recorded one."""
    session, approval_id = paused(world)
    answers = [decide(world, approval_id, approved=True) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert [answer.json()["already_decided"] for answer in answers] == [False, True]
    other = decide(world, approval_id, approved=False)
    assert (other.status_code, other.json()["decision"]["approved"]) == (409, True)
    world.until(session, "finished")
    assert [world.ledger.count(session, name) for name in ("pay", "model-1")] == [1, 1]


def test_a_request_killed_between_two_tools(world: World) -> None:
    """A Lambda dies in its request; the client sends it again; nothing recorded runs again, no turn is asked again."""
    session = world.new_session()
    gate = world.ledger.hold(session, "model-1")
    thread, answers = in_background(world.start, session, "steps")
    gate.wait()
    assert world.cloud.kill_function("RunsFunction") >= 1
    gate.open()
    thread.join(30)
    assert answers[0].status_code >= 500
    deadline = time.monotonic() + 2 * REQUEST_SECONDS
    while (answer := world.start(session, "steps")).status_code == 409:
        assert answer.json()["code"] == "SESSION_BUSY"
        assert time.monotonic() < deadline
        time.sleep(min(int(answer.headers["Retry-After"]), 2))
    assert (answer.status_code, answer.json()["text"]) == (200, "Both done.")
    assert [world.ledger.count(session, name) for name in ("model-0", "one", "two", "model-2")] == [1] * 4
    assert world.ledger.count(session, "model-1") == 2  # this turn was not recorded: the Lambda died waiting for it


def test_a_slice_killed_between_two_tools(world: World) -> None:
    """A slice dies; the state machine tries again by itself; nothing recorded runs again, no turn is asked again."""
    session = world.new_session()
    gate = world.ledger.hold(session, "model-1")
    assert world.start(session, "steps", headers={"Prefer": "respond-async"}).status_code == 202
    gate.wait()
    assert world.cloud.kill_function("StepsFunction") >= 1
    gate.open()
    assert world.until(session, "finished")["text"] == "Both done."
    assert [world.ledger.count(session, name) for name in ("model-0", "one", "two", "model-2")] == [1] * 4


def test_an_asynchronous_run_survives_its_first_lambda(world: World) -> None:
    """`Prefer: respond-async`, and the first Lambda dies before the model has answered: the run still finishes."""
    session = world.new_session()
    gate = world.ledger.hold(session, "model-0")
    answer = world.start(session, "steps", headers={"Prefer": "respond-async"})
    assert (answer.status_code, answer.json()["status"]) == (202, "in-progress")
    gate.wait()
    assert world.cloud.kill_function("StepsFunction") >= 1
    gate.open()
    assert world.until(session, "finished")["text"] == "Both done."
    assert [world.ledger.count(session, name) for name in ("one", "two", "model-2")] == [1] * 3


def test_an_unsigned_request_is_refused(world: World) -> None:
    """The API is closed to whoever does not sign, and so are the paths that decide."""
    assert world.start(world.new_session(), "talk", sign=False).status_code == 403
    assert world.call("POST", "/approvals/apr_0/decision", {"approved": True}, sign=False).status_code == 403


def test_a_user_without_permission_is_refused(world: World) -> None:
    """IAM decides who may call what."""
    stranger = world.cloud.create_user("stranger")
    assert world.start(world.new_session(), "talk", credentials=stranger).status_code == 403


def test_tools_that_go_wrong_are_told_to_the_model(world: World) -> None:
    """Bad arguments, a tool that raises and a tool that is not there are results, and the run goes on."""
    session = world.new_session()
    answer = world.start(session, "stumble")
    assert (answer.status_code, answer.json()["text"]) == (200, "So be it.")
    messages = world.call("GET", f"/sessions/{session}/messages").json()["messages"]
    kinds = [message["content"]["kind"] for message in messages if message["role"] == "tool"]
    assert kinds == ["validation", "execution", "not-found"]


def test_a_provider_that_refuses_leaves_the_session_usable(world: World) -> None:
    """A 401 of the provider is a clear error, and the next message goes through."""
    session = world.new_session()
    refused = world.start(session, "locked")
    assert (refused.status_code, refused.json()["code"]) == (502, "PROVIDER_AUTHENTICATION")
    assert refused.json()["hint"]
    answer = world.start(session, "talk")
    assert (answer.status_code, answer.json()["text"]) == (200, "Hello.")


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/sessions/s/runs", b"{not json", 400, "REQUEST_INVALID"),
        ("/sessions/s/runs", b'{"input": "hi", "colour": "red"}', 400, "REQUEST_INVALID"),
        ("/sessions/s/runs", b'{"input": 7}', 400, "REQUEST_INVALID"),
        ("/sessions/~AQI/runs", b'{"input": "hi"}', 400, "SESSION_ID_INVALID"),
        ("/approvals/apr_none/decision", b'{"approved": true}', 404, "APPROVAL_NOT_FOUND"),
        ("/approvals/apr_none/decision", b'{"approved": "yes"}', 400, "REQUEST_INVALID"),
    ],
)
def test_bad_requests(world: World, path: str, body: bytes, status: int, code: str) -> None:
    """Bad input gets a problem document that says what is wrong and what to do."""
    answer = world.deployment.request("POST", path, content=body)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (status, code)
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert problem["hint"]
    assert "Traceback" not in answer.text


def test_unknown_things_are_404(world: World) -> None:
    """A session and an approval that do not exist are said not to exist."""
    assert world.call("GET", "/sessions/nobody").json()["code"] == "SESSION_NOT_FOUND"
    assert world.call("GET", "/approvals/apr_none").json()["code"] == "APPROVAL_NOT_FOUND"


def test_a_redelivered_request_is_answered_from_its_record(world: World) -> None:
    """The same Idempotency-Key gives the same outcome and runs nothing; another body under it is a mistake."""
    session, headers = world.new_session(), {"Idempotency-Key": "k1"}
    answers = [world.start(session, "steps", headers=headers) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json()["run_id"] == answers[1].json()["run_id"]
    assert world.ledger.count(session, "model-0") == 1
    assert world.start(session, "talk", headers=headers).status_code == 422
