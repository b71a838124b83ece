"""Looking at sessions: the views, their pages, and what is refused."""

from typing import Any

import pytest

from durable import AssistantMessage, UserMessage
from handlers import _wiring, sessions
from handlers._responses import message_view
from tests.handlers.conftest import Deployment
from tests.support.runs import START


def talk(cloud: Deployment, turns: int, session: str = "s") -> None:
    cloud.script = lambda request: "answer"
    cloud.cold_start()
    for turn in range(turns):
        assert cloud.send(f"question {turn}", session=session).status == 200


def test_a_session_shows_where_it_stands(cloud: Deployment) -> None:
    """A finished session shows its answer, counts, usage, revision and times; looking writes nothing."""
    talk(cloud, 2)
    written = cloud.store.consumed().bytes_written
    shown = cloud.get("/sessions/s")
    assert (shown.status, shown.headers["Content-Type"]) == (200, "application/json")
    body = shown.json
    assert (body["session_id"], body["status"], body["text"], body["turns"]) == ("s", "finished", "answer", 2)
    assert (body["messages"], body["revision"], body["last_error"]) == (4, 3, None)
    assert body["created_at"] == body["updated_at"] == START.isoformat()
    assert cloud.store.consumed().bytes_written == written


def test_a_paused_session_shows_its_approval(cloud: Deployment) -> None:
    """A session that waits for a human says so, and for which approval."""
    id = cloud.pause()
    body = cloud.get("/sessions/s").json
    assert (body["status"], body["finish_reason"]) == ("awaiting-approval", "awaiting-approval")
    assert (body["approval_id"], body["text"]) == (id, "")


@pytest.mark.parametrize("tail", ["", "/messages", "/history"])
def test_an_unknown_session_is_not_found(cloud: Deployment, tail: str) -> None:
    """A session that was never there is a 404 problem on every path."""
    shown = cloud.get(f"/sessions/unknown{tail}")
    assert (shown.status, shown.json["code"], shown.is_problem) == (404, "SESSION_NOT_FOUND", True)


def test_messages_come_in_order_and_in_pages(cloud: Deployment) -> None:
    """`next` is the `after` of the next page, and following it shows every message once."""
    talk(cloud, 60)
    seen: list[Any] = []
    query: dict[str, str] = {}
    while True:
        page = cloud.get("/sessions/s/messages", **query).json
        assert page["total"] == 120
        assert len(page["messages"]) <= sessions.MAX_PAGE
        seen += page["messages"]
        if page["next"] is None:
            break
        query = {"after": str(page["next"])}
    assert seen == [message_view(message) for message in cloud.stored().messages]


def test_a_page_of_large_messages_is_cut_by_bytes(cloud: Deployment) -> None:
    """A page ends before it is larger than a Lambda may answer, counted in bytes and not in characters."""
    cloud.send("hi")
    stored = cloud.stored()
    large = [UserMessage(content="語" * 80_000) for _ in range(40)]
    cloud.store.checkpoints.save(stored.but(messages=(*stored.messages, *large)), after=stored)
    sizes = []
    query: dict[str, str] = {}
    while True:
        answered = cloud.get("/sessions/s/messages", **query)
        sizes.append(len(answered.json["messages"]))
        assert len(answered.text.encode()) < 4_100_000
        if answered.json["next"] is None:
            break
        query = {"after": str(answered.json["next"])}
    assert sum(sizes) == 42
    assert len(sizes) > 1


@pytest.mark.parametrize(("after", "count"), [("-1", 4), ("0", 3), ("3", 0), ("4", 0)])
def test_a_page_may_start_anywhere(cloud: Deployment, after: str, count: int) -> None:
    """A page starts behind the index that the client names, up to the end, where it is empty."""
    talk(cloud, 2)
    page = cloud.get("/sessions/s/messages", after=after).json
    assert (len(page["messages"]), page["next"]) == (count, None)


BAD_QUERIES = [
    ("/sessions/s/messages", {"after": "-2"}),
    ("/sessions/s/messages", {"after": "5"}),
    ("/sessions/s/messages", {"after": "one"}),
    ("/sessions/s/messages", {"after": "9" * 5_000}),
    ("/sessions/s/history", {"limit": "-1"}),
    ("/sessions/s/history", {"limit": "101"}),
    ("/sessions/s/history", {"limit": "1.5"}),
    ("/sessions", {"limit": "0"}),
    ("/sessions", {"limit": "101"}),
    ("/sessions", {"limit": ""}),
    ("/sessions", {"status": "happy"}),
    ("/sessions", {"status": ""}),
]


@pytest.mark.parametrize(("path", "query"), BAD_QUERIES)
def test_a_query_that_is_not_right_is_refused(cloud: Deployment, path: str, query: dict[str, str]) -> None:
    """A parameter that cannot be read, or is out of its range, is a 400 problem that names it."""
    talk(cloud, 2)
    answered = cloud.get(path, **query)
    assert (answered.status, answered.json["code"], answered.is_problem) == (400, "REQUEST_INVALID", True)
    assert next(iter(query)) in answered.json["detail"]


def test_history_lists_the_newest_saves_first(cloud: Deployment) -> None:
    """Each listed save says when it was, at which step and in which status; `limit` bounds them, and 0 gives none."""
    talk(cloud, 2)
    entries = cloud.get("/sessions/s/history").json["entries"]
    assert [entry["revision"] for entry in entries] == [3, 2, 1, 0]
    assert [entry["status"] for entry in entries] == ["finished", "in-progress"] * 2
    assert [entry["messages"] for entry in entries] == [4, 2, 2, 0]
    assert entries[0]["saved_at"] == START.isoformat()
    assert len(cloud.get("/sessions/s/history", limit="1").json["entries"]) == 1
    assert cloud.get("/sessions/s/history", limit="0").json["entries"] == []


def test_sessions_are_listed_in_pages(cloud: Deployment) -> None:
    """The list gives id, link segment, status and time; the cursor leads through all of them once."""
    ids = ["a", "b", "c d", "é", "e"]
    cloud.script = lambda request: "answer"
    for session_id in ids:
        talk(cloud, 1, sessions.path_segment(session_id))
    cloud.pause("waits")
    seen: list[Any] = []
    query = {"limit": "2"}
    while True:
        page = cloud.get("/sessions", **query).json
        seen += page["sessions"]
        if page["cursor"] is None:
            break
        query = {"limit": "2", "cursor": page["cursor"]}
    assert sorted(one["session_id"] for one in seen) == sorted([*ids, "waits"])
    by_id = {one["session_id"]: one for one in seen}
    assert by_id["c d"]["segment"].startswith("~")
    assert by_id["a"] == {
        "session_id": "a",
        "segment": "a",
        "status": "finished",
        "updated_at": START.isoformat(),
    }
    [waiting] = cloud.get("/sessions", status="awaiting-approval").json["sessions"]
    assert waiting["session_id"] == "waits"


def test_a_deployment_may_not_list_what_is_finished(cloud: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the parameter says so the store is told, and who asks for finished sessions hears it instead of nothing."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(_wiring, "dynamodb_store", lambda **options: given.update(options) or cloud.store)
    monkeypatch.setenv("LIST_FINISHED", "false")
    cloud.cold_start()
    refused = cloud.get("/sessions", status="finished")
    assert (refused.status, refused.is_problem, "ListFinished" in refused.json["detail"]) == (400, True, True)
    assert cloud.get("/sessions").status == 200
    assert given["list_finished"] is False


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_looking_takes_only_get(cloud: Deployment, method: str) -> None:
    """Any other method on these paths is not found and changes nothing; a session itself may be deleted."""
    talk(cloud, 1)
    before = cloud.stored()
    for path in ("/sessions", "/sessions/s", "/sessions/s/messages", "/sessions/s/history"):
        if (method, path) != ("DELETE", "/sessions/s"):
            assert cloud.request(method, path, body={}).status == 404
    assert cloud.stored() == before


def test_a_session_under_way_shows_what_is_there(cloud: Deployment) -> None:
    """A session that was accepted and not run yet has no answer, and shows that it is in progress."""
    cloud.send("hi", headers={"Prefer": "respond-async"})
    body = cloud.get("/sessions/s").json
    assert (body["status"], body["text"], body["steps"], body["messages"]) == ("in-progress", "", 0, 0)
    assert cloud.get("/sessions/s/messages").json == {"messages": [], "total": 0, "next": None}


def test_tool_calls_are_shown_with_their_ids(cloud: Deployment) -> None:
    """The conversation shows calls and results as they are stored."""
    cloud.script = [("look", {"what": "a"}), "done"]
    cloud.send("go")
    shown = cloud.get("/sessions/s/messages").json["messages"]
    assert [message["role"] for message in shown] == ["user", "assistant", "tool", "assistant"]
    assert shown[1]["tool_calls"][0]["id"] == shown[2]["tool_call_id"]
    assert AssistantMessage.model_validate(shown[1]) == cloud.stored().messages[1]
