"""Tools: functions that a model may call, with a schema made from their signature.

@tool
def lookup_order(order_id: str) -> dict[str, str]:
    "Look an order up by its id."

@tool(needs_approval=True)
async def refund(order_id: str, amount: Decimal, ctx: ToolContext) -> str:
    "Pay the money for an order back."
    return await payments.refund(order_id, amount, idempotency_key=ctx.tool_call_id)
"""

import inspect
import json
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, NoReturn, cast, overload

import pydantic_core
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError, create_model

from durable.approvers import ONE_OF_ANY, ApprovalTerms
from durable.errors import ConfigurationError
from durable.escalation import Escalation, OnTimeout
from durable.messages import FilePart, ImagePart, Part, TextPart, ToolCall, ToolMessage
from durable.ports import ToolSpec
from durable.signals import AbortSignal
from durable.workers import in_thread

MAX_DEPTH = 100
"""How deep arguments and results may be nested: what is kept must be readable, and parsers have their limits."""

Recovery = Literal["rerun", "report", "ask"]
"""What a crash means for a call that had started and has no result: run it again, tell the model that the outcome is
unknown, or let a human decide whether it runs again."""


LEAST_REMINDER = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class ApprovalGrant:
    """The approval under which a call runs: `voters` are all whose votes it took, `by` is the last of them.

    `answer` is the one to a question, `via` how it came (see `Decision`).
    """

    id: str
    note: str | None = field(default=None, repr=False)
    by: str | None = None
    voters: tuple[str, ...] = ()
    answer: str | None = field(default=None, repr=False)
    via: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """What a tool may ask for, by a parameter of this type.

    `tool_call_id` is the same when the call is run again after a crash: use it as the idempotency key of side effects.
    `path` names the agents from the outermost one to the one whose tool this is, and `step` counts that one's turns.
    `remaining` gives the seconds that are left for this call (infinity when nothing bounds it). `signal` is set when
    the run is to stop: a tool that ends soon after keeps its result. `run_context` is what the caller gave with the
    input.
    """

    tool_call_id: str
    session_id: str | None
    run_id: str
    step: int
    path: tuple[str, ...] = ()
    approval: ApprovalGrant | None = None
    business_state: JsonValue = field(default=None, repr=False)
    run_context: JsonValue = field(default=None, repr=False)
    signal: AbortSignal = field(default_factory=AbortSignal, repr=False)
    remaining: Callable[[], float] = field(default=lambda: float("inf"), repr=False)


Arguments = dict[str, JsonValue]
Verdict = bool | ApprovalTerms
ApprovalPolicy = Callable[[Arguments, ToolContext], Verdict | Awaitable[Verdict]]
"""Whether a call with these final arguments needs a human; it may say how many, and which, where its tool's own terms
are not enough. A policy that raises means yes, on the tool's own terms."""


class InvalidArguments(Exception):
    """The arguments of a call are not what the tool takes; `issues` is a list of pydantic's, without input values."""

    def __init__(self, message: str, issues: list[JsonValue] | None = None) -> None:
        self.message = message
        self.issues: list[JsonValue] = issues or []
        super().__init__(message)


class UnserializableResult(Exception):
    """A tool gave something that has no JSON form."""


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What a tool returns to show the model images or files: `content` is the result, `parts` come beside it.

    A tool may also return a part, or a list of parts; its result is None then, and the model sees the parts.
    """

    content: Any = field(default=None, repr=False)
    parts: Sequence[Part] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function with its schema. Made by `tool`.

    `arguments` is what a call's arguments are validated with, `parameters` the JSON Schema that the model is shown.
    `terms` say how many must approve a call and who may. `approval_timeout` bounds the wait for a decision, and
    `on_timeout` says what happens at the deadline: `reject` the call, `halt` the run, or tell others first
    (`escalate`). `remind_every` is when people are told again. `recovery` is `rerun`, or `report` for a tool that needs
    approval, unless given. `timeout` bounds one call: what has not ended by then is left with the result
    `unknown-outcome`, and no call starts where less time than that is left.
    """

    name: str
    description: str
    function: Callable[..., Any] = field(repr=False)
    arguments: type[BaseModel] = field(repr=False)
    parameters: Mapping[str, JsonValue] = field(repr=False, compare=False)
    context_parameter: str | None = None
    needs_approval: bool | ApprovalPolicy = False
    terms: ApprovalTerms = ONE_OF_ANY
    approval_timeout: timedelta | None = None
    on_timeout: OnTimeout | Escalation = "reject"
    remind_every: timedelta | None = None
    recovery: Recovery = "rerun"
    timeout: timedelta | None = None

    def __post_init__(self) -> None:
        def wrong(what: str) -> ConfigurationError:
            return ConfigurationError(f"Tool {self.name!r}: {what}.")

        if not isinstance(cast(object, self.needs_approval), bool) and not callable(self.needs_approval):
            raise wrong("needs_approval must be a bool or a function")
        if self.terms != ONE_OF_ANY and self.needs_approval is False and self.recovery != "ask":
            raise wrong("approvals and approvers are for calls that need approval: give needs_approval, too")
        if self.approval_timeout is not None and self.approval_timeout <= timedelta(0):
            raise wrong("approval_timeout must be positive")
        if self.timeout is not None and self.timeout <= timedelta(0):
            raise wrong("timeout must be positive")
        if not isinstance(self.on_timeout, Escalation) and self.on_timeout not in typing.get_args(OnTimeout):
            raise wrong(f"on_timeout must be one of {typing.get_args(OnTimeout)!r}, or made by `escalate`")
        if self.on_timeout != "reject" and self.approval_timeout is None:
            raise wrong("on_timeout says what happens at the deadline: give approval_timeout, too")
        if self.remind_every is not None and self.remind_every < LEAST_REMINDER:
            raise wrong(f"remind_every must be at least {LEAST_REMINDER}")
        if self.recovery not in typing.get_args(Recovery):
            raise wrong(f"recovery must be one of {typing.get_args(Recovery)!r}")

    @property
    def spec(self) -> ToolSpec:
        """The tool as the model is told of it."""
        return ToolSpec(self.name, self.description, self.parameters)

    def validate(self, arguments: Arguments) -> dict[str, Any]:
        """Give the arguments as the function takes them, or raise `InvalidArguments`."""
        try:
            parsed = self.arguments.model_validate_json(pydantic_core.to_json(to_json_value(arguments)))
        except UnserializableResult as error:
            raise InvalidArguments(f"The arguments are not JSON: {error}") from None
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)
            issues = cast("list[JsonValue]", pydantic_core.to_jsonable_python(found))
            where = "; ".join(f"{'.'.join(map(str, issue['loc'])) or 'arguments'}: {issue['msg']}" for issue in found)
            raise InvalidArguments(f"The arguments do not fit {self.name!r}: {where}", issues) from None
        return {field.removeprefix(_FIELD): getattr(parsed, field) for field in type(parsed).model_fields}

    async def needs_human(self, arguments: Arguments, context: ToolContext) -> ApprovalTerms | None:
        """Give the terms on which the call may run; None: nobody needs to be asked."""
        if isinstance(self.needs_approval, bool):
            return self.terms if self.needs_approval else None
        try:
            answer = self.needs_approval(arguments, context)
            verdict = await answer if inspect.isawaitable(answer) else answer
            return verdict if isinstance(verdict, ApprovalTerms) else self.terms if verdict else None
        except Exception:
            return self.terms  # fail closed: a policy that cannot tell leaves it to a person

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> JsonValue | ToolOutput:
        """Run the function (a plain one in a worker thread); its result as JSON, in a `ToolOutput` if it has parts."""
        kwargs = dict(arguments)
        if self.context_parameter is not None:
            kwargs[self.context_parameter] = context
        if inspect.iscoroutinefunction(self.function):
            value = await self.function(**kwargs)
        else:
            value = await in_thread(lambda: self.function(**kwargs))
            if inspect.isawaitable(value):
                value = await value
        return to_output(value)


def to_output(value: object) -> JsonValue | ToolOutput:
    """Give what a tool returned as a JSON value, or as a `ToolOutput` of one where it has parts."""
    if isinstance(value, ToolOutput):
        parts = _parts(value.parts)
        if parts is None:
            raise UnserializableResult("the parts of a ToolOutput are TextPart, ImagePart or FilePart")
        return ToolOutput(to_json_value(value.content), parts)
    parts = _parts([value]) or _parts(value)
    return ToolOutput(None, parts) if parts else to_json_value(value)


def _parts(values: object) -> tuple[Part, ...] | None:
    """The values as parts; None where one of them is something else."""
    if not isinstance(values, list | tuple):
        return None
    several = cast("Sequence[object]", values)
    parts = tuple(one for one in several if isinstance(one, TextPart | ImagePart | FilePart))
    return parts if len(parts) == len(several) else None


def tool_message(call: ToolCall, output: JsonValue | ToolOutput) -> ToolMessage:
    """The result of a call."""
    if isinstance(output, ToolOutput):
        parts = tuple(output.parts)
        return ToolMessage(tool_call_id=call.id, tool_name=call.name, content=output.content, parts=parts)
    return ToolMessage(tool_call_id=call.id, tool_name=call.name, content=output)


def to_json_value(value: object) -> JsonValue:
    """Convert once, by pydantic's JSON mode; the live run goes on with what a resumed one would read."""
    try:
        text = pydantic_core.to_json(value, bytes_mode="base64", inf_nan_mode="constants")
        plain = cast(JsonValue, pydantic_core.from_json(text, allow_inf_nan=False))
    except (pydantic_core.PydanticSerializationError, ValueError) as error:
        raise UnserializableResult(f"{type(value).__name__} has no JSON form: {error}") from None
    if _depth(plain) > MAX_DEPTH:
        raise UnserializableResult(f"{type(value).__name__} is nested more than {MAX_DEPTH} deep")
    return plain


def _depth(value: JsonValue) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0


def parse_arguments(text: str) -> Arguments:
    """Read what the model wrote. Nothing, blanks and `null` mean no arguments; anything but an object is refused."""
    if not text.strip():
        return {}
    try:
        value = _decode(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArguments(f"The arguments are not JSON: {str(error)[:200]}") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidArguments(f"The arguments are a JSON {type(value).__name__}, not an object")
    return cast(Arguments, value)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_decode = json.JSONDecoder(parse_constant=_refuse_constant).decode


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    needs_approval: bool | ApprovalPolicy = False,
    approvals: int = 1,
    approvers: Sequence[str] = (),
    approval_timeout: timedelta | None = None,
    on_timeout: OnTimeout | Escalation = "reject",
    remind_every: timedelta | None = None,
    recovery: Recovery | None = None,
    timeout: timedelta | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    needs_approval: bool | ApprovalPolicy = False,
    approvals: int = 1,
    approvers: Sequence[str] = (),
    approval_timeout: timedelta | None = None,
    on_timeout: OnTimeout | Escalation = "reject",
    remind_every: timedelta | None = None,
    recovery: Recovery | None = None,
    timeout: timedelta | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a function, synchronous or not.

    The name and the description are the function's and its docstring's unless given. Each parameter needs a type;
    one of type `ToolContext` is not shown to the model. `approvals` is how many different principals must approve a
    call, `approvers` who may (nobody: whoever the agent names, else everybody). Raises `ConfigurationError` for a
    signature that has no schema.
    """

    def make(function: Callable[..., Any]) -> Tool:
        tool_name = name or getattr(function, "__name__", None)
        if tool_name is None:
            raise ConfigurationError(f"{function!r} has no name: give the tool one.")
        arguments, parameters, context_parameter = _arguments_model(tool_name, function)
        return Tool(
            name=tool_name,
            description=description or inspect.getdoc(function) or "",
            function=function,
            arguments=arguments,
            parameters=parameters,
            context_parameter=context_parameter,
            needs_approval=needs_approval,
            terms=terms_of(tool_name, approvals, approvers),
            approval_timeout=approval_timeout,
            on_timeout=on_timeout,
            remind_every=remind_every,
            recovery=recovery or ("rerun" if needs_approval is False else "report"),
            timeout=timeout,
        )

    return make(function) if function is not None else make


def terms_of(tool_name: str, approvals: int, approvers: Sequence[str]) -> ApprovalTerms:
    """The terms of a tool. Raises `ConfigurationError` that names it."""
    try:
        return ApprovalTerms(approvals=approvals, approvers=approvers)
    except ConfigurationError as error:
        raise ConfigurationError(f"Tool {tool_name!r}: {error}") from None


_FIELD = "p_"
"""What the fields of an arguments model begin with, so that a parameter may be called `json` or `_x`."""


def _arguments_model(
    tool_name: str, function: Callable[..., Any]
) -> tuple[type[BaseModel], dict[str, JsonValue], str | None]:
    """The model of a function's arguments, its JSON Schema, and the name of the parameter that takes the context."""
    fields: dict[str, Any] = {}
    context_parameter = None
    hints, parameters = _signature(tool_name, function)
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigurationError(f"Tool {tool_name!r}: {parameter.name!r} cannot be passed by name.")
        if parameter.name not in hints:
            raise ConfigurationError(f"Tool {tool_name!r}: parameter {parameter.name!r} has no type.")
        if hints[parameter.name] is ToolContext:
            if context_parameter is not None:
                raise ConfigurationError(f"Tool {tool_name!r} takes the context twice.")
            context_parameter = parameter.name
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[_FIELD + parameter.name] = (hints[parameter.name], default)
    config = ConfigDict(extra="forbid", alias_generator=lambda field: field.removeprefix(_FIELD))
    try:
        model = create_model(f"{tool_name}_arguments", __config__=config, **fields)
        schema = model.model_json_schema()
    except Exception as error:
        raise ConfigurationError(f"Tool {tool_name!r}: its signature has no JSON Schema: {error}.") from error
    schema.pop("title", None)
    return model, schema, context_parameter


def _signature(tool_name: str, function: Callable[..., Any]) -> tuple[dict[str, Any], list[inspect.Parameter]]:
    """The types of a callable's parameters by name, and the parameters."""
    try:
        typed = function if inspect.isroutine(function) else type(function).__call__
        return typing.get_type_hints(typed, include_extras=True), [*inspect.signature(function).parameters.values()]
    except (AttributeError, NameError, SyntaxError, TypeError, ValueError) as error:
        raise ConfigurationError(f"Tool {tool_name!r}: its signature cannot be read: {error}.") from error
