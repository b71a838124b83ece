"""POST /sessions/{id}/runs: what is accepted, what is answered, and what is refused."""

import base64
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from durable import (
    FinishReason,
    PropagatingToolError,
    ProviderAuthenticationError,
    ProviderRateLimitError,
    ProviderRequestError,
    ProviderResponseError,
    ProviderUnavailableError,
    Status,
    StoreUnavailableError,
)
from handlers._executions import execution_name
from tests.handlers.conftest import MACHINE, PAY, Deployment
from tests.support.aws import refused
from tests.support.runs import START

ASYNC = {"Prefer": "respond-async"}


def key(name: str) -> dict[str, str]:
    return {"Idempotency-Key": name}


# --- answers ---------------------------------------------------------------------------------------------------------


def test_a_run_that_finishes_answers_200(cloud: Deployment) -> None:
    """The answer has text, status, usage, ids and cost; the session is stored, free again, and not due any more."""
    answered = cloud.send("hi")
    assert (answered.status, answered.headers["Content-Type"]) == (200, "application/json")
    body = answered.json
    assert (body["session_id"], body["run_id"], body["text"]) == ("s", "run1", "Hello.")
    assert (body["status"], body["finish_reason"], body["steps"], body["tool_calls"]) == ("finished", "stop", 1, 0)
    assert body["usage"]["model_calls"] == 1
    assert set(body["store"]) == {"requests", "write_units", "read_units"}
    assert "Location" not in answered.headers
    assert cloud.stored().status is Status.FINISHED
    assert cloud.stored().requested_by == "arn:aws:iam::123456789012:role/desk"
    assert (cloud.lease().owner, cloud.head().due_at) == (None, None)
    assert cloud.states.calls == []


def test_every_answer_says_what_it_took_of_the_store(cloud: Deployment) -> None:
    """The headers count all store calls of a request, lease and acceptance included; the body those of the run."""
    for method, path in (
        ("POST", "/sessions/s/runs"),
        ("GET", "/sessions/s"),
        ("GET", "/sessions/none"),
        ("GET", "/x"),
    ):
        before = cloud.store.consumed()
        answered = cloud.request(method, path, body={"input": "hi"} if method == "POST" else None)
        took = cloud.store.consumed() - before
        assert answered.headers["X-Consumed-Requests"] == str(took.requests)
        assert answered.headers["X-Consumed-Write-Units"] == str(took.write_units)
        assert answered.headers["X-Consumed-Read-Units"] == str(took.read_units)
        if method == "POST":
            assert 0 < answered.json["store"]["requests"] < took.requests <= answered.json["store"]["requests"] + 10


def test_slices_add_to_what_the_run_took(cloud: Deployment) -> None:
    """What a session shows is the sum over the request and the slices that carried its run on."""
    id = cloud.pause()
    first = cloud.get("/sessions/s").json["store"]["requests"]
    assert cloud.request("POST", f"/approvals/{id}/decision", body={"approved": True}).status == 200
    assert cloud.slice()["outcome"] == "finished"
    assert cloud.get("/sessions/s").json["store"]["requests"] > first > 0


def test_a_text_only_turn_makes_two_saves(cloud: Deployment) -> None:
    """The input is saved when it is accepted, the answer when it is there."""
    cloud.send("hi")
    assert cloud.stored().revision == 1


def test_a_run_that_pauses_answers_202(cloud: Deployment) -> None:
    """The answer says where the run is, and the execution that will wait has the run's name and its ids as input."""
    cloud.script = PAY
    answered = cloud.send("pay")
    assert (answered.status, answered.headers["Location"]) == (202, "/v1/sessions/s")
    assert answered.headers["Retry-After"]
    assert answered.json["status"] == "awaiting-approval"
    assert answered.json["approval_id"] == cloud.stored().approval_id
    [started] = cloud.states.called("start_execution")
    stored = cloud.stored()
    assert started == {
        "stateMachineArn": MACHINE,
        "name": execution_name(stored.run_id, stored.revision, 0),
        "input": json.dumps({"v": 1, "session_id": "s", "run_id": stored.run_id}),
    }
    assert cloud.head().due_at == START + timedelta(seconds=60)
    assert cloud.lease().owner is None
    assert cloud.paid == []


@pytest.mark.parametrize("prefer", ["respond-async", "Respond-Async, wait=10"])
def test_a_client_may_prefer_not_to_wait(cloud: Deployment, prefer: str) -> None:
    """With `Prefer: respond-async` the input is saved and handed over: no model call is made here."""
    answered = cloud.send("hi", headers={"prefer": prefer})
    assert (answered.status, answered.headers["Location"]) == (202, "/v1/sessions/s")
    stored = cloud.stored()
    assert (answered.json["status"], stored.status, stored.step) == ("in-progress", Status.IN_PROGRESS, 0)
    assert [message.content for message in stored.queued] == ["hi"]
    assert (cloud.asked, len(cloud.states.running), cloud.lease().owner) == (0, 1, None)
    assert cloud.slice(execution=cloud.states.running[0])["outcome"] == "finished"
    assert cloud.stored().messages[-1].content == "Hello."


@pytest.mark.parametrize(("seconds", "status"), [(16.9, 202), (17.5, 200)])
def test_a_run_without_enough_time_is_handed_over(cloud: Deployment, seconds: float, status: int) -> None:
    """With less than `min_model_seconds` and a reserve left, the run goes on in the state machine."""
    answered = cloud.send("hi", seconds=seconds)
    assert answered.status == status
    if status == 202:
        assert (cloud.stored().finish_reason, len(cloud.states.running)) == (FinishReason.DEADLINE, 1)
        assert cloud.slice()["outcome"] == "finished"


def test_a_session_goes_on_turn_by_turn(cloud: Deployment) -> None:
    """A finished session takes the next message, a repeated one too, and a whole history means what is new in it."""
    assert [cloud.send("hi").json["text"] for _ in range(2)] == ["Hello.", "Again."]
    history = [message.model_dump(mode="json") for message in cloud.stored().messages]
    answered = cloud.send([*history, {"role": "user", "content": "and?"}])
    assert answered.json["text"] == "And again."
    assert len(cloud.stored().messages) == 6


def test_nothing_new_gives_the_recorded_result(cloud: Deployment) -> None:
    """An empty input to a finished session is answered from the record: no model call, and no save."""
    first = cloud.send("hi").json
    revision = cloud.stored().revision
    again = cloud.send([])
    assert (again.status, again.json) == (200, {name: first[name] for name in again.json})
    assert (cloud.asked, cloud.stored().revision, cloud.lease().owner) == (1, revision, None)


@pytest.mark.parametrize("session_id", ["a b", "é", "a/b", "~", "..", "x" * 256, "👍🏽"])
def test_any_session_id_has_a_link(cloud: Deployment, session_id: str) -> None:
    """An id that is not plain stands in the URL as `~` and its base64url, and the Location gives that link."""
    segment = "~" + base64.urlsafe_b64encode(session_id.encode()).decode().rstrip("=")
    segment = session_id if session_id == "x" * 256 else segment
    cloud.script = PAY
    answered = cloud.send("pay", session=segment)
    assert answered.headers["Location"] == f"/v1/sessions/{segment}"
    assert answered.json["session_id"] == session_id
    assert cloud.get(f"/sessions/{segment}").json["session_id"] == session_id


@pytest.mark.parametrize(
    ("caller", "principal"),
    [
        ("arn:aws:sts::123456789012:assumed-role/desk/ada", "arn:aws:iam::123456789012:role/desk"),
        ("arn:aws:iam::123456789012:user/ada", "arn:aws:iam::123456789012:user/ada"),
        (None, None),
    ],
)
def test_the_requester_is_the_role_and_not_the_session_name(
    cloud: Deployment, caller: str | None, principal: str | None
) -> None:
    """A run is requested by the IAM user or role; the session name, which its holder chooses, is left out."""
    cloud.send("hi", caller=caller)
    assert cloud.stored().requested_by == principal


# --- requests that come twice ----------------------------------------------------------------------------------------


def test_a_redelivered_request_gets_its_recorded_outcome(cloud: Deployment) -> None:
    """The same key and body give the answer of that turn again, also after later turns, and nothing runs."""
    first = cloud.send("hi", headers=key("k1")).json
    cloud.send("more", headers=key("k2"))
    asked, revision = cloud.asked, cloud.stored().revision
    for name in ("Idempotency-Key", "idempotency-key"):
        again = cloud.send("hi", headers={name: "k1"})
        assert again.status == 200
        assert again.json == {name: first[name] for name in again.json}
        assert again.json["text"] == "Hello."
    assert (cloud.asked, cloud.stored().revision, cloud.lease().owner) == (asked, revision, None)


def test_a_key_names_one_request(cloud: Deployment) -> None:
    """The same key with another body is refused, whatever the session is doing, and nothing is appended."""
    cloud.send("hi", headers=key("k"))
    answered = cloud.send("something else", headers=key("k"))
    assert (answered.status, answered.json["code"], answered.is_problem) == (422, "IDEMPOTENCY_KEY_REUSED", True)
    cloud.script = PAY
    cloud.cold_start()
    cloud.send("pay", session="p", headers=key("k"))
    assert cloud.send("other", session="p", headers=key("k")).status == 422
    cloud.hold("s", seconds=30)
    assert cloud.send("other", headers=key("k")).status == 422
    assert cloud.send("hi", session="another", headers=key("k")).status == 202


def test_a_redelivery_of_a_running_request_starts_nothing(cloud: Deployment) -> None:
    """While somebody runs the session, a redelivery is told where the run is, and starts no execution."""
    cloud.send("hi", headers={**key("k"), **ASYNC})
    executions = len(cloud.states.called("start_execution"))
    cloud.hold(seconds=30)
    cloud.clock.advance(seconds=29)
    answered = cloud.send("hi", headers=key("k"))
    assert (answered.status, answered.headers["Location"]) == (202, "/v1/sessions/s")
    assert len(cloud.states.called("start_execution")) == executions
    assert cloud.asked == 0


def test_a_redelivery_starts_a_run_that_nobody_runs(cloud: Deployment) -> None:
    """When the Lambda that accepted a request died, its redelivery starts the execution, and only once."""
    cloud.send("hi", headers={**key("k"), **ASYNC})
    for arn in cloud.states.running:
        cloud.states.end(arn, "ABORTED")
    cloud.hold(seconds=30)
    cloud.clock.advance(seconds=30)
    for _ in range(2):
        assert cloud.send("hi", headers=key("k")).status == 202
        assert len(cloud.states.running) == 1
    assert cloud.asked == 0
    assert len(cloud.stored().queued) == 1


def test_a_redelivery_is_in_nobodys_way(clouds: Callable[[], Deployment]) -> None:
    """Wherever a slice comes while a redelivery is answered, it finds the session free and runs."""
    for at in range(1, 100):
        cloud, left = clouds(), []
        cloud.send("hi", headers={**key("k"), **ASYNC})
        slice_comes = lambda: left.append(cloud.slice()["outcome"])  # noqa: B023, E731 - called before the next round
        overtaken = cloud.overtaken(lambda: cloud.send("hi", headers=key("k")), at=at, by=slice_comes)  # noqa: B023
        if not overtaken:
            assert at > 5
            return
        assert left == ["finished"]
        assert cloud.asked == 1
    raise AssertionError("there is no end to it")


def test_a_redelivery_of_a_paused_request_is_accepted(cloud: Deployment) -> None:
    """A request whose run waits for a human is answered 202 again, not refused like new input."""
    cloud.script = PAY
    first = cloud.send("pay", headers=key("k"))
    again = cloud.send("pay", headers=key("k"))
    assert (again.status, again.json["approval_id"]) == (202, first.json["approval_id"])
    assert (cloud.asked, len(cloud.states.running)) == (1, 1)


def test_an_answer_that_is_gone_is_410_with_what_is_left(cloud: Deployment) -> None:
    """A request whose answer has left the transcript is never run again; status and usage are still told."""
    usage = cloud.send("hi", headers=key("k")).json["usage"]
    stored = cloud.stored()
    cloud.store.checkpoints.save(stored.but(messages=(), committed=0), after=stored)
    answered = cloud.send("hi", headers=key("k"))
    assert (answered.status, answered.json["code"], answered.is_problem) == (410, "RESULT_EXPIRED", True)
    assert (answered.json["finish_reason"], answered.json["usage"]) == ("stop", usage)
    assert cloud.asked == 1


def test_a_failed_request_can_be_delivered_again(cloud: Deployment) -> None:
    """A request whose run a provider refused is unfinished: its redelivery starts an execution that tries again."""
    cloud.script = [ProviderAuthenticationError("scripted", "Incorrect API key provided.", status=401)]
    assert cloud.send("hi", headers=key("k")).status == 502
    cloud.script = ["Hello."]
    cloud.cold_start()
    assert cloud.send("hi", headers=key("k")).status == 202
    assert cloud.slice()["outcome"] == "finished"
    assert cloud.send("hi", headers=key("k")).json["text"] == "Hello."


@pytest.mark.parametrize("name", ["", "x" * 256, "a\tb", "\x7f"])
def test_a_key_that_cannot_be_one_is_refused(cloud: Deployment, name: str) -> None:
    """A key has 1 to 255 printable characters."""
    answered = cloud.send("hi", headers=key(name))
    assert (answered.status, answered.json["code"]) == (400, "REQUEST_INVALID")
    assert cloud.send("hi", headers=key("x" * 255)).status == 200


# --- a session that somebody else runs, or that waits ----------------------------------------------------------------


def test_a_session_that_is_being_run_is_busy(cloud: Deployment) -> None:
    """Up to the end of the lease another request is refused and told how long to wait; then it is taken."""
    cloud.hold(seconds=30)
    cloud.clock.advance(seconds=7.5)
    answered = cloud.send("hi")
    assert (answered.status, answered.json["code"], answered.is_problem) == (409, "SESSION_BUSY", True)
    assert (answered.headers["Retry-After"], answered.json["retryable"]) == ("23", True)
    assert cloud.store.checkpoints.load("s") is None
    cloud.clock.advance(seconds=22.5)
    assert cloud.send("hi").status == 200


def test_a_paused_session_takes_no_input(cloud: Deployment) -> None:
    """New input to a session that waits for a human is refused, with the approval's id, and changes nothing."""
    id = cloud.pause()
    stored = cloud.stored()
    for input in ("more", []):
        answered = cloud.send(input, headers=key("new"))
        assert (answered.status, answered.json["code"]) == (409, "SESSION_AWAITING_APPROVAL")
        assert (answered.json["approval_id"], answered.is_problem) == (id, True)
    assert cloud.stored() == stored
    assert cloud.lease().owner is None


def test_a_session_that_moves_all_the_time_is_busy(cloud: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a writer that outlived its lease is faster than the save, the request is told to come back."""
    cloud.send("hi")
    load = cloud.store.checkpoints.load

    def overtaken(session_id: str) -> Any:
        stored = load(session_id)
        if stored is not None:
            cloud.store.checkpoints.save(stored, after=stored)
        return stored

    monkeypatch.setattr(type(cloud.store.checkpoints), "load", lambda self, session_id: overtaken(session_id))
    answered = cloud.send("more")
    assert (answered.status, answered.json["code"], answered.headers["Retry-After"]) == (409, "SESSION_BUSY", "1")
    assert (cloud.asked, cloud.lease().owner) == (1, None)


# --- bad input -------------------------------------------------------------------------------------------------------

DEEP = "[" * 150 + "]" * 150
RESULT = '{"role": "tool", "tool_call_id": "c", "tool_name": "t", "content": '
BODIES = {
    "nothing": None,
    "empty": "",
    "not JSON": "hi",
    "cut off": '{"input": "hi"',
    "a list": "[]",
    "a text": '"hi"',
    "null": "null",
    "no input": "{}",
    "an unknown field": '{"input": "hi", "model": "big"}',
    "a number": '{"input": 5}',
    "an object": '{"input": {"role": "user"}}',
    "texts": '{"input": ["hi"]}',
    "an unknown role": '{"input": [{"role": "wizard", "content": "hi"}]}',
    "no role": '{"input": [{"content": "hi"}]}',
    "no content": '{"input": [{"role": "user"}]}',
    "an unknown field in a message": '{"input": [{"role": "user", "content": "hi", "name": "ada"}]}',
    "too long": json.dumps({"input": "x" * 1_000_001}),
    "half a surrogate pair": '{"input": "\\ud800"}',
    "half a surrogate pair, raw": '{"input": "\ud800"}',
    "not a number": f'{{"input": [{RESULT}NaN}}]}}',
    "an infinite number": f'{{"input": [{RESULT}1e999}}]}}',
    "nested too deep": f'{{"input": [{RESULT}{DEEP}}}]}}',
    "nested far too deep": '{"input": ' + "[" * 100_000,
    "an integer of 5,000 digits": f'{{"input": [{RESULT}{"9" * 5_000}}}]}}',
    "no messages": '{"input": []}',
    "only a system message": '{"input": [{"role": "system", "content": "hi"}]}',
    "an answer as the last message": '{"input": [{"role": "assistant", "content": "hi"}]}',
    "a result without its call": f'{{"input": [{RESULT}1}}, {{"role": "user", "content": "hi"}}]}}',
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_that_is_not_right_is_refused(cloud: Deployment, body: str | None) -> None:
    """A bad body is a problem document with code and hint; nothing is stored, and the session is usable."""
    answered = cloud.request("POST", "/sessions/s/runs", body=body)
    assert (answered.status, answered.is_problem) == (400, True)
    assert answered.json["code"] in ("REQUEST_INVALID", "INPUT_INVALID")
    assert "Traceback" not in answered.text
    assert (cloud.store.checkpoints.load("s"), cloud.asked) == (None, 0)
    assert cloud.send("hi").json["text"] == "Hello."


def test_what_was_wrong_is_named_and_not_repeated(cloud: Deployment) -> None:
    """The problem names the field and the reason, never the value, in the answer and in the log."""
    answered = cloud.request("POST", "/sessions/s/runs", body={"input": 5, "open-sesame": "open-sesame-too"})
    assert "input" in answered.json["detail"]
    assert "open-sesame-too" not in answered.text + cloud.log.getvalue()


def segment(session_id: bytes) -> str:
    return "~" + base64.urlsafe_b64encode(session_id).decode().rstrip("=")


@pytest.mark.parametrize(
    "session",
    [
        segment(b"a\x00b"),
        segment(b"a\nb"),
        segment("\x85".encode()),
        segment(b"\xff\xfe"),
        segment(b"\xed\xa0\x80"),
        segment(b"x" * 257),
        "~",
        "~!",
        "~a",
        "~é",
        "x" * 257,
        "a.b",
        "a b",
        "é",
    ],
)
def test_a_session_id_that_cannot_be_one_is_refused(cloud: Deployment, session: str) -> None:
    """Control characters, bad lengths, bad encodings and what should have been encoded are 400 on every path."""
    for method, tail in (("POST", "/runs"), ("GET", ""), ("GET", "/messages"), ("GET", "/history")):
        answered = cloud.request(method, f"/sessions/{session}{tail}", body={"input": "hi"})
        assert (answered.status, answered.json["code"], answered.is_problem) == (400, "SESSION_ID_INVALID", True)


@pytest.mark.parametrize("path", ["/sessions//runs", "/sessions/s/t/runs", "/runs"])
def test_an_unknown_path_is_not_found(cloud: Deployment, path: str) -> None:
    """A path that does not exist is a 404 problem."""
    answered = cloud.request("POST", path, body={"input": "hi"})
    assert (answered.status, answered.json["code"], answered.is_problem) == (404, "PATH_NOT_FOUND", True)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD", "OPTIONS"])
def test_another_method_is_not_found(cloud: Deployment, method: str) -> None:
    """Only POST starts a run."""
    assert cloud.request(method, "/sessions/s/runs", body={"input": "hi"}).status == 404
    assert cloud.store.checkpoints.load("s") is None


# --- what goes wrong during a run ------------------------------------------------------------------------------------

STUMBLE: list[Any] = [[("look", {"what": 1}), ("fail", {}), ("nonsense", {}), ("look", "garbage")], "So be it."]


def test_calls_that_fail_are_told_to_the_model(cloud: Deployment) -> None:
    """Bad arguments, a tool that raises and a tool that is not there are results; the run finishes with 200."""
    cloud.script = STUMBLE
    answered = cloud.send("stumble")
    assert (answered.status, answered.json["text"], answered.json["tool_calls"]) == (200, "So be it.", 4)
    results: Any = [message.content for message in cloud.stored().messages if message.role == "tool"]
    assert [result["kind"] for result in results] == ["validation", "execution", "not-found", "validation"]


PERMANENT = [
    ProviderAuthenticationError("scripted", "Incorrect API key provided.", status=401),
    ProviderRequestError("scripted", "The context is too long.", status=400),
    ProviderResponseError("scripted", "The answer is not JSON."),
]
PASSING = [
    ProviderRateLimitError("scripted", "Slow down.", status=429, retry_after=3),
    ProviderUnavailableError("scripted", "It is down.", status=500),
]


@pytest.mark.parametrize("error", PERMANENT, ids=lambda error: error.code)
def test_a_provider_that_refuses_is_502_and_the_session_stays_usable(cloud: Deployment, error: Exception) -> None:
    """The answer says what the provider said; the run is not due, and the next message works."""
    cloud.script = [error]
    answered = cloud.send("hi")
    assert (answered.status, answered.is_problem) == (502, True)
    assert answered.json["code"] == getattr(error, "code", None)
    assert answered.json["detail"] == str(error)
    assert (cloud.lease().owner, cloud.head().due_at, cloud.states.calls) == (None, None, [])
    assert cloud.get("/sessions/s").json["last_error"]["code"] == answered.json["code"]
    cloud.script = ["Hello."]
    cloud.cold_start()
    assert cloud.send("again").json["text"] == "Hello."


@pytest.mark.parametrize("error", PASSING, ids=lambda error: error.code)
def test_a_provider_that_fails_for_now_is_tried_again_elsewhere(cloud: Deployment, error: Exception) -> None:
    """What was accepted stays accepted: the answer is 202, and the state machine tries again."""
    cloud.script = [error]
    answered = cloud.send("hi")
    assert (answered.status, len(cloud.states.running)) == (202, 1)
    cloud.script = ["Hello."]
    cloud.cold_start()
    assert cloud.slice(execution=cloud.states.running[0])["outcome"] == "finished"


def test_a_tool_that_ends_the_run_is_a_problem(cloud: Deployment) -> None:
    """A tool's own wish to end the run is told with its message, and the run is not due any more."""
    cloud.script = lambda request: PropagatingToolError("the account is locked")
    answered = cloud.send("hi")
    assert (answered.is_problem, answered.json["code"]) == (True, "TOOL_PROPAGATED")
    assert answered.json["detail"] == "the account is locked"
    assert cloud.head().due_at is None


def test_an_unexpected_error_shows_nothing(cloud: Deployment) -> None:
    """A fault of ours is a 500 problem without details; they are in the log, under the request's id."""
    cloud.script = lambda request: RuntimeError("open-sesame")
    answered = cloud.send("hi", request_id="r-17")
    assert (answered.status, answered.json["code"], answered.is_problem) == (500, "INTERNAL", True)
    assert "open-sesame" not in answered.text
    assert "RuntimeError" not in answered.text
    lines = [json.loads(line) for line in cloud.log.getvalue().splitlines()]
    [line] = [line for line in lines if line["message"] == "request failed"]
    assert (line["error"], line["request_id"], line["session_id"]) == ("RuntimeError", "r-17", "s")
    assert cloud.lease().owner is None
    cloud.script = ["Hello."]
    cloud.cold_start()
    assert cloud.send("hi").json["text"] == "Hello."


def test_a_store_that_is_down_is_503(cloud: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """When nothing could be accepted the client is told to try again."""

    def throttled(*_: Any, **__: Any) -> Any:
        raise StoreUnavailableError("PutItem", "throttled")

    monkeypatch.setattr(type(cloud.store.checkpoints), "save", throttled)
    answered = cloud.send("hi")
    assert (answered.status, answered.json["code"], answered.is_problem) == (503, "STORE_UNAVAILABLE", True)
    assert answered.headers["Retry-After"]
    assert (cloud.asked, cloud.lease().owner) == (0, None)


def test_a_run_that_could_not_be_handed_over_is_recovered(cloud: Deployment) -> None:
    """When the execution cannot be started the client is told, and what was accepted is started by recovery."""
    cloud.states.fail("start_execution", refused("ThrottlingException"))
    answered = cloud.send("hi", headers=ASYNC)
    assert (answered.status, answered.json["code"], answered.is_problem) == (503, "STORE_UNAVAILABLE", True)
    assert cloud.stored().status is Status.IN_PROGRESS
    cloud.clock.advance(seconds=61)
    assert cloud.recover()["started"] == 1
    assert cloud.slice()["outcome"] == "finished"


def test_each_invocation_logs_for_itself(cloud: Deployment) -> None:
    """Every line has the request's id and the session's, and none carries what belongs to an earlier invocation."""
    cloud.send("hi", request_id="r-1")
    cloud.get("/sessions")
    first, second = [json.loads(line) for line in cloud.log.getvalue().splitlines()]
    assert (first["request_id"], first["session_id"], first["run_id"]) == ("r-1", "s", "run1")
    assert first["store"]["requests"] > 0
    assert "session_id" not in second
    assert "run_id" not in second
