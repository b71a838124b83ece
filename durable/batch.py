"""The tool calls of one model turn: gate them in order, start them, hand over their results as they settle.

Each call passes its gate before the next one is looked at:

    1. arguments that cannot be read or do not fit, an unknown tool -> an error result, nothing runs
    2. a rejected call -> a `rejected` result, nothing runs
    3. an approved call -> runs, if its final arguments are those that were approved
    4. a call that had begun before a crash -> by its `recovery`: `unknown-outcome`, or ask
    5. a call that needs approval -> ask: it waits, and so does everything after it
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream
from pydantic import JsonValue

from durable.errors import PropagatingToolError
from durable.messages import ToolCall, ToolMessage
from durable.records import Decision
from durable.results import approval_digest, error_result
from durable.tools import (
    ApprovalGrant,
    Arguments,
    InvalidArguments,
    Tool,
    ToolContext,
    UnserializableResult,
    parse_arguments,
)


@dataclass(frozen=True, slots=True)
class Ready:
    """A call that may start."""

    call: ToolCall
    tool: Tool
    arguments: Mapping[str, Any] = field(repr=False)
    context: ToolContext


@dataclass(frozen=True, slots=True)
class Ask:
    """A call that waits for a human, with its final arguments."""

    call: ToolCall
    tool: Tool
    arguments: Arguments = field(repr=False)


class Ledger(Protocol):
    """Where a batch writes: both return when it is saved, and raise when it could not be."""

    async def begin(self, call_ids: Sequence[str]) -> None: ...
    async def settle(self, results: Sequence[ToolMessage]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The pending calls of a turn and what is known about them."""

    calls: Sequence[ToolCall]
    tools: Mapping[str, Tool]
    decisions: Mapping[str, Decision]
    started: Sequence[str]
    context: Callable[[ToolCall, ApprovalGrant | None], ToolContext]
    concurrency: int | None = None

    async def run(self, ledger: Ledger) -> Ask | None:
        """Run what may run; give the call that must be asked about, when everything before it has settled."""
        ready: list[Ready] = []
        refused: list[ToolMessage] = []
        ask: Ask | None = None
        for call in self.calls:
            match await self._gate(call):
                case Ready() as start:
                    ready.append(start)
                case ToolMessage() as result:
                    refused.append(result)
                case Ask() as ask:
                    break
        if refused:
            await ledger.settle(refused)
        if ready:
            await _run_all(ready, ledger, self.concurrency or len(ready))
        return ask

    async def _gate(self, call: ToolCall) -> Ready | Ask | ToolMessage:
        tool = self.tools.get(call.name)
        if tool is None:
            return error_result(call, "not-found", f"There is no tool {call.name!r}; there are: {sorted(self.tools)!r}")
        decision = self.decisions.get(call.id)
        if decision is not None and not decision.approved:
            return error_result(call, "rejected", decision.note or "The call was rejected.", note=decision.note)
        grant = decision and ApprovalGrant(decision.approval_id, decision.note, decision.by)
        context = self.context(call, grant)
        try:
            arguments = parse_arguments(call.arguments) if decision is None or decision.args is None else decision.args
            values = tool.validate(arguments)
        except InvalidArguments as error:
            return error_result(call, "validation", error.message, issues=error.issues)
        if call.id in self.started:
            if tool.recovery == "report":
                return error_result(
                    call, "unknown-outcome", "The call had started when the run was interrupted; it may have happened."
                )
            if tool.recovery == "ask":
                return Ask(call, tool, arguments)
        if decision is not None:
            if decision.digest is not None and decision.digest != approval_digest(tool.name, arguments):
                return error_result(call, "validation", "The arguments are not those that were approved.")
        elif await tool.needs_human(arguments, context):
            return Ask(call, tool, arguments)
        return Ready(call, tool, values, context)


async def _run_all(ready: Sequence[Ready], ledger: Ledger, slots: int) -> None:
    """Keep `slots` calls running; save what has settled, one save at a time, before anything more starts."""
    waiting = list(reversed(ready))
    running = 0
    settled, results = anyio.create_memory_object_stream[ToolMessage | PropagatingToolError](len(ready))
    failure: BaseException | None = None

    async def run_one(start: Ready) -> None:
        settled.send_nowait(await _call(start))

    with settled, results:
        async with anyio.create_task_group() as group:
            try:
                while waiting or running:
                    starting = [waiting.pop() for _ in range(min(slots - running, len(waiting)))] if not failure else []
                    if must_not_rerun := [start.call.id for start in starting if start.tool.recovery != "rerun"]:
                        await ledger.begin(must_not_rerun)
                    for start in starting:
                        group.start_soon(run_one, start)
                    running += len(starting)
                    outcomes = [await results.receive(), *_drain(results)] if running else []
                    running -= len(outcomes)
                    failure = failure or next((o for o in outcomes if isinstance(o, PropagatingToolError)), None)
                    if messages := [outcome for outcome in outcomes if isinstance(outcome, ToolMessage)]:
                        await ledger.settle(messages)
                    if failure and not running:
                        break
            except BaseException as error:
                failure = error
                group.cancel_scope.cancel()
                if isinstance(error, anyio.get_cancelled_exc_class()):
                    await _save_leftovers(results, ledger)
    if failure is not None:
        raise failure


async def _save_leftovers(results: MemoryObjectReceiveStream[Any], ledger: Ledger) -> None:
    """A deadline cut the batch off: what had settled by then is kept."""
    if messages := [outcome for outcome in _drain(results) if isinstance(outcome, ToolMessage)]:
        with anyio.CancelScope(shield=True):
            await ledger.settle(messages)


def _drain(results: MemoryObjectReceiveStream[Any]) -> list[Any]:
    outcomes: list[Any] = []
    while True:
        try:
            outcomes.append(results.receive_nowait())
        except anyio.WouldBlock:
            return outcomes


async def _call(start: Ready) -> ToolMessage | PropagatingToolError:
    try:
        value: JsonValue = await start.tool.call(start.arguments, start.context)
    except PropagatingToolError as error:
        return error
    except UnserializableResult as error:
        return error_result(
            start.call, "execution", f"Tool {start.call.name!r} gave a result that is not JSON: {error}"
        )
    except Exception as error:
        return error_result(start.call, "execution", _in_words(error))
    except anyio.get_cancelled_exc_class() as error:
        if anyio.current_effective_deadline() == -math.inf:
            raise  # the batch is cut off; any other cancellation has leaked out of the tool
        return error_result(start.call, "execution", _in_words(error))
    return ToolMessage(tool_call_id=start.call.id, tool_name=start.call.name, content=value)


def _in_words(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # an error that cannot be printed is still an error of the tool
        return type(error).__name__
