"""Whatever a server answers, the caller gets a turn or a `ProviderError`."""

import json
from typing import Any

import anyio
import httpx
from hypothesis import given, settings
from hypothesis import strategies as st

from durable.errors import ProviderError
from durable.messages import AssistantMessage, ToolCall, ToolMessage
from durable.ports import ModelRequest, ModelTurn
from durable.providers import HttpSettings
from durable.providers.openai_chat import OpenAIChat

NAMES = ["choices", "message", "content", "tool_calls", "function", "name", "arguments", "error", "code", "text"]
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(NAMES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=3), inner),
    max_leaves=12,
)


def maybe(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects of nearly the right shape: any field may be missing or be anything."""
    return st.fixed_dictionaries({}, optional={name: field | values for name, field in fields.items()})


functions = maybe(name=st.text(), arguments=st.text())
calls = maybe(id=st.text(), function=functions)
messages = maybe(content=st.text() | st.lists(maybe(type=st.just("text"), text=st.text())), tool_calls=st.lists(calls))
choices = maybe(message=messages, finish_reason=st.sampled_from(["stop", "tool_calls", "length"]))
usage = maybe(prompt_tokens=st.integers(), prompt_tokens_details=maybe(cached_tokens=st.integers()))
answers = maybe(choices=st.lists(choices, max_size=2), usage=usage, model=st.text())
errors = maybe(error=maybe(message=st.text(), code=st.integers(400, 599) | st.text()))

bodies = st.binary() | (values | answers | errors).map(lambda value: json.dumps(value).encode())
headers = st.dictionaries(
    st.sampled_from(["retry-after", "retry-after-ms", "x-should-retry", "content-type"]),
    st.sampled_from(["1", "true", "Mon, 01 Jan 2035 00:00:00 GMT", "-1"]) | st.text(st.characters(codec="latin-1")),
)


async def no_sleep(seconds: float) -> None:
    """Go on at once."""


def answered(response: httpx.Response, request: ModelRequest) -> ModelTurn | ProviderError:
    http = HttpSettings(transport=httpx.MockTransport(lambda _: response), sleep=no_sleep, attempts=2)
    try:
        return anyio.run(OpenAIChat("small", api_key="sk-secret", http=http).generate, request)
    except ProviderError as error:
        return error


@settings(deadline=None)  # the first example pays for the imports
@given(body=bodies, status=st.just(200) | st.integers(200, 599), headers=headers)
def test_any_answer_is_a_turn_or_a_typed_error(body: bytes, status: int, headers: dict[str, str]) -> None:
    """Any bytes, JSON and nearly right JSON under any status and headers give a turn or a `ProviderError`."""
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    found = answered(httpx.Response(status, headers=raw, content=body), ModelRequest(instructions=None, messages=[]))
    assert isinstance(found, ModelTurn | ProviderError)
    if isinstance(found, ProviderError):
        assert "sk-secret" not in str(found)
        assert len(found.reason) < 700


@given(calls=st.lists(st.builds(ToolCall, id=st.just("") | st.text(), name=st.text(), arguments=st.text()), max_size=4))
def test_any_turn_can_be_sent_back(calls: list[ToolCall]) -> None:
    """Whatever the model called, the next request has one result with an equal, non-empty id for each call, in order,
    and arguments that are JSON objects."""
    results = [ToolMessage(tool_call_id=call.id, tool_name=call.name) for call in calls]
    request = ModelRequest(instructions=None, messages=[AssistantMessage(tool_calls=tuple(calls)), *results])
    sent = json.loads(json.dumps(OpenAIChat("small", api_key="k").body(request)))["messages"]
    ids = [call["id"] for call in sent[0].get("tool_calls", ())]
    assert ids == [result["tool_call_id"] for result in sent[1:]]
    assert all(ids)
    for call in sent[0].get("tool_calls", ()):
        assert isinstance(json.loads(call["function"]["arguments"]), dict)
