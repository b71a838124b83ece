"""Whole conversations on the wire: those in `fixtures/`, and recorded ones where a folder of them is at hand.

The folder is named by RECORDINGS_DIR. Each conversation is run by the executor, on a server on the loopback interface
that gives the recorded answers byte for byte, with the recorded results of its tools. Between every two answers the
process dies, and another one with nothing but the store goes on. Each request must be equivalent to the recorded one:
`recorded.py` lists what is not compared.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from durable import Agent, Hooks, ProviderError, ProviderRateLimitError, Tool, ToolMessage
from durable.events import ArgumentsDelta, Event, TextDelta
from durable.messages import AssistantMessage
from durable.ports import Provider
from durable.providers import HttpSettings
from durable.providers.anthropic import Anthropic
from durable.providers.bedrock import Bedrock
from durable.providers.openai_chat import OpenAIChat
from durable.providers.openai_responses import OpenAIResponses
from stores.memory import memory_store
from tests.durable.providers.loopback import Loopback, served
from tests.durable.providers.recorded import (
    Recorded,
    Result,
    conversations,
    instructions,
    options,
    own_fields,
    recordings_at_hand,
    results,
    said,
    tools,
    view,
)

pytestmark = pytest.mark.anyio

ALL = conversations()
KEY = "loopback-key"
ONCE = HttpSettings(attempts=1)
NO_FOLDER = "RECORDINGS_DIR names no folder of recordings: only our own fixtures ran"

ERRORS = {
    "anthropic-error-context-length-1": "PROVIDER_CONTEXT_LENGTH",
    "anthropic-error-missing-tool-result-1": "PROVIDER_REQUEST",
    "bedrock-error-context-length-1": "PROVIDER_CONTEXT_LENGTH",
    "openai-chat-error-rate-limit-1": "PROVIDER_RATE_LIMIT",
    "openai-compat-llamacpp-error-500-1": "PROVIDER_UNAVAILABLE",
    "openai-responses-error-missing-tool-output-1": "PROVIDER_REQUEST",
}
"""What becomes of each recorded refusal."""

BY_STATUS = {
    400: "PROVIDER_REQUEST",
    401: "PROVIDER_AUTHENTICATION",
    429: "PROVIDER_RATE_LIMIT",
    503: "PROVIDER_UNAVAILABLE",
}


class Died(Exception):
    """The process ended here."""


class Anything(BaseModel):
    """Arguments of any shape: what they are is the recorded model's business."""

    model_config = ConfigDict(extra="allow")


@pytest.fixture(scope="module")
def loopback() -> Iterator[Loopback]:
    with served() as server:
        yield server


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """boto3 signs with something."""
    for name, value in (
        ("ACCESS_KEY_ID", "AKIATEST"),
        ("SECRET_ACCESS_KEY", "secret"),
        ("DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)


@pytest.fixture(scope="module")
def bedrock_client() -> Any:
    return {}


def provider(recorded: Recorded, body: dict[str, Any], url: str, clients: dict[str, Any]) -> Provider:
    """A provider as a new process makes it, that sends its requests to the loopback server."""
    path, _, query = recorded.exchanges[0]["request"]["path"].partition("?")
    query = f"?{query}" if query else ""
    given = options(recorded.protocol, body)
    match recorded.protocol:
        case "openai-chat":
            base = f"{url}{path.removesuffix('/chat/completions')}{query}"
            return OpenAIChat(body["model"], api_key=KEY, base_url=base, options=given, http=ONCE)
        case "openai-responses":
            base = f"{url}{path.removesuffix('/responses')}{query}"
            given = {"include": [], **given}
            return OpenAIResponses(body["model"], api_key=KEY, base_url=base, options=given, http=ONCE)
        case "anthropic-messages":
            base = f"{url}{path.removesuffix('/v1/messages')}{query}"
            return Anthropic(body["model"], api_key=KEY, base_url=base, options=given, http=ONCE)
        case _:
            model = path.split("/")[2].replace("%3A", ":")
            made = Bedrock(model, endpoint_url=url, options=given, http=ONCE)
            if "client" not in clients:
                clients["client"] = made._boto3_client()
            made._client = clients["client"]  # making one takes longer than all of these tests
            return made


def recorded_tools(recorded: Recorded) -> list[Tool]:
    """The tools of all requests of a conversation, whose results `replayed` puts in their place."""
    found = {name: (text, schema) for body in recorded.bodies for name, text, schema in tools(recorded.protocol, body)}
    return [
        Tool(name=name, description=text, function=lambda: None, arguments=Anything, parameters=schema)
        for name, (text, schema) in found.items()
    ]


def dying_after_one_answer() -> Any:
    asked: list[Any] = []

    def before_model(request: Any) -> None:
        if asked:
            raise Died
        asked.append(request)

    return before_model


def replayed(given: list[Result]) -> Any:
    """Put the recorded results in the place of what the tools gave, in call order. Where no more follow, die."""

    def after_tool(call: Any, result: ToolMessage, context: Any) -> ToolMessage:
        if not given:
            raise Died
        recorded = given.pop(0)
        update = {"content": recorded.content, "parts": recorded.parts, "is_error": recorded.is_error}
        return result.model_copy(update=update)

    return after_tool


class Replay:
    """One conversation on its way."""

    def __init__(self, recorded: Recorded, loopback: Loopback, clients: dict[str, Any], *, streaming: bool) -> None:
        self.recorded, self.loopback, self.clients = recorded, loopback, clients
        loopback.answers = [recorded.answer(index) for index in range(len(recorded.exchanges))]
        loopback.bodies, loopback.paths = [], []
        self.store = memory_store()
        self.events: list[Event] = []
        self.listener = self.events.append if streaming else None
        self.results = self._results()

    def _results(self) -> list[Result]:
        """Those of calls that a recorded answer asked for; a client may have made up others itself."""
        bodies = self.recorded.bodies
        if self.recorded.name == "openai-compat-deepseek-reasoning-tools-1":
            found = results(self.recorded.protocol, bodies[-1])
            return [found[0], *found[2:]]
        return results(self.recorded.protocol, bodies[-1])

    def agent(self) -> Agent:
        """The agent as a new process has it."""
        body = self.recorded.bodies[len(self.loopback.bodies)]
        return Agent(
            instructions=instructions(self.recorded.protocol, body) or None,
            tools=recorded_tools(self.recorded),
            provider=provider(self.recorded, body, self.loopback.url, self.clients),
            tool_concurrency=1,
            store=self.store,
            on_agent_drift="ignore",
            hooks=Hooks(before_model=dying_after_one_answer(), after_tool=replayed(self.results)),
        )

    async def go(self) -> tuple[Any, ...]:
        """Run to the end of the recorded conversation, one process for each answer; the transcript as stored."""
        todo = said(self.recorded.protocol, self.recorded.bodies[-1])
        while len(self.loopback.bodies) < len(self.recorded.exchanges):
            checkpoint = self.store.checkpoints.load("s")
            agent = self.agent()
            try:
                if checkpoint is None or checkpoint.status == "finished":
                    await agent.send([todo.pop(0)], session_id="s", listener=self.listener)
                else:
                    await agent.resume("s", listener=self.listener)
            except Died:
                continue
        assert todo == []
        loaded = self.store.checkpoints.load("s")
        assert loaded is not None
        return loaded.messages


@pytest.mark.parametrize("recorded", [one for one in ALL if not one.is_error], ids=lambda one: one.name)
async def test_a_conversation_replays(recorded: Recorded, loopback: Loopback, bedrock_client: Any) -> None:
    """Through a crash after each answer, every request is as it was recorded and nothing is asked twice."""
    streaming = bool(recorded.bodies[0].get("stream")) or "stream" in recorded.name
    replay = Replay(recorded, loopback, bedrock_client, streaming=streaming)
    messages = await replay.go()
    assert len(loopback.bodies) == len(recorded.exchanges)
    for path, exchange in zip(loopback.paths, recorded.exchanges, strict=True):
        assert path.replace("%3A", ":") == exchange["request"]["path"].replace("%3A", ":")
    for sent, body in zip(loopback.bodies, recorded.bodies, strict=True):
        assert view(recorded.protocol, with_tools(recorded, sent, body)) == view(
            recorded.protocol, without_made_up(body)
        )
    if recorded.protocol == "openai-chat":
        check_own_fields(recorded, loopback.bodies)
    turns = [message for message in messages if isinstance(message, AssistantMessage)]
    assert len(turns) == len(recorded.exchanges)
    if streaming:
        check_events(replay.events, turns)


def with_tools(recorded: Recorded, sent: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """Our request with the recorded choice of tools: an agent has its tools for a whole run, a recording client may
    change them between two requests. Each tool that both have must be the same."""
    name = "toolConfig" if recorded.protocol == "bedrock-converse" else "tools"
    ours = {tool[0]: tool for tool in tools(recorded.protocol, sent)}
    theirs = tools(recorded.protocol, body)
    assert all(ours[tool[0]] == tool for tool in theirs if set(ours) == {one[0] for one in theirs})
    assert {tool[0] for tool in theirs} <= set(ours)
    others = {key: value for key, value in sent.items() if key != name}
    return others | ({name: body[name]} if name in body else {})


def without_made_up(body: dict[str, Any]) -> dict[str, Any]:
    """A request without the turn that its client made up (its id says so), and without that turn's result."""

    def made_up(message: dict[str, Any]) -> bool:
        ids = [call["id"] for call in message.get("tool_calls", ())] + [message.get("tool_call_id") or ""]
        return any(id.startswith("auto_load_") for id in ids)

    if "messages" not in body or not any("tool_calls" in message for message in body["messages"]):
        return body
    return {**body, "messages": [message for message in body["messages"] if not made_up(message)]}


def check_own_fields(recorded: Recorded, bodies: list[Any]) -> None:
    """What we send back beside text and calls is what the server gave, to the byte, and all that the client sent."""
    given = json.dumps([one["response"]["body"] for one in recorded.exchanges], sort_keys=True)
    streamed = bool(recorded.bodies[0].get("stream"))
    for sent, body in zip(bodies, recorded.bodies, strict=True):
        all_ours, all_theirs = own_fields(sent), own_fields(without_made_up(body))
        for value in [] if streamed else [value for ours in all_ours for value in ours.values()]:
            pieces = value if isinstance(value, list) else [value]
            assert all(json.dumps(piece, sort_keys=True) in given for piece in pieces)
        for ours, theirs in zip(all_ours, all_theirs, strict=False):
            for name, value in theirs.items():
                if name == "parts":  # the client left `closed` out
                    assert [one | {"closed": True} for one in value] == ours[name]
                elif name == "reasoning_content" and name not in ours:  # the same text under a second name
                    assert ours["reasoning"] == value
                else:
                    assert ours[name] == value


def check_events(events: list[Event], turns: list[AssistantMessage]) -> None:
    """The pieces that were told are the record: text, and arguments under the id that the call keeps."""
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert text == "".join(turn.content for turn in turns)
    for turn in turns:
        for call in turn.tool_calls:
            pieces = [e.text for e in events if isinstance(e, ArgumentsDelta) and e.tool_call_id == call.id]
            assert json.loads("".join(pieces) or "{}") == json.loads(call.arguments)


REFUSED = [
    pytest.param(replace(one, exchanges=[exchange]), id=f"{one.name}-{exchange['response']['status']}")
    for one in ALL
    if one.is_error
    for exchange in one.exchanges
]


@pytest.mark.parametrize("recorded", REFUSED)
async def test_a_recorded_error_is_typed(recorded: Recorded, loopback: Loopback, bedrock_client: Any) -> None:
    """What a provider refused is an error of the right kind, with its own words and its wait, and without a key."""
    replay = Replay(recorded, loopback, bedrock_client, streaming=bool(recorded.bodies[0].get("stream")))
    with pytest.raises(ProviderError) as caught:
        await replay.go()
    response = recorded.exchanges[-1]["response"]
    assert caught.value.code == ERRORS.get(recorded.name, BY_STATUS.get(response["status"]))
    assert caught.value.status == response["status"]
    body = response["body"]
    message = body["message"] if "message" in body else body["error"]["message"]
    assert re.sub(r"sk-[\w*]+", "[redacted]", message).rstrip(".") in str(caught.value)
    if isinstance(caught.value, ProviderRateLimitError):
        assert caught.value.retry_after == float(response["headers"]["retry-after-ms"]) / 1000


def test_the_recordings_are_there() -> None:
    """Without the folder this says so: the conversations of `fixtures/` have run, the recorded ones have not."""
    if not recordings_at_hand():
        pytest.skip(NO_FOLDER)
    protocols = {"openai-chat", "openai-responses", "anthropic-messages", "bedrock-converse"}
    assert {one.protocol for one in ALL} == protocols
    assert {one.name for one in ALL if one.is_error} >= set(ERRORS)
