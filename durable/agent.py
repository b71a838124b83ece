"""The façade that people import.

agent = Agent(name="desk", instructions="…", tools=[lookup_order, refund], provider=…, store=…)
result = await agent.send("Refund order 17, please.", session_id="chat-42")
if result.finish_reason == "awaiting-approval":
    result = await agent.approvals.resolve(result.approval_id, approved=True, by="ada")
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from pydantic import JsonValue

from durable.admission import Input
from durable.approval_stream import Approval, ApprovalStatus
from durable.approvals import ApprovalDecision, apply_deadline, decide
from durable.bounds import Watch
from durable.counting import counted
from durable.crossing import cross
from durable.definition import AgentDefinition
from durable.errors import ApprovalNotFoundError, ConfigurationError
from durable.events import Listener
from durable.executor import execute, run_to_pause
from durable.fork import Fork, fork
from durable.locks import SessionLock
from durable.outcome import RunResult, result_of
from durable.patches import NO_PATCH, Patch
from durable.ports import HistoryEntry, Page, Provider, Store
from durable.records import Checkpoint, Status, check_session_id
from durable.resolving import tools_at
from durable.resume import resume_after_approval
from durable.sessions import ConversationSession, session_of
from durable.signals import AbortSignal
from durable.streams import RunStream
from durable.tools import Tool


@dataclass(frozen=True, kw_only=True)
class Agent(AgentDefinition):
    """An agent, and optionally the store in which its runs sleep."""

    store: Store | None = None

    def bind(
        self,
        *,
        provider: Provider | None = None,
        make_provider: Callable[[str], Provider] | None = None,
        store: Store | None = None,
        approvers: Sequence[str] = (),
    ) -> Self:
        """Give a copy with what a deployment provides; the agent's own win."""
        return replace(
            self,
            provider=self.provider or provider,
            make_provider=self.make_provider or make_provider,
            store=self.store or store,
            approvers=self.approvers or approvers,
        )

    async def send(
        self,
        input: Input,
        *,
        session_id: str | None = None,
        requested_by: str | None = None,
        context: JsonValue = None,
        listener: Listener | None = None,
        signal: AbortSignal | None = None,
    ) -> RunResult:
        """Run on `input`: a new session, an unfinished one or the next turn (see `execute`)."""
        return await execute(
            self,
            input,
            session_id=session_id,
            store=self.store if session_id is not None else None,
            approvals=self.store.approvals if self.store is not None else None,
            requested_by=requested_by,
            context=context,
            watch=Watch(listener=listener, signal=signal),
        )

    def stream(
        self,
        input: Input,
        *,
        session_id: str | None = None,
        requested_by: str | None = None,
        context: JsonValue = None,
    ) -> RunStream:
        """The same as `send`, as a stream of events with the result at its end; leaving it early aborts the run."""
        return RunStream(
            lambda watch: execute(
                self,
                input,
                session_id=session_id,
                store=self.store if session_id is not None else None,
                approvals=self.store.approvals if self.store is not None else None,
                requested_by=requested_by,
                context=context,
                watch=watch,
            )
        )

    async def resume(
        self, session_id: str, *, listener: Listener | None = None, signal: AbortSignal | None = None
    ) -> RunResult | None:
        """Carry an interrupted run on; None when the session is unknown or nothing of it is pending."""
        store = self._store
        with counted():
            stored = await cross(store.checkpoints.load, check_session_id(session_id))
            if stored is None or stored.status is Status.FINISHED:
                return None
            return await run_to_pause(
                self, stored, saved=stored, store=store, watch=Watch(listener=listener, signal=signal)
            )

    async def fork(
        self,
        session_id: str,
        *,
        from_step: int | None = None,
        revision: int | None = None,
        patch: Patch = NO_PATCH,
        new_session_id: str | None = None,
        requested_by: str | None = None,
    ) -> Fork:
        """Make a new session of a step of another one's history; `resume` carries it on (see `fork`)."""
        return await fork(
            self,
            session_id,
            store=self._store,
            from_step=from_step,
            revision=revision,
            patch=patch,
            new_session_id=new_session_id,
            requested_by=requested_by,
        )

    def session(
        self, id: str, *, store: Store | None = None, lock: SessionLock | Literal[False] | None = None
    ) -> ConversationSession:
        """Give a conversation with this agent, kept in its store; one without a store keeps it in `store`.

        `lock` says who serializes the calls: by default this process, for all sessions on the same store; `LeaseLock`
        for several processes; False for nobody.
        """
        return session_of(self, self.store, id, store=store, lock=lock)

    @property
    def approvals(self) -> "Approvals":
        return Approvals(self, self._store)

    @property
    def _store(self) -> Store:
        if self.store is None:
            raise ConfigurationError(f"Agent {self.name!r} has no store.")
        return self.store


@dataclass(frozen=True, slots=True)
class Approvals:
    """The approvals that runs of an agent wait for."""

    _agent: Agent
    _store: Store

    async def list(
        self, *, status: ApprovalStatus | None = ApprovalStatus.PENDING, limit: int = 50, cursor: str | None = None
    ) -> Page[Approval]:
        return await cross(self._store.approvals.list, status=status, limit=limit, cursor=cursor)

    async def get(self, id: str) -> Approval:
        """Give the approval as it stands, or raise `ApprovalNotFoundError`."""
        approval = await cross(self._store.approvals.get, id)
        if approval is None:
            raise ApprovalNotFoundError(id)
        return approval

    async def check(self, id: str) -> Approval:
        """Give the approval with what a deadline that has come means on its record: its next level, or `expired`.

        For whoever runs an agent without a deployment: ask again at its `deadline`, and tell its `channels`.
        """
        approval = await self.get(id)
        return await cross(apply_deadline, approval, approvals=self._store.approvals, now=self._agent.clock())

    async def resolve(
        self,
        id: str,
        *,
        approved: bool,
        note: str | None = None,
        args: dict[str, JsonValue] | None = None,
        digest: str | None = None,
        by: str | None = None,
        listener: Listener | None = None,
        signal: AbortSignal | None = None,
    ) -> RunResult:
        """Decide, then carry the run on. Deciding again gives the run as it stands; see `durable.approvals.decide`.

        While more approvals are missing the run stays paused, and is given as it stands. `digest` is that of the
        arguments that were looked at, where somebody has edited the model's.
        """
        said = ApprovalDecision(id=id, approved=approved, note=note, args=args, digest=digest, by=by)
        return await self._apply(said, Watch(listener=listener, signal=signal))

    async def answer(
        self,
        id: str,
        answer: str,
        *,
        note: str | None = None,
        by: str | None = None,
        listener: Listener | None = None,
        signal: AbortSignal | None = None,
    ) -> RunResult:
        """Answer a question, then carry the run on. Who declines to answer rejects it: `resolve(id, approved=False)`.

        Raises `InvalidDecisionError`, with the `options`, for what the question does not take.
        """
        said = ApprovalDecision(id=id, approved=True, answer=answer, note=note, by=by)
        return await self._apply(said, Watch(listener=listener, signal=signal))

    async def _apply(self, said: ApprovalDecision, watch: Watch) -> RunResult:
        agent, store = self._agent, self._store
        outcome = await cross(
            decide,
            said,
            approvals=store.approvals,
            checkpoints=store.checkpoints,
            tools=await tools_for(agent, store, said.id) if said.args is not None else {},
            now=agent.clock(),
        )
        if outcome.approval.status is ApprovalStatus.PENDING and (waiting := await _paused(store, outcome.approval)):
            return result_of(waiting)
        return await resume_after_approval(agent, said.id, store=store, watch=watch)


async def _paused(store: Store, approval: Approval) -> Checkpoint | None:
    """The run that waits for the approval, wherever it is kept."""
    session_id, snapshot = approval.request.session_id, approval.request.snapshot
    if snapshot is not None or session_id is None:
        return snapshot
    return await cross(store.checkpoints.load, session_id)


async def tools_for(agent: AgentDefinition, store: Store, approval_id: str) -> Mapping[str, Tool]:
    """The tools of the agent that waits for this approval, to check edited arguments against; none when it is gone."""
    approval = await cross(store.approvals.get, approval_id)
    checkpoint = await _paused(store, approval) if approval is not None else None
    if checkpoint is None or approval is None:
        return {}
    return await tools_at(agent, checkpoint, approval.request.within)


async def get_checkpoint_history(
    checkpoints: Any, session_id: str, *, limit: int | None = None
) -> "list[HistoryEntry] | None":
    """The newest saves of a session, newest first; None for a store that keeps no history."""
    history: Callable[..., Any] | None = getattr(checkpoints, "history", None)
    return None if history is None else await cross(history, check_session_id(session_id), limit=limit)
