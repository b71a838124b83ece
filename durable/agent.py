"""The façade that people import.

agent = Agent(name="desk", instructions="…", tools=[lookup_order, refund], provider=…, store=…)
result = await agent.send("Refund order 17, please.", session_id="chat-42")
if result.finish_reason == "awaiting-approval":
    result = await agent.approvals.resolve(result.approval_id, approved=True, by="ada")
"""

from dataclasses import dataclass, replace
from typing import Self

import anyio.to_thread
from pydantic import JsonValue

from durable.admission import Input
from durable.approvals import ApprovalDecision, decide
from durable.definition import AgentDefinition
from durable.errors import ApprovalNotFoundError, ConfigurationError
from durable.executor import execute, resume_after_approval, run_to_pause
from durable.outcome import RunResult
from durable.ports import Page, Provider, Store
from durable.records import Approval, ApprovalStatus, Status, check_session_id


@dataclass(frozen=True, kw_only=True)
class Agent(AgentDefinition):
    """An agent, and optionally the store in which its runs sleep."""

    store: Store | None = None

    def bind(self, *, provider: Provider | None = None, store: Store | None = None) -> Self:
        """Give a copy with what a deployment provides; the agent's own provider and store win."""
        return replace(self, provider=self.provider or provider, store=self.store or store)

    async def send(self, input: Input, *, session_id: str | None = None, requested_by: str | None = None) -> RunResult:
        """Run on `input`: a new session, an unfinished one or the next turn (see `execute`)."""
        store = self.store if session_id is not None else None
        return await execute(self, input, session_id=session_id, store=store, requested_by=requested_by)

    async def resume(self, session_id: str) -> RunResult | None:
        """Carry an interrupted run on; None when the session is unknown or nothing of it is pending."""
        store = self._store
        stored = await anyio.to_thread.run_sync(store.checkpoints.load, check_session_id(session_id))
        if stored is None or stored.status is Status.FINISHED:
            return None
        return await run_to_pause(self, stored, saved=stored, store=store)

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
        return await anyio.to_thread.run_sync(
            lambda: self._store.approvals.list(status=status, limit=limit, cursor=cursor)
        )

    async def get(self, id: str) -> Approval:
        """Give the approval as it stands, or raise `ApprovalNotFoundError`."""
        approval = await anyio.to_thread.run_sync(self._store.approvals.get, id)
        if approval is None:
            raise ApprovalNotFoundError(id)
        return approval

    async def resolve(
        self,
        id: str,
        *,
        approved: bool,
        note: str | None = None,
        args: dict[str, JsonValue] | None = None,
        by: str | None = None,
    ) -> RunResult:
        """Decide, then carry the run on. Deciding again gives the run as it stands; see `durable.approvals.decide`."""
        decision = ApprovalDecision(id=id, approved=approved, note=note, args=args, by=by)
        agent, store = self._agent, self._store
        await anyio.to_thread.run_sync(
            lambda: decide(
                decision,
                approvals=store.approvals,
                checkpoints=store.checkpoints,
                tools=agent.toolset,
                now=agent.clock(),
            )
        )
        return await resume_after_approval(agent, id, store=store)
