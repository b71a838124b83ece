"""Tools: a schema from the signature, arguments read with suspicion, results that are JSON once and for all."""

import functools
import json
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, JsonValue

from durable import Agent, ConfigurationError, ImagePart, Tool, ToolContext, ToolMessage, ToolOutput, tool
from durable.providers.scripted import Scripted
from durable.tools import (
    MAX_DEPTH,
    ApprovalGrant,
    InvalidArguments,
    UnserializableResult,
    parse_arguments,
    to_json_value,
    to_output,
)
from tests.support.runs import Clock, fresh_agent, memory_store, run
from tests.support.transcripts import json_values

CONTEXT = ToolContext(tool_call_id="c1", session_id="s", run_id="r", step=1)


class Colour(StrEnum):
    RED = "red"


class Size(Enum):
    BIG = 3


class Order(BaseModel):
    id: str
    lines: list[int] = []
    note: str | None = None


@dataclass
class Point:
    x: int
    y: float = 0.5


# --- the schema ------------------------------------------------------------------------------------------------------


def test_the_schema_comes_from_the_signature() -> None:
    """Types, defaults and descriptions of the parameters are the schema; name and docstring are the tool's."""

    @tool
    def search(
        query: Annotated[str, Field(description="What to look for", max_length=50)],
        order: Order,
        colour: Colour = Colour.RED,
        size: Literal[1, 2] | None = None,
    ) -> list[str]:
        """Search the shelves."""
        return [query]

    assert (search.name, search.description) == ("search", "Search the shelves.")
    schema: Any = search.spec.parameters
    assert schema["type"] == "object"
    assert schema["required"] == ["query", "order"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["query"] == {
        "description": "What to look for",
        "maxLength": 50,
        "title": "Query",
        "type": "string",
    }
    assert schema["properties"]["colour"]["default"] == "red"
    assert "title" not in schema


def test_name_and_description_can_be_given() -> None:
    """What the decorator is given wins over the function's name and docstring; without either it is empty."""

    @tool(name="find", description="Find it.")
    def search() -> None:
        """Search."""

    @tool
    def plain() -> None: ...

    assert (search.name, search.description) == ("find", "Find it.")
    assert (plain.name, plain.description) == ("plain", "")


def test_the_context_is_not_shown_to_the_model() -> None:
    """A parameter of type ToolContext, whatever its name and place, is no part of the schema and is filled in."""

    @tool
    def where(context: ToolContext, what: str) -> list[Any]:
        return [what, context.tool_call_id, context.session_id, context.run_id, context.step]

    assert list(where.spec.parameters["properties"]) == ["what"]  # type: ignore[call-overload]
    assert run(where.call(where.validate({"what": "it"}), CONTEXT)) == ["it", "c1", "s", "r", 1]


@pytest.mark.parametrize(
    "name", ["json", "schema", "copy", "model_id", "model_dump", "model_config", "self", "_private"]
)
def test_a_parameter_may_have_any_name(name: str) -> None:
    """A parameter whose name means something to the validation library is a parameter like any other."""
    namespace: dict[str, Any] = {}
    exec(f"def echo({name}: str) -> str: return {name}", namespace)
    echo = tool(namespace["echo"])
    assert list(echo.spec.parameters["properties"]) == [name]  # type: ignore[call-overload]
    assert run(echo.call(echo.validate({name: "hi"}), CONTEXT)) == "hi"
    with pytest.raises(InvalidArguments) as refused:
        echo.validate({name: 1})
    assert refused.value.issues[0]["loc"] == [name]  # type: ignore[index,call-overload]


def untyped(x) -> None: ...  # type: ignore[no-untyped-def]
def positional(x: int, /) -> None: ...
def star(*x: int) -> None: ...
def double_star(**x: int) -> None: ...
def undefined(x: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def misspelt(x: "list[") -> None: ...  # type: ignore[valid-type]  # noqa: F722
def no_schema(x: threading.Lock) -> None: ...  # type: ignore[valid-type]
def callback(x: Callable[[], int]) -> None: ...
def two_contexts(a: ToolContext, b: ToolContext) -> None: ...
def positional_context(ctx: ToolContext, /) -> None: ...
def context_by_star(*ctx: ToolContext) -> None: ...
def optional_context(ctx: ToolContext | None = None) -> None: ...


@pytest.mark.parametrize(
    "function",
    [
        untyped,
        positional,
        star,
        double_star,
        undefined,
        misspelt,
        no_schema,
        callback,
        two_contexts,
        positional_context,
        context_by_star,
        optional_context,
        lambda x: x,
        functools.partial(positional, 1),
        dict,
        max,
        "a string",
    ],
    ids=lambda made: getattr(made, "__name__", type(made).__name__),
)
def test_a_signature_without_a_schema_is_refused_at_once(function: Any) -> None:
    """A function that no model could call correctly is a configuration error when the tool is made."""
    with pytest.raises(ConfigurationError):
        tool(function)
    with pytest.raises(ConfigurationError):
        Agent(tools=[function])


@pytest.mark.parametrize(
    "options",
    [
        {"approval_timeout": timedelta(0)},
        {"approval_timeout": timedelta(seconds=-1)},
        {"recovery": "never"},
        {"needs_approval": "yes"},
    ],
)
def test_an_option_that_means_nothing_is_refused(options: Any) -> None:
    """An option with a value that it cannot have is a configuration error that names the option."""
    [option] = options
    with pytest.raises(ConfigurationError, match=option):
        tool(**options)(lambda: None)


def test_what_a_crash_means_follows_from_the_approval() -> None:
    """A tool is run again after a crash; one that needs approval is reported, unless it says otherwise."""

    def policy(arguments: Any, context: ToolContext) -> bool:
        return False

    assert tool(lambda: None).recovery == "rerun"
    assert tool(needs_approval=True)(lambda: None).recovery == "report"
    assert tool(needs_approval=policy)(lambda: None).recovery == "report"
    assert tool(needs_approval=True, recovery="rerun")(lambda: None).recovery == "rerun"


# --- calling ---------------------------------------------------------------------------------------------------------


class Caller:
    """Something that is called, and is no function."""

    def __init__(self) -> None:
        self.__name__ = "caller"

    async def __call__(self, x: int) -> int:
        return x + 1


def test_functions_of_every_colour_are_tools() -> None:
    """Plain and async functions, methods and callable objects give the same; plain ones leave the loop free."""
    thread = threading.get_ident()

    def plain(x: int) -> int:
        assert threading.get_ident() != thread
        return x + 1

    async def coroutine(x: int) -> int:
        assert threading.get_ident() == thread
        return x + 1

    for made in (tool(plain), tool(coroutine), tool(Caller()), tool(Caller().__call__)):
        assert run(made.call(made.validate({"x": 1}), CONTEXT)) == 2


def test_arguments_come_with_their_types() -> None:
    """The function gets what its signature says: models, enums, decimals and dates, and its own defaults."""
    seen: list[Any] = []

    @tool
    def book(order: Order, colour: Colour, price: Decimal, day: date, count: int = 2) -> None:
        seen.extend([order, colour, price, day, count])

    arguments: Any = {"order": {"id": "7"}, "colour": "red", "price": "1.10", "day": "2030-01-02"}
    run(book.call(book.validate(arguments), CONTEXT))
    assert seen == [Order(id="7"), Colour.RED, Decimal("1.10"), date(2030, 1, 2), 2]


def test_many_plain_tools_run_at_once() -> None:
    """Plain functions of one turn run at the same time, however many there are, and saving does not wait for them."""
    together = threading.Barrier(60, timeout=20)

    @tool
    def meet() -> int:
        return together.wait()

    store = memory_store(clock=Clock())
    agent = fresh_agent([[("meet", {})] * 60, "met"], [meet], store)
    result = run(agent.send("go", session_id="s"))
    assert {message.content for message in result.messages if message.role == "tool"} == set(range(60))


# --- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", " \n", "null", "{}", " {} "])
def test_no_arguments_mean_none(text: str) -> None:
    """Empty text, blanks and null mean no arguments."""
    assert parse_arguments(text) == {}


@tool
def anything(value: JsonValue = None, price: float = 0.0) -> None: ...


BAD_TEXTS = {
    "cut off": '{"value": ',
    "not JSON": "value=1",
    "two values": "{} {}",
    "NaN": '{"value": NaN}',
    "infinity": '{"price": -Infinity}',
    "a float that is infinite": '{"price": 1e999}',
    "an infinite float inside": '{"value": [[1e999]]}',
    "a list": "[1, 2]",
    "a string": '"value"',
    "a number": "5",
    "a boolean": "true",
    "half a surrogate pair": '{"value": "\\ud800"}',
    "half a surrogate pair as key": '{"\\udfff": 1}',
    "an integer of 5,000 digits": '{"value": ' + "9" * 5_000 + "}",
    "nested too deep": '{"value": ' + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1) + "}",
    "nested far too deep": '{"value": ' + "[" * 50_000,
    "an unknown name": '{"amount": 1}',
    "a wrong type": '{"price": "much"}',
}


@pytest.mark.parametrize("text", BAD_TEXTS.values(), ids=BAD_TEXTS)
def test_arguments_that_are_not_right_are_told_to_the_model(text: str) -> None:
    """Arguments that are no JSON object, or do not fit the tool, are `InvalidArguments` and nothing else."""
    with pytest.raises(InvalidArguments) as refused:
        anything.validate(parse_arguments(text))
    assert len(refused.value.message) < 1_000


@given(st.text(max_size=30) | json_values.map(json.dumps))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Whatever a model writes as arguments, reading them gives an object or `InvalidArguments`."""
    try:
        arguments = parse_arguments(text)
    except InvalidArguments:
        return
    assert isinstance(arguments, dict)


@given(json_values)
def test_json_arguments_arrive_unchanged(value: Any) -> None:
    """Any JSON value that a model gives is what the function gets."""
    assert anything.validate(parse_arguments(json.dumps({"value": value})))["value"] == value


def test_large_numbers_stay_exact() -> None:
    """An integer beyond 64 bits reaches the function digit by digit."""
    number = 2**80 + 1
    assert anything.validate(parse_arguments(f'{{"value": {number}}}'))["value"] == number


def test_issues_name_the_place_and_never_the_value() -> None:
    """What did not fit is told with its place and reason; the value that the model gave is not repeated."""

    @tool
    def pay(amount: int, order: Order) -> None: ...

    with pytest.raises(InvalidArguments) as refused:
        pay.validate({"amount": "sesame", "order": {"id": 5}, "extra": "sesame"})
    places = [issue["loc"] for issue in refused.value.issues]  # type: ignore[index,call-overload]
    assert sorted(places) == [["amount"], ["extra"], ["order", "id"]]
    assert "sesame" not in refused.value.message + json.dumps(refused.value.issues)


# --- who must be asked -----------------------------------------------------------------------------------------------


def raises(arguments: Any, context: ToolContext) -> bool:
    raise RuntimeError("no idea")


async def asks(arguments: Any, context: ToolContext) -> bool:
    return arguments["amount"] > 10


@pytest.mark.parametrize(
    ("policy", "amount", "asked"),
    [
        (True, 1, True),
        (False, 1, False),
        (lambda arguments, context: arguments["amount"] > 10, 11, True),
        (lambda arguments, context: arguments["amount"] > 10, 10, False),
        (lambda arguments, context: context.step == 1, 0, True),
        (asks, 11, True),
        (asks, 10, False),
        (raises, 0, True),
        (lambda: False, 0, True),
    ],
)
def test_a_policy_that_cannot_tell_asks(policy: Any, amount: int, asked: bool) -> None:
    """A policy is a bool, a function or an async one; one that raises or cannot be called means: ask."""

    @tool(needs_approval=policy)
    def pay(amount: int) -> None: ...

    assert run(pay.needs_human({"amount": amount}, CONTEXT)) is (pay.terms if asked else None)


# --- results ---------------------------------------------------------------------------------------------------------

CONVERTED: dict[str, tuple[Any, JsonValue]] = {
    "datetime": (datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC), "2030-01-02T03:04:05Z"),
    "date": (date(2030, 1, 2), "2030-01-02"),
    "duration": (timedelta(minutes=1), "PT1M"),
    "decimal": (Decimal("1.10"), "1.10"),
    "uuid": (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    "string enum": (Colour.RED, "red"),
    "enum": (Size.BIG, 3),
    "dataclass": (Point(1), {"x": 1, "y": 0.5}),
    "model with defaults": (Order(id="7"), {"id": "7", "lines": [], "note": None}),
    "models in a list": ([Order(id="7", lines=[1])], [{"id": "7", "lines": [1], "note": None}]),
    "bytes": (b"\x00\xff", "AP8="),
    "tuple": ((1, ("a",)), [1, ["a"]]),
    "set": ({1}, [1]),
    "generator": ((n for n in range(2)), [0, 1]),
    "defaultdict": (defaultdict(list, {"a": [1]}), {"a": [1]}),
    "keys that are numbers": ({1: "a"}, {"1": "a"}),
    "large integer": (2**80, 2**80),
    "emoji": ("👍🏽", "👍🏽"),
}
APART: list[JsonValue] = ["", 0, False, [], None, {}, 0.0, "0", "null"]


@pytest.mark.parametrize(("value", "expected"), CONVERTED.values(), ids=CONVERTED)
def test_a_result_is_converted_to_json_once(value: Any, expected: JsonValue) -> None:
    """What a tool returns becomes JSON by the rules of the validation library's JSON mode."""
    assert to_json_value(value) == expected


@pytest.mark.parametrize("value", APART, ids=repr)
def test_empty_values_are_kept_apart(value: JsonValue) -> None:
    """An empty text, zero, false, an empty list and nothing at all are different results and stay so."""
    converted = to_json_value(value)
    assert (type(converted), converted) == (type(value), value)
    message = ToolMessage(tool_call_id="c", tool_name="t", content=value)
    again = ToolMessage.model_validate_json(message.model_dump_json()).content
    assert (type(again), again) == (type(value), value)


@given(json_values)
def test_a_json_result_is_the_same_when_it_is_read_again(value: Any) -> None:
    """A value that is JSON already is not changed, and converting twice changes nothing more."""
    assert json.dumps(to_json_value(value)) == json.dumps(value)


def endless() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


def nested(depth: int) -> Any:
    return functools.reduce(lambda inner, _: [inner], range(depth), None)


UNSERIALIZABLE: dict[str, Any] = {
    "object": object(),
    "lock": [threading.Lock()],
    "exception": RuntimeError("x"),
    "class": int,
    "not a number": float("nan"),
    "infinity": {"a": [float("inf")]},
    "endless": endless(),
    "half a surrogate pair": "\ud800",
    "nested too deep": nested(MAX_DEPTH + 1),
    "nested far too deep": nested(5_000),
    "an integer of 5,000 digits": 10**5_000,
}


@pytest.mark.parametrize("value", UNSERIALIZABLE.values(), ids=UNSERIALIZABLE)
def test_what_has_no_json_form_is_refused_with_its_type(value: Any) -> None:
    """A value that JSON cannot hold, or that no store could read again, is refused, and the type is named."""
    with pytest.raises(UnserializableResult, match=type(value).__name__):
        to_json_value(value)


@pytest.mark.parametrize("value", UNSERIALIZABLE.values(), ids=UNSERIALIZABLE)
def test_a_result_without_json_form_is_an_error_of_the_tool(value: Any) -> None:
    """The model is told that the named tool gave something of the named type; the run goes on and finishes."""

    @tool
    def odd() -> Any:
        return value

    store = memory_store(clock=Clock())
    result = run(fresh_agent([("odd", {}), "done"], [odd], store).send("go", session_id="s"))
    [message] = [message for message in result.messages if message.role == "tool"]
    content: Any = message.content
    assert message.is_error
    assert (content["kind"], content["tool_name"]) == ("execution", "odd")
    assert "'odd'" in content["message"]
    assert type(value).__name__ in content["message"]
    assert result.text == "done"


def test_a_result_as_deep_as_allowed_survives_the_store() -> None:
    """A value at the limit of nesting is saved, loaded and the same."""

    @tool
    def deep() -> Any:
        return nested(MAX_DEPTH)

    store = memory_store(clock=Clock())
    result = run(fresh_agent([("deep", {}), "done"], [deep], store).send("go", session_id="s"))
    loaded = store.checkpoints.load("s")
    assert loaded is not None
    assert loaded.messages == result.messages
    assert loaded.messages[2].content == nested(MAX_DEPTH)


def values() -> list[Any]:
    return [
        *(value for value, _ in CONVERTED.values() if not hasattr(value, "__next__")),
        *APART,
        1.5,
        {"nested": [{"price": Decimal("0.1"), "at": date(2030, 1, 1)}]},
    ]


def test_e8_p7_p8_a_live_run_sees_what_a_resumed_run_sees() -> None:
    """The result that the model gets in the run that made it is the one that a later process reads."""

    @tool
    def give(number: int) -> Any:
        return values()[number]

    asked = [[("give", {"number": number}) for number in range(len(values()))], "done"]
    store = memory_store(clock=Clock())
    live = fresh_agent(asked, [give], store)
    result = run(live.send("go", session_id="s"))
    provider: Any = live.provider
    shown = [(type(m.content), m.content) for m in provider.requests[-1].messages if m.role == "tool"]
    loaded = store.checkpoints.load("s")
    assert loaded is not None
    assert loaded.messages == result.messages
    assert [(type(m.content), m.content) for m in loaded.messages if m.role == "tool"] == shown


# --- a tool in an agent ----------------------------------------------------------------------------------------------


def test_a9_two_tools_of_one_name_are_refused() -> None:
    """An agent cannot have two tools that the model could not tell apart."""

    @tool(name="look")
    def a() -> None: ...

    @tool(name="look")
    def b() -> None: ...

    with pytest.raises(ConfigurationError, match="look"):
        Agent(tools=[a, b])


@pytest.mark.parametrize(
    "options",
    [{"max_steps": 0}, {"max_steps": 2.0}, {"max_steps": True}, {"tool_concurrency": 0}, {"tool_concurrency": -1}],
)
def test_limits_are_positive_whole_numbers(options: Any) -> None:
    """A limit that is no positive whole number is a configuration error that names the option."""
    [option] = options
    with pytest.raises(ConfigurationError, match=option):
        Agent(**options)


def test_plain_functions_are_tools_of_an_agent() -> None:
    """An agent takes functions as they are."""

    def look(what: str) -> str:
        return what

    agent = Agent(tools=[look], provider=Scripted([("look", {"what": "x"}), "done"]))
    assert isinstance(agent.toolset["look"], Tool)
    assert run(agent.send("go")).messages[2].content == "x"


def test_a_tool_learns_what_it_was_approved_under() -> None:
    """The context carries the approval's id, note and decider, and the saved business state."""
    context = ToolContext(
        tool_call_id="c", session_id=None, run_id="r", step=2, approval=ApprovalGrant("apr_1", "ok", "ada")
    )

    @tool
    def pay(ctx: ToolContext) -> Any:
        assert ctx.approval is not None
        return [ctx.approval.id, ctx.approval.note, ctx.approval.by, ctx.remaining() > 1e300]

    assert run(pay.call({}, context)) == ["apr_1", "ok", "ada", True]


@pytest.mark.anyio
async def test_a_tool_shows_images_and_files() -> None:
    """A part, a list of parts, or a `ToolOutput` with a result beside them; a list that holds anything else is JSON."""
    png = ImagePart.from_bytes(b"png", "image/png")

    def show(value: Any) -> Any:
        """Show."""
        return value

    async def shown(value: Any) -> Any:
        return await tool(show).call({"value": value}, CONTEXT)

    assert await shown(png) == ToolOutput(None, (png,))
    assert await shown([png, png]) == ToolOutput(None, (png, png))
    assert await shown(ToolOutput({"a": Decimal("1.5")}, [png])) == ToolOutput({"a": "1.5"}, (png,))
    assert await shown([]) == []
    assert isinstance(await shown([png, 1]), list)
    with pytest.raises(UnserializableResult):
        to_output(ToolOutput(1, [1]))  # type: ignore[list-item]


@pytest.mark.anyio
async def test_an_image_of_a_tool_reaches_the_next_request() -> None:
    """The result in the transcript has the parts, live and after a restart."""
    png = ImagePart.from_bytes(b"png", "image/png")

    @tool
    def look() -> ToolOutput:
        """Look."""
        return ToolOutput("a picture", [png])

    model = Scripted([("look", {}), "Nice."])
    store = memory_store()
    agent = Agent(tools=[look], provider=model, store=store)
    await agent.send("Look!", session_id="s")
    result = model.requests[-1].messages[-1]
    assert isinstance(result, ToolMessage)
    assert (result.content, result.parts) == ("a picture", (png,))
    assert store.checkpoints.load("s").messages[2] == result
