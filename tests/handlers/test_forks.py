"""History, forks, resumes and comparisons over HTTP."""

import json
from typing import Any
from urllib.parse import quote

import pytest

from durable import ProviderAuthenticationError, Status, StoreUnavailableError, UserMessage
from handlers import _sizes
from handlers._forking import named_after
from tests.handlers.conftest import Deployment
from tests.support.events import Answered

LOOK: list[Any] = [("look", {"what": "a"}), ("look", {"what": "b"}), "Both seen."]
ROLE = "arn:aws:iam::123456789012:role/desk"


@pytest.fixture
def seen(cloud: Deployment) -> Deployment:
    """A deployment with a finished session of three steps."""
    cloud.script = LOOK
    cloud.cold_start()
    assert cloud.send("look").status == 200
    return cloud


def fork(cloud: Deployment, session: str = "s", *, headers: dict[str, str] | None = None, **body: Any) -> Answered:
    return cloud.request("POST", f"/sessions/{session}/forks", body=body, headers=headers)


def resume(cloud: Deployment, session: str, **event: Any) -> Answered:
    return cloud.request("POST", f"/sessions/{quote(session, safe='~')}/resume", **event)


# --- history ---------------------------------------------------------------------------------------------------------


def test_history_comes_in_pages(seen: Deployment) -> None:
    """Following the cursor shows every listed save once, newest first, whatever the limit."""
    whole = seen.get("/sessions/s/history").json
    assert whole["cursor"] is None
    for limit in ("1", "2", "5", "6", "7"):
        entries: list[Any] = []
        query = {"limit": limit}
        while True:
            page = seen.get("/sessions/s/history", **query).json
            assert len(page["entries"]) <= int(limit)
            entries += page["entries"]
            if page["cursor"] is None:
                break
            query["cursor"] = page["cursor"]
        assert entries == whole["entries"]
    assert seen.get("/sessions/s/history", limit="0").json == {"entries": [], "cursor": None}


def test_history_in_full_has_whole_checkpoints(seen: Deployment) -> None:
    """`full=1` adds the checkpoint to each entry, and the path of a revision gives one of them."""
    entries = seen.get("/sessions/s/history", full="1").json["entries"]
    assert entries[0]["checkpoint"] == seen.stored().model_dump(mode="json")
    short = seen.get("/sessions/s/history").json["entries"]
    assert [{k: v for k, v in entry.items() if k != "checkpoint"} for entry in entries] == short
    for entry in entries:
        assert seen.get(f"/sessions/s/history/{entry['revision']}").json == entry


def test_a_full_page_is_cut_by_bytes(seen: Deployment) -> None:
    """A page with whole checkpoints ends before it is larger than a Lambda may answer, and the next one goes on."""
    for _ in range(4):
        stored = seen.stored()
        more = [UserMessage(content="語" * 60_000) for _ in range(5)]
        seen.store.checkpoints.save(stored.but(messages=(*stored.messages, *more)), after=stored)
    listed = len(seen.get("/sessions/s/history").json["entries"])
    found: list[int] = []
    query = {"full": "1"}
    while True:
        page = seen.get("/sessions/s/history", **query)
        assert len(page.text.encode()) < _sizes.MAX_ANSWER + 1_000
        found.append(len(page.json["entries"]))
        if page.json["cursor"] is None:
            break
        query["cursor"] = page.json["cursor"]
    assert sum(found) == listed
    assert len(found) > 1


def test_a_value_that_is_too_large_is_shown_by_its_size(seen: Deployment) -> None:
    """A value over 256 KB is truncated to size and hash; what is around it stays."""
    stored = seen.stored()
    large = UserMessage(content="x" * 5_000_000)
    seen.store.checkpoints.save(stored.but(messages=(*stored.messages, large)), after=stored)
    shown = seen.get(f"/sessions/s/history/{stored.revision + 1}").json["checkpoint"]["messages"]
    assert shown[:-1] == [message.model_dump(mode="json") for message in stored.messages]
    assert shown[-1]["role"] == "user"
    assert (shown[-1]["content"]["truncated"], shown[-1]["content"]["size"]) == (True, 5_000_002)
    assert len(shown[-1]["content"]["sha256"]) == 64


@pytest.mark.parametrize("count", [1, 40, 20_000])
def test_every_view_fits(count: int) -> None:
    """However many messages of whatever size: what is shown fits, and says what it leaves out."""
    content = "語" * (3_000_000 // count)
    view = {"checkpoint": {"messages": [{"role": "user", "content": content}] * count}}
    assert _sizes.size_of(_sizes.fitted(view)) <= _sizes.MAX_ANSWER
    assert "sha256" in json.dumps(_sizes.fitted(view))
    small = {"checkpoint": {"messages": [{"role": "user", "content": "hi"}] * count}}
    assert _sizes.fitted(small) == small


@pytest.mark.parametrize("revision", ["99", "1234567890123"])
def test_a_revision_that_is_not_listed(seen: Deployment, revision: str) -> None:
    """It is a 404 problem that lists the steps and revisions that are there."""
    shown = seen.get(f"/sessions/s/history/{revision}")
    assert (shown.status, shown.json["code"], shown.is_problem) == (404, "CHECKPOINT_NOT_FOUND", True)
    assert shown.json["steps"] == [0, 1, 2, 3]
    assert max(shown.json["revisions"]) == seen.stored().revision


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/sessions/s/history/x", {}),
        ("/sessions/s/history/-1", {}),
        ("/sessions/s/history/1.0", {}),
        ("/sessions/s/history/²", {}),
        ("/sessions/s/history/" + "9" * 5_000, {}),
        ("/sessions/s/history", {"cursor": "x"}),
        ("/sessions/s/history", {"cursor": "-1"}),
        ("/sessions/s/history", {"full": "yes"}),
    ],
)
def test_what_cannot_be_read_is_refused(seen: Deployment, path: str, query: dict[str, str]) -> None:
    """A revision, cursor or flag that is none is a 400 problem."""
    answered = seen.get(path, **query)
    assert (answered.status, answered.json["code"], answered.is_problem) == (400, "REQUEST_INVALID", True)


@pytest.mark.parametrize("path", ["/sessions/no/history/1", "/sessions/no/compare/s", "/sessions/s/compare/no"])
def test_an_unknown_session_is_not_found(seen: Deployment, path: str) -> None:
    """Neither has it a history, nor can it be compared."""
    answered = seen.get(path)
    assert (answered.status, answered.json["code"]) == (404, "SESSION_NOT_FOUND")


def test_the_history_of_a_cleared_session_is_shown(seen: Deployment) -> None:
    """Where only the checkpoint was deleted, the saves are still listed, and can be forked."""
    seen.store.checkpoints.delete("s", keep_history=True)
    assert seen.get("/sessions/s").status == 404
    assert len(seen.get("/sessions/s/history").json["entries"]) == 6
    assert fork(seen, from_step=1).status == 201


# --- forks -----------------------------------------------------------------------------------------------------------


def test_a_fork_answers_201_with_its_link(seen: Deployment) -> None:
    """It names the new session and where it comes from; nothing runs, nothing is due, the source is as it was."""
    before = list(seen.store.log.read("session/s"))
    asked = seen.asked
    answered = fork(seen, from_step=1)
    segment = answered.json["segment"]
    assert (answered.status, answered.headers["Location"]) == (201, f"/v1/sessions/{segment}")
    assert segment.startswith("~")
    assert (answered.json["session_id"], answered.json["step"], answered.json["status"]) == (
        "s.fork-1",
        1,
        "in-progress",
    )
    revision = answered.json["forked_from"]["revision"]
    origin = {"session_id": "s", "step": 1, "revision": revision, "message_count": 3}
    assert answered.json["forked_from"] == seen.get(f"/sessions/{segment}").json["forked_from"] == origin
    assert seen.stored("s.fork-1").requested_by == ROLE
    assert (seen.asked, seen.states.running, seen.head("s.fork-1").due_at) == (asked, [], None)
    assert list(seen.store.log.read("session/s")) == before
    assert seen.get("/sessions/s").json["forked_from"] is None


def test_a_patched_fork_runs_on_and_is_compared(seen: Deployment) -> None:
    """Another result for one call, a resume, and the comparison parts at the step that saw it."""
    patch = {"tool_result": {"tool_call_id": "call_0_0", "result": {"seen": None}}, "business_state": None}
    made = fork(seen, from_step=1, patch=patch).json
    answered = resume(seen, made["segment"])
    assert (answered.status, answered.json["text"]) == (200, "Both seen.")
    assert [m.content for m in seen.stored("s.fork-1").messages if m.role == "tool"] == [{"seen": None}, "B"]
    compared = seen.get(f"/sessions/s/compare/{made['segment']}").json
    assert (compared["session_ids"], compared["diverged_at"], compared["drift"]) == (["s", "s.fork-1"], 1, [])
    assert [step["calls"][0].get("result") for step in compared["b"][:2]] == [{"seen": None}, "B"]
    assert compared["text"].splitlines()[:2] == ["--- s", "+++ s.fork-1"]
    assert '+ look({"what": "a"}) -> {"seen": null}' in compared["text"]


def test_every_patch_travels(seen: Deployment) -> None:
    """Messages, state and appended input come as JSON; a state of null replaces, one that is left out stays."""
    stored = seen.stored()
    seen.store.checkpoints.save(stored.but(business_state={"n": 1}), after=stored)
    kept = fork(seen, from_step=3, patch={"append_input": "and?"})
    assert seen.stored(kept.json["session_id"]).business_state == {"n": 1}
    messages = [{"role": "user", "content": "hi"}]
    made = fork(seen, from_step=3, patch={"messages": messages, "business_state": None, "append_input": "and?"})
    forked = seen.stored(made.json["session_id"])
    assert ([m.content for m in forked.messages], forked.business_state) == (["hi"], None)
    assert [m.content for m in forked.queued] == ["and?"]


def test_a_given_id_is_taken_once(seen: Deployment) -> None:
    """A second fork under one id is a 409 problem, and the first stays as it is."""
    assert fork(seen, revision=1, session_id="mine").json["session_id"] == "mine"
    first = seen.stored("mine")
    again = fork(seen, revision=2, session_id="mine")
    assert (again.status, again.json["code"], again.is_problem) == (409, "SESSION_EXISTS", True)
    assert seen.stored("mine") == first


@pytest.mark.parametrize("given", [{}, {"session_id": "mine"}])
def test_a_fork_that_is_asked_for_twice_is_made_once(seen: Deployment, given: dict[str, str]) -> None:
    """With an Idempotency-Key the same request gives the same fork, also when it has gone on; another body is 422."""
    headers = {"Idempotency-Key": "what-if"}
    first = fork(seen, from_step=1, headers=headers, **given)
    name = given.get("session_id", named_after("s", "what-if"))
    assert (first.status, first.json["session_id"]) == (201, name)
    assert resume(seen, first.json["segment"]).status == 200
    again = fork(seen, from_step=1, headers=headers, **given)
    assert (again.status, again.json["session_id"], again.json["run_id"]) == (201, name, first.json["run_id"])
    assert again.json["status"] == "finished"
    other = fork(seen, from_step=2, headers=headers, **given)
    assert (other.status, other.json["code"]) == (422, "IDEMPOTENCY_KEY_REUSED")
    assert fork(seen, from_step=1, headers={"Idempotency-Key": "another"}).json["session_id"] != name


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"from_step": 9}, 404, "CHECKPOINT_NOT_FOUND"),
        ({"revision": 99}, 404, "CHECKPOINT_NOT_FOUND"),
        ({}, 400, "INPUT_INVALID"),
        ({"from_step": 1, "revision": 1}, 400, "INPUT_INVALID"),
        ({"from_step": -1}, 400, "REQUEST_INVALID"),
        ({"from_step": 1, "colour": "red"}, 400, "REQUEST_INVALID"),
        ({"from_step": 1, "patch": {"colour": "red"}}, 400, "REQUEST_INVALID"),
        ({"from_step": 1, "session_id": ""}, 400, "SESSION_ID_INVALID"),
        ({"from_step": 1, "patch": {"tool_result": {"tool_call_id": "x", "result": 1}}}, 400, "INPUT_INVALID"),
        ({"from_step": 1, "patch": {"messages": [{"role": "assistant"}, {"role": "tool"}]}}, 400, "REQUEST_INVALID"),
        (
            {"from_step": 1, "patch": {"messages": [{"role": "tool", "tool_call_id": "x", "tool_name": "y"}]}},
            400,
            "INPUT_INVALID",
        ),
    ],
)
def test_a_fork_that_cannot_be_made_says_why(seen: Deployment, body: dict[str, Any], status: int, code: str) -> None:
    """Each is a problem with a hint, and no session is made."""
    answered = fork(seen, **body)
    assert (answered.status, answered.json["code"], answered.is_problem) == (status, code, True)
    assert [item["session_id"] for item in seen.get("/sessions").json["sessions"]] == ["s"]


def test_a_fork_of_an_unknown_session_has_no_steps(cloud: Deployment) -> None:
    """There is nothing to fork, and the problem lists nothing."""
    answered = fork(cloud, "unknown", from_step=1)
    assert (answered.status, answered.json["code"], answered.json["steps"]) == (404, "CHECKPOINT_NOT_FOUND", [])


def test_a_session_that_is_being_run_can_be_forked(seen: Deployment) -> None:
    """A fork reads its source and needs no lease of it."""
    seen.hold("s", seconds=30)
    assert fork(seen, from_step=1).status == 201


# --- resume ----------------------------------------------------------------------------------------------------------


def test_a_fork_asks_for_its_approval_anew(cloud: Deployment) -> None:
    """A fork of a paused run pauses on an approval of its own; a decision on one is none on the other."""
    source = cloud.pause()
    step = cloud.stored().step
    segment = fork(cloud, from_step=step).json["segment"]
    paused = resume(cloud, segment)
    assert (paused.status, paused.json["status"]) == (202, "awaiting-approval")
    assert paused.json["approval_id"] not in (source, None)
    cloud.request("POST", f"/approvals/{paused.json['approval_id']}/decision", body={"approved": True})
    assert cloud.slice("s.fork-1")["outcome"] == "finished"
    assert (cloud.stored().status, cloud.approval(source).status, cloud.paid) == (
        Status.AWAITING_APPROVAL,
        "pending",
        [5],
    )


def test_a_resume_of_a_paused_session_is_refused(cloud: Deployment) -> None:
    """A run that waits for a human is resumed by its decision and by nothing else."""
    id = cloud.pause()
    answered = resume(cloud, "s")
    assert (answered.status, answered.json["code"], answered.is_problem) == (409, "SESSION_AWAITING_APPROVAL", True)
    assert (answered.json["approval_id"], cloud.lease().owner) == (id, None)


def test_a_resume_carries_an_interrupted_run_on(cloud: Deployment) -> None:
    """A run that its provider stopped goes on where it was, without new input; finished, it gives its result again."""
    cloud.script = [LOOK[0], ProviderAuthenticationError("scripted", "Incorrect API key provided.", status=401)]
    cloud.cold_start()
    assert cloud.send("look").status == 502
    cloud.script = LOOK
    cloud.cold_start()
    answered = resume(cloud, "s")
    assert (answered.status, answered.json["text"], answered.json["steps"]) == (200, "Both seen.", 3)
    assert set(answered.json["store"]) == {"requests", "write_units", "read_units"}
    assert (cloud.lease().owner, cloud.head().due_at) == (None, None)
    asked = cloud.asked
    again = resume(cloud, "s")
    assert (again.status, again.json["text"], cloud.asked) == (200, "Both seen.", asked)


def test_a_resume_may_be_handed_over(seen: Deployment) -> None:
    """With `Prefer: respond-async`, or too little time, the state machine carries the run on."""
    segment = fork(seen, from_step=1).json["segment"]
    answered = resume(seen, segment, headers={"Prefer": "respond-async"})
    assert (answered.status, answered.headers["Location"]) == (202, f"/v1/sessions/{segment}")
    assert len(seen.states.running) == 1
    assert seen.slice("s.fork-1")["outcome"] == "finished"


def test_a_resume_takes_the_lease(seen: Deployment) -> None:
    """While somebody runs the session a resume is refused, and told how long to wait."""
    segment = fork(seen, from_step=1).json["segment"]
    seen.hold("s.fork-1", seconds=30)
    answered = resume(seen, segment)
    assert (answered.status, answered.json["code"], answered.headers["Retry-After"]) == (409, "SESSION_BUSY", "30")


def test_an_unknown_session_cannot_be_resumed(cloud: Deployment) -> None:
    """There is nothing to carry on: 404, and nothing is made."""
    answered = resume(cloud, "unknown")
    assert (answered.status, answered.json["code"]) == (404, "SESSION_NOT_FOUND")
    assert cloud.get("/sessions").json["sessions"] == []


def test_a_store_that_does_not_answer_is_retryable(seen: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork that could not be saved is 503 and may be asked for again."""

    def fails(*_: Any, **__: Any) -> None:
        raise StoreUnavailableError("Query", "throttled")

    monkeypatch.setattr(type(seen.store.checkpoints), "history", fails)
    answered = fork(seen, from_step=1)
    assert (answered.status, answered.json["retryable"]) == (503, True)
