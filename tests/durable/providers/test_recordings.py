"""Whole conversations on the wire: the ones in `fixtures/`, and recorded ones where a folder of them is at hand.

The folder is named by RECORDINGS_DIR. Of each exchange, the answer is read into the neutral message and the request is
built anew from such messages; it must be equivalent to the recorded one. Not compared, because the recording client
decided it: the order of keys, white space in arguments, a text as a list with one text part, null content against
none, model parameters (`n`, `stream`, `tool_choice`, `reasoning_effort`, `strict`, …), the texts of tool results, and
ids that the client made up where the server sent none. Not compared yet: reasoning that is sent back, and requests
with images.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from durable.errors import ProviderError, ProviderRateLimitError
from durable.messages import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, UserMessage
from durable.ports import ModelRequest, ModelTurn, ToolSpec
from durable.providers.openai_chat import OpenAIChat

pytestmark = pytest.mark.anyio

FIXTURES = Path(__file__).parent / "fixtures"
REPOSITORY = Path(__file__).parents[3]
RECORDINGS = REPOSITORY / os.environ.get("RECORDINGS_DIR", "../shared/recordings")
ERRORS = {400: "REQUEST", 401: "AUTHENTICATION", 429: "RATE_LIMIT", 500: "UNAVAILABLE", 503: "UNAVAILABLE"}

Json = dict[str, Any]


def conversations() -> Iterator[Any]:
    recorded = [*RECORDINGS.glob("openai-chat-*.json"), *RECORDINGS.glob("openai-compat-*.json")]
    for path in sorted([*FIXTURES.glob("chat-*.json"), *recorded]):
        conversation = json.loads(path.read_text(encoding="utf-8"))
        if not conversation["streaming"]:
            yield pytest.param(conversation["exchanges"], id=path.stem)
    if not recorded:
        missing = pytest.mark.skip(reason="RECORDINGS_DIR names no folder of recordings: only our own fixtures ran")
        yield pytest.param([], id="recordings", marks=missing)


@pytest.mark.parametrize("exchanges", [*conversations()])
async def test_a_conversation_replays(connect: Callable[..., OpenAIChat], server: Any, exchanges: list[Json]) -> None:
    """Each recorded answer is read into the right message or error, and each request is built as it was recorded."""
    answers = [
        httpx.Response(one["response"]["status"], headers=one["response"].get("headers"), json=one["response"]["body"])
        for one in exchanges
    ]
    path, _, query = exchanges[0]["request"]["path"].partition("?")
    base_url = f"http://server{path.removesuffix('/chat/completions')}?{query}"
    model = exchanges[0]["request"]["body"]["model"]
    provider = connect(*answers, model=model, base_url=base_url, http={"attempts": 1})
    turns: list[AssistantMessage] = []
    for exchange in exchanges:
        recorded, response = exchange["request"], exchange["response"]
        try:
            turn = await provider.generate(request_from(recorded["body"], turns))
        except ProviderError as error:
            check_error(error, response)
        else:
            check_turn(turn, response["body"])
            turns.append(turn.message)
        assert server.requests[-1].url.raw_path.decode() == recorded["path"]
        if "image_url" not in json.dumps(recorded["body"]):
            assert normal(server.bodies[-1]) == normal(recorded["body"])


def check_error(error: ProviderError, response: Json) -> None:
    """The type follows the status, and the text is the server's own, without a key."""
    assert (error.status, error.code) == (response["status"], f"PROVIDER_{ERRORS[response['status']]}")
    message = re.sub(r"sk-[\w*]+", "[redacted]", response["body"]["error"]["message"])
    assert message.rstrip(".") in str(error)
    if isinstance(error, ProviderRateLimitError):
        assert error.retry_after == float(response["headers"]["retry-after-ms"]) / 1000


def check_turn(turn: ModelTurn, body: Json) -> None:
    """Text, calls and usage are those of the raw answer."""
    message = body["choices"][0]["message"]
    assert turn.message.content == text_of(message)
    assert calls_of(turn.message) == [
        (call["function"]["name"], as_object(call["function"].get("arguments")))
        for call in message.get("tool_calls") or ()
    ]
    assert [call.id for call in turn.message.tool_calls] == [call["id"] for call in message.get("tool_calls") or ()]
    usage = body.get("usage") or {}
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", usage.get("prompt_cache_hit_tokens", 0))
    assert (turn.usage.input_tokens, turn.usage.output_tokens, turn.usage.cached_input_tokens) == (
        usage.get("prompt_tokens", 0),
        usage.get("completion_tokens", 0),
        cached,
    )
    assert turn.model == body["model"]


def request_from(body: Json, turns: list[AssistantMessage]) -> ModelRequest:
    """The neutral request of a recorded one, with the turns that were read from the answers before it."""
    recorded = list(body["messages"])
    instructions = recorded.pop(0)["content"] if recorded[0]["role"] == "system" else None
    functions = [tool["function"] for tool in body.get("tools", ())]
    tools = [ToolSpec(one["name"], one["description"], one["parameters"]) for one in functions]
    return ModelRequest(instructions=instructions, messages=list(neutral(recorded, [*turns])), tools=tools)


def neutral(recorded: list[Json], turns: list[AssistantMessage]) -> Iterator[Message]:
    names: dict[str, str] = {}
    for message in recorded:
        match message["role"]:
            case "system":
                yield SystemMessage(content=text_of(message))
            case "user":
                yield UserMessage(content=text_of(message))
            case "tool":
                call_id = message["tool_call_id"]
                yield ToolMessage(tool_call_id=call_id, tool_name=names[call_id], content=message["content"])
            case "assistant":
                turn = sent_back(message)
                names |= {call.id: call.name for call in turn.tool_calls}
                if turns and same_turn(turn, turns[0]):
                    turn = with_ids(turns.pop(0), turn)
                yield turn
    assert not turns, "the recorded request lacks a turn that was answered before it"


def sent_back(message: Json) -> AssistantMessage:
    """An assistant message of a recorded request, read without the code under test."""
    calls = (
        ToolCall(id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])
        for call in message.get("tool_calls", ())
    )
    return AssistantMessage(content=text_of(message), tool_calls=tuple(calls))


def same_turn(recorded: AssistantMessage, ours: AssistantMessage) -> bool:
    return recorded.content == ours.content and calls_of(recorded) == calls_of(ours)


def with_ids(ours: AssistantMessage, recorded: AssistantMessage) -> AssistantMessage:
    """Our turn, its empty ids replaced as the executor would, by those that the recording client chose."""
    pairs = zip(ours.tool_calls, recorded.tool_calls, strict=True)
    calls = tuple(call if call.id else call.model_copy(update={"id": other.id}) for call, other in pairs)
    return ours.model_copy(update={"tool_calls": calls})


def calls_of(message: AssistantMessage) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in message.tool_calls]


def as_object(arguments: Any) -> Any:
    return json.loads(arguments) if isinstance(arguments, str) else arguments or {}


def text_of(message: Json) -> str:
    """The text of a raw message: list parts joined, reasoning left out (one client sends it inside the text)."""
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(part["text"] for part in content if part["type"] == "text")
    return re.sub(r"<think>.*?</think>", "", content, flags=re.DOTALL)


def normal(body: Json) -> Json:
    """What of a request is compared."""
    messages: list[Json] = []
    for message in body["messages"]:
        calls = [
            {"id": one["id"], "name": one["function"]["name"], "arguments": json.loads(one["function"]["arguments"])}
            for one in message.get("tool_calls", ())
        ]
        kept = {"role": message["role"], "content": text_of(message), "calls": calls}
        messages.append(kept | {"tool_call_id": message.get("tool_call_id")})
    tools = [{**tool["function"], "strict": None, "type": tool["type"]} for tool in body.get("tools", ())]
    return {"model": body["model"], "messages": messages, "tools": tools}
