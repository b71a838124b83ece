"""Values that are too large for an answer: left out with a link, and given part by part."""

import hashlib
import json
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable import AssistantMessage, Checkpoint, ToolCall, UserMessage
from handlers import _sizes
from tests.handlers.conftest import Deployment

LARGE = '語"\\\n' * 200_000


def whole(cloud: Deployment, href: str) -> Any:
    """What a link gives, part by part, as a client puts it together."""
    split = urlsplit(href)
    path, query = split.path.removeprefix("/v1"), dict(parse_qsl(split.query))
    text, seen = "", set[tuple[int, str]]()
    while True:
        answered = cloud.get(path, **query)
        assert answered.status == 200, answered
        assert len(answered.text.encode()) < _sizes.MAX_ANSWER
        part = answered.json
        seen.add((part["size"], part["sha256"]))
        assert part["offset"] == len(text.encode())
        text += part["part"]
        if part["next"] is None:
            break
        query["offset"] = str(part["next"])
    assert seen == {(len(text.encode()), hashlib.sha256(text.encode()).hexdigest())}
    return json.loads(text)


def marks(view: Any) -> list[dict[str, Any]]:
    """What a view leaves out."""
    if isinstance(view, list):
        return [mark for item in view for mark in marks(item)]
    if not isinstance(view, dict):
        return []
    return [view] if view.get("truncated") is True else marks(list(view.values()))


@pytest.fixture
def stored(cloud: Deployment) -> Checkpoint:
    """A session with a large message, large arguments, a large state, and messages as usual around them."""
    cloud.send("hi")
    stored = cloud.stored()
    call = ToolCall(id="c1", name="look", arguments=json.dumps({"what": LARGE}))
    more = (UserMessage(content=LARGE), AssistantMessage(content="Wait.", tool_calls=(call,)))
    changed = stored.but(messages=(*stored.messages, *more), business_state={"a/b~c": [LARGE, 1]})
    return cloud.store.checkpoints.save(changed, after=stored)


def test_what_messages_leave_out_is_behind_its_link(cloud: Deployment, stored: Checkpoint) -> None:
    """Each large value of a message is shown by size, hash and link, and the link gives it to the byte."""
    shown = cloud.get("/sessions/s/messages").json["messages"]
    assert [message["role"] for message in shown] == ["user", "assistant", "user", "assistant"]
    assert marks(shown[:2]) == []
    content, arguments = marks(shown)
    assert content["href"] == "/v1/sessions/s/messages/2?value=%2Fcontent"
    assert arguments["href"] == "/v1/sessions/s/messages/3?value=%2Ftool_calls%2F0%2Farguments"
    assert whole(cloud, content["href"]) == LARGE
    assert json.loads(whole(cloud, arguments["href"])) == {"what": LARGE}
    assert content["size"] == len(json.dumps(LARGE, ensure_ascii=False).encode())


@pytest.mark.parametrize("path", ["/sessions/s/history/{}", "/sessions/s/history?full=1"], ids=["one", "page"])
def test_the_history_follows_the_same_rule(cloud: Deployment, stored: Checkpoint, path: str) -> None:
    """Large values of a listed save have links to that very save: it stays as it is when the session moves."""
    split = urlsplit(path.format(stored.revision))
    answer = cloud.get(split.path, **dict(parse_qsl(split.query))).json
    left_out = marks(answer if "checkpoint" in answer else answer["entries"][0])
    cloud.store.checkpoints.save(stored.but(messages=(), business_state=None), after=stored)
    assert {json.dumps(whole(cloud, mark["href"])) for mark in left_out} == {
        json.dumps(value) for value in (stored.messages[2].content, json.dumps({"what": LARGE}), stored.business_state)
    }
    assert all(f"/history/{stored.revision}?" in mark["href"] for mark in left_out)


def test_a_message_is_given_whole(cloud: Deployment, stored: Checkpoint) -> None:
    """Without a pointer it is the message itself, as the conversation shows it."""
    assert whole(cloud, "/sessions/s/messages/0") == cloud.get("/sessions/s/messages").json["messages"][0]
    assert whole(cloud, "/sessions/s/messages/2")["content"] == LARGE


def test_an_answer_that_is_too_large_has_a_link(cloud: Deployment) -> None:
    """A final answer over 256 KB is left out of the run's and the session's view, and behind the link of both."""
    cloud.script = [LARGE]
    cloud.cold_start()
    for answered in (cloud.send("write"), cloud.get("/sessions/s")):
        assert whole(cloud, answered.json["text"]["href"]) == LARGE


def test_an_ordinary_answer_has_nothing_left_out(cloud: Deployment) -> None:
    """What is small is shown as it is, at the threshold to the byte."""
    fits, too_large = "x" * (_sizes.MAX_VALUE - 2), "x" * (_sizes.MAX_VALUE - 1)
    cloud.script = [fits, too_large]
    cloud.cold_start()
    assert cloud.send("one").json["text"] == fits
    assert cloud.send("two").json["text"]["truncated"] is True


NOT_THERE = [
    ("/sessions/s/messages/4", {}, 404, "VALUE_NOT_FOUND"),
    ("/sessions/s/messages/0", {"value": "/nothing"}, 404, "VALUE_NOT_FOUND"),
    ("/sessions/s/messages/0", {"value": "content"}, 404, "VALUE_NOT_FOUND"),
    ("/sessions/s/messages/3", {"value": "/tool_calls/-1"}, 404, "VALUE_NOT_FOUND"),
    ("/sessions/s/messages/3", {"value": "/tool_calls/1"}, 404, "VALUE_NOT_FOUND"),
    ("/sessions/s/messages/3", {"value": "/content/x"}, 404, "VALUE_NOT_FOUND"),
    ("/sessions/s/messages/x", {}, 400, "REQUEST_INVALID"),
    ("/sessions/s/messages/-1", {}, 400, "REQUEST_INVALID"),
    ("/sessions/s/messages/٣", {}, 400, "REQUEST_INVALID"),
    ("/sessions/s/messages/0", {"offset": "-1"}, 400, "REQUEST_INVALID"),
    ("/sessions/s/messages/0", {"offset": "1000"}, 400, "REQUEST_INVALID"),
    ("/sessions/s/messages/2", {"value": "/content", "offset": "2"}, 400, "REQUEST_INVALID"),
    ("/sessions/s/history/99", {"value": "/checkpoint"}, 404, "CHECKPOINT_NOT_FOUND"),
    ("/sessions/none/messages/0", {}, 404, "SESSION_NOT_FOUND"),
]


@pytest.mark.parametrize(("path", "query", "status", "code"), NOT_THERE)
def test_what_is_not_there_is_said_so(
    cloud: Deployment, stored: Checkpoint, path: str, query: dict[str, str], status: int, code: str
) -> None:
    """A message, a value or an offset that there is not is a problem document that says which."""
    answered = cloud.get(path, **query)
    assert (answered.status, answered.json["code"], answered.is_problem) == (status, code, True)


@given(value=st.recursive(st.text() | st.integers() | st.none(), st.lists), size=st.integers(4, 50))
def test_the_parts_of_any_value_are_its_json(value: Any, size: int) -> None:
    """Whatever the characters and the size of a part: the parts together are the JSON, and none splits a character."""
    text, offset = "", 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_sizes, "MAX_PART", size)
        while offset is not None:
            part = _sizes.part_of(value, offset)
            text, offset = text + part["part"], part["next"]
    assert json.loads(text) == value


@given(st.sets(st.text(), min_size=1))
def test_every_pointer_leads_to_its_value(names: set[str]) -> None:
    """Whatever the names: the pointer that a link is made of leads back to the value, at every depth."""
    view = {name: [{other: "x" * 2_000} for other in names] for name in names}
    linked: list[str] = []
    _sizes.fitted(view, lambda pointer: linked.append(pointer), limit=0)
    assert linked
    for pointer in linked:
        assert _sizes.size_of(_sizes.value_in(view, pointer)) > 1024
