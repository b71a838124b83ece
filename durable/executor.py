"""The loop: plan, act, save.

A run moves only by saves. The executor asks `plan` what to do next, does it, and saves what came of it before it does
anything else; so a crash falls between two saves, and whoever loads the newest one carries on from there.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from durable.admission import Input, admitted, as_messages
from durable.approvals import expire_if_due, mark_applied, waits_for, with_decision
from durable.batch import Ask, Batch
from durable.definition import AgentDefinition
from durable.errors import (
    ApprovalNotFoundError,
    ConfigurationError,
    DurableError,
    ProviderError,
    ResumeToolMissingError,
    SessionAwaitingApprovalError,
    SessionNotFoundError,
)
from durable.fingerprint import had_tool
from durable.messages import ToolCall, ToolMessage
from durable.outcome import RunResult, result_of
from durable.plan import CallModel, Finish, RunCalls, next_step
from durable.ports import ModelRequest, ModelTurn, Store
from durable.records import (
    Checkpoint,
    FinishReason,
    LastError,
    Requested,
    Status,
    check_session_id,
)
from durable.results import approval_digest, approval_id
from durable.tools import ApprovalGrant, ToolContext
from durable.transcript import call_ids, name_calls, pending_calls, settle

T = TypeVar("T")

MIN_MODEL_SECONDS = 15.0
"""No model call starts with less time left than this."""

MIN_TOOL_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The time that a run may take here. `remaining` gives the seconds that are left; the run stops cleanly before."""

    remaining: Callable[[], float] = field(default=lambda: math.inf)
    min_model_seconds: float = MIN_MODEL_SECONDS


UNBOUNDED = Bounds()


async def execute(
    agent: AgentDefinition,
    input: Input,
    *,
    session_id: str | None = None,
    store: Store | None = None,
    requested_by: str | None = None,
    bounds: Bounds = UNBOUNDED,
) -> RunResult:
    """Run the agent on `input` until it finishes or waits for an approval.

    With a `session_id` and a `store` the run survives: called again with the same id it resumes, continues or refuses
    by what is stored (SEMANTICS 1). Without them nothing is kept. Raises `SessionAwaitingApprovalError`,
    `ConfigurationError`, a `StoreError` or a `ProviderError`; what was saved before stays.
    """
    if (session_id is None) != (store is None):
        raise ConfigurationError("session_id and store go together: give both, or none.")
    stored = None
    if store is not None:
        stored = await _cross(store.checkpoints.load, check_session_id(session_id))
    checkpoint = admitted(agent, stored, as_messages(input), session_id=session_id, requested_by=requested_by)
    return await run_to_pause(agent, checkpoint, saved=stored, store=store, bounds=bounds)


async def run_to_pause(
    agent: AgentDefinition,
    checkpoint: Checkpoint,
    *,
    saved: Checkpoint | None,
    store: Store | None,
    bounds: Bounds = UNBOUNDED,
) -> RunResult:
    """Run from `checkpoint` (stored as `saved`, or newer than it) until the run finishes, pauses or is out of time."""
    if checkpoint.status is Status.FINISHED:
        return result_of(checkpoint)
    if checkpoint.status is Status.AWAITING_APPROVAL:
        raise SessionAwaitingApprovalError(checkpoint.session_id, checkpoint.approval_id)
    return result_of(await _Run(agent, checkpoint, saved=saved, store=store, bounds=bounds).loop())


async def resume_after_approval(
    agent: AgentDefinition, id: str, *, store: Store, bounds: Bounds = UNBOUNDED
) -> RunResult:
    """Apply what was decided about approval `id` to the run that waits for it, and carry on with the run.

    The decision is saved on the checkpoint before anything is done about it. A decision that has been applied is not
    applied again: the run as it stands is carried on if it is unfinished, else its result comes back. An approval past
    its deadline is closed as expired, which rejects the call. Raises `SessionAwaitingApprovalError` while it is open.
    """
    approval = await _cross(store.approvals.get, id)
    if approval is None:
        raise ApprovalNotFoundError(id)
    approval = await _cross(expire_if_due, approval, approvals=store.approvals, now=agent.clock())
    session_id = check_session_id(approval.request.session_id)
    stored = await _cross(store.checkpoints.load, session_id)
    if stored is None:
        raise SessionNotFoundError(session_id)
    checkpoint = stored
    decision = approval.decision
    if waits_for(stored, id):
        if decision is None:
            raise SessionAwaitingApprovalError(session_id, id)
        checkpoint = with_decision(stored, decision, approval.request.call_id)
        _check_tools(agent, checkpoint)
        stored = checkpoint = await _cross(store.checkpoints.save, checkpoint, after=stored)
    if decision is not None:
        await _cross(mark_applied, approval, approvals=store.approvals, now=agent.clock())
    if checkpoint.status is not Status.IN_PROGRESS:
        return result_of(checkpoint)
    return await run_to_pause(agent, checkpoint, saved=stored, store=store, bounds=bounds)


class _Run:
    """One run in this process: the newest checkpoint, what of it is saved, and the loop that moves it."""

    def __init__(
        self,
        agent: AgentDefinition,
        checkpoint: Checkpoint,
        *,
        saved: Checkpoint | None,
        store: Store | None,
        bounds: Bounds,
    ) -> None:
        if agent.provider is None:
            raise ConfigurationError(f"Agent {agent.name!r} has no provider: give it a model.")
        self._agent = agent
        self._provider = agent.provider
        self._checkpoint = checkpoint.but(finish_reason=None) if checkpoint.finish_reason else checkpoint
        self._saved: Checkpoint | None = saved
        self._store = store
        self._bounds = bounds
        self._taken = call_ids(checkpoint.messages)

    async def loop(self) -> Checkpoint:
        _check_tools(self._agent, self._checkpoint)
        try:
            in_time = True
            while in_time and self._checkpoint.status is Status.IN_PROGRESS:
                match next_step(self._checkpoint, max_steps=self._agent.max_steps):
                    case CallModel():
                        in_time = await self._before_deadline(self._bounds.min_model_seconds, self._call_model)
                    case RunCalls(calls):
                        in_time = await self._before_deadline(MIN_TOOL_SECONDS, self._run_calls, calls)
                    case Finish(reason):
                        await self._save(self._finished(self._checkpoint, reason))
            if not in_time:
                await self._out_of_time()
        except ProviderError as error:
            await self._note(error)
            raise
        return self._checkpoint

    async def _before_deadline(self, least: float, act: Callable[..., Any], *arguments: Any) -> bool:
        """Act, unless too little time is left; cut the act off when the time is up. False: it is up."""
        left = self._bounds.remaining()
        if left < least:
            return False
        with anyio.move_on_after(left if left < math.inf else None) as scope:
            await act(*arguments)
        return not scope.cancelled_caught

    async def _call_model(self) -> None:
        asked = self._checkpoint
        if asked.queued:
            asked = asked.but(messages=(*asked.messages, *asked.queued), queued=())
        left = self._bounds.remaining()
        turn = await self._provider.generate(
            ModelRequest(
                instructions=asked.instructions,
                messages=asked.messages,
                tools=self._agent.tool_specs,
                timeout=left if left < math.inf else None,
            )
        )
        await self._save(self._with_turn(asked, turn))

    def _with_turn(self, asked: Checkpoint, turn: ModelTurn) -> Checkpoint:
        message = name_calls(turn.message, taken=self._taken, ids=self._agent.ids)
        answered = asked.but(
            messages=(*asked.messages, message),
            step=asked.step + 1,
            usage=asked.usage + turn.usage,
            finish_reason=None,
            last_error=None,
        )
        return answered if message.tool_calls else self._finished(answered, turn.finish_reason)

    async def _run_calls(self, calls: Sequence[ToolCall]) -> None:
        checkpoint = self._checkpoint
        batch = Batch(
            calls=calls,
            tools=self._agent.toolset,
            decisions=checkpoint.decisions,
            started=checkpoint.started,
            context=self._context,
            concurrency=self._agent.tool_concurrency,
        )
        if (ask := await batch.run(self)) is not None:
            with anyio.CancelScope(shield=True):
                await self._pause(ask)

    async def begin(self, call_ids: Sequence[str]) -> None:
        """Name the calls that must not silently run twice, before they start."""
        await self._save(self._checkpoint.but(started=(*self._checkpoint.started, *call_ids)))

    async def settle(self, results: Sequence[ToolMessage]) -> None:
        await self._save(settle(self._checkpoint, results))

    async def _pause(self, ask: Ask) -> None:
        """Write the approval, then the checkpoint that names it: never a checkpoint that names a missing approval."""
        checkpoint, now = self._checkpoint, self._agent.clock()
        if self._store is None or checkpoint.session_id is None:
            raise ConfigurationError(f"Tool {ask.tool.name!r} needs an approval: run with a session_id and a store.")
        id = approval_id(
            session_id=checkpoint.session_id, run_id=checkpoint.run_id, call_id=ask.call.id, pause=checkpoint.pauses
        )
        request = Requested(
            at=now,
            session_id=checkpoint.session_id,
            run_id=checkpoint.run_id,
            agent=self._agent.name,
            call_id=ask.call.id,
            tool_name=ask.tool.name,
            arguments=ask.arguments,
            digest=approval_digest(ask.tool.name, ask.arguments),
            requested_by=checkpoint.requested_by,
            deadline=now + ask.tool.approval_timeout if ask.tool.approval_timeout else None,
        )
        await _cross(self._store.approvals.request, id, request)
        await self._save(
            checkpoint.but(
                status=Status.AWAITING_APPROVAL,
                finish_reason=FinishReason.AWAITING_APPROVAL,
                approval_id=id,
                pauses=checkpoint.pauses + 1,
                decisions={key: made for key, made in checkpoint.decisions.items() if key != ask.call.id},
            )
        )

    def _context(self, call: ToolCall, grant: ApprovalGrant | None) -> ToolContext:
        return ToolContext(
            tool_call_id=call.id,
            session_id=self._checkpoint.session_id,
            run_id=self._checkpoint.run_id,
            step=self._checkpoint.step,
            approval=grant,
            business_state=self._checkpoint.business_state,
            remaining=self._bounds.remaining,
        )

    def _finished(self, checkpoint: Checkpoint, reason: FinishReason) -> Checkpoint:
        if checkpoint.queued:  # said when no step was left: the next turn answers it
            checkpoint = checkpoint.but(messages=(*checkpoint.messages, *checkpoint.queued), queued=())
        outcome = {"finish_reason": reason, "usage": checkpoint.usage, "answer": len(checkpoint.messages) - 1}
        return checkpoint.but(
            status=Status.FINISHED,
            finish_reason=reason,
            turns=checkpoint.turns + 1,
            committed=len(checkpoint.messages),
            decisions={},
            requests={
                key: accepted.but(**outcome) if accepted.run_id == checkpoint.run_id else accepted
                for key, accepted in checkpoint.requests.items()
            },
        )

    async def _out_of_time(self) -> None:
        """Say so on the checkpoint, once: slices that get nowhere are counted by the revision that they start from."""
        saved = self._saved
        if saved is not None and self._checkpoint.but(finish_reason=FinishReason.DEADLINE) == saved:
            self._checkpoint = saved
        else:
            await self._save(self._checkpoint.but(finish_reason=FinishReason.DEADLINE))

    async def _note(self, error: DurableError) -> None:
        """Keep on the checkpoint why the run stopped. A run that has saved nothing yet leaves nothing behind."""
        if self._saved is not None:
            failed = LastError(code=error.code, message=str(error), retryable=error.retryable, at=self._agent.clock())
            await self._save(self._checkpoint.but(last_error=failed))

    async def _save(self, checkpoint: Checkpoint) -> None:
        """Make this the newest checkpoint, in the store if there is one. A save that fails stops the run."""
        if self._store is not None:
            with anyio.CancelScope(shield=True):
                checkpoint = await _cross(self._store.checkpoints.save, checkpoint, after=self._saved)
            self._saved = checkpoint
        self._checkpoint = checkpoint


def _check_tools(agent: AgentDefinition, checkpoint: Checkpoint) -> None:
    """A call that waits for its result must still have its tool; a name that never was one is told to the model."""
    gone = {call.name for call in pending_calls(checkpoint) if call.name not in agent.toolset}
    if gone := sorted(name for name in gone if had_tool(checkpoint, name)):
        raise ResumeToolMissingError(checkpoint.session_id, gone)


async def _cross(call: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """The one crossing from the asynchronous run into the synchronous stores."""
    return await anyio.to_thread.run_sync(lambda: call(*arguments, **options))
