"""The loop: plan, act, save.

A run moves only by saves. The loop asks `plan` what to do next, does it, and saves what came of it before it does
anything else; so a crash falls between two saves, and whoever loads the newest one carries on from there.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import anyio

from durable import transitions
from durable.asking import Questions, origin_of
from durable.batch import Terms, run_calls
from durable.bounds import MIN_TOOL_SECONDS, Bounds, Watch
from durable.capacity import NOTHING, Capacity
from durable.compaction import Compactor
from durable.counting import Tally
from durable.crossing import cross, save_checkpoint
from durable.definition import AgentDefinition, Resolved
from durable.errors import (
    AgentDriftError,
    ConfigurationError,
    DurableError,
    ProviderError,
)
from durable.events import (
    AgentDrift,
    ApprovalRequested,
    CheckpointSaved,
    Emitter,
    RunDone,
    RunStart,
    StepStart,
)
from durable.fingerprint import drift, fingerprint
from durable.gate import Ask, Gate
from durable.hooks import asked
from durable.messages import ToolCall, ToolMessage, bound_elsewhere
from durable.outcome import output_fault
from durable.plan import CallModel, Finish, Limits, RunCalls, next_step
from durable.ports import ApprovalStore, ModelRequest, ModelTurn, Store
from durable.records import Checkpoint, FinishReason, LastError, Status
from durable.resolving import check_tools
from durable.results import approval_id
from durable.signals import AbortSignal, cancelled_by
from durable.tools import ApprovalGrant, ToolContext
from durable.transcript import call_ids, settle

_log = logging.getLogger("durable")


class Loop:
    """One run in this process: the newest checkpoint, what of it is saved, and the loop that moves it."""

    def __init__(
        self,
        agent: AgentDefinition,
        resolved: Resolved,
        checkpoint: Checkpoint,
        *,
        saved: Checkpoint | None,
        store: Store | None,
        approvals: ApprovalStore | None,
        bounds: Bounds,
        watch: Watch,
        tally: Tally,
    ) -> None:
        self._agent = agent
        self._resolved = resolved
        self._checkpoint = checkpoint.but(finish_reason=None) if checkpoint.finish_reason else checkpoint
        self._saved: Checkpoint | None = saved
        self._store = store
        self._approvals = approvals
        self._bounds = bounds
        self._caller_signal = watch.signal
        self._check = watch.check
        self._signal = AbortSignal()  # the caller's, or a failed save's
        self._emit = Emitter(watch.listener, (agent.name,))
        self._questions = Questions(
            tell=self._emit,
            heard=self._emit.heard,
            taken=call_ids(checkpoint.messages),
            ids=agent.ids,
            all_ours=checkpoint.was_cut,
        )
        self._compactor = Compactor(agent.compaction, resolved.provider, tell=self._emit)
        self._worked_before = checkpoint.worked_seconds
        self._began = agent.clock()
        self._tally = tally
        self._consumed_before = checkpoint.consumed or NOTHING
        self._terms = Terms(
            signal=self._signal,
            concurrency=agent.tool_concurrency,
            grace=agent.abort_grace,
            hooks=agent.hooks,
            emit=self._emit,
        )
        self._limits = Limits(
            max_steps=agent.max_steps,
            max_tokens=agent.max_tokens,
            max_seconds=agent.max_duration.total_seconds() if agent.max_duration else None,
        )

    async def run(self) -> Checkpoint:
        """Plan and act until the run is over, waits, or has to stop; the newest checkpoint, saved."""
        self._begin_run()
        if self._caller_signal is not None:
            self._signal.follow(self._caller_signal)
        try:
            stopped: FinishReason | None = None
            while stopped is None and self._checkpoint.status is Status.IN_PROGRESS:
                await self._check()
                if self._signal.aborted:
                    stopped = FinishReason.ABORTED
                    break
                match next_step(self._checkpoint, self._limits):
                    case CallModel():
                        stopped = await self._compact_and_call_model()
                    case RunCalls(calls):
                        stopped = await self._in_time(self._least_for(calls), self._run_calls, calls)
                    case Finish(reason):
                        await self._save(transitions.finished(self._checkpoint, reason))
            if stopped is not None:
                await self._stop(stopped)
        except ProviderError as error:
            await self._note(error)
            raise
        finally:
            if self._caller_signal is not None:
                self._signal.unfollow(self._caller_signal)
        self._emit(RunDone(finish_reason=self._checkpoint.finish_reason or FinishReason.STOP))
        return self._checkpoint

    def _begin_run(self) -> None:
        """A new run takes the agent as it is; a resumed one compares it with the agent that it began with."""
        checkpoint, agent = self._checkpoint, self._resolved
        now = fingerprint(model=agent.provider.name, tools=agent.specs, instructions=agent.instructions)
        resumed = checkpoint.fingerprint is not None or checkpoint.step > 0
        self._emit(RunStart(session_id=checkpoint.session_id, run_id=checkpoint.run_id, resumed=resumed))
        if resumed:
            check_tools(checkpoint, agent)
            self._compare(drift(checkpoint.fingerprint, now), error=True)
        else:
            self._compare(None, error=False)
        if not resumed or callable(self._agent.instructions):
            checkpoint = checkpoint.but(instructions=agent.instructions)
        if not resumed:
            checkpoint = checkpoint.but(fingerprint=now)
            if checkpoint.run_config is not None or callable(self._agent.provider):
                checkpoint = checkpoint.but(run_config={**(checkpoint.run_config or {}), "model": agent.provider.name})
        self._checkpoint = checkpoint

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
            raise AgentDriftError(self._checkpoint.session_id, found.in_words())
        _log.warning("Session %r resumes with another agent: %s.", self._checkpoint.session_id, found.in_words())
        self._emit(found)

    async def _in_time(self, least: float, act: Callable[..., Awaitable[None]], *arguments: Any) -> FinishReason | None:
        """Act, unless too little time is left; cut the act off when the time is up, and say so."""
        left = self._bounds.remaining()
        if left < least:
            return FinishReason.DEADLINE
        if left == math.inf:
            await act(*arguments)
            return None
        with anyio.move_on_after(left) as scope:
            await act(*arguments)
        return FinishReason.DEADLINE if scope.cancelled_caught else None

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
            await self._save(compacted)
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
        await self._save(self._after(before, turn))

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

    async def _run_calls(self, calls: Sequence[ToolCall]) -> None:
        agent, checkpoint = self._agent, self._checkpoint
        gate = Gate(
            tools=self._resolved.toolset,
            decisions=checkpoint.decisions,
            started=checkpoint.started,
            context=self._context,
            hooks=agent.hooks,
        )
        if (ask := await run_calls(calls, gate, self, self._terms)) is not None:
            with anyio.CancelScope(shield=True):
                await self._pause(ask)

    async def begin(self, call_ids: Sequence[str]) -> None:
        """Name the calls that must not silently run twice, before they start."""
        await self._save(transitions.begun(self._checkpoint, call_ids))

    async def settle(self, results: Sequence[ToolMessage]) -> None:
        await self._save(settle(self._checkpoint, results))

    async def _pause(self, ask: Ask) -> None:
        """Write the approval, then the checkpoint that names it: never a checkpoint that names a missing approval.

        A run without a session has no other place for its checkpoint than the approval's record.
        """
        checkpoint = self._checkpoint
        if self._approvals is None:
            raise ConfigurationError(f"Tool {ask.tool.name!r} needs an approval: run with a store.")
        id = approval_id(
            session_id=checkpoint.session_id, run_id=checkpoint.run_id, call_id=ask.call.id, pause=checkpoint.pauses
        )
        request = transitions.request_for(checkpoint, ask, now=self._agent.clock())
        paused = transitions.paused(checkpoint, id, ask.call)
        if self._store is None:
            request = request.but(snapshot=paused)
        await cross(self._approvals.request, id, request)
        await self._save(paused)
        self._emit(ApprovalRequested(approval_id=id, tool_call_id=ask.call.id, tool_name=ask.tool.name))

    def _context(self, call: ToolCall, grant: ApprovalGrant | None) -> ToolContext:
        checkpoint = self._checkpoint
        return ToolContext(
            tool_call_id=call.id,
            session_id=checkpoint.session_id,
            run_id=checkpoint.run_id,
            step=checkpoint.step,
            approval=grant,
            business_state=checkpoint.business_state,
            run_context=(checkpoint.run_config or {}).get("context"),
            signal=self._signal,
            remaining=self._bounds.remaining,
        )

    async def _stop(self, reason: FinishReason) -> None:
        """Leave the run in progress, and say why. Aborted, its open calls are closed; out of time, they stay open.

        Saying the same again makes no save: slices that get nowhere are counted by the revision that they start from.
        """
        aborted = reason is FinishReason.ABORTED
        stopped = transitions.aborted(self._checkpoint) if aborted else self._checkpoint.but(finish_reason=reason)
        if self._saved is not None and stopped == self._saved:
            self._checkpoint = self._saved
        else:
            await self._save(stopped)

    async def _note(self, error: DurableError) -> None:
        """Keep on the checkpoint why the run stopped. A run that has saved nothing yet leaves nothing behind."""
        if self._saved is not None:
            failed = LastError(code=error.code, message=str(error), retryable=error.retryable, at=self._agent.clock())
            await self._save(self._checkpoint.but(last_error=failed))

    async def _save(self, checkpoint: Checkpoint) -> None:
        """Make this the newest checkpoint, in the store if there is one. A save that fails stops the run."""
        checkpoint = self._timed(checkpoint)
        if self._store is None:
            self._checkpoint = checkpoint
            return
        if checkpoint.finish_reason or checkpoint.last_error:  # it may be left here
            checkpoint = checkpoint.but(consumed=self.consumed())
        with anyio.CancelScope(shield=True):
            checkpoint = await save_checkpoint(self._agent, self._store, checkpoint, after=self._saved)
        self._checkpoint = self._saved = checkpoint
        self._emit(CheckpointSaved(revision=checkpoint.revision, status=checkpoint.status))

    def consumed(self) -> Capacity:
        """What the store calls of this run have taken, in this process and in those that carried it on before."""
        return self._consumed_before + self._tally.consumed()

    def _timed(self, checkpoint: Checkpoint) -> Checkpoint:
        """Count the time that is worked on a run whose time is bounded; while it sleeps nobody counts."""
        if self._limits.max_seconds is None:
            return checkpoint
        worked = (self._agent.clock() - self._began).total_seconds()
        return checkpoint.but(worked_seconds=self._worked_before + worked)
