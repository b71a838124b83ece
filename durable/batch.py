"""Running the calls of one turn: started as slots are free, each result handed over as it settles.

How a batch ends:

    1. every call has settled
    2. a tool or a hook ends the run -> nothing more starts, those that run are awaited and their results kept
    3. the run is aborted -> nothing more starts, those that run get a grace period, then `unknown-outcome`
    4. a save fails, for whichever agent of the run -> nothing more starts, those that run are asked to stop and get the
       grace period, and one last save is tried with what has settled; the others stay without a result
    5. the time is up -> cut off at once; what had settled by then is kept
"""

import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from durable.errors import ConfigurationError, PropagatingToolError
from durable.events import Event, ToolDone, ToolFailed, ToolStart
from durable.gate import Ask, Gate, Ready
from durable.hooks import NO_HOOKS, Hooks, asked
from durable.messages import ToolCall, ToolMessage
from durable.records import FinishReason
from durable.results import error_result
from durable.signals import AbortSignal
from durable.subagents import SubAgent
from durable.tools import ToolContext, UnserializableResult, tool_message


class Ledger(Protocol):
    """Where a batch writes: both return when it is saved, and raise when it could not be."""

    async def begin(self, call_ids: Sequence[str]) -> None: ...
    async def settle(self, results: Sequence[ToolMessage]) -> None: ...


@dataclass(frozen=True, slots=True)
class Ended:
    """A call that ends the run with an error instead of giving a result."""

    call_id: str
    error: Exception


@dataclass(frozen=True, slots=True)
class Aborted:
    """The run is to stop."""


@dataclass(frozen=True, slots=True)
class Open:
    """A call that stays without a result: not started when the run was stopped, or its agent waits or had to stop."""

    call_id: str
    why: Ask | FinishReason


Outcome = ToolMessage | Ended | Aborted | Open
Delegate = Callable[[Ready, SubAgent, Callable[[], bool]], Awaitable[ToolMessage | Ask | FinishReason]]
"""Runs the agent of a call. The function that it is given says whether the run is ending beside it."""


async def _no_agents(start: Ready, tool: SubAgent, ending: Callable[[], bool]) -> FinishReason:
    raise ConfigurationError(f"Tool {tool.name!r} runs an agent, which cannot be done here.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How calls run: `concurrency` at once (None: all), stopped by `signal` with `grace` seconds, watched by `emit`.

    `delegate` runs those that are a sub-agent's. `ending` says whether the run ends because of something beside this
    batch, and `failure` why nothing more can be kept of it.
    """

    signal: AbortSignal
    concurrency: int | None = None
    grace: float = 5.0
    hooks: Hooks = NO_HOOKS
    emit: Callable[[Event], None] = lambda event: None
    delegate: Delegate = _no_agents
    ending: Callable[[], bool] = lambda: False
    failure: Callable[[], Exception | None] = lambda: None


async def run_calls(calls: Sequence[ToolCall], gate: Gate, ledger: Ledger, terms: Terms) -> Ask | FinishReason | None:
    """Run those of the pending calls that may, and say why some of them have no result yet, None when all have one.

    While a sub-agent is out of time nobody is asked: what may go on goes on first. Then the first call in order is the
    one to ask about.
    """
    results, ready, ask = await gate.sort(calls)
    for result in results:
        terms.emit(told(result))
    if results:
        await ledger.settle(results)
    left: Mapping[str, Ask | FinishReason] = await _Batch(ready, ledger, terms).run() if ready else {}
    if terms.signal.aborted:
        return None
    if FinishReason.DEADLINE in left.values():
        return FinishReason.DEADLINE
    asks = (left.get(call.id) for call in calls)
    return next((first for first in asks if isinstance(first, Ask)), ask)


class _Batch:
    """The calls of one turn that may start."""

    def __init__(self, ready: Sequence[Ready], ledger: Ledger, terms: Terms) -> None:
        self._waiting = list(reversed(ready))
        self._running: dict[str, Ready] = {}
        self._unsaved: list[ToolMessage] = []
        self._left: dict[str, Ask | FinishReason] = {}
        self._ended: Exception | None = None
        self._fatal: BaseException | None = None
        self._aborted = False
        self._ledger = ledger
        self._terms = terms
        self._slots = terms.concurrency or len(ready)
        self._outcomes: list[Outcome] = []
        self._news = anyio.Event()

    async def run(self) -> Mapping[str, Ask | FinishReason]:
        """Return when every call has settled or cannot go on, by id why, or when the run is aborted.

        Raises what ended the run.
        """
        failure: BaseException | None = None
        try:
            with self._terms.signal.calling(lambda: self._tell(Aborted())):
                async with anyio.create_task_group() as group:
                    try:
                        await self._drive(group)
                    except anyio.get_cancelled_exc_class() as error:
                        failure = await self._keep_what_settled() or error
                    except Exception as error:
                        failure = error
                        await self._wind_down()
                    except BaseException as error:
                        failure = error
                    if failure is not None or self._aborted:
                        group.cancel_scope.cancel()
        finally:  # an error of the store counts more than the cancellation that comes with the end of the time
            if (reason := self._fatal or failure or self._ended) is not None:
                raise reason
        return self._left

    async def _drive(self, group: TaskGroup) -> None:
        while self._running or (self._waiting and not self._is_ending):
            await self._start(group)
            await self._take(await self._next_outcomes())
            if self._aborted:
                await self._stop()
                return

    @property
    def _is_ending(self) -> bool:
        return self._ended is not None or self._terms.ending()

    async def _start(self, group: TaskGroup) -> None:
        """Fill the free slots. Calls that must not silently run twice are named in one save before they start."""
        stopped = self._is_ending or self._terms.signal.aborted
        free = 0 if stopped else min(self._slots - len(self._running), len(self._waiting))
        starting = [self._waiting.pop() for _ in range(free)]
        if must_not_rerun := [start.call.id for start in starting if start.tool.recovery != "rerun"]:
            await self._ledger.begin(must_not_rerun)
        for start in starting:
            self._running[start.call.id] = start
            group.start_soon(self._run_one, start)

    def _tell(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        self._news.set()

    async def _next_outcomes(self) -> list[Outcome]:
        """At least one, and all that are there."""
        await self._news.wait()
        return self._there()

    def _there(self) -> list[Outcome]:
        there, self._outcomes, self._news = self._outcomes, [], anyio.Event()
        return there

    async def _take(self, outcomes: Sequence[Outcome]) -> None:
        self._sort(outcomes)
        if (failure := self._terms.failure()) is not None:
            raise failure
        await self._settle()

    async def _settle(self) -> None:
        if self._unsaved:
            await self._ledger.settle(self._unsaved)
            self._unsaved = []

    def _sort(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            match outcome:
                case ToolMessage():
                    self._running.pop(outcome.tool_call_id, None)
                    self._unsaved.append(outcome)
                case Ended(call_id, error):
                    self._running.pop(call_id, None)
                    self._ended = self._ended or error
                case Open(call_id, why):
                    self._running.pop(call_id, None)
                    self._left[call_id] = why
                case Aborted():
                    self._aborted = True

    async def _stop(self) -> None:
        """The run is aborted: what still runs after the grace period has an unknown outcome."""
        with anyio.move_on_after(self._terms.grace):
            while self._running:
                await self._take(await self._next_outcomes())
        left = [start.call for start in self._running.values()]
        await self._take(
            [error_result(call, "unknown-outcome", "The run was aborted while the call ran.") for call in left]
        )

    async def _wind_down(self) -> None:
        """A save failed: the others are asked to stop, and what settles in the grace period is saved if it can be."""
        self._terms.signal.abort()
        try:
            with anyio.move_on_after(self._terms.grace):
                while self._running:
                    self._sort(await self._next_outcomes())
        except anyio.get_cancelled_exc_class():
            self._sort(self._there())  # the time is up as well
        with suppress(Exception):  # the first failure is the one to tell
            await self._settle()

    async def _keep_what_settled(self) -> Exception | None:
        """The time is up: save what is there, or give the error that it cannot be saved for."""
        try:
            with anyio.CancelScope(shield=True):
                self._sort(self._there())
                await self._settle()
        except Exception as error:
            return error
        return self._terms.failure()

    async def _run_one(self, start: Ready) -> None:
        call, hook = start.call, self._terms.hooks.after_tool
        if self._terms.signal.aborted:  # while the call was named, or by the call that started before it
            self._tell(Open(call.id, FinishReason.ABORTED))
            return
        try:
            self._terms.emit(ToolStart(tool_call_id=call.id, tool_name=call.name))
            if isinstance(start.tool, SubAgent):
                result = await self._terms.delegate(start, start.tool, lambda: self._is_ending)
                if not isinstance(result, ToolMessage):
                    self._tell(Open(call.id, result))
                    return
            else:
                result = await _result(start)
            result = await asked(hook, call, result, start.context) or result
            if (result.tool_call_id, result.tool_name) != (call.id, call.name):
                raise ConfigurationError(f"The after_tool hook gave the result of another call for {call.name!r}.")
            self._tell(result)
            self._terms.emit(told(result))
        except Exception as error:  # PropagatingToolError, a hook or a listener that raises
            self._tell(Ended(call.id, error))
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:
            self._fatal = error  # out of the task group, which would wrap it
            raise


def told(result: ToolMessage) -> ToolDone | ToolFailed:
    """The event of a result."""
    if not result.is_error:
        return ToolDone(tool_call_id=result.tool_call_id, tool_name=result.tool_name)
    kind = result.content.get("kind") if isinstance(result.content, dict) else None
    return ToolFailed(tool_call_id=result.tool_call_id, tool_name=result.tool_name, kind=str(kind or "execution"))


async def _result(start: Ready) -> ToolMessage:
    """What the tool gives, its failures as results; only a `PropagatingToolError` gets out."""
    call, value = start.call, None
    limit = start.tool.timeout.total_seconds() if start.tool.timeout is not None else math.inf
    try:
        with anyio.move_on_after(limit) as scope:
            value = await start.tool.call(start.arguments, _bounded(start.context, limit))
        if scope.cancelled_caught:
            return error_result(call, "unknown-outcome", f"The call did not end within {limit:g} seconds.")
    except PropagatingToolError:
        raise
    except UnserializableResult as error:
        return error_result(call, "execution", f"Tool {call.name!r} gave a result that is not JSON: {error}")
    except Exception as error:
        return error_result(call, "execution", _in_words(error))
    except anyio.get_cancelled_exc_class() as error:
        if anyio.current_effective_deadline() == -math.inf:
            raise  # the batch is cut off; any other cancellation has leaked out of the tool
        return error_result(call, "execution", _in_words(error))
    return tool_message(call, value)


def _bounded(context: ToolContext, limit: float) -> ToolContext:
    """The same context, whose remaining time ends with the call's own time as well."""
    if limit == math.inf:
        return context
    ends = time.monotonic() + limit
    return replace(context, remaining=lambda: min(context.remaining(), ends - time.monotonic()))


def _in_words(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # an error that cannot be printed is still an error of the tool
        return type(error).__name__
