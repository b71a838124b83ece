"""What each protocol is sent: images and files, structured output, parallel calls, and turns of other providers."""

import json
from typing import Any

import pytest

from durable.errors import ConfigurationError, ProviderRequestError
from durable.messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    NativeBlock,
    NativeTurn,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from durable.ports import ModelRequest, ToolSpec
from durable.providers._wire import strict_schema
from durable.providers.anthropic import Anthropic
from durable.providers.bedrock import Bedrock
from durable.providers.openai_chat import OpenAIChat
from durable.providers.openai_responses import OpenAIResponses

MODELS: dict[str, Any] = {
    "chat": OpenAIChat("m", api_key="k"),
    "responses": OpenAIResponses("m", api_key="k"),
    "anthropic": Anthropic("m", api_key="k"),
    "bedrock": Bedrock("us.anthropic.m-v1:0", structured_output=True),
}
PNG = ImagePart.from_bytes(b"png", "image/png")
PDF = FilePart.from_bytes(b"pdf", "application/pdf", name="a/b.pdf")
CALL = ToolCall(id="c1", name="look", arguments='{"a": 1}')
SPEC = ToolSpec("look", "Look.", {"type": "object", "properties": {}})


def ask(*messages: Any, **fields: Any) -> ModelRequest:
    return ModelRequest(instructions=fields.pop("instructions", None), messages=messages, **fields)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("chat", [
            {"type": "text", "text": "See"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,cG5n"}},
            {"type": "file", "file": {"file_data": "data:application/pdf;base64,cGRm", "filename": "a/b.pdf"}},
        ]),
        ("responses", [
            {"type": "input_text", "text": "See"},
            {"type": "input_image", "image_url": "data:image/png;base64,cG5n"},
            {"type": "input_file", "filename": "a/b.pdf", "file_data": "data:application/pdf;base64,cGRm"},
        ]),
        ("anthropic", [
            {"type": "text", "text": "See"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "cG5n"}},
            {"type": "document", "title": "a/b.pdf",
             "source": {"type": "base64", "media_type": "application/pdf", "data": "cGRm"}},
        ]),
        ("bedrock", [
            {"text": "See"},
            {"image": {"format": "png", "source": {"bytes": b"png"}}},
            {"document": {"format": "pdf", "name": "a-b-pdf", "source": {"bytes": b"pdf"}}},
        ]),
    ],
)  # fmt: skip
def test_images_and_files_of_the_user(model: str, expected: Any) -> None:
    """Each protocol gets the bytes in its own shape, in the order of the parts."""
    body = MODELS[model].body(ask(UserMessage(content=(TextPart(text="See"), PNG, PDF))))
    assert (body.get("input") or body["messages"])[0]["content"] == expected


@pytest.mark.parametrize("model", MODELS)
def test_images_of_a_tool_come_with_its_result(model: str) -> None:
    """The image follows its result before anything else, and the result says what it was, or nothing for None."""
    turn = AssistantMessage(tool_calls=(CALL, CALL.model_copy(update={"id": "c2"})))
    first = ToolMessage(tool_call_id="c1", tool_name="look", content={"n": 1}, parts=(PNG, TextPart(text="t")))
    second = ToolMessage(tool_call_id="c2", tool_name="look", parts=(PNG,))
    sent = json.dumps(MODELS[model].body(ask(turn, first, second, UserMessage(content="and?"))), default=str)
    assert '{\\"n\\": 1}\\nt' in sent
    assert '"null"' not in sent
    assert sent.index("c2") < sent.index("and?")
    assert sent.count("cG5n") + sent.count("b'png'") == 2
    assert sent.rindex("png") < sent.index("and?")


URLS = (ImagePart(url="https://x/a.png"), FilePart(url="https://x/a.pdf"))


@pytest.mark.parametrize("model", ["chat", "responses", "anthropic"])
def test_a_url_is_left_to_the_provider(model: str) -> None:
    """A part with a URL is sent as one."""
    sent = json.dumps(MODELS[model].body(ask(UserMessage(content=URLS))))
    assert sent.count("https://x/a.") == 2


def test_bedrock_reads_urls_of_s3_alone() -> None:
    """Another URL is refused with a reason before anything is sent."""
    stored = ImagePart(url="s3://bucket/a.jpg")
    [message] = MODELS["bedrock"].body(ask(UserMessage(content=(stored,))))["messages"]
    assert message["content"] == [{"image": {"format": "jpeg", "source": {"s3Location": {"uri": "s3://bucket/a.jpg"}}}}]
    with pytest.raises(ProviderRequestError, match="s3://"):
        MODELS["bedrock"].body(ask(UserMessage(content=URLS)))


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "default": 1}}, "title": "A"}
STRICT = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "title": "A",
    "additionalProperties": False,
    "required": ["a"],
}


def test_each_protocol_is_asked_for_structured_output() -> None:
    """The schema, closed and with everything required, stands where the protocol wants it."""
    request = ask(UserMessage(content="hi"), output_schema=SCHEMA)
    bodies = {name: model.body(request) for name, model in MODELS.items()}
    chat = {"name": "answer", "schema": STRICT, "strict": True}
    assert bodies["chat"]["response_format"] == {"type": "json_schema", "json_schema": chat}
    assert bodies["responses"]["text"] == {"format": {"type": "json_schema", **chat}}
    assert bodies["anthropic"]["output_config"] == {"format": {"type": "json_schema", "schema": STRICT}}
    structure = bodies["bedrock"]["outputConfig"]["textFormat"]["structure"]["jsonSchema"]
    assert (structure["name"], json.loads(structure["schema"])) == ("answer", STRICT)
    assert "default" in str(SCHEMA)
    other = OpenAIChat("m", api_key=None, base_url="http://localhost/v1")
    assert "response_format" not in other.body(request)


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        ({"type": "object", "additionalProperties": {"type": "integer"}}, None),
        ({"type": "object"}, None),
        ({"type": "array", "items": {"type": "object", "additionalProperties": True, "properties": {}}}, None),
        ({"anyOf": [SCHEMA, {"type": "null"}]}, {"anyOf": [STRICT, {"type": "null"}]}),
        ({"$defs": {"A": SCHEMA}, "$ref": "#/$defs/A"}, {"$defs": {"A": STRICT}, "$ref": "#/$defs/A"}),
        ({"type": "integer"}, {"type": "integer"}),
    ],
)
def test_what_nobody_can_be_held_to_is_no_strict_schema(schema: Any, strict: Any) -> None:
    """Objects of free keys have no strict form; all others are closed at every depth."""
    assert strict_schema(schema) == strict


@pytest.mark.parametrize("allowed", [True, False])
def test_parallel_calls_are_turned_on_and_off(allowed: bool) -> None:
    """Each protocol is told in its own words, and nobody is told without tools or without a wish."""
    request = ask(UserMessage(content="hi"), tools=[SPEC], parallel_tool_calls=allowed)
    bodies = {name: model.body(request) for name, model in MODELS.items()}
    assert bodies["chat"]["parallel_tool_calls"] is allowed
    assert bodies["responses"]["parallel_tool_calls"] is allowed
    assert bodies["anthropic"]["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": not allowed}
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    assert bodies["bedrock"].get("additionalModelRequestFields") == (None if allowed else {"tool_choice": choice})
    for model in MODELS.values():
        for other in (
            ask(UserMessage(content="hi"), tools=[SPEC]),
            ask(UserMessage(content="hi"), parallel_tool_calls=allowed),
        ):
            assert "parallel" not in json.dumps(model.body(other))
    nova = Bedrock("amazon.nova-v1:0")
    assert nova.body(ask(UserMessage(content="hi"), tools=[SPEC], parallel_tool_calls=True))
    with pytest.raises(ConfigurationError, match="no option"):
        nova.body(ask(UserMessage(content="hi"), tools=[SPEC], parallel_tool_calls=False))


def test_options_stand_beside_ours() -> None:
    """More fields go with each request; where both name an object, ours comes beside the given one; ours are taken."""
    model = Anthropic("m", api_key="k", options={"max_tokens": 5, "tool_choice": {"type": "any"}})
    body = model.body(ask(UserMessage(content="hi"), tools=[SPEC], parallel_tool_calls=False))
    assert (body["max_tokens"], body["tool_choice"]) == (5, {"type": "any", "disable_parallel_tool_use": True})
    assert MODELS["anthropic"].body(ask())["max_tokens"] == 8192
    assert MODELS["responses"].body(ask())["store"] is False
    assert OpenAIResponses("m", api_key="k", options={"store": True}).body(ask())["store"] is True
    for make in (OpenAIChat, OpenAIResponses, Anthropic):
        with pytest.raises(ConfigurationError, match="model"):
            make("m", api_key="k", options={"model": "other"})
    with pytest.raises(ConfigurationError, match="messages"):
        Bedrock("m", options={"messages": []})


NATIVE = {
    "openai-chat": NativeTurn(origin="openai-chat", fields={"reasoning_content": "hm"}),
    "openai-responses": NativeTurn(
        origin="openai-responses",
        blocks=(NativeBlock(kind="own", value={"type": "reasoning", "id": "rs"}), NativeBlock(kind="text", chars=2)),
    ),
    "anthropic": NativeTurn(
        origin="anthropic",
        blocks=(NativeBlock(kind="own", value={"type": "thinking", "x": 1}), NativeBlock(kind="text", chars=2)),
    ),
    "bedrock@anthropic": NativeTurn(
        origin="bedrock@anthropic",
        blocks=(NativeBlock(kind="own", value={"reasoningContent": 1}), NativeBlock(kind="text", chars=2)),
    ),
}


@pytest.mark.parametrize("origin", NATIVE)
@pytest.mark.parametrize("model", MODELS)
def test_native_parts_go_to_their_own_provider_alone(model: str, origin: str) -> None:
    """A protocol gets its own parts in place, and of anybody else's turn the text."""
    provider = MODELS[model]
    turn = AssistantMessage(content="hi", native=NATIVE[origin])
    ours, plain = provider.body(ask(turn)), provider.body(ask(AssistantMessage(content="hi")))
    assert (ours == plain) is (provider.origin != origin)
    assert "hi" in json.dumps(ours)


@pytest.mark.parametrize("model", MODELS)
def test_instructions_come_first(model: str) -> None:
    """Instructions, and system messages that a hook puts in, reach the model as such."""
    body = MODELS[model].body(
        ask(SystemMessage(content="and more"), UserMessage(content="hi"), instructions="Be brief.")
    )
    sent = json.dumps({name: value for name, value in body.items() if name != "max_tokens"})
    assert sent.index("Be brief.") != -1
    assert "and more" in sent
    users = [m for m in body.get("input") or body["messages"] if m["role"] == "user"]
    assert "brief" not in json.dumps(users)


def test_bedrock_declares_the_tools_that_a_transcript_names() -> None:
    """Converse refuses calls in a transcript without a tool configuration: one is made of the names."""
    turn = AssistantMessage(tool_calls=(CALL,))
    body = MODELS["bedrock"].body(ask(turn, ToolMessage(tool_call_id="c1", tool_name="look", content="x")))
    assert [tool["toolSpec"]["name"] for tool in body["toolConfig"]["tools"]] == ["look"]
    assert "toolConfig" not in MODELS["bedrock"].body(ask(UserMessage(content="hi")))


@pytest.mark.parametrize(("model", "longest"), [("anthropic", 10**6), ("bedrock", 64), ("responses", 64)])
def test_an_id_that_a_protocol_refuses_is_replaced_alike_in_call_and_result(model: str, longest: int) -> None:
    """Ids of other providers may have characters or a length that this one does not take."""
    odd = CALL.model_copy(update={"id": "functions.look:0/" + "x" * 100})
    sent = MODELS[model].body(
        ask(AssistantMessage(tool_calls=(odd,)), ToolMessage(tool_call_id=odd.id, tool_name="look"))
    )
    found = json.dumps(sent)
    ids = {word for word in found.split('"') if word.startswith("call_")} - {"call_id"}
    assert len(ids) == 1
    assert all(found.count(id) == 2 and len(id) <= longest for id in ids)


def test_mistrals_own_server_gets_ids_of_nine() -> None:
    """It refuses any other id; a compatible server elsewhere gets ours. None leaves a field out that is not taken."""
    turn = AssistantMessage(tool_calls=(CALL, ToolCall(id="abcDEF123", name="look"), ToolCall(id="", name="look")))
    results = [ToolMessage(tool_call_id=call.id, tool_name="look") for call in turn.tool_calls]
    there = OpenAIChat("m", api_key="k", base_url="https://api.mistral.ai/v1", options={"stream_options": None})
    body = there.body(ask(turn, *results), stream=True)
    ids = [call["id"] for call in body["messages"][0]["tool_calls"]]  # type: ignore[index,union-attr,call-overload]
    assert [message["tool_call_id"] for message in body["messages"][1:]] == ids  # type: ignore[index,union-attr,call-overload]
    assert all(len(id) == 9 and id.isalnum() for id in ids)
    assert ids[1] == "abcDEF123"
    assert len(set(ids)) == 3
    assert (body["stream"], "stream_options" in body) == (True, False)
