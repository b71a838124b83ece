"""What an agent is: its instructions, its tools, its model and its limits."""

import inspect
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Literal, TypeVar, cast
from uuid import uuid4

import anyio
from pydantic import JsonValue, TypeAdapter

from durable.approvers import names_of
from durable.compaction import Compaction
from durable.errors import ConfigurationError
from durable.escalation import Escalation, OnTimeout
from durable.hooks import NO_HOOKS, Hooks
from durable.ports import Clock, IdFactory, Provider, ToolSpec
from durable.subagents import MAX_DEPTH, SubAgent, as_subagent, check_depth, check_terms
from durable.tools import ApprovalPolicy, Tool, tool

T = TypeVar("T")
OnDrift = Literal["warn", "error", "ignore"]


def utc_now() -> datetime:
    return datetime.now(UTC)


def random_id() -> str:
    return uuid4().hex


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What a dynamic agent is made for.

    `context` is what the caller gave with the input, and is kept for a resume. `model` is the name of the model that
    the run began with, None when it begins now: a resumed run goes on with that one.
    """

    session_id: str | None
    run_id: str
    context: JsonValue = None
    model: str | None = None


Dynamic = Callable[[RunContext], T | Awaitable[T]]
Tools = Sequence[Tool | Callable[..., object]]


@dataclass(frozen=True, kw_only=True)
class AgentDefinition:
    """The part of an agent that a run needs.

    `tools` takes tools and plain functions. `provider` is the model; a deployment puts the configured one in its place
    when it is None. Instructions, tools and provider may each be a function of the run's context instead; a provider's
    function may give a model string, which `make_provider` turns into a provider.
    `subagents` are agents that this one may hand tasks to, as tools (`durable/subagents.py`), and `max_depth` how many
    levels of them may be below it; `description` is what the model of an agent above this one is told of it.

    `max_steps` bounds the model turns of one run, `tool_concurrency` how many calls of a turn run at once (None: all),
    `parallel_tool_calls` whether the model may ask for several in one turn (None: as its provider does),
    `max_tokens` the input and output tokens of a run, `max_duration` the time that is worked on it: a run that has
    reached one of the last two finishes as `budget-exceeded`. `output_type` is what the final answer must validate as,
    read as JSON. `approvers` are the principals who may decide about a tool's calls where the tool names none; nobody
    named is everybody. `compaction` says when long conversations are made short. `abort_grace` is how long, in seconds,
    tools that run may go on after an abort. Raises `ConfigurationError` that names the option.
    """

    name: str = "agent"
    description: str | None = None
    instructions: str | Dynamic[str | None] | None = None
    tools: Tools | Dynamic[Tools] = ()
    subagents: Sequence["AgentDefinition | SubAgent"] = ()
    max_depth: int = MAX_DEPTH
    provider: Provider | Dynamic[Provider | str] | None = None
    make_provider: Callable[[str], Provider] | None = None
    max_steps: int = 10
    tool_concurrency: int | None = None
    parallel_tool_calls: bool | None = None
    max_tokens: int | None = None
    max_duration: timedelta | None = None
    output_type: Any = None
    approvers: Sequence[str] = ()
    compaction: Compaction | None = None
    hooks: Hooks = NO_HOOKS
    on_agent_drift: OnDrift = "warn"
    abort_grace: float = 5.0
    clock: Clock = field(default=utc_now, repr=False)
    ids: IdFactory = field(default=random_id, repr=False)
    sleep: Callable[[float], Awaitable[None]] = field(default=anyio.sleep, repr=False)
    random: Callable[[], float] = field(default=random.random, repr=False)

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable():
            raise ConfigurationError(f"Agent name {self.name!r} must be printable and not empty.")
        _positive("max_steps", self.max_steps)
        for option in ("tool_concurrency", "max_tokens"):
            if (value := getattr(self, option)) is not None:
                _positive(option, value)
        if self.max_duration is not None and self.max_duration <= timedelta(0):
            raise ConfigurationError("max_duration must be positive.")
        if self.abort_grace < 0:
            raise ConfigurationError("abort_grace must not be negative.")
        if self.on_agent_drift not in ("warn", "error", "ignore"):
            raise ConfigurationError(f"on_agent_drift must be warn, error or ignore, not {self.on_agent_drift!r}.")
        names_of(self.approvers)
        _positive("max_depth", self.max_depth)
        # A wrong tool is told where the agent is made, not where it first runs.
        known = self.known_tools.values()
        check_depth((self.name,), known, max_depth=self.max_depth)
        check_terms(self.name, known, self.approvers)

    @cached_property
    def known_tools(self) -> Mapping[str, Tool]:
        """The tools that are known before any run: all of them, or the sub-agents where `tools` is a function."""
        return toolset_of(self.name, self._subagents) if callable(self.tools) else self.toolset

    @cached_property
    def toolset(self) -> Mapping[str, Tool]:
        """The tools by name, of an agent whose tools are no function."""
        return {} if callable(self.tools) else toolset_of(self.name, (*self.tools, *self._subagents))

    @cached_property
    def _subagents(self) -> tuple[SubAgent, ...]:
        return tuple(each if isinstance(each, SubAgent) else as_subagent(each) for each in self.subagents)

    def as_tool(
        self,
        name: str | None = None,
        description: str | None = None,
        *,
        needs_approval: bool | ApprovalPolicy = False,
        approvals: int = 1,
        approvers: Sequence[str] = (),
        approval_timeout: timedelta | None = None,
        on_timeout: OnTimeout | Escalation = "reject",
        remind_every: timedelta | None = None,
    ) -> SubAgent:
        """Give this agent as a tool of another, with the options of a tool; `subagents` is enough without any."""
        return as_subagent(
            self,
            name=name,
            description=description,
            needs_approval=needs_approval,
            approvals=approvals,
            approvers=approvers,
            approval_timeout=approval_timeout,
            on_timeout=on_timeout,
            remind_every=remind_every,
        )

    @cached_property
    def output_adapter(self) -> TypeAdapter[Any] | None:
        return None if self.output_type is None else TypeAdapter(self.output_type)

    @cached_property
    def output_schema(self) -> dict[str, JsonValue] | None:
        """The JSON Schema of the final answer, for models that can be held to one."""
        return None if self.output_adapter is None else self.output_adapter.json_schema()

    @cached_property
    def _static(self) -> "Resolved | None":
        parts = (self.instructions, self.tools, self.provider)
        if self.provider is None or any(callable(part) for part in parts):
            return None
        return Resolved(cast(Provider, self.provider), cast("str | None", self.instructions), self.toolset)

    async def resolve(self, context: RunContext) -> "Resolved":
        """Give the agent as it is for a run. A resumed run keeps the model that it began with."""
        if self._static is not None:
            return self._static
        tools = await self.tools_for(context)
        instructions = await _made(self.instructions, context) if callable(self.instructions) else self.instructions
        return Resolved(await self._provider_for(context), instructions, tools)

    async def tools_for(self, context: RunContext) -> Mapping[str, Tool]:
        """Give the tools of a run by name, without its model."""
        if not callable(self.tools):
            return self.toolset
        tools = toolset_of(self.name, (*await _made(self.tools, context), *self._subagents))
        check_terms(self.name, tools.values(), self.approvers)
        return tools

    async def _provider_for(self, context: RunContext) -> Provider:
        provider: Provider | str | None
        if not callable(self.provider):
            provider = self.provider
        elif context.model is not None and self.make_provider is not None:
            provider = context.model
        else:
            provider = await _made(self.provider, context)
        if isinstance(provider, str):
            if self.make_provider is None:
                raise ConfigurationError(f"Agent {self.name!r} names the model {provider!r}: give it `make_provider`.")
            provider = self.make_provider(provider)
        if provider is None:
            raise ConfigurationError(f"Agent {self.name!r} has no provider: give it a model.")
        return provider


@dataclass(frozen=True)
class Resolved:
    """An agent as one run sees it."""

    provider: Provider
    instructions: str | None = field(repr=False)
    toolset: Mapping[str, Tool]

    @cached_property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self.toolset.values())


def toolset_of(agent: str, tools: Tools) -> dict[str, Tool]:
    """The tools by name. Two of one name are a `ConfigurationError`."""
    made = [each if isinstance(each, Tool) else tool(each) for each in tools]
    names = [each.name for each in made]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(f"Agent {agent!r} has two tools of one name: {repeated!r}.")
    return {each.name: each for each in made}


async def _made(make: Dynamic[T], context: RunContext) -> T:
    made = make(context)
    return cast(T, await made if inspect.isawaitable(made) else made)


def _positive(option: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(f"{option} must be a positive whole number, not {value!r}.")
