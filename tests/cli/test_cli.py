"""The command line, word by word: what it asks the API, what it shows, and how it ends."""

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import httpx
import pytest
from botocore.credentials import ReadOnlyCredentials

from cli import commands
from cli.api import Api, segment
from cli.codes import MEANING, Code, code_of
from cli.main import run
from handlers._ids import path_segment

URL = "https://abc.execute-api.eu-west-1.amazonaws.com/v1"
APPROVAL = "apr_" + "0" * 32
SAVED = "2030-01-01T00:00:00.123456+00:00"
Reply = dict[str, Any] | list[Any] | str | httpx.Response | Exception


def session(status: str = "finished", **more: Any) -> dict[str, Any]:
    usage = {"model_calls": 1, "input_tokens": 10, "cached_input_tokens": 0, "output_tokens": 5}
    return {"session_id": "s", "run_id": "r", "status": status, "usage": usage, "text": "Hello.", "steps": 1, **more}


def approval(**more: Any) -> dict[str, Any]:
    return {
        "id": APPROVAL,
        "status": "pending",
        "session_id": "s",
        "agent": "desk",
        "tool": "refund",
        "arguments": {"order": 17},
        "requested_at": "2030-01-01T00:00:00+00:00",
        "deadline": None,
        "trail": [{"at": "2030-01-01T00:00:00+00:00", "event": "requested"}],
        **more,
    }


def problem(status: int, code: str, *, retryable: bool = False) -> httpx.Response:
    body = {"status": status, "code": code, "detail": "It is so.", "hint": "Do this.", "retryable": retryable}
    return httpx.Response(status, json=body)


class Line:
    """A command line before an API that gives these replies, the last one again and again."""

    def __init__(self, *replies: Reply, status: int = 200) -> None:
        self.replies = list(replies)
        self.status = status
        self.requests: list[httpx.Request] = []
        self.connected: list[dict[str, Any]] = []
        self.out, self.err = io.StringIO(), io.StringIO()

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Exception):
            raise reply
        return reply if isinstance(reply, httpx.Response) else httpx.Response(self.status, json=reply)

    def connect(self, **options: Any) -> Api:
        self.connected.append(options)
        keys = ReadOnlyCredentials("AKID", "secret", "token")
        return Api(URL, keys, "eu-west-1", transport=httpx.MockTransport(self.answer))

    def run(self, *words: str) -> int:
        return run([*words, "--url", URL], connect=self.connect, out=self.out, err=self.err)

    @property
    def asked(self) -> list[tuple[str, str]]:
        paths = [request.url.raw_path.decode() for request in self.requests]
        return [(r.method, path.removeprefix("/v1")) for r, path in zip(self.requests, paths, strict=True)]

    @property
    def body(self) -> Any:
        return json.loads(self.requests[-1].content)


# --- requests --------------------------------------------------------------------------------------------------------


def test_every_request_is_signed() -> None:
    """Method, path, body and session token are signed for execute-api in the API's region."""
    line = Line(session())
    line.run("runs", "start", "chat 42", "Hi.")
    [request] = line.requests
    scope = r"AWS4-HMAC-SHA256 Credential=AKID/\d{8}/eu-west-1/execute-api/aws4_request, SignedHeaders=(\S+), "
    signed = re.match(scope, request.headers["Authorization"])
    assert signed is not None
    assert {"content-type", "host", "x-amz-date", "x-amz-security-token"} <= set(signed[1].split(";"))
    assert request.headers["X-Amz-Security-Token"] == "token"


@pytest.mark.parametrize("session_id", ["s", "a b", "é", "..", "~", "👍🏽", "a/b?c#d"])
def test_session_ids_stand_in_urls_as_the_api_reads_them(session_id: str) -> None:
    """Plain ids as they are, every other one as `~` and its base64url."""
    assert segment(session_id) == path_segment(session_id)
    line = Line(session())
    assert line.run("runs", "show", session_id) == Code.OK
    assert line.asked == [("GET", f"/sessions/{path_segment(session_id)}")]


REQUESTS: list[tuple[list[str], str, str, Any]] = [
    (["runs", "start", "s", "Hi."], "POST", "/sessions/s/runs", {"input": "Hi."}),
    (["runs", "resume", "s"], "POST", "/sessions/s/resume", {}),
    (
        ["runs", "start", "s", "Hi.", "--on-busy", "wait"],
        "POST",
        "/sessions/s/runs",
        {"input": "Hi.", "on_busy": "wait"},
    ),
    (["runs", "resume", "s", "--on-busy", "wait"], "POST", "/sessions/s/resume", {"on_busy": "wait"}),
    (["runs", "abort", "s"], "POST", "/sessions/s/abort", {}),
    (["truncate", "s", "4"], "POST", "/sessions/s/truncate", {"message_count": 4}),
    (
        ["truncate", "s", "0", "--on-busy", "reject"],
        "POST",
        "/sessions/s/truncate",
        {"message_count": 0, "on_busy": "reject"},
    ),
    (["delete", "s"], "DELETE", "/sessions/s", None),
    (["runs", "show", "s"], "GET", "/sessions/s", None),
    (["fork", "s", "--step", "1"], "POST", "/sessions/s/forks", {"patch": {}, "from_step": 1}),
    (
        ["fork", "s", "--revision", "0", "--id", "mine"],
        "POST",
        "/sessions/s/forks",
        {"patch": {}, "revision": 0, "session_id": "mine"},
    ),
    (["approvals", "approve", APPROVAL], "POST", f"/approvals/{APPROVAL}/decision", {"approved": True}),
    (
        ["approvals", "approve", APPROVAL, "--args", '{"order": 18}', "--note", "fine"],
        "POST",
        f"/approvals/{APPROVAL}/decision",
        {"approved": True, "args": {"order": 18}, "note": "fine"},
    ),
    (
        ["approvals", "answer", APPROVAL, "deep blue", "--note", "as the sea"],
        "POST",
        f"/approvals/{APPROVAL}/decision",
        {"answer": "deep blue", "note": "as the sea"},
    ),
    (
        ["approvals", "reject", APPROVAL, "--note", "no"],
        "POST",
        f"/approvals/{APPROVAL}/decision",
        {"approved": False, "note": "no"},
    ),
    (["approvals", "show", APPROVAL], "GET", f"/approvals/{APPROVAL}", None),
]


@pytest.mark.parametrize(("words", "method", "path", "body"), REQUESTS)
def test_a_command_is_one_request(words: list[str], method: str, path: str, body: Any) -> None:
    """Each command asks its path, with what it was given as JSON, and nothing else."""
    line = Line({**session(), **approval(), "segment": "s", "step": 1})
    line.run(*words)
    assert line.asked == [(method, path)]
    if body is not None:
        assert line.body == body


def test_a_patch_is_made_of_its_options(tmp_path: Path) -> None:
    """State, result, transcript and input are read as JSON; null is a value."""
    file = tmp_path / "messages.json"
    file.write_text('[{"role": "user", "content": "hi"}]')
    line = Line({"session_id": "s.fork-1", "segment": "x", "status": "in-progress", "step": 2})
    words = ["--state", "null", "--tool-result", 'c={"x":[]}', "--input", "and?", "--messages", str(file)]
    assert line.run("fork", "s", "--step", "2", *words, "--tool-error", "--key", "k") == Code.OK
    assert line.body["patch"] == {
        "messages": [{"role": "user", "content": "hi"}],
        "business_state": None,
        "tool_result": {"tool_call_id": "c", "result": {"x": []}, "is_error": True},
        "append_input": "and?",
    }
    assert line.requests[-1].headers["Idempotency-Key"] == "k"


def test_lists_are_asked_for_in_pages() -> None:
    """Limit, cursor, status and full are the API's own, and the text says how to go on."""
    page = {"entries": [], "approvals": [approval()], "cursor": "7"}
    line = Line(page)
    line.run("history", "s", "--limit", "5", "--cursor", "9", "--full")
    line.run("approvals", "list", "--status", "approved")
    queries = [dict(parse_qsl(request.url.query.decode())) for request in line.requests]
    assert queries == [{"limit": "5", "cursor": "9", "full": "1"}, {"status": "approved"}]
    assert line.out.getvalue().count("more: --cursor 7") == 2


def test_levels_are_shown() -> None:
    """An escalated approval says where it has come to, and who is next."""
    levels = [{"to": ["leads", "pager"], "wait": 3600.0}, {"to": ["cfo"], "wait": 7200.0}]
    line = Line(approval(level=1, levels=levels))
    line.run("approvals", "show", APPROVAL)
    assert re.search(r"^level +1 of 2, next: cfo$", line.out.getvalue(), re.M)


def test_headers_are_what_was_asked_for() -> None:
    """`--key` and `--async` are the API's headers; without them neither is sent."""
    line = Line(session("in-progress"), status=202)
    line.run("runs", "start", "s", "Hi.", "--key", "order-17", "--async")
    line.run("runs", "start", "s", "Hi.")
    first, second = (request.headers for request in line.requests)
    assert (first["Idempotency-Key"], first["Prefer"]) == ("order-17", "respond-async")
    assert "Idempotency-Key" not in second
    assert "Prefer" not in second


def test_a_fork_that_is_carried_on_is_resumed_as_asked() -> None:
    """`--resume` asks twice: for the fork as it was described, and for its resume as a resume would be."""
    made = {"session_id": "f", "segment": "f", "status": "in-progress", "step": 1}
    line = Line(made, session("in-progress"))
    line.run("fork", "s", "--step", "1", "--resume", "--on-busy", "wait", "--async")
    assert line.asked == [("POST", "/sessions/s/forks"), ("POST", "/sessions/f/resume")]
    assert line.body == {"on_busy": "wait"}
    assert line.requests[-1].headers["Prefer"] == "respond-async"


def test_a_deleted_session_is_named() -> None:
    """The API answers a deletion with nothing; the command says what is gone."""
    line = Line(httpx.Response(204))
    assert line.run("delete", "s") == Code.OK
    assert line.out.getvalue() == "deleted  s\n"
    assert Line(problem(409, "SESSION_BUSY", retryable=True)).run("delete", "s") == Code.TRY_AGAIN


# --- what is shown ---------------------------------------------------------------------------------------------------


def test_a_run_is_shown_field_by_field() -> None:
    """Only what is there is shown, and the answer last."""
    origin = {"session_id": "trip", "step": 2, "revision": 4}
    error = {"code": "PROVIDER", "message": "down"}
    line = Line(session(finish_reason="stop", approval_id=None, forked_from=origin, last_error=error))
    assert line.run("runs", "show", "s") == Code.OK
    assert line.out.getvalue().splitlines() == [
        "session        s",
        "run            r",
        "status         finished",
        "finish reason  stop",
        "steps          1",
        "tokens         10 in, 5 out",
        "forked from    trip at step 2",
        "last error     PROVIDER: down",
        "answer         Hello.",
    ]


def test_a_conversation_is_shown_whole() -> None:
    """All pages are read; calls are shown with the ids that a fork takes."""
    turn = {"role": "assistant", "content": "Wait.", "tool_calls": [{"id": "c1", "name": "look", "arguments": "{}"}]}
    pages = [
        {"messages": [{"role": "user", "content": "hi"}, turn], "next": 1},
        {"messages": [{"role": "tool", "tool_call_id": "c1", "content": [1], "is_error": False}], "next": None},
    ]
    line = Line(session(), *pages)
    assert line.run("runs", "show", "s", "--messages") == Code.OK
    assert [path for _, path in line.asked][1:] == ["/sessions/s/messages", "/sessions/s/messages?after=1"]
    assert line.out.getvalue().splitlines() == [
        "user       hi",
        "assistant  Wait.",
        "assistant  c1 look({})",
        "tool       c1 -> [1]",
    ]


def test_a_message_is_shown_whole_however_large() -> None:
    """A message that the API gives in parts is put together; parts of different ones are not."""
    told = json.dumps({"role": "user", "content": "é" * 5}, ensure_ascii=False)
    parts = [
        {"size": 40, "sha256": "a", "offset": 0, "part": told[:30], "next": 31},
        {"size": 40, "sha256": "a", "offset": 31, "part": told[30:], "next": None},
    ]
    line = Line(*parts)
    assert line.run("runs", "show", "s", "--message", "2", "--json") == Code.OK
    assert [path for _, path in line.asked] == ["/sessions/s/messages/2", "/sessions/s/messages/2?offset=31"]
    assert json.loads(line.out.getvalue()) == json.loads(told)
    assert Line(parts[0], {**parts[1], "sha256": "b"}).run("runs", "show", "s", "--message", "2") == Code.TRY_AGAIN


def test_history_is_a_table() -> None:
    """A line for each save, columns aligned, and a dash for what is not there."""
    entry = {"revision": 10, "step": 1, "status": "finished", "finish_reason": "stop", "messages": 4, "saved_at": SAVED}
    line = Line({"entries": [entry, {**entry, "revision": 9, "finish_reason": None}], "cursor": None})
    assert line.run("history", "s") == Code.OK
    assert line.out.getvalue().splitlines() == [
        "revision  step  status    finish reason  messages  saved at",
        "10        1     finished  stop           4         2030-01-01T00:00:00Z",
        "9         1     finished  -              4         2030-01-01T00:00:00Z",
    ]


def test_one_revision_is_shown_with_its_messages() -> None:
    """`--revision` gives one save and its conversation."""
    entry = {"revision": 1, "step": 0, "checkpoint": {"agent": "t", "messages": [{"role": "user", "content": "hi"}]}}
    line = Line(entry)
    assert line.run("history", "s", "--revision", "1") == Code.OK
    assert line.out.getvalue() == "revision  1\nstep      0\n\nuser       hi\n"


AGENTS = [
    {"path": ["desk", "researcher"], "step": 2, "open_calls": [{"id": "c1", "tool": "clerk"}]},
    {"path": ["desk", "researcher", "clerk"], "step": 1, "open_calls": []},
]


def test_the_agents_at_work_are_shown() -> None:
    """A session and each save name the sub-agents at work, how far they are and which tools they are in."""
    working = "desk > researcher at step 2, in clerk; desk > researcher > clerk at step 1"
    line = Line(session("in-progress", agents=AGENTS))
    line.run("runs", "show", "s")
    assert f"agents   {working}" in line.out.getvalue().splitlines()
    entry = {"revision": 1, "step": 1, "status": "finished", "finish_reason": None, "messages": 2, "saved_at": SAVED}
    entries = [{**entry, "agents": AGENTS[:1]}, {**entry, "revision": 0, "agents": []}]
    line = Line({"entries": entries, "cursor": None})
    line.run("history", "s")
    assert [text.split("2030-01-01T00:00:00Z")[-1].strip() for text in line.out.getvalue().splitlines()[1:]] == [
        "desk > researcher at step 2, in clerk",
        "-",
    ]


def test_one_revision_shows_what_its_agents_have_said() -> None:
    """The conversation of each agent at work stands behind the run's own, under its path."""
    told = [{"role": "user", "content": "hi"}]
    clerk = {"agent": "clerk", "step": 0, "messages": [], "queued": [{"role": "user", "content": "Sign."}]}
    researcher = {"agent": "researcher", "step": 2, "messages": told, "queued": [], "suspended": {"c2": clerk}}
    lead = {"agent": "desk", "messages": told, "suspended": {"c1": researcher}}
    line = Line({"revision": 1, "agents": AGENTS, "checkpoint": lead})
    assert line.run("history", "s", "--revision", "1") == Code.OK
    assert line.out.getvalue().split("\n\n") == [
        "revision  1",
        "user       hi",
        "desk > researcher, step 2:\nuser       hi",
        "desk > researcher > clerk, step 0:\nuser       Sign.\n",
    ]


def test_an_approval_is_shown_with_its_votes() -> None:
    """Who has approved of how many, who may, what the arguments are now, and the trail in words."""
    asked = approval(
        approvals=2,
        approvers=["ada", "bob"],
        votes=[{"by": "ada"}],
        edited={"order": 18},
        digest="d18",
        trail=[{"at": "2030-01-01T00:00:00+00:00", "event": "voted", "text": "ada approves (1 of 2)"}],
    )
    line = Line(asked)
    assert line.run("approvals", "approve", APPROVAL, "--digest", "d18") == Code.OK
    assert json.loads(line.requests[-1].content) == {"approved": True, "digest": "d18"}
    shown = line.out.getvalue()
    for row in ("approvals  1 of 2: ada", "approvers  ada, bob", 'edited to  {"order": 18}', "digest     d18"):
        assert row in shown
    assert "2030-01-01T00:00:00Z  ada approves (1 of 2)" in shown
    plain = Line(approval())
    plain.run("approvals", "show", APPROVAL)
    assert "of" not in plain.out.getvalue().split()
    listed = Line({"approvals": [asked, approval()], "cursor": None})
    listed.run("approvals", "list")
    _, first, second = listed.out.getvalue().splitlines()
    assert "  pending 1 of 2  " in first
    assert "of" not in second.split()


def test_an_approval_is_shown_with_who_asks() -> None:
    """The path of agents stands in the list and in the approval itself."""
    asked = approval(path=["desk", "researcher"])
    line = Line({"approvals": [asked, approval()], "cursor": None}, asked)
    line.run("approvals", "list")
    header, nested, plain = line.out.getvalue().splitlines()
    at = header.index("agent")
    assert (nested[at : at + 17], plain[at : at + 5]) == ("desk > researcher", "desk ")
    line.run("approvals", "show", APPROVAL)
    assert "agent      desk > researcher" in line.out.getvalue().splitlines()


@pytest.mark.parametrize(
    ("diverged_at", "drift", "code"),
    [(None, [], Code.OK), (2, [], Code.DIFFERENT), (None, [{"field": "tokens"}], Code.DIFFERENT)],
)
def test_a_comparison_ends_like_diff(diverged_at: int | None, drift: list[Any], code: Code) -> None:
    """The text is the API's; the exit code says whether there is a difference."""
    line = Line({"diverged_at": diverged_at, "drift": drift, "text": "--- a\n+++ b\n"})
    assert line.run("compare", "a", "b") == code
    assert line.out.getvalue() == "--- a\n+++ b\n"
    assert line.asked == [("GET", "/sessions/a/compare/b")]


def test_json_is_the_apis_own() -> None:
    """`--json` prints what the API answered, errors too, and nothing else."""
    line = Line(session())
    assert line.run("runs", "show", "s", "--json") == Code.OK
    assert json.loads(line.out.getvalue()) == session()
    line = Line(problem(404, "SESSION_NOT_FOUND"))
    assert line.run("runs", "show", "s", "--json") == Code.NOT_FOUND
    said = json.loads(line.err.getvalue())
    assert (said["code"], said["exit_code"], line.out.getvalue()) == ("SESSION_NOT_FOUND", 5, "")


def test_what_models_say_cannot_reach_the_terminal() -> None:
    """Control characters in texts, tables and errors are shown and not sent."""
    evil = "\x1b[2J\x9b31m\x07red\u202e"
    line = Line(session(text=evil))
    line.run("runs", "show", "s")
    listed = Line({"approvals": [approval(arguments={"x": evil}, tool=evil)], "cursor": None})
    listed.run("approvals", "list")
    refused = Line(httpx.Response(404, json={"code": "X", "detail": evil}))
    refused.run("runs", "show", "s")
    for shown in (line.out, listed.out, refused.err):
        assert "\\x1b[2J" in shown.getvalue() or "u001b" in shown.getvalue()
        assert all(c.isprintable() or c == "\n" for c in shown.getvalue())


# --- how it ends -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "code"), [("finished", 0), ("in-progress", 3), ("awaiting-approval", 3)])
def test_the_exit_code_says_how_the_run_stands(status: str, code: int) -> None:
    """A run that is not finished ends with 3, whichever command looked at it."""
    for words in (["runs", "show", "s"], ["runs", "start", "s", "hi"], ["runs", "resume", "s"]):
        assert Line(session(status)).run(*words) == code


def test_an_abort_is_done_when_the_run_has_stopped() -> None:
    """`runs abort` ends with 0 once nothing moves the run any more, and with 3 while its runner has to notice."""
    stopped = session("in-progress", finish_reason="aborted")
    assert Line(stopped).run("runs", "abort", "s") == Code.OK
    assert Line(session("in-progress"), stopped).run("runs", "abort", "s", "--wait", "60") == Code.OK
    assert Line(session("in-progress")).run("runs", "abort", "s") == Code.UNFINISHED


def test_a_run_can_be_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--wait` looks until the run is finished or waits for a human, and no longer than it was given."""
    monkeypatch.setattr(commands, "POLL", 0)
    line = Line(session("in-progress"), session("in-progress"), session("finished"))
    assert line.run("runs", "start", "s", "hi", "--async", "--wait", "60") == Code.OK
    assert line.asked[1:] == [("GET", "/sessions/s")] * 2
    assert Line(session("in-progress"), session("awaiting-approval")).run("runs", "resume", "s", "--wait", "60") == 3
    short = Line(session("in-progress"))
    assert short.run("runs", "resume", "s", "--wait", "0.01") == Code.UNFINISHED


def test_a_fork_can_go_on_at_once() -> None:
    """`--resume` asks for the fork, then resumes it under the link that it was given."""
    made = {"session_id": "s.fork-1", "segment": "~x", "status": "in-progress", "step": 1}
    line = Line(made, session())
    assert line.run("fork", "s", "--step", "1", "--resume") == Code.OK
    assert line.asked == [("POST", "/sessions/s/forks"), ("POST", "/sessions/~x/resume")]


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (problem(400, "REQUEST_INVALID"), Code.USAGE),
        (httpx.Response(403, json={"message": "User is not authorized"}), Code.NOT_PERMITTED),
        (problem(404, "SESSION_NOT_FOUND"), Code.NOT_FOUND),
        (problem(409, "SESSION_AWAITING_APPROVAL"), Code.REFUSED),
        (problem(409, "SESSION_BUSY", retryable=True), Code.TRY_AGAIN),
        (problem(410, "RESULT_EXPIRED"), Code.REFUSED),
        (problem(422, "IDEMPOTENCY_KEY_REUSED"), Code.REFUSED),
        (httpx.Response(429, json={"message": "Too Many Requests"}), Code.TRY_AGAIN),
        (problem(500, "CONFIGURATION"), Code.FAILED),
        (problem(502, "PROVIDER_REQUEST"), Code.FAILED),
        (httpx.Response(502, text="<html>"), Code.TRY_AGAIN),
        (httpx.Response(200, text="<html>"), Code.FAILED),
        (httpx.ConnectError("refused"), Code.TRY_AGAIN),
        (httpx.ReadTimeout(""), Code.TRY_AGAIN),
    ],
)
def test_an_error_says_what_to_do(reply: Reply, code: Code) -> None:
    """Each error goes to standard error with the API's code and hint, and ends with a code of its own kind."""
    line = Line(reply)
    assert line.run("runs", "show", "s") == code
    assert line.out.getvalue() == ""
    assert line.err.getvalue().startswith("durable: ")
    if isinstance(reply, httpx.Response) and "hint" in reply.text:
        assert line.err.getvalue().endswith(": It is so.\nDo this.\n")


def test_a_decision_that_was_made_otherwise_is_shown() -> None:
    """409 with the recorded decision is no failure of the command: it is shown, and ends as refused."""
    decided = approval(status="rejected", already_decided=True, decision={"by": "eve", "via": "api", "note": "no"})
    line = Line(httpx.Response(409, json=decided))
    assert line.run("approvals", "approve", APPROVAL) == Code.REFUSED
    assert line.out.getvalue().startswith("It was decided otherwise before.\n")
    assert "decided by  eve" in line.out.getvalue()


@pytest.mark.parametrize(
    "words",
    [
        ["approvals", "approve", "../sessions"],
        ["approvals", "show", ""],
        ["approvals", "approve", APPROVAL, "--args", "{"],
        ["fork", "s", "--step", "1", "--tool-result", "c"],
        ["fork", "s", "--step", "1", "--tool-result", "c=1=2"],
        ["fork", "s", "--step", "1", "--state", "rain"],
        ["fork", "s", "--step", "1", "--messages", "/no/such/file"],
    ],
)
def test_what_cannot_be_sent_is_refused_here(words: list[str]) -> None:
    """A value that cannot be read ends with 2, says which, and nothing is sent."""
    line = Line(session())
    assert line.run(*words) == Code.USAGE
    assert line.requests == []
    assert line.err.getvalue().startswith("durable: ")


@pytest.mark.parametrize("words", [[], ["runs"], ["fork", "s"], ["fork", "s", "--step", "1", "--revision", "1"], ["x"]])
def test_a_command_that_is_none_ends_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """What argparse refuses ends with 2, as everything else that was asked for wrongly."""
    with pytest.raises(SystemExit) as ended:
        Line(session()).run(*words)
    assert ended.value.code == Code.USAGE
    assert "usage: durable" in capsys.readouterr().err


def test_a_deployment_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Without --url and --stack nothing is asked, and both at once are a mistake."""
    for words in ([], ["--url", URL, "--stack", "desk"]):
        with pytest.raises(SystemExit) as ended:
            run(["runs", "show", "s", *words])
        assert ended.value.code == Code.USAGE
    assert "--stack" in capsys.readouterr().err


def test_every_code_has_a_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    """The codes are in `--help`, each with what it means, and no error ends like a success."""
    assert set(MEANING) == set(Code)
    with pytest.raises(SystemExit):
        run(["--help"])
    shown = capsys.readouterr().out
    assert all(f"  {code.value}  {meaning}" in shown for code, meaning in MEANING.items())
    ends: Callable[[int], Code] = lambda status: code_of(status, retryable=None)  # noqa: E731 - one line says it
    assert not {ends(status) for status in range(300, 600)} & {Code.OK, Code.UNFINISHED, Code.DIFFERENT}
