"""The model that the tour and the end-to-end tests talk to."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from infra.local.model_server import ModelServer, calls, failure, text, transcript_mistake

TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
USER = {"role": "user", "content": "How is the weather?"}
ASKED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "call_weather_0", "type": "function", "function": {"name": "weather", "arguments": "{}"}}],
}
RESULT = {"role": "tool", "tool_call_id": "call_weather_0", "content": "sunny"}


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer([calls(("weather", {})), text("It is sunny.")]) as server:
        yield server


def ask(model: ModelServer, *messages: dict[str, Any], **changes: Any) -> httpx.Response:
    body = {"model": "any", "messages": list(messages), "tools": TOOLS, **changes}
    url = f"{model.base_url}/chat/completions"
    return httpx.post(url, json=body, headers={"Authorization": "Bearer key"}, timeout=10, trust_env=False)


def content(answer: httpx.Response) -> str:
    return answer.json()["choices"][0]["message"]["content"]


def test_the_answer_follows_from_the_turns_in_the_request(model: ModelServer) -> None:
    """A request that is sent again gets the same answer again, and each is counted."""
    first = ask(model, USER)
    assert first.json()["choices"][0]["finish_reason"] == "tool_calls"
    assert ask(model, USER).json() == first.json()
    assert content(ask(model, USER, ASKED, RESULT)) == "It is sunny."
    assert (model.count(0), model.count(1)) == (2, 1)


@pytest.mark.parametrize(
    ("messages", "mistake"),
    [
        ([], "non-empty list"),
        ([USER, ASKED], "have no result"),
        ([USER, ASKED, USER], "have no result"),
        ([USER, RESULT], "no preceding tool call"),
        ([USER, ASKED, RESULT, RESULT], "no preceding tool call"),
        ([{"role": "judge", "content": "?"}], "no known role"),
        ([USER, {**ASKED, "tool_calls": ASKED["tool_calls"] * 2}, RESULT], "empty or repeat"),  # type: ignore[operator]
    ],
)
def test_a_transcript_that_a_provider_refuses_is_refused(
    model: ModelServer, messages: list[dict[str, Any]], mistake: str
) -> None:
    """A call without its result, a result without its call and the like get 400 and count for nobody."""
    answer = ask(model, *messages)
    assert answer.status_code == 400
    assert mistake in answer.json()["error"]["message"]
    assert [request.exchange for request in model.requests] == [None]


def test_a_request_a_provider_refuses_is_refused(model: ModelServer) -> None:
    """No key, a stream, a tool that is not offered, an unknown path and a body that is not JSON are errors."""
    assert ask(model, USER, stream=True).status_code == 400
    assert ask(model, USER, tools=[]).status_code == 400
    assert httpx.post(f"{model.base_url}/chat/completions", json={}, trust_env=False).status_code == 401
    assert httpx.post(f"{model.base_url}/completions", json={}, trust_env=False).status_code == 404
    assert httpx.post(f"{model.base_url}/chat/completions", content=b"{", trust_env=False).status_code == 400


def test_an_answer_can_be_held_back(model: ModelServer) -> None:
    """A held answer is asked for and counted at once, and given when it is released."""
    answers: list[httpx.Response] = []
    with model.hold(0) as held:
        asking = threading.Thread(target=lambda: answers.append(ask(model, USER)))
        asking.start()
        held.wait(5)
        assert (model.count(0), answers) == (1, [])
    asking.join(5)
    assert [answer.status_code for answer in answers] == [200]


def test_a_failure_can_be_scripted() -> None:
    """An answer may be an error with headers of its own."""
    with ModelServer([failure(429, "slow down", **{"Retry-After": "1"})]) as model:
        answer = ask(model, USER)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")


def test_a_provider_can_be_down(model: ModelServer) -> None:
    """During an outage every request is refused, one that was held back too; after it all is as before."""
    answers: list[httpx.Response] = []
    with model.hold(0) as held:
        asking = threading.Thread(target=lambda: answers.append(ask(model, USER)))
        asking.start()
        held.wait(5)
        with model.down(503, 529):
            held.release()
            asking.join(5)
            statuses = [answer.status_code for answer in (*answers, ask(model, USER), ask(model, USER))]
    assert (statuses, model.refused()) == ([503, 529, 503], 2)
    assert ask(model, USER).status_code == 200


def test_a_recording_is_played(tmp_path: Path) -> None:
    """A recorded conversation is answered with the recorded bodies, in the order of its turns."""
    exchanges = [
        {"response": {"status": 200, "body": answer.body}} for answer in (calls(("weather", {})), text("Sun."))
    ]
    file = tmp_path / "recording.json"
    file.write_text(json.dumps({"protocol": "openai-chat", "streaming": False, "exchanges": exchanges}))
    with ModelServer.recorded(file) as model:
        assert ask(model, USER).json() == exchanges[0]["response"]["body"]
        assert content(ask(model, USER, ASKED, RESULT)) == "Sun."


def test_a_good_transcript_has_no_mistake() -> None:
    """Calls that are answered in any order right after their turn are as they should be."""
    two = {**ASKED, "tool_calls": [{"id": "a"}, {"id": "b"}]}
    results = [{"role": "tool", "tool_call_id": call} for call in ("b", "a")]
    assert transcript_mistake([USER, two, *results, {"role": "assistant", "content": "Done."}, USER]) is None
