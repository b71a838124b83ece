"""The composition root: concrete stores, providers and clients are chosen here and nowhere else."""

import importlib
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config

from durable.agent import Agent
from durable.errors import ConfigurationError
from durable.escalation import Escalation
from durable.providers import provider_from, with_fallback
from durable.subagents import all_tools
from durable.tools import Tool
from handlers._keys import Keys
from handlers._settings import Settings, settings
from stores.dynamodb import dynamodb_store, make_client

if TYPE_CHECKING:
    from durable.ports import Provider
    from stores._bundle import LogStore

KEPT_SECONDS = 5.0
"""What a slice needs beside its tools: loading, saving, handing over."""

_CLIENT_CONFIG = Config(connect_timeout=3, read_timeout=5, retries={"mode": "standard", "total_max_attempts": 4})


@dataclass(frozen=True)
class App:
    """What handlers work with. Clients are made with their first use.

    They share one session: in one of its own each would read boto3's data of all endpoints again, which takes longest.
    """

    settings: Settings
    agent: Agent
    store: "LogStore"
    session: boto3.Session

    def __post_init__(self) -> None:
        if getattr(self.store.checkpoints, "single_writer", False):
            raise ConfigurationError(
                f"{type(self.store.checkpoints).__name__} says `single_writer`: it cannot tell that somebody else has "
                "saved meanwhile. Several functions write the sessions of a deployment: give it a store that can."
            )
        for path, tool in all_tools(self.agent):
            self._check(" > ".join(path), tool)

    def _check(self, agent: str, tool: Tool) -> None:
        """Refuse a tool that asks for what this deployment does not have."""
        longest = self.settings.slice_seconds - KEPT_SECONDS
        seconds = tool.timeout.total_seconds() if tool.timeout is not None else 0.0
        if seconds > longest:
            raise ConfigurationError(
                f"Tool {tool.name!r} of agent {agent!r} may take {seconds:g} seconds; no slice lasts that long. Give "
                f"it a timeout of at most {longest:g} seconds, or the deployment a larger SliceSeconds."
            )
        levels = tool.on_timeout.levels if isinstance(tool.on_timeout, Escalation) else ()
        known = self.settings.channels
        for at, level in enumerate(levels, start=1):
            if missing := sorted(set(level.to) - set(known)):
                raise ConfigurationError(
                    f"Tool {tool.name!r} of agent {agent!r}: level {at} of its escalation tells {missing!r}, and this "
                    f"deployment has only {sorted(known)!r}: see the parameters EscalationTopics, EscalationWebhooks."
                )

    @cached_property
    def states(self) -> Any:
        return self.session.client("stepfunctions", config=_CLIENT_CONFIG)

    @cached_property
    def topics(self) -> Any:
        return self.session.client("sns", config=_CLIENT_CONFIG)

    @cached_property
    def events(self) -> Any:
        return self.session.client("events", config=_CLIENT_CONFIG)


@cache
def app() -> App:
    """The application of this function, made with its first invocation."""
    made, session = settings(), boto3.Session()
    store = dynamodb_store(
        table=made.table_name,
        client=make_client(session=session),
        prefix=made.table_prefix,
        ttl=made.ttl,
        list_finished=made.list_finished,
    )

    keys = Keys(made, session)

    def make_provider(model: str) -> "Provider":
        protocol = model.partition(":")[0]
        urls = {"openai": made.openai_base_url, "openai-responses": made.openai_base_url}
        url = {**urls, "anthropic": made.anthropic_base_url}.get(protocol)
        options = made.model_options if model == made.model else None
        return provider_from(model, api_key=keys.key_for(protocol), base_url=url or None, options=options)

    provider = with_fallback([make_provider(model) for model in made.models]) if made.model else None
    agent = _agent(made).bind(
        provider=provider, make_provider=make_provider, store=store, approvers=made.approver_names
    )
    return App(made, agent, store, session)


def _agent(made: Settings) -> Agent:
    agent = getattr(importlib.import_module(made.agent_module), "agent", None)
    if not isinstance(agent, Agent):
        raise ConfigurationError(f"{made.agent_module}.py must define `agent = Agent(…)`.")
    if agent.store is not None:
        raise ConfigurationError(
            f"The agent in {made.agent_module}.py has a store of its own, and its runs would be kept in another one: "
            "leave `store` out. Which store a deployment has is chosen in handlers/_wiring.py."
        )
    return agent
