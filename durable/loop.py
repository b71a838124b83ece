"""The loop: plan, act, save.

A run moves only by saves. The loop asks `plan` what to do next, does it, and saves what came of it before it does
anything else; so a crash falls between two saves, and whoever loads the newest one carries on from there.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import anyio

from durable import transitions
from durable.asking import Questions, origin_of
from durable.batch import Terms, run_calls
from durable.bounds import MIN_TOOL_SECONDS, Bounds, Watch
from durable.compaction import Compactor
from durable.definition import AgentDefinition, Resolved
from durable.errors import AgentDriftError, ProviderError
from durable.events import AgentDrift, Emitter, RunDone, RunStart, StepStart
from durable.fingerprint import drift, fingerprint
from durable.gate import Ask, Gate, Ready
from durable.hooks import asked
from durable.messages import ToolCall, ToolMessage, bound_elsewhere
from durable.nesting import new_child, with_child
from durable.outcome import output_fault
from durable.places import Change, ChildPlace, Place
from durable.plan import POISON, CallModel, Finish, Limits, RunCalls, next_step, over_budget
from durable.ports import ModelRequest, ModelTurn
from durable.records import Checkpoint, FinishReason, Status
from durable.resolving import check_tools, context_of
from durable.results import error_result
from durable.signals import AbortSignal, cancelled_by
from durable.subagents import SubAgent, check_depth, in_charge, result_of_task
from durable.tools import ApprovalGrant, ToolContext
from durable.transcript import call_ids, settle

T = TypeVar("T")

_log = logging.getLogger("durable")


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What a loop is told of the run around it.

    `path` names the agents above this one, `max_depth` is the outermost one's. `ending` says whether the run ends
    because of something else in it, `over_budget` whether an agent above has used up what it may: nothing more begins.
    """

    path: tuple[str, ...] = ()
    max_depth: int | None = None
    ending: Callable[[], bool] = lambda: False
    over_budget: Callable[[], bool] = lambda: False


OUTERMOST = Around()


class Loop:
    """The loop of one agent in this process: it moves the agent's checkpoint, in its place."""

    def __init__(
        self,
        agent: AgentDefinition,
        resolved: Resolved,
        place: Place,
        *,
        emit: Emitter,
        bounds: Bounds,
        watch: Watch,
        around: Around = OUTERMOST,
    ) -> None:
        self._agent = agent
        self._resolved = resolved
        self._place = place
        self._bounds = bounds
        self._caller_signal = watch.signal
        self._check = watch.check
        self._around = around
        self._is_child = bool(around.path)  # its last save is the one that its result joins the lead's transcript with
        self._max_depth = around.max_depth or agent.max_depth
        self._signal = AbortSignal()  # the caller's, or a failed save's
        self._emit = emit
        self._questions = Questions(
            tell=emit,
            heard=emit.heard,
            taken=call_ids(place.checkpoint.messages),
            ids=agent.ids,
            all_ours=place.checkpoint.was_cut or self._is_child,  # what other agents had is not to be seen here
        )
        self._compactor = Compactor(agent.compaction, resolved.provider, tell=emit)
        self._worked_before = place.checkpoint.worked_seconds
        self._began = agent.clock()
        self._terms = Terms(
            signal=self._signal,
            concurrency=agent.tool_concurrency,
            grace=agent.abort_grace,
            hooks=agent.hooks,
            emit=emit,
            delegate=self._delegate,
            ending=around.ending,
            failure=lambda: place.failure,
        )
        self._limits = Limits(
            max_steps=agent.max_steps,
            max_tokens=agent.max_tokens,
            max_seconds=agent.max_duration.total_seconds() if agent.max_duration else None,
        )

    @property
    def _checkpoint(self) -> Checkpoint:
        return self._place.checkpoint

    async def run(self) -> Ask | FinishReason | None:
        """Plan and act until the agent has finished (None), somebody has to be asked, or it has to stop."""
        await self._begin_run()
        if self._caller_signal is not None:
            self._signal.follow(self._caller_signal)
        try:
            stopped: Ask | FinishReason | None = None
            while stopped is None and self._checkpoint.status is Status.IN_PROGRESS:
                await self._may_go_on()
                if self._signal.aborted or self._around.ending():
                    return FinishReason.ABORTED
                match next_step(self._checkpoint, self._limits):
                    case CallModel() if self._around.over_budget():
                        await self._finish(FinishReason.BUDGET_EXCEEDED)
                    case CallModel():
                        stopped = await self._compact_and_call_model()
                    case RunCalls(calls):
                        stopped = await self._in_time(self._least_for(calls), self._run_calls, calls)
                    case Finish(reason):
                        await self._finish(reason)
            return stopped
        finally:
            if self._caller_signal is not None:
                self._signal.unfollow(self._caller_signal)

    async def _may_go_on(self) -> None:
        """Raise where the run is to end here and now; the agents that work beside end with it."""
        try:
            await self._check()
        except Exception as error:
            self._place.close(error)
            self._signal.abort()
            raise

    async def _begin_run(self) -> None:
        """A new run takes the agent as it is; a resumed one compares it with the agent that it began with."""
        checkpoint, agent = self._checkpoint, self._resolved
        now = fingerprint(model=agent.provider.name, tools=agent.specs, instructions=agent.instructions)
        resumed = checkpoint.fingerprint is not None or checkpoint.step > 0
        root = self._place.root
        self._emit(RunStart(session_id=root.session_id, run_id=root.run_id, resumed=resumed))
        if resumed:
            check_tools(checkpoint, agent, session_id=root.session_id)
            self._compare(drift(checkpoint.fingerprint, now), error=True)
        else:
            self._compare(None, error=False)
        changes: dict[str, Any] = {}
        if not resumed or callable(self._agent.instructions):
            changes["instructions"] = agent.instructions
        if not resumed:
            changes["fingerprint"] = now
            if checkpoint.run_config is not None or callable(self._agent.provider):
                changes["run_config"] = {**(checkpoint.run_config or {}), "model": agent.provider.name}
        if changes:
            await self._place.save(lambda newest: newest.but(**changes), write=False)

    def _compare(self, found: AgentDrift | None, *, error: bool) -> None:
        """Tell what is not as it was, and whose native parts of earlier turns are left out from now on."""
        policy = self._agent.on_agent_drift
        origin = origin_of(self._resolved.provider)
        dropped = bound_elsewhere(self._checkpoint.messages, origin) if origin is not None else 0
        if dropped:
            found = replace(found or AgentDrift(), native_dropped=dropped)
        if found is None or policy == "ignore":
            return
        if error and policy == "error":
            raise AgentDriftError(self._place.root.session_id, found.in_words())
        _log.warning("Session %r resumes with another agent: %s.", self._place.root.session_id, found.in_words())
        self._emit(found)

    async def _in_time(
        self, least: float, act: Callable[..., Awaitable[T | None]], *arguments: Any
    ) -> T | FinishReason | None:
        """Act, unless too little time is left; cut the act off when the time is up, and say so."""
        left = self._bounds.remaining()
        if left < least:
            return FinishReason.DEADLINE
        if left == math.inf:
            return await act(*arguments)
        with anyio.move_on_after(left):
            return await act(*arguments)
        return FinishReason.DEADLINE

    async def _compact_and_call_model(self) -> FinishReason | None:
        least = self._bounds.min_model_seconds
        if self._agent.compaction is not None:
            stopped = await self._in_time(least, self._compact)
            if stopped or self._signal.aborted:
                return stopped
        return await self._in_time(least, self._call_model)

    async def _compact(self) -> None:
        before = self._checkpoint
        if (compacted := await self._compactor.compacted(before, self._signal)) is not None:
            await self._save(lambda _: compacted)
            self._compactor.told(before, compacted)

    async def _call_model(self) -> None:
        before = transitions.asked(self._checkpoint)
        self._emit(StepStart(step=before.step + 1))
        left = self._bounds.remaining()
        request = ModelRequest(
            instructions=before.instructions,
            messages=before.messages,
            tools=self._resolved.specs,
            timeout=left if left < math.inf else None,
            output_schema=self._agent.output_schema,
            parallel_tool_calls=self._agent.parallel_tool_calls,
        )
        request = await asked(self._agent.hooks.before_model, request) or request
        turn = await self._answer(request)
        if turn is None:
            return  # aborted: nothing was recorded, and the loop says so
        turn = await asked(self._agent.hooks.after_model, request, turn) or turn
        after = self._after(before, turn)
        await self._save(lambda _: after, write=not (self._is_child and after.status is Status.FINISHED))

    async def _answer(self, request: ModelRequest) -> ModelTurn | None:
        if self._caller_signal is None:
            return await self._questions.ask(self._resolved.provider, request)
        turn: ModelTurn | None = None
        failure: BaseException | None = None
        async with cancelled_by(self._signal):
            try:
                turn = await self._questions.ask(self._resolved.provider, request)
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as error:
                failure = error  # out of the task group, which would wrap it
        if failure is not None:
            raise failure
        return turn

    def _after(self, before: Checkpoint, turn: ModelTurn) -> Checkpoint:
        message = self._questions.named(turn.message)
        after = self._timed(transitions.answered(before, message, turn.usage))
        if message.tool_calls:
            return after
        adapter, reason = self._agent.output_adapter, turn.finish_reason
        if adapter is not None and reason is FinishReason.STOP and (fault := output_fault(adapter, message.content)):
            if not after.output_retries and isinstance(next_step(after, self._limits), CallModel):
                return transitions.told_to_correct(after, fault)
            reason = FinishReason.OUTPUT_INVALID
        return transitions.finished(after, reason)

    def _least_for(self, calls: Sequence[ToolCall]) -> float:
        """The seconds without which the calls do not start: the longest of their tools' time-outs."""
        known = (self._resolved.toolset.get(call.name) for call in calls)
        limits = (tool.timeout.total_seconds() for tool in known if tool is not None and tool.timeout is not None)
        return max(limits, default=MIN_TOOL_SECONDS)

    async def _run_calls(self, calls: Sequence[ToolCall]) -> Ask | FinishReason | None:
        agent, checkpoint = self._agent, self._checkpoint
        gate = Gate(
            tools=self._resolved.toolset,
            decisions=checkpoint.decisions,
            started=checkpoint.started,
            at_work=checkpoint.suspended.keys(),
            context=self._context,
            hooks=agent.hooks,
            approvers=agent.approvers,
        )
        return await run_calls(calls, gate, self, self._terms)

    async def begin(self, call_ids: Sequence[str]) -> None:
        """Name the calls that must not silently run twice, before they start."""
        await self._save(lambda newest: transitions.begun(newest, call_ids))

    async def settle(self, results: Sequence[ToolMessage]) -> None:
        await self._save(lambda newest: settle(newest, results))

    async def _delegate(
        self, start: Ready, tool: SubAgent, ending: Callable[[], bool]
    ) -> ToolMessage | Ask | FinishReason:
        """Run the agent of a call, from its state if it was at work before."""
        call, path = start.call, (*self._around.path, self._agent.name)
        agent = in_charge(tool.agent, self._agent, self._resolved)
        check_depth((*path, agent.name), (), max_depth=self._max_depth)
        if call.id not in self._checkpoint.suspended:
            child = new_child(self._checkpoint, agent=agent.name, task=start.arguments["task"], now=agent.clock())
            await self._save(lambda newest: with_child(newest, call.id, child), write=False)
        place = ChildPlace(self._place, call.id, self._save)
        loop = Loop(
            agent,
            await agent.resolve(context_of(place.checkpoint, root=place.root)),
            place,
            emit=self._emit.inside(agent.name),
            bounds=self._bounds,
            watch=Watch(signal=self._signal, check=self._may_go_on),
            around=Around(
                path=path,
                max_depth=self._max_depth,
                ending=ending,
                over_budget=lambda: self._around.over_budget() or over_budget(self._checkpoint, self._limits),
            ),
        )
        try:
            left = await loop.run()
        except ProviderError as error:
            if error.code not in POISON:
                raise
            return error_result(call, "execution", f"Agent {agent.name!r} cannot go on: {error}", code=error.code)
        why = FinishReason.AWAITING_APPROVAL if isinstance(left, Ask) else left or place.checkpoint.finish_reason
        self._emit.inside(agent.name)(RunDone(finish_reason=why or FinishReason.STOP))
        if left is FinishReason.ABORTED and not ending():
            self._signal.abort()  # one of its tools has asked to stop
        if isinstance(left, Ask):
            return replace(left, within=(call.id, *left.within), path=(agent.name, *left.path))
        return left or result_of_task(call, agent, place.checkpoint)

    def _context(self, call: ToolCall, grant: ApprovalGrant | None) -> ToolContext:
        root = self._place.root
        return ToolContext(
            tool_call_id=call.id,
            session_id=root.session_id,
            run_id=root.run_id,
            path=(*self._around.path, self._agent.name),
            step=self._checkpoint.step,
            approval=grant,
            business_state=root.business_state,
            run_context=(root.run_config or {}).get("context"),
            signal=self._signal,
            remaining=self._bounds.remaining,
        )

    async def _finish(self, reason: FinishReason) -> None:
        await self._save(lambda newest: transitions.finished(newest, reason), write=not self._is_child)

    async def _save(self, change: Change, *, write: bool = True) -> None:
        """Make the changed checkpoint the newest. A save that fails, for this agent or one below, stops the run."""
        try:
            await self._place.save(lambda newest: self._timed(change(newest)), write=write)
        except Exception:
            if self._place.failure is not None:
                self._signal.abort()
            raise

    def _timed(self, checkpoint: Checkpoint) -> Checkpoint:
        """Count the time that is worked on a run whose time is bounded; while it sleeps nobody counts."""
        if self._limits.max_seconds is None:
            return checkpoint
        worked = (self._agent.clock() - self._began).total_seconds()
        return checkpoint.but(worked_seconds=self._worked_before + worked)
