"""Approvals over HTTP: looking at them, deciding them by signature or by callback token, and that nothing leaks."""

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from durable import ApprovalStatus, Status
from durable.approvals import MAX_NOTE
from handlers._notify import subject
from tests.handlers.conftest import PAY, Deployment
from tests.support.aws import refused
from tests.support.runs import START

YES, NO = {"approved": True}, {"approved": False}


def decide(cloud: Deployment, id: str, **body: Any) -> Any:
    return cloud.request("POST", f"/approvals/{id}/decision", body=body)


def asked(cloud: Deployment) -> tuple[str, str]:
    """A run that waits, with a human told: the approval's id and the callback token."""
    id = cloud.pause()
    cloud.slice(execution=cloud.states.running[0])
    cloud.states.wait("task-token-1")
    cloud.ask(id)
    return id, cloud.callback()


# --- looking ---------------------------------------------------------------------------------------------------------


def test_an_approval_shows_what_will_run(cloud: Deployment) -> None:
    """An approval shows tool, arguments, requester, deadline and trail."""
    cloud.approval_timeout = timedelta(hours=1)
    id = cloud.pause()
    shown = cloud.get(f"/approvals/{id}").json
    assert (shown["id"], shown["status"], shown["tool"], shown["arguments"]) == (id, "pending", "pay", {"amount": 5})
    assert (shown["session_id"], shown["agent"]) == ("s", "desk")
    assert shown["requested_by"] == "arn:aws:iam::123456789012:role/desk"
    assert shown["requested_at"] == START.isoformat()
    assert shown["deadline"] == (START + timedelta(hours=1)).isoformat()
    assert (shown["decision"], shown["applied"]) == (None, False)
    assert [event["event"] for event in shown["trail"]] == ["requested"]


def test_pending_approvals_are_listed(cloud: Deployment) -> None:
    """The list shows what waits, by status and in pages; what is decided leaves it."""
    ids = [cloud.pause(f"s{number}") for number in range(3)]
    listed: list[str] = []
    query = {"limit": "2"}
    while True:
        page = cloud.get("/approvals", **query).json
        listed += [approval["id"] for approval in page["approvals"]]
        if page["cursor"] is None:
            break
        query = {"limit": "2", "cursor": page["cursor"]}
    assert sorted(listed) == sorted(ids)
    decide(cloud, ids[0], **YES)
    assert len(cloud.get("/approvals", status="pending").json["approvals"]) == 2
    [approved] = cloud.get("/approvals", status="approved").json["approvals"]
    assert (approved["id"], approved["status"]) == (ids[0], "approved")


@pytest.mark.parametrize(
    "query", [{"status": "maybe"}, {"status": ""}, {"limit": "0"}, {"limit": "101"}, {"limit": "few"}]
)
def test_a_query_that_is_not_right_is_refused(cloud: Deployment, query: dict[str, str]) -> None:
    """An unknown status and a limit out of range are 400 problems."""
    answered = cloud.get("/approvals", **query)
    assert (answered.status, answered.json["code"], answered.is_problem) == (400, "REQUEST_INVALID", True)


def test_an_orphan_is_shown_as_one(cloud: Deployment) -> None:
    """An approval whose session is gone is shown as orphaned, in the list too, and cannot be decided."""
    id = cloud.pause()
    cloud.store.checkpoints.delete("s")
    assert cloud.get(f"/approvals/{id}").json["status"] == "orphaned"
    assert [one["status"] for one in cloud.get("/approvals").json["approvals"]] == ["orphaned"]
    answered = decide(cloud, id, **YES)
    assert (answered.status, answered.json["code"], answered.is_problem) == (409, "APPROVAL_CLOSED", True)


@pytest.mark.parametrize("id", ["apr_" + "0" * 32, "apr_1", "nonsense", "apr_" + "0" * 32 + ".secret"])
def test_an_unknown_approval_is_not_found(cloud: Deployment, id: str) -> None:
    """An id that names no approval is a 404 problem, for looking and for deciding."""
    for answered in (cloud.get(f"/approvals/{id}"), decide(cloud, id, **YES)):
        assert (answered.status, answered.json["code"], answered.is_problem) == (404, "APPROVAL_NOT_FOUND", True)


# --- deciding --------------------------------------------------------------------------------------------------------


def test_a_decision_is_recorded_and_wakes_the_execution(cloud: Deployment) -> None:
    """The vote is on the record with its principal, and the execution that waits is told to look, once."""
    id, _ = asked(cloud)
    answered = decide(cloud, id, approved=True, note="fine")
    assert (answered.status, answered.json["already_decided"]) == (200, False)
    assert answered.json["status"] == "approved"
    decision = answered.json["decision"]
    assert (decision["by"], decision["via"], decision["note"]) == (
        "arn:aws:iam::123456789012:role/desk",
        "api",
        "fine",
    )
    assert cloud.states.waiting["task-token-1"] == [json.dumps({"wake": True})]
    assert len(cloud.states.running) == 1
    assert cloud.paid == []
    assert cloud.slice()["outcome"] == "finished"
    assert cloud.paid == [5]
    assert cloud.get(f"/approvals/{id}").json["applied"] is True


def test_a_rejection_never_runs_the_tool(cloud: Deployment) -> None:
    """A rejected call is told to the model, and the run finishes without it."""
    id, _ = asked(cloud)
    assert decide(cloud, id, approved=False, note="too dear").json["status"] == "rejected"
    assert cloud.slice()["outcome"] == "finished"
    assert cloud.paid == []


def test_edited_arguments_are_what_runs(cloud: Deployment) -> None:
    """Arguments that a human corrects replace the model's; both stay visible."""
    id, _ = asked(cloud)
    answered = decide(cloud, id, approved=True, args={"amount": 3})
    assert (answered.json["arguments"], answered.json["decision"]["args"]) == ({"amount": 5}, {"amount": 3})
    cloud.slice()
    assert cloud.paid == [3]


@pytest.mark.parametrize(
    ("again", "status"), [(YES, 200), ({**YES, "note": "again"}, 200), (NO, 409), ({**YES, "args": {"amount": 3}}, 409)]
)
def test_a_second_decision_gets_the_first_one(cloud: Deployment, again: dict[str, Any], status: int) -> None:
    """Deciding twice gives the recorded decision, marked, 200 when it is the same and 409 when not, and wakes again."""
    id, _ = asked(cloud)
    decide(cloud, id, approved=True, note="fine")
    answered = decide(cloud, id, **again)
    assert (answered.status, answered.json["already_decided"]) == (status, True)
    assert (answered.json["decision"]["approved"], answered.json["decision"]["note"]) == (True, "fine")
    assert len(cloud.states.waiting["task-token-1"]) == 2
    cloud.slice()
    assert cloud.paid == [5]
    decide(cloud, id, **again)
    assert len(cloud.states.waiting["task-token-1"]) == 2


def test_a_decision_before_anybody_waits_starts_an_execution(cloud: Deployment) -> None:
    """When no execution waits for the decision, or the one that did is gone, one is started."""
    id = cloud.pause()
    for arn in cloud.states.running:
        cloud.states.end(arn, "ABORTED")
    assert decide(cloud, id, **YES).status == 200
    assert len(cloud.states.running) == 1
    assert cloud.slice()["outcome"] == "finished"

    other = cloud.pause("t")
    cloud.slice("t", execution=cloud.states.running[-1])
    cloud.ask(other, "a token that has timed out", "t")
    cloud.states.end(cloud.states.running[-1], "TIMED_OUT")
    running = len(cloud.states.running)
    assert decide(cloud, other, **YES).status == 200
    assert len(cloud.states.running) == running + 1


def test_a_decision_is_recorded_when_the_wake_up_fails(cloud: Deployment) -> None:
    """The record is the truth: a wake-up that fails is a 503, and deciding again, or recovery, sends it once more."""
    id, _ = asked(cloud)
    cloud.states.fail("send_task_success", refused("ThrottlingException"))
    answered = decide(cloud, id, **YES)
    assert (answered.status, answered.is_problem) == (503, True)
    assert cloud.approval(id).status is ApprovalStatus.APPROVED
    assert decide(cloud, id, **YES).status == 200
    assert len(cloud.states.waiting["task-token-1"]) == 1

    cloud.clock.advance(minutes=2)
    assert cloud.recover()["started"] == 1
    assert len(cloud.states.waiting["task-token-1"]) == 2


@pytest.mark.parametrize(
    "error",
    [refused("ServiceUnavailable"), EndpointConnectionError(endpoint_url="https://states.example")],
    ids=["service", "network"],
)
def test_a_service_that_is_down_is_503(cloud: Deployment, error: Exception) -> None:
    """An error of Step Functions, or no answer at all, is a problem that may be tried again."""
    id = cloud.pause()
    cloud.states.executions.clear()
    cloud.states.fail("start_execution", error)
    answered = decide(cloud, id, **YES)
    assert (answered.status, answered.json["code"], answered.json["retryable"]) == (503, "STORE_UNAVAILABLE", True)


def test_a_permission_that_is_missing_is_named(cloud: Deployment) -> None:
    """What only the deployment can fix is not to be tried again: the problem names operation and reason."""
    id = cloud.pause()
    cloud.states.executions.clear()
    cloud.states.fail("start_execution", refused("AccessDeniedException"))
    answered = decide(cloud, id, **YES)
    assert (answered.status, answered.json["code"], answered.json["retryable"]) == (500, "STORE_REJECTED", False)
    assert "StartExecution" in answered.json["detail"]
    assert "AccessDeniedException" in answered.json["detail"]


@pytest.mark.parametrize(("seconds", "status"), [(-1, 200), (0, 409), (1, 409)])
def test_a_decision_counts_until_the_deadline(cloud: Deployment, seconds: int, status: int) -> None:
    """Before the deadline a decision is taken; at it, it comes too late and is told so."""
    cloud.approval_timeout = timedelta(hours=1)
    id, token = asked(cloud)
    cloud.clock.advance(hours=1, seconds=seconds)
    answered = decide(cloud, id, **YES)
    assert answered.status == status
    if status == 409:
        assert (answered.json["code"], answered.is_problem) == ("APPROVAL_CLOSED", True)
        assert cloud.get(f"/approvals/{id}").json["status"] == "expired"
        assert cloud.request("POST", f"/callbacks/{token}", body=YES).status == 409


BODIES = {
    "nothing": None,
    "not JSON": "yes",
    "a list": "[true]",
    "no decision": "{}",
    "a text": '{"approved": "true"}',
    "a number": '{"approved": 1}',
    "null": '{"approved": null}',
    "an unknown field": '{"approved": true, "by": "me"}',
    "a note that is no text": '{"approved": true, "note": 5}',
    "arguments that are no object": '{"approved": true, "args": [5]}',
    "not a number": '{"approved": true, "args": {"amount": NaN}}',
    "half a surrogate pair": '{"approved": true, "note": "\\ud800"}',
    "arguments that do not fit": '{"approved": true, "args": {"amount": "much"}}',
    "an argument that is not there": '{"approved": true, "args": {"amount": 5, "to": "me"}}',
    "arguments for a rejection": '{"approved": false, "args": {"amount": 5}}',
    "a note that is too long": json.dumps({"approved": True, "note": "x" * (MAX_NOTE + 1)}),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_decision_that_is_not_right_is_refused(cloud: Deployment, body: str | None) -> None:
    """A bad decision is a problem, by signature and by token; nothing is recorded, and a good one still counts."""
    id, token = asked(cloud)
    events = len(cloud.approval(id).events)
    for path in (f"/approvals/{id}/decision", f"/callbacks/{token}"):
        answered = cloud.request("POST", path, body=body)
        assert (answered.status in (400, 422), answered.is_problem) == (True, True)
        assert answered.json["code"] in ("REQUEST_INVALID", "DECISION_INVALID")
    assert len(cloud.approval(id).events) == events
    assert decide(cloud, id, **YES).status == 200


def test_a_refused_decision_leaves_the_deadline_to_recovery(cloud: Deployment) -> None:
    """A decision that was refused does not make recovery forget a run that waits for its deadline."""
    cloud.approval_timeout = timedelta(hours=1)
    id, _ = asked(cloud)
    due = cloud.head().due_at
    assert due == START + timedelta(hours=1, minutes=5)
    assert decide(cloud, id, approved=True, args={"amount": "much"}).status == 422
    cloud.clock.advance(minutes=2)
    cloud.recover()
    assert cloud.head().due_at == due


# --- callback tokens -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"])
def test_a20_only_post_decides(cloud: Deployment, method: str) -> None:
    """Following the link changes nothing: the record, the session and the waiting execution stay as they were."""
    id, token = asked(cloud)
    before, stored, written = cloud.approval(id), cloud.stored(), cloud.store.consumed().bytes_written
    for body in (None, YES):
        answered = cloud.request(method, f"/callbacks/{token}", body=body, caller=None)
        assert answered.status == (200 if method == "GET" else 404)
    assert (cloud.approval(id), cloud.stored()) == (before, stored)
    assert (cloud.states.waiting["task-token-1"], cloud.store.consumed().bytes_written) == ([], written)


def test_looking_at_a_late_link_decides_nothing(cloud: Deployment) -> None:
    """A GET past the deadline does not even record that the deadline has passed."""
    cloud.approval_timeout = timedelta(hours=1)
    id, token = asked(cloud)
    cloud.clock.advance(hours=2)
    assert cloud.request("GET", f"/callbacks/{token}", caller=None).status == 200
    assert [event.event for event in cloud.approval(id).events] == ["requested", "token-attached"]


def test_a_link_shows_what_it_decides(cloud: Deployment) -> None:
    """GET shows the approval, and tells browsers to keep the link to themselves."""
    id, token = asked(cloud)
    shown = cloud.request("GET", f"/callbacks/{token}", caller=None)
    assert (shown.json["id"], shown.json["tool"], shown.json["arguments"]) == (id, "pay", {"amount": 5})
    assert (shown.headers["Referrer-Policy"], shown.headers["Cache-Control"]) == ("no-referrer", "no-store")


def test_a_callback_token_decides_without_a_signature(cloud: Deployment) -> None:
    """POST with the token decides; the record says that it came by a link, and which of the tokens was used up."""
    id, token = asked(cloud)
    answered = cloud.request("POST", f"/callbacks/{token}", body={"approved": True, "note": "ok"}, caller=None)
    assert (answered.status, answered.json["status"]) == (200, "approved")
    assert (answered.json["decision"]["via"], answered.json["decision"]["note"]) == ("callback", "ok")
    assert answered.headers["Referrer-Policy"] == "no-referrer"
    assert cloud.states.waiting["task-token-1"]
    cloud.slice()
    assert cloud.paid == [5]
    again = cloud.request("POST", f"/callbacks/{token}", body=YES, caller=None)
    assert (again.status, again.json["already_decided"]) == (200, True)
    assert cloud.request("POST", f"/callbacks/{token}", body=NO, caller=None).status == 409
    assert cloud.approval(id).applied


def test_a_token_opens_its_own_approval_only(cloud: Deployment) -> None:
    """A token that was never minted, is cut or belongs to another approval is not found, and learns nothing."""
    id, token = asked(cloud)
    secret = token.partition(".")[2]
    other = cloud.pause("t")
    cloud.ask(other, "task-token-2", "t")
    wrong = [
        f"{other}.{secret}",
        f"{id}.{'x' * 43}",
        f"{id}.",
        id,
        token[:-1],
        f"{token}x",
        token.upper(),
        "x",
        "task-token-1",
        "apr_" + "0" * 32 + ".x",
    ]
    answers = set()
    for guess in wrong:
        for method in ("GET", "POST"):
            answered = cloud.request(method, f"/callbacks/{guess}", body=YES, caller=None)
            assert (answered.status, answered.is_problem) == (404, True)
            answers.add(answered.text)
    assert len(answers) == 1
    assert cloud.approval(id).status is cloud.approval(other).status is ApprovalStatus.PENDING


def test_every_notification_has_a_token_of_its_own(cloud: Deployment) -> None:
    """Asking again mints another token; each of them opens the approval until it is decided."""
    id, first = asked(cloud)
    cloud.ask(id, "task-token-2")
    second = cloud.callback()
    assert first != second
    for token in (first, second):
        assert cloud.request("GET", f"/callbacks/{token}", caller=None).json["id"] == id
    assert cloud.request("POST", f"/callbacks/{first}", body=YES, caller=None).status == 200
    assert cloud.request("POST", f"/callbacks/{second}", body=NO, caller=None).status == 409


def test_no_token_and_no_argument_leaks(cloud: Deployment, capsys: pytest.CaptureFixture[str]) -> None:
    """Callback tokens, task tokens and their hashes appear in no answer and no log line; arguments in no log line."""
    cloud.script = [("look", {"what": "open-sesame"}), *PAY]
    id, token = asked(cloud)
    secret = token.partition(".")[2]
    hashes = [known for event in cloud.approval(id).events for known in getattr(event, "callbacks", ())]
    assert len(hashes) == 1
    answers = [
        cloud.get("/approvals"),
        cloud.get(f"/approvals/{id}"),
        cloud.get(f"/approvals/{token}"),
        decide(cloud, token, **YES),
        cloud.get(f"/callbacks/{token}"),
        cloud.get(f"/callbacks/{token}x"),
        cloud.request("POST", f"/callbacks/{token}", body="open-sesame"),
        cloud.request("POST", f"/callbacks/{token}", body={"approved": True, "note": "open-sesame"}),
        cloud.request("POST", f"/callbacks/{token}", body=NO),
        decide(cloud, id, **YES),
        cloud.get(f"/approvals/{id}"),
        cloud.get("/sessions/s"),
        cloud.get("/sessions/s/history"),
    ]
    cloud.slice()
    answers += [cloud.get(f"/approvals/{id}"), cloud.get("/approvals", status="approved")]
    logged = cloud.log.getvalue() + capsys.readouterr().out
    for hidden in (secret, "task-token-1", *hashes):
        assert not [answer for answer in answers if hidden in answer.text]
        assert hidden not in logged
    assert "open-sesame" not in logged
    assert cloud.stored().status is Status.FINISHED


def test_a21_a_task_token_is_in_no_link_and_no_message(cloud: Deployment) -> None:
    """What wakes an execution has characters that break in a URL: links carry a short token of our own instead."""
    task_token = "AQCgAAAAKgAAAAMAAAAAAAAAAb+/0lmzZz=="
    id = cloud.pause()
    cloud.slice()
    cloud.states.wait(task_token)
    cloud.ask(id, task_token)
    assert re.fullmatch(r"[A-Za-z0-9._-]+", cloud.callback())
    told = str(cloud.topics.messages) + cloud.log.getvalue() + cloud.get(f"/approvals/{id}").text
    assert task_token not in told
    cloud.request("POST", f"/callbacks/{cloud.callback()}", body=YES, caller=None)
    assert len(cloud.states.waiting[task_token]) == 1


def test_an_approval_decides_for_its_own_session_alone(cloud: Deployment) -> None:
    """A session that was deleted and begun anew under the same id is not the one that was asked about."""
    id, token = asked(cloud)
    cloud.request("DELETE", "/sessions/s", request_id="r2")
    cloud.script = PAY
    cloud.cold_start()
    other = cloud.send("pay", request_id="r3").json["approval_id"]
    assert other != id
    for answered in (
        cloud.request("POST", f"/approvals/{id}/decision", body=YES),
        cloud.request("POST", f"/callbacks/{token}", body=YES, caller=None),
    ):
        assert (answered.status, answered.json["code"]) == (409, "APPROVAL_CLOSED")
    assert (cloud.approval(other).status, cloud.paid) == ("pending", [])


@pytest.mark.parametrize("name", ["x" * 300, "zahle\r\nBcc: all@example.com", "支付", "\x00\x1b[31m", "<script>"])
def test_a_subject_survives_any_tool_name(cloud: Deployment, name: str) -> None:
    """At most 100 characters of printable ASCII in one line, whatever a tool is called."""
    id = cloud.pause()
    approval = cloud.approval(id)
    said = subject(approval.but(events=(approval.request.but(tool_name=name),)), reminds=True)
    assert len(said) <= 100
    assert said.isascii()
    assert said.isprintable()
