"""A session's world, and processes that come to an end in it at any point.

A `World` is what outlives a process: the store, the clock, and what really happened. A `Process` is one process image:
new agent, new tools, new model. It passes numbered points: before and after each write to the store, before and after
each model call, before a tool does its work, after it, and before it gives its result. At one of them something may
happen to it: it dies, is told to stop, runs out of time, or somebody else moves the session.

What must hold at every point is checked there, and what did not is in `world.faults`: an exception could be taken for
the failure of a tool.

Threads are taken out: a store call runs between turns of the event loop, so a schedule is the same every time.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from threading import get_ident
from typing import Any, Literal
from unittest.mock import patch

import anyio
import anyio.lowlevel
import anyio.to_thread

from durable import (
    AbortSignal,
    Agent,
    Approval,
    ApprovalStatus,
    AssistantMessage,
    Bounds,
    Checkpoint,
    Message,
    ModelRequest,
    ModelTurn,
    PropagatingToolError,
    StaleCheckpointError,
    Status,
    Tool,
    ToolCall,
    ToolContext,
    ToolMessage,
    UserMessage,
    Watch,
    tool,
)
from durable.approval_stream import Expired, Requested, Voted
from durable.approvals import waits_for
from durable.definition import OnDrift
from durable.plan import is_poisoned
from durable.ports import ApprovalEvent
from durable.subagents import SubAgent
from durable.transcript import answered_part, call_ids, first_fault, open_turn, pending_calls
from tests.support.plans import BELOW, GATED, RECOVERY, answer
from tests.support.runs import Clock, Crash, memory_store, numbered
from tests.support.wire import wire_fault

SESSION = "s"

Act = Literal["crash", "abort", "deadline", "intrude"]

PLENTY = 10_000.0
"""Seconds that a process has until it has none."""


@dataclass(frozen=True)
class Interruption:
    """What happens to a process, and at which of its points (-1: told before it begins)."""

    at: int
    act: Act = "crash"


@dataclass(frozen=True, kw_only=True)
class Build:
    """An agent as it is deployed at some time."""

    missing: frozenset[str] = frozenset()
    changed: frozenset[str] = frozenset()
    model: str = "planned:1"
    instructions: str | None = None
    on_agent_drift: OnDrift = "ignore"
    tool_concurrency: int | None = None
    max_steps: int = 10
    abort_grace: float = 5.0


AS_BUILT = Build()


@dataclass(frozen=True)
class Start:
    """A tool has done its work once."""

    call_id: str
    tool: str
    key: str
    approval_id: str | None


@dataclass
class World:
    """What is left when a process ends."""

    clock: Clock = field(default_factory=Clock)
    store: Any = None
    ids: Callable[[], str] = field(default_factory=numbered)
    stored: Checkpoint | None = None
    starts: list[Start] = field(default_factory=list)
    recorded: dict[str, ToolMessage] = field(default_factory=dict)
    began: set[str] = field(default_factory=set)
    asked: dict[str, list[str]] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    tripped: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    intruder: Callable[[], None] = lambda: None
    paces: Callable[[], int] = lambda: 0

    def __post_init__(self) -> None:
        self.store = self.store or memory_store(clock=self.clock)

    @property
    def approval_ids(self) -> list[str]:
        return [id for ids in self.asked.values() for id in ids]

    def copy(self) -> "World":
        """Another world that is as this one is now."""
        clock = Clock(self.clock.now)
        store = memory_store(clock=clock)
        for stream in (f"session/{SESSION}", *(f"approval/{id}" for id in self.approval_ids)):
            for entry in self.store.log.read(stream):
                store.log.append(stream, entry)
            if (head := self.store.log.head(stream)) is not None:
                store.log.mark(head)
        return replace(
            self,
            clock=clock,
            store=store,
            starts=[*self.starts],
            recorded={**self.recorded},
            began={*self.began},
            asked={call_id: [*ids] for call_id, ids in self.asked.items()},
            down={*self.down},
            tripped={*self.tripped},
            faults=[*self.faults],
        )

    def ran(self) -> Counter[str]:
        """How often each piece of work was done, by its key."""
        return Counter(start.key for start in self.starts)

    def forget(self, gone: set[str]) -> None:
        """A turn was cut off: what its calls were called is free again."""
        self.starts = [start for start in self.starts if start.call_id not in gone]
        self.recorded = {id: result for id, result in self.recorded.items() if id not in gone}
        self.asked = {id: approvals for id, approvals in self.asked.items() if id not in gone}

    def expect(self, holds: bool, rule: str) -> None:
        if not holds:
            self.faults.append(rule)


class Process:
    """One process image. `go` runs something in it, to its end or to the end of the process."""

    def __init__(self, world: World, interruption: Interruption | None = None, build: Build = AS_BUILT) -> None:
        self.world = world
        self.points = 0
        self.dead = False
        self.overtaken = False
        self.stale = False
        self.began: set[str] = set()
        self.signal = AbortSignal()
        self.left = PLENTY
        self.checkpoints = Checkpoints(self)
        self.approvals = Approvals(self)
        self.model = Model(self, build.model)
        self.build = build
        self.agent = self._built()
        self.interruption = interruption
        self._loop: _Loop | None = None
        self._thread = get_ident()
        if interruption is not None and interruption.at < 0 and interruption.act in ("abort", "deadline"):
            self._happens(interruption.act)

    def _built(self) -> Agent:
        """The lead, with its sub-agents below it: each has the same tools."""
        build, world, below = self.build, self.world, list[SubAgent]()
        tools = [_tool(self, made) for name, made in _made(build) if name not in build.missing]
        for name in (*reversed(BELOW), "t"):
            agent = Agent(
                name=name,
                instructions=build.instructions,
                tools=tools,
                subagents=below,
                provider=self.model,
                store=self,
                clock=world.clock,
                ids=world.ids,
                sleep=_no_sleep,
                max_steps=build.max_steps,
                tool_concurrency=build.tool_concurrency,
                on_agent_drift=build.on_agent_drift,
                abort_grace=build.abort_grace,
            )
            below = [] if name in build.missing else [agent.as_tool(needs_approval=name == "deputy")]
        return agent

    @property
    def options(self) -> dict[str, Any]:
        """What everything that runs is given: the signal, and time that ends when the process is out of it."""
        acts = self.interruption.act if self.interruption else None
        options: dict[str, Any] = {}
        if acts == "abort" or self.signal.aborted:
            options["watch"] = Watch(signal=self.signal)
        if acts == "deadline":
            options["bounds"] = Bounds(remaining=lambda: self.left)
        return options

    def point(self) -> None:
        """The process comes to its next point."""
        if self.dead:
            raise Crash
        self.world.expect(get_ident() == self._thread, "a thread of its own: the schedule is another one each time")
        number, self.points = self.points, self.points + 1
        if self.interruption is not None and self.interruption.at == number:
            self._happens(self.interruption.act)

    def _happens(self, act: Act) -> None:
        match act:
            case "crash":
                self.dead = True
                raise Crash
            case "abort":
                self.signal.abort()
            case "deadline":
                self.left = 0.0
                if self._loop is not None:
                    self._loop.ahead = PLENTY
            case "intrude":
                before = self.world.stored
                self.world.intruder()
                self.overtaken = self.world.stored != before

    def go(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run it. Raises `Crash` when the process died, whatever came up, and a product that goes on is at fault."""
        try:
            with (
                patch.object(anyio.to_thread, "run_sync", self._inline),
                asyncio.Runner(loop_factory=self._new_loop) as r,
            ):
                result = r.run(work)
        except BaseException:
            if self.dead:
                raise Crash from None
            raise
        self.world.expect(not self.dead, "a crash was caught")
        return result

    def _new_loop(self) -> "_Loop":
        self._loop = _Loop()
        return self._loop

    async def _inline(
        self, call: Callable[..., Any], *arguments: Any, abandon_on_cancel: bool = False, **_: Any
    ) -> Any:
        await anyio.lowlevel.checkpoint()
        with anyio.CancelScope(shield=not abandon_on_cancel):
            for _turn in range(self.world.paces()):
                await anyio.lowlevel.checkpoint()
            value = call(*arguments)
            await anyio.lowlevel.checkpoint()
        return value


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose time can be put ahead."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


async def _no_sleep(seconds: float) -> None:
    pass


# --- the store -------------------------------------------------------------------------------------------------------


class Checkpoints:
    """The checkpoints, as a process reaches them."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._inner = process.world.store.checkpoints

    def load(self, session_id: str) -> Checkpoint | None:
        loaded = self._inner.load(session_id)
        self._process.world.expect(loaded == self._process.world.stored, "what is loaded is not what was saved")
        return loaded

    def delete(self, session_id: str) -> None:
        self._inner.delete(session_id)

    def save(self, checkpoint: Checkpoint, *, after: Checkpoint | None) -> Checkpoint:
        process, world = self._process, self._process.world
        process.point()
        world.expect(not process.stale, "a save after a stale one")
        before = world.stored
        try:
            saved = self._inner.save(checkpoint, after=after)
        except StaleCheckpointError:
            world.expect(process.overtaken, "a save is stale though nobody else moved the session")
            process.stale = True
            raise
        check_save(world, before, saved)
        world.stored = saved
        process.point()
        return saved


def check_save(world: World, before: Checkpoint | None, saved: Checkpoint) -> None:
    """The rules for what is stored, and for what may follow on what was stored."""
    if fault := checkpoint_fault(saved):
        world.faults.append(fault)
    if before is not None:
        cut = answered_part(before.messages[: before.committed]) if is_poisoned(before) else before.messages
        world.expect(saved.messages[: len(cut)] == cut, "a save forgets messages")
        if not is_poisoned(before):
            said = texts(before)
            world.expect(texts(saved)[: len(said)] == said, "a save forgets what was said")
        world.expect(saved.revision == before.revision + 1, "revisions have a gap")
        if saved.run_id != before.run_id and saved.messages[: len(before.messages)] != before.messages:
            world.forget(call_ids(before.messages[before.committed :]))
    for state in levels(saved):
        for result in [*(m for m in state.messages if isinstance(m, ToolMessage)), *state.results.values()]:
            known = world.recorded.setdefault(result.tool_call_id, result)
            world.expect(known == result, f"the result of {result.tool_call_id} has changed")
        world.began |= set(state.started)
    if before is not None:
        check_below(world, before, saved)


def check_below(world: World, before: Checkpoint, saved: Checkpoint) -> None:
    """What a sub-agent has done stays until its call has a result."""
    answered = {m.tool_call_id for m in saved.messages if isinstance(m, ToolMessage)} | set(saved.results)
    for id, state in before.suspended.items():
        after = saved.suspended.get(id)
        world.expect(
            (after is None) == (id in answered), f"the agent of {id} is gone without a result, or stays with it"
        )
        if after is not None:
            world.expect(after.messages[: len(state.messages)] == state.messages, "a sub-agent forgets messages")
            check_below(world, state, after)


def levels(checkpoint: Checkpoint) -> Iterator[Checkpoint]:
    """The state of the lead and of each sub-agent at work."""
    yield checkpoint
    for child in checkpoint.suspended.values():
        yield from levels(child)


def calls_below(checkpoint: Checkpoint | None) -> tuple[set[str], set[str]]:
    """The calls that have no result yet, and those of them that have begun, at any depth."""
    states = list(levels(checkpoint)) if checkpoint is not None else []
    pending = {call.id for state in states for call in pending_calls(state)}
    return pending, {id for state in states for id in state.started}


def texts(checkpoint: Checkpoint) -> list[str]:
    """What users have said, with what still waits."""
    return [
        message.content for message in (*checkpoint.messages, *checkpoint.queued) if isinstance(message, UserMessage)
    ]


def checkpoint_fault(checkpoint: Checkpoint) -> str | None:
    """Say what is wrong with a stored checkpoint, whatever it is stored for; None when nothing is."""
    for id, child in checkpoint.suspended.items():
        if fault := checkpoint_fault(child):
            return f"below {id}: {fault}"
    turn, answered = open_turn(checkpoint.messages)
    open_calls = turn.tool_calls[answered:] if turn else ()
    closing = tuple(ToolMessage(tool_call_id=call.id, tool_name=call.name) for call in open_calls)
    if fault := first_fault((*checkpoint.messages, *closing)):
        return fault
    if fault := first_fault(checkpoint.messages[: checkpoint.committed]):
        return f"committed: {fault}"
    ids = [call.id for m in checkpoint.messages if isinstance(m, AssistantMessage) for call in m.tool_calls]
    pending = {call.id for call in pending_calls(checkpoint)}
    finished, paused = checkpoint.status is Status.FINISHED, checkpoint.status is Status.AWAITING_APPROVAL
    rules = {
        "two calls have one id": len(ids) == len(set(ids)),
        "a result waits that is next in order": set(checkpoint.results) <= {call.id for call in open_calls[1:]},
        "a call has started that is not pending": set(checkpoint.started) <= pending,
        "an agent is at work for a call that is not pending": set(checkpoint.suspended) <= pending,
        "a call has started twice": len(checkpoint.started) == len(set(checkpoint.started)),
        "a decision is about no call": set(checkpoint.decisions) <= set(ids),
        "a finished run has something left": not finished or not (pending or checkpoint.queued or checkpoint.decisions),
        "a finished run is not committed": not finished or checkpoint.committed == len(checkpoint.messages),
        "a run waits and has no call to wait with": not paused or bool(pending),
        "a run waits, or does not, against its approval": paused == (checkpoint.approval_id is not None),
    }
    return next((rule for rule, holds in rules.items() if not holds), None)


class Approvals:
    """The approvals, as a process reaches them."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._inner = process.world.store.approvals

    def request(self, approval_id: str, event: Requested) -> Approval:
        process, world = self._process, self._process.world
        process.point()
        ids = world.asked.setdefault(event.call_id, [])
        if approval_id not in ids:
            again = RECOVERY.get(event.tool_name) == "ask" and event.call_id in calls_below(world.stored)[1]
            world.expect(not ids or again or process.overtaken, f"{event.call_id} is asked about twice")
            ids.append(approval_id)
        approval = self._inner.request(approval_id, event)
        process.point()
        return approval

    def append(self, event: ApprovalEvent, *, after: Approval) -> Approval | None:
        process, stored = self._process, self._process.world.stored
        process.point()
        waits = stored is not None and waits_for(stored, after.id)
        process.world.expect(waits or not isinstance(event, Voted | Expired), "a decision that nobody waits for")
        approval = self._inner.append(event, after=after)
        process.point()
        return approval

    def get(self, approval_id: str) -> Approval | None:
        return self._inner.get(approval_id)

    def list(self, **arguments: Any) -> Any:
        return self._inner.list(**arguments)


# --- the model -------------------------------------------------------------------------------------------------------


class Model:
    """The model: it answers by the plan that the user message is."""

    def __init__(self, process: Process, name: str) -> None:
        self._process = process
        self.name = name

    async def generate(self, request: ModelRequest) -> ModelTurn:
        process, world = self._process, self._process.world
        check_request(process, request)
        process.point()
        await anyio.lowlevel.checkpoint()
        turn = answer(request, already_down=world.down)
        process.point()
        return turn


def check_request(process: Process, request: ModelRequest) -> None:
    """The rules for what a model may be asked: in order for every protocol, and nothing that it has answered."""
    world = process.world
    world.expect(not process.stale, "a model call after a stale save")
    world.expect(not process.signal.aborted, "a model call after the abort")
    if fault := first_fault(request.messages) or wire_fault(request):
        world.faults.append(f"sent: {fault}")
    world.expect(not isinstance(request.messages[-1], AssistantMessage), "the model is asked after its own answer")
    stored = world.stored
    if stored is None or process.overtaken:
        return
    known = asking(stored, request).messages
    if is_poisoned(stored) and request.messages[: len(known)] != known:
        known = answered_part(stored.messages[: stored.committed])
    world.expect(tuple(request.messages[: len(known)]) == known, "a stored turn is asked for again")


def asking(stored: Checkpoint, request: ModelRequest) -> Checkpoint:
    """The state of the agent that asks: of the sub-agent whose task the request begins with, else the lead's."""
    task = request.messages[0]
    below = (state for state in levels(stored) if state is not stored)
    for state in below:
        if (*state.messages, *state.queued)[0] == task:
            return state
    handed_on = any(
        isinstance(message, AssistantMessage) and any(as_task(call) == task for call in message.tool_calls)
        for state in levels(stored)
        for message in state.messages
    )
    return stored.but(messages=()) if handed_on else stored


def as_task(call: ToolCall) -> UserMessage | None:
    return UserMessage(content=json.loads(call.arguments)["task"]) if call.name in BELOW else None


# --- the tools -------------------------------------------------------------------------------------------------------


def _prototypes(*, changed: bool) -> dict[str, Tool]:
    async def work(key: str, ctx: ToolContext, turns: int = 0, fails: bool = False) -> str:
        raise NotImplementedError

    async def other_work(key: str, ctx: ToolContext, turns: int = 0, fails: bool = False, more: int = 0) -> str:
        raise NotImplementedError

    def made(name: str, recovery: Any) -> Tool:
        timeout = timedelta(hours=1) if name == "refund" else None
        make = tool(name=name, needs_approval=name in GATED, recovery=recovery, approval_timeout=timeout)
        prototype = make(other_work if changed else work)
        schema = prototype.arguments.model_json_schema()
        known: Any = prototype.arguments  # making a schema takes longer than all the rest of a short run
        known.model_json_schema = lambda: dict(schema)
        return prototype

    return {name: made(name, recovery) for name, recovery in RECOVERY.items()}


_TOOLS, _CHANGED_TOOLS = _prototypes(changed=False), _prototypes(changed=True)


def _made(build: Build) -> list[tuple[str, Tool]]:
    return [(name, _CHANGED_TOOLS[name] if name in build.changed else made) for name, made in _TOOLS.items()]


def _tool(process: Process, prototype: Tool) -> Tool:
    """The tool with a function of this process. The schema, which takes long to make, is shared."""
    name = prototype.name

    def begin(key: str, ctx: ToolContext) -> None:
        check_start(process, name, ctx)
        process.point()
        process.world.starts.append(Start(ctx.tool_call_id, name, key, ctx.approval.id if ctx.approval else None))
        process.point()

    def end(key: str, fails: bool, ctx: ToolContext) -> str:
        process.point()
        if name == "trip" and ctx.tool_call_id not in process.world.tripped:
            process.world.tripped.add(ctx.tool_call_id)
            raise PropagatingToolError("once")
        if fails:
            raise ValueError(f"no {key}")
        return f"{name} {key}"

    async def work(key: str, ctx: ToolContext, turns: int = 0, fails: bool = False, more: int = 0) -> str:
        begin(key, ctx)
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        return end(key, fails, ctx)

    def plain_work(key: str, ctx: ToolContext, turns: int = 0, fails: bool = False, more: int = 0) -> str:
        begin(key, ctx)
        return end(key, fails, ctx)

    return replace(prototype, function=plain_work if name == "read" else work)


def check_start(process: Process, name: str, ctx: ToolContext) -> None:
    """The rules for a tool that starts: named by the store, not done before, and allowed."""
    world, id = process.world, ctx.tool_call_id
    stored, recovery = world.stored, RECOVERY[name]
    grant = ctx.approval.id if ctx.approval else None
    before = [start for start in world.starts if start.call_id == id]
    world.expect(id not in world.recorded, f"{id} has a result and runs again")
    world.expect(id not in process.began or name == "trip", f"{id} runs twice in one process")
    process.began.add(id)
    late = name == "read"  # a plain one may be on its way to a thread already
    world.expect(late or not process.stale, "a tool starts after a stale save")
    world.expect(late or not process.signal.aborted, "a tool starts after the abort")
    if not process.overtaken:
        pending, started = calls_below(stored)
        world.expect(id in pending, "a tool starts before its turn is saved")
        named = id in started
        world.expect(recovery == "rerun" or named, f"{id} ({recovery}) starts before it is named")
    world.expect(not before or recovery != "report", f"{id} (report) runs twice")
    if recovery == "ask":
        world.expect(not before or grant not in {None, *(start.approval_id for start in before)}, f"{id} reran unasked")
    if grant is None:
        world.expect(name not in GATED, f"{id} runs without its approval")
        return
    approval = world.store.approvals.get(grant)
    world.expect(approval is not None and approval.status is ApprovalStatus.APPROVED, f"{id} runs unapproved")
    world.expect(approval is not None and approval.request.call_id == id, f"{id} runs under another call's approval")


def show(messages: Sequence[Message]) -> list[tuple[Any, ...]]:
    """A transcript that two worlds can be compared by: ids that a process makes up are left out."""
    shown: list[tuple[Any, ...]] = []
    for message in messages:
        match message:
            case AssistantMessage():
                calls = tuple((call.name, call.arguments) for call in message.tool_calls)
                shown.append(("assistant", message.content, calls))
            case ToolMessage():
                shown.append(("tool", message.tool_name, message.is_error, message.content))
            case _:
                shown.append((message.role, message.content))
    return shown


__all__ = ["SESSION", "Build", "Interruption", "Process", "World", "show"]
