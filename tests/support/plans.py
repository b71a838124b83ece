"""What a scripted conversation does, written into its user messages.

Each user message is a plan: the turns that the model answers it with, each a list of calls; when they are used up it
answers with a text. So the model needs no memory, and a new process answers as the old one would have.

A call may hand a plan on to a sub-agent, whose task it is then.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from random import Random
from typing import Any, Literal

from durable import (
    AssistantMessage,
    Message,
    ModelRequest,
    ModelTurn,
    ProviderRequestError,
    ProviderUnavailableError,
    ToolCall,
    Usage,
    UserMessage,
)

Kind = Literal["normal", "invalid", "unknown", "malformed"]
Trouble = Literal["down", "refused"]

FREE = ("note", "mail", "ship", "read", "trip")
GATED = ("grant", "refund", "wire")
RECOVERY = {"note": "rerun", "mail": "report", "ship": "ask", "read": "rerun", "trip": "rerun"} | {
    "grant": "rerun",
    "refund": "report",
    "wire": "ask",
}

BELOW = ("helper", "deputy")
"""The sub-agents: the lead's, and that one's, which needs an approval for each task."""


@dataclass(frozen=True)
class PlannedCall:
    """One call. `turns` is how many turns of the event loop the tool takes, so calls settle out of order.

    With a `plan` it runs the agent that is the `tool`.
    """

    tool: str
    key: str
    turns: int = 0
    fails: bool = False
    kind: Kind = "normal"
    id: str | None = None
    plan: "Plan | None" = None

    def call(self, default_id: str) -> ToolCall:
        arguments: dict[str, Any] = {"key": self.key, "turns": self.turns, "fails": self.fails}
        if self.plan is not None:
            arguments = {"task": self.plan.text}
        if self.kind == "invalid":
            arguments["turns"] = "many"
        text = "{" if self.kind == "malformed" else json.dumps(arguments)
        name = "nobody" if self.kind == "unknown" else self.tool
        return ToolCall(id=default_id if self.id is None else self.id, name=name, arguments=text)


@dataclass(frozen=True)
class Plan:
    """What one user message leads to.

    With the trouble `down` the provider fails once, after the calls; with `refused` it takes no transcript that the
    message is part of.
    """

    name: str
    steps: tuple[tuple[PlannedCall, ...], ...] = ()
    trouble: Trouble | None = None

    @cached_property
    def text(self) -> str:
        steps = [[{**asdict(call), "plan": call.plan and call.plan.text} for call in step] for step in self.steps]
        return json.dumps({"name": self.name, "steps": steps, "t": self.trouble})

    @property
    def calls(self) -> Iterator[PlannedCall]:
        """Every call, those of sub-agents after the one that runs them."""
        for call in (call for step in self.steps for call in step):
            yield call
            if call.plan is not None:
                yield from call.plan.calls

    def named(self, name: str) -> "Plan":
        """The same plan, in which each piece of work has a key of its own."""
        steps = tuple(
            tuple(
                replace(call, key=key, plan=call.plan and call.plan.named(key))
                for at, call in enumerate(calls)
                for key in [f"{name}.{step}.{at}"]
            )
            for step, calls in enumerate(self.steps)
        )
        return replace(self, name=name, steps=steps)


@lru_cache(maxsize=4_096)
def read_plan(text: str) -> Plan:
    raw = json.loads(text)
    steps = tuple(
        tuple(PlannedCall(**{**call, "plan": call["plan"] and read_plan(call["plan"])}) for call in step)
        for step in raw["steps"]
    )
    return Plan(raw["name"], steps, raw["t"])


def key_of(arguments: Any) -> str:
    """The key of a call by its arguments: its own, or that of the plan that it hands on."""
    return arguments["key"] if "key" in arguments else read_plan(arguments["task"]).name


def answer(request: ModelRequest, *, already_down: set[str]) -> ModelTurn:
    """Answer the last user message by its plan. A provider that is `down` is so once for each plan."""
    plan, done = _where(request.messages)
    if any(isinstance(m, UserMessage) and read_plan(m.content).trouble == "refused" for m in request.messages):
        raise ProviderRequestError("planned", "no")
    usage = Usage(model_calls=1, input_tokens=len(request.messages), output_tokens=1)
    if done < len(plan.steps):
        turn = sum(isinstance(message, AssistantMessage) for message in request.messages)
        calls = tuple(planned.call(f"call_{turn}_{n}") for n, planned in enumerate(plan.steps[done]))
        return ModelTurn(message=AssistantMessage(tool_calls=calls), usage=usage)
    if plan.trouble == "down" and plan.name not in already_down:
        already_down.add(plan.name)
        raise ProviderUnavailableError("planned", "down")
    return ModelTurn(message=AssistantMessage(content=f"done {plan.name}"), usage=usage)


def _where(messages: Sequence[Message]) -> tuple[Plan, int]:
    done = 0
    for message in reversed(messages):
        if isinstance(message, UserMessage):
            return read_plan(message.content), done
        done += isinstance(message, AssistantMessage)
    raise AssertionError("the model is asked about nothing")


def random_call(random: Random, key: str) -> PlannedCall:
    kind: Kind = random.choices(["normal", "invalid", "unknown", "malformed"], [24, 1, 1, 1])[0]
    return PlannedCall(
        tool=random.choice(GATED if random.random() < 0.3 else FREE),
        key=key,
        turns=random.choice([0, 0, 1, 2, 5, 12]),
        fails=random.random() < 0.15,
        kind=kind,
        id=random.choices([None, "", "same"], [18, 1, 1])[0],
    )


def random_plan(random: Random, name: str, steps: int, *, below: Sequence[str] = ()) -> Plan:
    """A plan of so many model turns with 0 to 4 calls; one without calls is the answer, which ends it.

    Where there are agents `below`, one call in two is for the first of them, which has the others below it.
    """

    def one(key: str) -> PlannedCall:
        if below and random.random() < 1 / 2:
            plan = random_plan(random, key, random.choice([1, 2, 2]), below=below[1:])
            return PlannedCall(tool=below[0], key=key, plan=plan)
        return random_call(random, key)

    turns = [
        tuple(one(f"{name}.{step}.{n}") for n in range(random.choice([1, 1, 1, 2, 2, 2, 3, 4])))
        for step in range(steps - 1)
    ]
    return Plan(name, tuple(turns), "down" if random.random() < 0.1 else None)
