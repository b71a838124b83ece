"""Streams: the same record as without, counted only when the last event has come, shown only once."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from durable.errors import (
    ProviderError,
    ProviderOverloadedError,
    ProviderRateLimitError,
    ProviderRequestError,
    ProviderResponseError,
    ProviderStreamError,
    ProviderUnavailableError,
)
from durable.messages import UserMessage
from durable.ports import ModelRequest
from durable.providers import HttpSettings
from durable.providers.bedrock import Bedrock
from tests.durable.providers.loopback import served
from tests.durable.providers.recorded import conversations, said_by_the_model
from tests.durable.providers.wires import (
    OVER_HTTP,
    as_stream,
    bedrock_events,
    bedrock_over,
    event_frame,
    framed,
    model_over,
    stream_of,
    streamed,
)

pytestmark = pytest.mark.anyio

ASK = ModelRequest(instructions=None, messages=[UserMessage(content="hi")])


def whole_answers() -> Iterator[Any]:
    """Every answer of a conversation that came whole, by protocol."""
    for recorded in conversations():
        for index, exchange in enumerate(recorded.exchanges):
            response = exchange["response"]
            if response["status"] == 200 and isinstance(response["body"], dict):
                yield pytest.param(recorded.protocol, response["body"], id=f"{recorded.name}-{index}")


@pytest.mark.parametrize(("protocol", "answer"), list(whole_answers()))
async def test_streamed_and_whole_give_the_same_record(protocol: str, answer: Any) -> None:
    """Text, calls, native parts (signatures included), usage and reason are equal, and the pieces are the whole."""
    if protocol == "bedrock-converse":
        whole = await bedrock_over(answer)[0].generate(ASK)
        turn, told = await streamed(bedrock_over(bedrock_events(answer))[0], ASK)
    else:
        whole = await model_over(protocol, lambda request: httpx.Response(200, json=answer)).generate(ASK)
        content = framed(as_stream(protocol, answer), end="\r\n")
        turn, told = await streamed(model_over(protocol, lambda request: stream_of(content)), ASK)
    text, calls, tokens = said_by_the_model(protocol, answer)
    assert whole.message.content == text
    assert [(call.id, call.name, json.loads(call.arguments)) for call in whole.message.tool_calls] == calls
    assert (whole.usage.input_tokens, whole.usage.cached_input_tokens, whole.usage.output_tokens) == tokens
    assert (turn.message, turn.usage, turn.finish_reason) == (whole.message, whole.usage, whole.finish_reason)
    assert json.loads(turn.message.model_dump_json()) == json.loads(whole.message.model_dump_json())
    assert "".join(delta.text for delta in told if delta.kind == "text") == whole.message.content
    for place, call in enumerate(whole.message.tool_calls):
        pieces = [delta for delta in told if delta.kind == "arguments" and delta.call == place]
        assert json.loads("".join(delta.text for delta in pieces) or "{}") == json.loads(call.arguments)
        assert {(delta.id, delta.name) for delta in pieces} <= {(call.id or None, call.name)}


ANSWERS: dict[str, Any] = {
    "openai-chat": {
        "model": "m",
        "choices": [
            {
                "message": {
                    "content": "Let me see.",
                    "tool_calls": [
                        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": "é🦔"}'}}
                    ],
                },
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {"prompt_tokens": 7, "completion_tokens": 5},
    },
    "openai-responses": {
        "model": "m",
        "status": "completed",
        "output": [
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA=="},
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}],
            },
            {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": '{"a": "é🦔"}'},
        ],
        "usage": {"input_tokens": 7, "output_tokens": 5},
    },
    "anthropic-messages": {
        "type": "message",
        "role": "assistant",
        "model": "m",
        "stop_reason": "tool_use",
        "content": [
            {"type": "thinking", "thinking": "Hm…", "signature": "EqEE=="},
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "c1", "name": "look", "input": {"a": "é🦔"}},
        ],
        "usage": {"input_tokens": 7, "output_tokens": 5},
    },
    "bedrock-converse": {
        "stopReason": "tool_use",
        "output": {
            "message": {
                "role": "assistant",
                "content": [
                    {"reasoningContent": {"reasoningText": {"text": "Hm…", "signature": "EqEE=="}}},
                    {"reasoningContent": {"redactedContent": b"\x00\xff"}},
                    {"text": "Let me see."},
                    {"toolUse": {"toolUseId": "c1", "name": "look", "input": {"a": "é🦔"}}},
                ],
            }
        },
        "usage": {"inputTokens": 7, "outputTokens": 5},
    },
}
"""One answer of each protocol, with text, a call and what only its provider reads."""


TEXT = {
    "stopReason": "end_turn",
    "output": {"message": {"role": "assistant", "content": [{"text": "Let me see."}]}},
    "usage": {"inputTokens": 1, "outputTokens": 2},
}


@pytest.mark.parametrize("protocol", ANSWERS)
async def test_our_own_answers_are_the_same_too(protocol: str) -> None:
    """Where no recordings are at hand, one answer of each protocol shows the same."""
    await test_streamed_and_whole_give_the_same_record(protocol, ANSWERS[protocol])


async def test_p3_a_signature_survives_the_stream() -> None:
    """What signs a call or a thought is kept however it is cut into pieces: beside the call, in details, as a block."""
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    signed = {**call, "extra_content": {"google": {"thought_signature": "AVSo=="}}}
    details = [{"type": "reasoning.text", "text": "Hm", "signature": "Ev==", "index": 0}]
    message = {"content": "", "reasoning_details": details, "tool_calls": [signed]}
    answer = {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": None}
    await test_streamed_and_whole_give_the_same_record("openai-chat", answer)
    cut = [
        {"choices": [{"delta": {"reasoning_details": [{"type": "reasoning.text", "text": "H", "index": 0}]}}]},
        {"choices": [{"delta": {"reasoning_details": [{"type": "reasoning.text", "text": "m", "index": 0}]}}]},
        {"choices": [{"delta": {"reasoning_details": [{"type": "reasoning.text", "signature": "Ev==", "index": 0}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 0, **signed}]}, "finish_reason": "tool_calls"}]},
    ]
    wire = framed([json.dumps(event) for event in cut])
    turn, _ = await streamed(model_over("openai-chat", lambda request: stream_of(wire)), ASK)
    assert turn.message.native is not None
    assert turn.message.native.fields == {"reasoning_details": details}
    assert turn.message.native.blocks[0].value == {"extra_content": {"google": {"thought_signature": "AVSo=="}}}


@pytest.mark.parametrize("protocol", OVER_HTTP)
@pytest.mark.parametrize("error", [None, httpx.ReadError("reset")], ids=["closed", "reset"])
async def test_a_stream_that_breaks_off_is_no_turn(protocol: str, error: Exception | None) -> None:
    """Wherever it is cut before its last event, the error is a cut stream, and what was told counts for nothing."""
    events = as_stream(protocol, ANSWERS[protocol])
    ends = 2 if protocol == "openai-chat" else 0  # a finish_reason is an end, too
    for kept in range(1, len(events) - ends - 1):
        content = framed(events[:kept]) + b'data: {"cut": "in the mid'
        with pytest.raises(ProviderUnavailableError) as caught:
            await streamed(model_over(protocol, lambda request, c=content: stream_of(c, error=error)), ASK)
        assert caught.value.retryable
        assert error is not None or isinstance(caught.value, ProviderStreamError)


async def test_a_bedrock_stream_that_breaks_off_is_no_turn() -> None:
    """The same through boto3, whose stream is closed whatever happens."""
    events = bedrock_events(ANSWERS["bedrock-converse"])
    for kept in range(len(events) - 2):
        with pytest.raises(ProviderStreamError):
            await streamed(bedrock_over(events[:kept])[0], ASK)


async def test_frames_of_an_event_stream_that_are_cut_are_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the wire and through boto3's own reader: cut between frames, inside one, or with a damaged checksum."""
    for name, value in {"ACCESS_KEY_ID": "AKIA", "SECRET_ACCESS_KEY": "s", "DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    frames = [event_frame(*next(iter(event.items()))) for event in bedrock_events(TEXT)]
    content = b"".join(frames)
    busy = event_frame("throttlingException", {"message": "busy"}, message="exception")
    cuts = [0, 5, len(frames[0]), len(frames[0]) + 9, len(content) - len(frames[-1]) - len(frames[-2]) - 3]
    damaged = content[:60] + bytes([content[60] ^ 1]) + content[61:]
    headers = {"content-type": "application/vnd.amazon.eventstream"}
    with served() as loopback:
        model = Bedrock("us.anthropic.claude-v1:0", endpoint_url=loopback.url, http=HttpSettings(attempts=1))
        for wire in [*(content[:cut] for cut in cuts), damaged, frames[0] + busy]:
            loopback.answers, loopback.bodies = [(200, headers, wire)], []
            with pytest.raises(ProviderError) as caught:
                await streamed(model, ASK)
            assert caught.value.retryable or isinstance(caught.value, ProviderResponseError)
        loopback.answers, loopback.bodies = [(200, headers, content)], []
        turn, _ = await streamed(model, ASK)
    assert turn.message.content == "Let me see."


@pytest.mark.parametrize("protocol", OVER_HTTP)
async def test_nothing_is_tried_again_after_a_token_was_shown(protocol: str) -> None:
    """Before the first piece a cut stream is asked for anew; after it the error stands, and nothing is shown twice."""
    events = as_stream(protocol, ANSWERS[protocol])
    asked: list[int] = []

    def server(request: httpx.Request) -> httpx.Response:
        asked.append(1)
        return stream_of(framed(events if len(asked) > 1 else events[:1]))

    turn, told = await streamed(model_over(protocol, server, attempts=3), ASK)
    assert (len(asked), turn.message.content) == (2, "Let me see.")
    assert "".join(delta.text for delta in told if delta.kind == "text") == "Let me see."
    asked.clear()
    shown = next(n for n, event in enumerate(events) if '"Let"' in event) + 1

    def cutting(request: httpx.Request) -> httpx.Response:
        asked.append(1)
        return stream_of(framed(events[:shown]))

    with pytest.raises(ProviderStreamError):
        await streamed(model_over(protocol, cutting, attempts=3), ASK)
    assert len(asked) == 1


def claude(kind: str) -> Any:
    return {"type": "error", "error": {"type": kind, "message": "busy"}}


def failed(code: str) -> Any:
    error = {"code": code, "message": "busy"}
    return {"type": "response.failed", "response": {"status": "failed", "error": error}}


@pytest.mark.parametrize(
    ("protocol", "event", "kind"),
    [
        ("anthropic-messages", claude("overloaded_error"), ProviderOverloadedError),
        ("anthropic-messages", claude("rate_limit_error"), ProviderRateLimitError),
        ("openai-chat", {"error": {"message": "busy", "code": 502}}, ProviderUnavailableError),
        ("openai-chat", {"error": {"message": "busy", "code": "odd"}}, ProviderResponseError),
        ("openai-responses", {"type": "error", "code": "server_error", "message": "busy"}, ProviderUnavailableError),
        ("openai-responses", failed("rate_limit_exceeded"), ProviderRateLimitError),
        ("openai-responses", failed("invalid_prompt"), ProviderRequestError),
    ],
)
async def test_an_error_in_a_stream_is_typed(protocol: str, event: Any, kind: type[ProviderError]) -> None:
    """An error event is the error that it names; once something was shown, a passing one is a cut stream."""
    content = framed([json.dumps(event)])
    with pytest.raises(kind, match="busy"):
        await streamed(model_over(protocol, lambda request: stream_of(content)), ASK)
    events = as_stream(protocol, ANSWERS[protocol])
    shown = next(n for n, one in enumerate(events) if '"Let"' in one) + 1
    content = framed([*events[:shown], json.dumps(event)])
    with pytest.raises(ProviderError, match="busy") as caught:
        await streamed(model_over(protocol, lambda request: stream_of(content)), ASK)
    assert isinstance(caught.value, ProviderStreamError) == caught.value.retryable


@pytest.mark.parametrize("protocol", OVER_HTTP)
async def test_a_server_that_does_not_stream_is_read_all_the_same(protocol: str) -> None:
    """A whole JSON answer to a request for a stream is the turn, told in one piece."""
    answer = httpx.Response(200, json=ANSWERS[protocol])
    turn, told = await streamed(model_over(protocol, lambda request: answer), ASK)
    assert turn.message.content == "Let me see."
    assert [delta.kind for delta in told] == ["text", "arguments"]


@pytest.mark.parametrize("protocol", [*OVER_HTTP, "bedrock-converse"])
async def test_half_a_surrogate_pair_can_be_stored_and_shown(protocol: str) -> None:
    """Halves that two pieces part are joined, a lone one is replaced: in the record, in a piece, whole and streamed."""
    answer = json.loads(
        json.dumps(ANSWERS[protocol], default=lambda value: None).replace("Let me see.", "a\\ud83e\\udd94\\ud800b")
    )
    if protocol == "bedrock-converse":
        answer["output"]["message"]["content"].pop(1)
        whole = await bedrock_over(answer)[0].generate(ASK)
        turn, told = await streamed(bedrock_over(bedrock_events(answer))[0], ASK)
    else:
        content = json.dumps(answer).encode()
        whole = await model_over(protocol, lambda request: httpx.Response(200, content=content)).generate(ASK)
        wire = framed(as_stream(protocol, answer))
        turn, told = await streamed(model_over(protocol, lambda request: stream_of(wire)), ASK)
    assert whole.message.content == "a🦔\ufffdb"
    assert turn.message == whole.message
    turn.message.model_dump_json().encode()
    assert "".join(delta.text for delta in told if delta.kind == "text") == whole.message.content


def call_piece(index: int | None, name: str | None, arguments: str, id: str | None = None) -> str:
    call: dict[str, Any] = {"function": {"name": name, "arguments": arguments}}
    call |= {"id": id} if id is not None else {}
    call |= {"index": index} if index is not None else {}
    return json.dumps({"choices": [{"delta": {"tool_calls": [call]}}]})


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([(0, "a", "", "0"), (0, "a", "{}", "0")], [("0", "a", "{}")]),
        ([(0, "a", '{"x":1}', "1"), (0, "b", '{"x":2}', "2")], [("1", "a", '{"x":1}'), ("2", "b", '{"x":2}')]),
        ([(0, "a", '{"x":1}', ""), (0, "a", '{"x":2}', "")], [("", "a", '{"x":1}'), ("", "a", '{"x":2}')]),
        ([(0, "a", '{"x"', "1"), (0, "a", ":1}", "1")], [("1", "a", '{"x":1}')]),
        ([(0, "a", '{"x":1}', "1"), (0, "a", '{"x":1}', "1")], [("1", "a", '{"x":1}')]),
        ([(None, "a", '{"x"', None), (None, None, ":1}", None)], [("", "a", '{"x":1}')]),
        ([(None, "a", "{}", None), (None, "b", "{}", None)], [("", "a", "{}"), ("", "b", "{}")]),
        ([(1, "b", "{}", "2"), (0, "a", "{}", "1")], [("2", "b", "{}"), ("1", "a", "{}")]),
    ],
    ids=["repeated id", "one index", "one index, no ids", "in pieces", "cumulative", "no index", "only names", "order"],
)
async def test_calls_of_odd_servers_are_told_apart(pieces: Any, expected: Any) -> None:
    """By index, id or name, however a server numbers them and repeats itself."""
    wire = framed([*(call_piece(*piece) for piece in pieces), "[DONE]"])
    turn, _ = await streamed(model_over("openai-chat", lambda request: stream_of(wire)), ASK)
    assert [(call.id, call.name, call.arguments) for call in turn.message.tool_calls] == expected


async def test_a_whole_message_in_a_stream_is_the_answer() -> None:
    """A server that sends the message in the place of deltas has answered all the same."""
    choice = {"message": {"content": "Hello."}, "finish_reason": "stop"}
    wire = framed([json.dumps({"choices": [choice]})])
    turn, told = await streamed(model_over("openai-chat", lambda request: stream_of(wire)), ASK)
    assert (turn.message.content, [delta.text for delta in told]) == ("Hello.", ["Hello."])
