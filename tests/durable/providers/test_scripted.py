"""The scripted model."""

from typing import Any

import pytest

from durable.errors import ProviderRequestError, ProviderUnavailableError
from durable.messages import AssistantMessage, ToolCall, ToolMessage, UserMessage
from durable.ports import ModelRequest, ModelTurn
from durable.providers.scripted import Scripted
from durable.records import Usage

pytestmark = pytest.mark.anyio

START = ModelRequest(instructions=None, messages=[UserMessage(content="hello")])


def after(*turns: AssistantMessage) -> ModelRequest:
    """The request that follows these model turns, every call answered."""
    messages = [*START.messages]
    for turn in turns:
        results = [ToolMessage(tool_call_id=call.id, tool_name=call.name) for call in turn.tool_calls]
        messages += [turn, *(results or [UserMessage(content="more")])]
    return ModelRequest(instructions=None, messages=messages)


async def test_a_text_is_a_final_answer() -> None:
    """A string is the text of a turn without calls."""
    turn = await Scripted(["done"]).generate(START)
    assert turn.message == AssistantMessage(content="done")


@pytest.mark.parametrize(
    ("answer", "arguments"),
    [
        (("look", {"id": 7}), ['{"id": 7}']),
        ([("look", {"id": 7}), ("look", {})], ['{"id": 7}', "{}"]),
        (("look", "{not json"), ["{not json"]),
        ([ToolCall(id="mine", name="look", arguments="[]")], ["[]"]),
        (ToolCall(id="mine", name="look", arguments="[]"), ["[]"]),
    ],
    ids=["one pair", "several pairs", "malformed text", "list of calls", "one call"],
)
async def test_pairs_and_calls_are_tool_calls(answer: Any, arguments: list[str]) -> None:
    """A call is a `ToolCall` or a pair of name and arguments; one call needs no list."""
    turn = await Scripted([answer]).generate(START)
    assert [(call.name, call.arguments) for call in turn.message.tool_calls] == [("look", text) for text in arguments]


async def test_made_up_call_ids_are_unique_in_the_conversation() -> None:
    """Calls that are given as pairs get ids that depend on turn and place only."""
    model = Scripted([[("a", {}), ("a", {})], [("a", {})]])
    first = (await model.generate(START)).message
    second = (await model.generate(after(first))).message
    ids = [call.id for call in (*first.tool_calls, *second.tool_calls)]
    assert len(set(ids)) == 3
    assert (await model.generate(START)).message == first


async def test_the_place_in_the_script_comes_from_the_transcript() -> None:
    """A new object in another process answers with the turn that the transcript lacks."""
    script = [("a", {}), ("b", {}), "end"]
    first = (await Scripted(script).generate(START)).message
    second = (await Scripted(script).generate(after(first))).message
    third = (await Scripted(script).generate(after(first, second))).message
    assert [second.tool_calls[0].name, third.content] == ["b", "end"]


async def test_a_whole_turn_is_given_as_it_is() -> None:
    """A `ModelTurn` keeps its own usage, and an `AssistantMessage` its own ids."""
    turn = ModelTurn(message=AssistantMessage(content="x"), usage=Usage(model_calls=1, input_tokens=3))
    message = AssistantMessage(tool_calls=(ToolCall(id="", name="odd"),))
    model = Scripted([turn, message])
    assert await model.generate(START) is turn
    assert (await model.generate(after(turn.message))).message is message


async def test_an_exception_is_raised_each_time() -> None:
    """An exception stands for its turn: asking again raises it again."""
    model = Scripted([ProviderUnavailableError("scripted", "down"), "never"])
    for _ in range(2):
        with pytest.raises(ProviderUnavailableError, match="down"):
            await model.generate(START)


async def test_a_function_sees_the_request() -> None:
    """A function answers from the request, directly or as a coroutine."""

    async def later(request: ModelRequest) -> str:
        return f"{len(request.messages)} later"

    assert (await Scripted(lambda request: f"{len(request.messages)} now").generate(START)).message.content == "1 now"
    assert (await Scripted(later).generate(START)).message.content == "1 later"


async def test_a_script_that_runs_out_says_so() -> None:
    """The error names the script, its length and how far the conversation is."""
    with pytest.raises(ProviderRequestError, match=r"tour: the script has 1 answers, .* has 1 model turns already"):
        await Scripted(["one"], name="tour").generate(after(AssistantMessage(content="one")))


@pytest.mark.parametrize("answer", [7, None, [7], [("a", 7)]], ids=repr)
async def test_an_answer_of_a_wrong_type_says_so(answer: Any) -> None:
    """What is neither text, calls, message, turn nor exception is refused with its type."""
    with pytest.raises(ProviderRequestError, match="an answer of type"):
        await Scripted([answer]).generate(START)


async def test_requests_and_usage_are_there_for_tests() -> None:
    """The requests are kept, and the usage of a request is always the same."""
    model = Scripted(["one"], name="tour")
    turns = [await model.generate(START), await model.generate(START)]
    assert model.requests == [START, START]
    assert [turn.usage for turn in turns] == [Usage(model_calls=1, input_tokens=10, output_tokens=5)] * 2
    assert repr(model) == "<Scripted 'tour'>"
