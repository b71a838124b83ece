"""Whatever a server answers, over any protocol, whole or as a stream, the caller gets a turn or a `ProviderError`."""

import json
from typing import Any

import anyio
import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable.errors import ProviderError
from durable.messages import AssistantMessage, NativeBlock, NativeTurn, ToolCall, ToolMessage
from durable.ports import ModelRequest, ModelTurn
from durable.providers.anthropic import Anthropic
from durable.providers.openai_chat import OpenAIChat
from durable.providers.openai_responses import OpenAIResponses
from stores.memory import memory_store
from tests.durable.providers.test_streaming import ANSWERS
from tests.durable.providers.wires import (
    OVER_HTTP,
    as_stream,
    bedrock_events,
    bedrock_over,
    framed,
    model_over,
    stream_of,
    streamed,
)
from tests.support.transcripts import checkpoint

NAMES = [
    *("choices", "message", "content", "tool_calls", "function", "name", "arguments", "error", "code", "text", "delta"),
    *("type", "output", "input", "id", "call_id", "index", "usage", "thinking", "signature", "reasoning_details"),
    *("output_index", "item", "response", "status", "content_block", "partial_json", "toolUse", "reasoningContent"),
]
KINDS = [
    *("text", "tool_use", "thinking", "message", "function_call", "reasoning", "refusal", "output_text", "error"),
    *("message_start", "content_block_start", "content_block_delta", "message_delta", "message_stop"),
    *("text_delta", "input_json_delta", "thinking_delta", "signature_delta", "citations_delta"),
    *("response.completed", "response.failed", "response.output_item.added", "response.output_text.delta"),
    "response.function_call_arguments.delta",
]
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from([*NAMES, *KINDS]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=3), inner),
    max_leaves=12,
)


def maybe(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects of nearly the right shape: any field may be missing or be anything."""
    return st.fixed_dictionaries({}, optional={name: field | values for name, field in fields.items()})


text = st.text(max_size=8)
functions = maybe(name=text, arguments=text)
calls = maybe(id=text, index=st.integers(0, 2), function=functions)
parts = st.lists(
    maybe(type=st.sampled_from(KINDS), text=text, thinking=text, signature=text, input=values, name=text), max_size=3
)
messages = maybe(content=text | parts, tool_calls=st.lists(calls, max_size=3), reasoning_details=parts, refusal=text)
choices = maybe(message=messages, delta=messages, finish_reason=st.sampled_from(["stop", "tool_calls", "length"]))
usage = maybe(prompt_tokens=st.integers(), prompt_tokens_details=maybe(cached_tokens=st.integers()))
answers = {
    "openai-chat": maybe(choices=st.lists(choices, max_size=2), usage=usage, model=text),
    "openai-responses": maybe(
        output=st.lists(maybe(type=st.sampled_from(KINDS), content=parts, call_id=text, name=text, arguments=text)),
        status=st.sampled_from(["completed", "incomplete", "failed", "queued"]),
        usage=usage,
    ),
    "anthropic-messages": maybe(content=parts, stop_reason=text, usage=usage, model=text),
}
errors = maybe(error=maybe(message=text, code=st.integers(400, 599) | text, type=text))
events = {
    "openai-chat": answers["openai-chat"] | errors,
    "openai-responses": maybe(
        type=st.sampled_from(KINDS),
        delta=text,
        output_index=st.integers(0, 2),
        item=maybe(type=st.sampled_from(KINDS), call_id=text, name=text),
        response=answers["openai-responses"],
    ),
    "anthropic-messages": maybe(
        type=st.sampled_from(KINDS),
        index=st.integers(0, 2),
        content_block=maybe(type=st.sampled_from(KINDS), text=text, name=text, input=values),
        delta=maybe(type=st.sampled_from(KINDS), text=text, thinking=text, signature=text, partial_json=text),
        message=answers["anthropic-messages"],
    ),
}
headers = st.dictionaries(
    st.sampled_from(["retry-after", "retry-after-ms", "x-should-retry", "content-type"]),
    st.sampled_from(["1", "true", "Mon, 01 Jan 2035 00:00:00 GMT", "-1"]) | st.text(st.characters(codec="latin-1")),
)
ASK = ModelRequest(instructions=None, messages=[])


def check(found: ModelTurn | ProviderError) -> None:
    """A turn can be stored; an error has no key and is short."""
    if isinstance(found, ProviderError):
        assert "sk-secret" not in str(found)
        assert len(found.reason) < 700
        found.reason.encode()
        return
    store = memory_store()
    held = store.checkpoints.save(checkpoint(found.message), after=None)
    assert store.checkpoints.load("s") == held


def run(ask: Any, *arguments: Any) -> ModelTurn | ProviderError:
    try:
        found = anyio.run(ask, *arguments)
    except ProviderError as error:
        return error
    return found[0] if isinstance(found, tuple) else found


@pytest.mark.parametrize("protocol", OVER_HTTP)
@settings(deadline=None, max_examples=80)
@given(data=st.data(), status=st.just(200) | st.integers(200, 599), named=headers)
def test_any_answer_is_a_turn_or_a_typed_error(protocol: str, data: st.DataObject, status: int, named: Any) -> None:
    """Any bytes, JSON and nearly right JSON under any status and headers give a turn that can be stored or an error."""
    made = (values | answers[protocol] | errors).map(lambda value: json.dumps(value).encode())
    body = data.draw(st.binary() | made)
    raw = [(name.encode(), value.encode("latin-1")) for name, value in named.items()]
    model = model_over(protocol, lambda request: httpx.Response(status, headers=raw, content=body), attempts=2)
    check(run(model.generate, ASK))
    check(run(streamed, model, ASK))


@pytest.mark.parametrize("protocol", OVER_HTTP)
@settings(deadline=None, max_examples=120)
@given(data=st.data(), end=st.sampled_from(["\n", "\r\n", "\r"]))
def test_any_stream_is_a_turn_or_a_typed_error(protocol: str, data: st.DataObject, end: str) -> None:
    """Any bytes and nearly right events, cut anywhere, with or without a last event."""
    event = events[protocol].map(json.dumps) | st.just("[DONE]")
    content = data.draw(st.binary(max_size=200) | st.lists(event, max_size=6).map(lambda some: framed(some, end=end)))
    cuts = data.draw(st.lists(st.integers(1, 30), max_size=10))
    check(run(streamed, model_over(protocol, lambda request: stream_of(content, cuts)), ASK))


@pytest.mark.parametrize("protocol", OVER_HTTP)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_damaged_stream_is_a_turn_or_a_typed_error(protocol: str, data: st.DataObject) -> None:
    """A right stream with bytes changed, removed or added at one place never gives anything else."""
    content = framed(as_stream(protocol, ANSWERS[protocol]))
    at = data.draw(st.integers(0, len(content)))
    damaged = content[:at] + data.draw(st.binary(max_size=4)) + content[at + data.draw(st.integers(0, 4)) :]
    check(run(streamed, model_over(protocol, lambda request: stream_of(damaged)), ASK))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=8,
)


@settings(deadline=None, max_examples=80)
@given(
    content=st.lists(maybe(text=text, toolUse=maybe(name=text, input=json_values), reasoningContent=json_values))
    | json_values,
    some=st.lists(
        maybe(
            contentBlockStart=maybe(contentBlockIndex=st.integers(0, 2), start=json_values),
            contentBlockDelta=maybe(contentBlockIndex=st.integers(0, 2), delta=maybe(text=text, toolUse=json_values)),
            messageStop=json_values,
        ),
        max_size=5,
    ),
)
def test_any_answer_of_boto3_is_a_turn_or_a_typed_error(content: Any, some: Any) -> None:
    """What boto3 gives, whole or as events, and of any shape."""
    check(run(bedrock_over({"output": {"message": {"content": content}}})[0].generate, ASK))
    check(run(streamed, bedrock_over(some)[0], ASK))


BODIES = {
    "openai-chat": lambda request: OpenAIChat("m", api_key="k").body(request)["messages"],
    "openai-responses": lambda request: OpenAIResponses("m", api_key="k").body(request)["input"],
    "anthropic-messages": lambda request: Anthropic("m", api_key="k").body(request)["messages"],
    "bedrock-converse": lambda request: bedrock_over({})[0].body(request)["messages"],
}
FOUND = {
    "openai-chat": lambda sent: (
        [call["id"] for one in sent for call in one.get("tool_calls", ())],
        [one["tool_call_id"] for one in sent if one["role"] == "tool"],
        [json.loads(call["function"]["arguments"]) for one in sent for call in one.get("tool_calls", ())],
    ),
    "openai-responses": lambda sent: (
        [one["call_id"] for one in sent if one.get("type") == "function_call"],
        [one["call_id"] for one in sent if one.get("type") == "function_call_output"],
        [json.loads(one["arguments"]) for one in sent if one.get("type") == "function_call"],
    ),
    "anthropic-messages": lambda sent: (
        [block["id"] for one in sent for block in one["content"] if block["type"] == "tool_use"],
        [block["tool_use_id"] for one in sent for block in one["content"] if block["type"] == "tool_result"],
        [block["input"] for one in sent for block in one["content"] if block["type"] == "tool_use"],
    ),
    "bedrock-converse": lambda sent: (
        [block["toolUse"]["toolUseId"] for one in sent for block in one["content"] if "toolUse" in block],
        [block["toolResult"]["toolUseId"] for one in sent for block in one["content"] if "toolResult" in block],
        [block["toolUse"]["input"] for one in sent for block in one["content"] if "toolUse" in block],
    ),
}


@pytest.mark.parametrize("protocol", BODIES)
@settings(deadline=None, max_examples=60)
@given(
    calls=st.lists(
        st.builds(ToolCall, id=st.just("") | text, name=text, arguments=text | st.just('{"a":1}')), max_size=4
    ),
    said=text,
    native=st.booleans(),
)
def test_any_turn_can_be_sent_back(protocol: str, calls: list[ToolCall], said: str, native: bool) -> None:
    """Whatever the model called, each protocol gets one result with an equal, non-empty id for each call, in order,
    and arguments that are JSON objects; native parts change nothing of that."""
    origins = {"openai-chat": "openai-chat", "bedrock-converse": "bedrock@anthropic"}
    blocks = (NativeBlock(kind="text", chars=len(said)), *(NativeBlock(kind="call", value={"x": 1}) for _ in calls))
    origin = origins.get(protocol, protocol.removesuffix("-messages"))
    kept = NativeTurn(origin=origin, blocks=blocks) if native else None
    turn = AssistantMessage(content=said, tool_calls=tuple(calls), native=kept)
    results = [ToolMessage(tool_call_id=call.id, tool_name=call.name) for call in calls]
    sent = BODIES[protocol](ModelRequest(instructions=None, messages=[turn, *results]))
    asked, answered, arguments = FOUND[protocol](json.loads(json.dumps(sent)))
    assert asked == answered
    assert len(asked) == len(calls)
    assert all(asked)
    assert all(isinstance(one, dict) for one in arguments)


def test_a_bedrock_stream_that_is_put_together_is_whole() -> None:
    """The strategies above are near the right shape: this is it."""
    found = run(streamed, bedrock_over(bedrock_events(ANSWERS["bedrock-converse"]))[0], ASK)
    assert isinstance(found, ModelTurn)
    assert len(found.message.tool_calls) == 1
