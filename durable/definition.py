"""What an agent is: its instructions, its tools, its model and its limits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from uuid import uuid4

from durable.errors import ConfigurationError
from durable.ports import Clock, IdFactory, Provider, ToolSpec
from durable.tools import Tool, tool


def utc_now() -> datetime:
    return datetime.now(UTC)


def random_id() -> str:
    return uuid4().hex


@dataclass(frozen=True, kw_only=True)
class AgentDefinition:
    """The part of an agent that a run needs.

    `tools` takes tools and plain functions. `provider` is the model; a deployment puts the configured one in its place
    when it is None. `max_steps` bounds the model turns of one run, `tool_concurrency` how many calls of a turn run at
    once (None: all of them). Raises `ConfigurationError` that names the option.
    """

    name: str = "agent"
    instructions: str | None = None
    tools: Sequence[Tool | Callable[..., object]] = ()
    provider: Provider | None = None
    max_steps: int = 10
    tool_concurrency: int | None = None
    clock: Clock = field(default=utc_now, repr=False)
    ids: IdFactory = field(default=random_id, repr=False)

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable():
            raise ConfigurationError(f"Agent name {self.name!r} must be printable and not empty.")
        _positive("max_steps", self.max_steps)
        if self.tool_concurrency is not None:
            _positive("tool_concurrency", self.tool_concurrency)
        named = [made if isinstance(made, Tool) else tool(made) for made in self.tools]
        names = [made.name for made in named]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigurationError(f"Agent {self.name!r} has two tools of one name: {repeated!r}.")

    @cached_property
    def toolset(self) -> dict[str, Tool]:
        """The tools by name."""
        made = (made if isinstance(made, Tool) else tool(made) for made in self.tools)
        return {tool.name: tool for tool in made}

    @cached_property
    def tool_specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self.toolset.values())


def _positive(option: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(f"{option} must be a positive whole number, not {value!r}.")
