"""The requests that `OpenAIChat` builds."""

from collections.abc import Callable
from typing import Any

import pytest

from durable.errors import ConfigurationError
from durable.messages import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, UserMessage
from durable.ports import ModelRequest, ToolSpec
from durable.providers.openai_chat import OpenAIChat

Connect = Callable[..., OpenAIChat]


def built(*messages: Message, **fields: Any) -> dict[str, Any]:
    request = ModelRequest(**{"instructions": None, "messages": messages, **fields})
    return OpenAIChat("small", api_key="k").body(request)


def test_a_request_has_what_it_needs_and_no_more() -> None:
    """Model and messages are always there; tools only where there are any."""
    assert built(UserMessage(content="hi")) == {"model": "small", "messages": [{"role": "user", "content": "hi"}]}


def test_instructions_are_the_system_message() -> None:
    """Instructions come first; system messages of the input keep their place."""
    body = built(UserMessage(content="hi"), SystemMessage(content="now"), instructions="Be brief.")
    assert [(one["role"], one["content"]) for one in body["messages"]] == [
        ("system", "Be brief."),
        ("user", "hi"),
        ("system", "now"),
    ]


def test_tools_are_functions() -> None:
    """A tool is sent with its name, description and schema."""
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}}
    body = built(UserMessage(content="hi"), tools=[ToolSpec("look", "Look it up.", schema)])
    function = {"name": "look", "description": "Look it up.", "parameters": schema}
    assert body["tools"] == [{"type": "function", "function": function}]


def test_a_turn_with_calls_has_null_content() -> None:
    """Content is null beside calls when nothing was said, and a text without calls is never null."""
    call = ToolCall(id="c1", name="look", arguments='{"id": 1}')
    body = built(
        AssistantMessage(tool_calls=(call,)),
        ToolMessage(tool_call_id="c1", tool_name="look", content="x"),
        AssistantMessage(content="Looking.", tool_calls=(call.model_copy(update={"id": "c2"}),)),
        ToolMessage(tool_call_id="c2", tool_name="look", content="y"),
        AssistantMessage(),
    )
    sent = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"id": 1}'}}
    assert body["messages"][0] == {"role": "assistant", "content": None, "tool_calls": [sent]}
    assert body["messages"][2]["content"] == "Looking."
    assert body["messages"][4] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    ("content", "sent"),
    [
        ("as it is", "as it is"),
        ("", ""),
        (None, "null"),
        (0, "0"),
        (False, "false"),
        ([], "[]"),
        ({"städte": ["Köln"]}, '{"städte": ["Köln"]}'),
    ],
)
def test_a_result_that_is_no_text_is_sent_as_json(content: Any, sent: str) -> None:
    """A string is sent as it is, everything else as JSON, so that the empty values stay different."""
    result = ToolMessage(tool_call_id="c", tool_name="look", content=content)
    body = built(AssistantMessage(tool_calls=(ToolCall(id="c", name="look"),)), result)
    assert body["messages"][1] == {"role": "tool", "tool_call_id": "c", "content": sent}


def test_a_calls_own_id_is_sent_with_its_result() -> None:
    """The id that is unique in the session goes on the wire, not the provider's repeated or empty one."""
    call = ToolCall(id="call_ours", name="look", provider_id="call_0")
    body = built(AssistantMessage(tool_calls=(call,)), ToolMessage(tool_call_id="call_ours", tool_name="look"))
    assert body["messages"][0]["tool_calls"][0]["id"] == body["messages"][1]["tool_call_id"] == "call_ours"


def test_empty_ids_become_equal_non_empty_ones() -> None:
    """Calls that nobody gave an id get one by their place, and each result the id of its call."""
    turn = AssistantMessage(tool_calls=(ToolCall(id="", name="a"), ToolCall(id="", name="b")))
    results = [ToolMessage(tool_call_id="", tool_name=name, content=name) for name in "ab"]
    messages = built(turn, *results, turn, *results)["messages"]
    sent = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    answered = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    assert sent == answered
    assert len(set(sent)) == 4
    assert all(sent)


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ('{"a" :1}', '{"a" :1}'),
        ("", "{}"),
        ("null", "{}"),
        ('{"a": ', '{"invalid_arguments": "{\\"a\\": "}'),
        ("[1]", '{"invalid_arguments": "[1]"}'),
        ('{"a": NaN}', '{"invalid_arguments": "{\\"a\\": NaN}"}'),
    ],
)
def test_arguments_on_the_wire_are_always_an_object(arguments: str, sent: str) -> None:
    """An object goes back as the model wrote it; what servers would refuse is wrapped and stays readable."""
    body = built(AssistantMessage(tool_calls=(ToolCall(id="c", name="a", arguments=arguments),)))
    assert body["messages"][0]["tool_calls"][0]["function"]["arguments"] == sent


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1/chat/completions"),
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000/v1/chat/completions"),
        ("https://host/models?api-version=1", "https://host/models/chat/completions?api-version=1"),
        (" https://host ", "https://host/chat/completions"),
    ],
)
@pytest.mark.anyio
async def test_the_address_is_built_from_the_base_url(
    connect: Connect, server: Any, said: Any, base_url: str, url: str
) -> None:
    """A slash at the end does not matter and a query is kept."""
    model = connect(said({"content": "x"}), base_url=base_url)
    await model.generate(ModelRequest(instructions=None, messages=[]))
    assert str(server.requests[0].url) == url


@pytest.mark.parametrize(
    "base_url", ["", "host/v1", "ftp://host", "http://", "http://me:secret@host/v1", "http://[::1", "http://h:99999"]
)
def test_a_base_url_that_cannot_work_is_refused(base_url: str) -> None:
    """A wrong base URL is a configuration error at once, which does not repeat a password in it."""
    with pytest.raises(ConfigurationError, match="base_url must look like") as caught:
        OpenAIChat("small", api_key="k", base_url=base_url)
    assert "secret" not in str(caught.value)


@pytest.mark.anyio
async def test_headers_and_key_go_with_each_request(connect: Connect, server: Any, said: Any) -> None:
    """The key is a bearer token without the line end that secrets often have; given headers replace ours."""
    request = ModelRequest(instructions=None, messages=[])
    await connect(said({"content": "x"}), api_key="the-key\n", headers={"X-Title": "tour"}).generate(request)
    await connect(said({"content": "x"}), api_key="the-key", headers={"Authorization": "Own"}).generate(request)
    await connect(said({"content": "x"}), api_key=None, base_url="http://host").generate(request)
    assert [sent.headers.get("authorization") for sent in server.requests] == ["Bearer the-key", "Own", None]
    assert server.requests[0].headers["x-title"] == "tour"
    assert server.requests[0].headers["content-type"] == "application/json"


@pytest.mark.parametrize("wrong", [{"api_key": "a\nb"}, {"api_key": "schlüssel"}, {"headers": {"x-y": "a\r\nb"}}])
def test_a_key_that_no_header_can_carry_is_refused(wrong: dict[str, Any]) -> None:
    """The error names the option and not its value."""
    with pytest.raises(ConfigurationError, match="must be printable ASCII") as caught:
        OpenAIChat("small", **{"api_key": "k", **wrong})
    assert "schlüssel" not in str(caught.value)


def test_options_are_more_fields_of_the_body() -> None:
    """Model parameters are sent along, but nothing that the run decides."""
    model = OpenAIChat("small", api_key="k", options={"temperature": 0})
    assert model.body(ModelRequest(instructions=None, messages=[]))["temperature"] == 0
    with pytest.raises(ConfigurationError, match="options must not name messages, stream"):
        OpenAIChat("small", api_key="k", options={"stream": True, "messages": []})


def test_the_name_has_the_protocol_and_the_repr_has_no_key() -> None:
    """`openai:<model>` is what a fingerprint compares."""
    model = OpenAIChat("llama3:8b", api_key="very-secret")
    assert (model.name, repr(model)) == ("openai:llama3:8b", "<OpenAIChat 'openai:llama3:8b'>")
