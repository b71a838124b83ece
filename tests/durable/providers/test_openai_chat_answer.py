"""The answers that `OpenAIChat` reads: the protocol's, and what servers make of it."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from durable.errors import ProviderResponseError
from durable.messages import AssistantMessage, ToolCall, ToolMessage
from durable.ports import ModelRequest, ModelTurn
from durable.providers.openai_chat import OpenAIChat
from durable.records import FinishReason, Usage

pytestmark = pytest.mark.anyio

Ask = Callable[..., Any]
LOOK = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"id": 1}'}}


@pytest.fixture
def answer(connect: Callable[..., OpenAIChat], said: Callable[..., httpx.Response]) -> Ask:
    """Give a function that has the model answer with this message and gives the turn that is read from it."""

    async def ask(message: Any, **fields: Any) -> ModelTurn:
        return await connect(said(message, **fields)).generate(ModelRequest(instructions=None, messages=[]))

    return ask


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "Hello."}, "Hello."),
        ({"content": None}, ""),
        ({}, ""),
        ({"content": [{"type": "thinking", "thinking": []}, {"type": "text", "text": "144"}]}, "144"),
        ({"content": ["a", {"type": "text", "text": "b"}, {"type": "text"}, {"type": "image"}, 7]}, "ab"),
        ({"content": "Hello.", "reasoning_content": "hm", "annotations": [], "audio": None}, "Hello."),
    ],
    ids=str,
)
async def test_content_in_all_its_forms(answer: Ask, message: object, text: str) -> None:
    """Text, null, nothing and lists of parts are read; what is not text is left out."""
    found = (await answer(message)).message
    assert found.model_copy(update={"native": None}) == AssistantMessage(content=text)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"arguments": '{"id": 1}'}, '{"id": 1}'),
        ({"arguments": '{"id": '}, '{"id": '),
        ({"arguments": {"id": "ü"}}, '{"id": "ü"}'),
        ({"arguments": None}, "{}"),
        ({"arguments": " "}, "{}"),
        ({"arguments": ""}, "{}"),
        ({}, "{}"),
    ],
    ids=str,
)
async def test_arguments_in_all_their_forms(answer: Ask, arguments: dict[str, Any], text: str) -> None:
    """Arguments stay the model's text; missing ones are an empty object and objects become text."""
    turn = await answer({"tool_calls": [{"id": "c", "function": {"name": "look", **arguments}}]})
    assert turn.message.tool_calls == (ToolCall(id="c", name="look", arguments=text),)


@pytest.mark.parametrize(("fields", "found"), [({"id": "x"}, "x"), ({"id": ""}, ""), ({"id": None}, ""), ({}, "")])
async def test_call_ids_are_kept_however_odd(answer: Ask, fields: dict[str, Any], found: str) -> None:
    """The id is the provider's own, also when it is empty or missing: making it unique is the executor's work."""
    turn = await answer({"tool_calls": [{**fields, "function": {"name": "look"}}] * 2})
    assert [call.id for call in turn.message.tool_calls] == [found, found]


@pytest.mark.parametrize("reason", ["tool_calls", "stop", "length", None, "function_call"])
async def test_calls_count_more_than_the_finish_reason(answer: Ask, reason: str | None) -> None:
    """Where calls are, they are what the model wants, whatever the reason says."""
    turn = await answer({"content": None, "tool_calls": [LOOK]}, finish_reason=reason)
    assert turn.message.tool_calls == (ToolCall(id="c1", name="look", arguments='{"id": 1}'),)
    assert turn.finish_reason is FinishReason.STOP


@pytest.mark.parametrize(
    ("reason", "found"),
    [
        ("stop", FinishReason.STOP),
        ("length", FinishReason.LENGTH),
        ("max_tokens", FinishReason.LENGTH),
        ("content_filter", FinishReason.CONTENT_FILTER),
        ("eos", FinishReason.STOP),
        (None, FinishReason.STOP),
    ],
)
async def test_the_finish_reason_of_a_text(answer: Ask, reason: str | None, found: FinishReason) -> None:
    """Only a cut and a filter are different from an end."""
    turn = await answer({"content": "text", "tool_calls": None}, finish_reason=reason)
    assert (turn.message.content, turn.finish_reason) == ("text", found)


@pytest.mark.parametrize(
    "message",
    [{"content": None, "refusal": "I cannot."}, {"content": [{"type": "refusal", "refusal": "I cannot."}]}],
    ids=["field", "part"],
)
async def test_a_refusal_is_the_text_of_a_filtered_turn(answer: Ask, message: object) -> None:
    """What the model says when it refuses is its answer, and the reason tells it from other answers."""
    turn = await answer(message)
    assert (turn.message.content, turn.finish_reason) == ("I cannot.", FinishReason.CONTENT_FILTER)


async def test_a_filtered_answer_may_have_no_message(answer: Ask) -> None:
    """A filter may leave nothing of the message."""
    turn = await answer(None, finish_reason="content_filter")
    assert (turn.message, turn.finish_reason) == (AssistantMessage(), FinishReason.CONTENT_FILTER)


@pytest.mark.parametrize(
    ("usage", "found"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 4}, Usage(model_calls=1, input_tokens=9, output_tokens=4)),
        (
            {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 8}},
            Usage(model_calls=1, input_tokens=9, cached_input_tokens=8, output_tokens=4),
        ),
        (
            {"prompt_tokens": 9, "prompt_cache_hit_tokens": 2},
            Usage(model_calls=1, input_tokens=9, cached_input_tokens=2),
        ),
        ({"prompt_tokens": "9", "completion_tokens": -4, "prompt_tokens_details": None}, Usage(model_calls=1)),
        (None, Usage(model_calls=1)),
        ([], Usage(model_calls=1)),
    ],
    ids=str,
)
async def test_usage_is_never_a_reason_to_lose_a_turn(answer: Ask, usage: object, found: Usage) -> None:
    """Tokens are counted where they are told, in either form for cached ones; anything odd counts as nothing."""
    assert (await answer({"content": "x"}, usage=usage)).usage == found


async def test_an_error_beside_choices_is_only_a_remark(answer: Ask) -> None:
    """A paid answer is not thrown away for a field that the protocol does not have."""
    assert (await answer({"content": "x"}, error={"message": "late"})).message.content == "x"


async def test_the_models_own_name_is_kept(answer: Ask) -> None:
    """The answer says which model it was; a missing name is None."""
    assert (await answer({"content": "x"}, model="small-2030")).model == "small-2030"
    assert (await answer({"content": "x"})).model is None


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        7,
        {"choices": []},
        {"choices": None},
        {"choices": [{}]},
        {"choices": [{"message": None, "finish_reason": "stop"}]},
        {"choices": [{"message": {"content": {"secret": 1}}}]},
        {"choices": [{"message": {"tool_calls": [{"id": "c", "function": {"name": ""}}]}}]},
        {"choices": [{"message": {"tool_calls": [{"id": "c"}]}}]},
        {"choices": [{"message": {"content": ""}, "finish_reason": "tool_calls"}]},
    ],
    ids=str,
)
async def test_what_is_not_an_answer_is_a_response_error(connect: Callable[..., OpenAIChat], body: object) -> None:
    """An answer without choices or of another shape is refused; the error names the place and shows no content."""
    with pytest.raises(ProviderResponseError) as caught:
        await connect(httpx.Response(200, json=body)).generate(ModelRequest(instructions=None, messages=[]))
    assert "secret" not in f"{caught.value} {caught.value.__cause__}"
    assert caught.value.status == 200


async def test_p11_fields_that_nobody_knows_go_back_in_place(connect: Any, server: Any, said: Any) -> None:
    """What a server writes beside a message, a call or its function is kept and sent back there, null left out."""
    function = {"name": "look", "arguments": "{}", "inner": [1]}
    call = {"id": "c", "type": "function", "index": 0, "function": function, "beside": {"a": None}, "nothing": None}
    model = connect(said({"content": "hi", "tool_calls": [call], "reasoning_content": "hm", "audio": None}))
    turn = (await model.generate(ModelRequest(instructions=None, messages=[]))).message
    result = ToolMessage(tool_call_id="c", tool_name="look")

    def sent(message: AssistantMessage) -> Any:
        return model.body(ModelRequest(instructions=None, messages=[message, result]))["messages"][0]

    kept = {name: value for name, value in call.items() if name not in ("index", "nothing")}
    expected = {"role": "assistant", "content": "hi", "tool_calls": [kept], "reasoning_content": "hm"}
    assert sent(turn) == expected
    assert "beside" not in str(sent(turn.model_copy(update={"native": None})))
