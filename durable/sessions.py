"""Conversation sessions: a chat that lives for weeks, in one place, whoever asks next.

    chat = agent.session("user-42")
    await chat.send("My name is Sara.")
    result = await chat.send("What is my name?")

A session is a view of its checkpoint (`durable.conversation`): what a turn needs to survive a crash and what the next
turn starts from are one record. An input is saved as accepted before it is worked on, and the mark is gone with the
save that finishes the turn.
"""

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Literal, Self

import anyio
from pydantic import JsonValue

from durable import conversation
from durable.admission import Input, admitted, as_messages, recorded_result, redelivered
from durable.approvals import cancel
from durable.attachments import Attachment, resolved
from durable.bounds import Watch
from durable.conversation import ConversationSessionRecord
from durable.counting import counted
from durable.crossing import cross, save_checkpoint
from durable.definition import AgentDefinition
from durable.errors import (
    ConfigurationError,
    DurableError,
    SessionNotFoundError,
    WaitAbortedError,
)
from durable.events import Listener
from durable.executor import run_to_pause
from durable.fork import fork_messages
from durable.locks import Held, InProcessLock, SessionLock, Unlocked
from durable.messages import Conversational, Message
from durable.outcome import RunResult, result_of
from durable.ports import MaintainedCheckpoints, Store
from durable.records import Checkpoint, Status, check_session_id
from durable.resume import resume_after_approval
from durable.signals import AbortSignal, cancelled_by
from durable.streams import RunStream

_log = logging.getLogger("durable")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationSession:
    """One conversation with one agent. Calls on one session are serialized by its lock.

    A `durable` agent is one with a store of its own, which is the session's, too: a turn is saved step by step, and
    one that was interrupted is resumed. Of any other agent's turns only the finished ones are kept.
    """

    id: str
    agent: AgentDefinition
    store: Store
    lock: SessionLock
    durable: bool

    async def send(
        self,
        input: Input,
        *,
        attachments: Sequence[Attachment] = (),
        key: str | None = None,
        own_turn: bool = False,
        requested_by: str | None = None,
        context: JsonValue = None,
        listener: Listener | None = None,
        signal: AbortSignal | None = None,
    ) -> RunResult:
        """Say something, and give the agent's answer, which is saved by then.

        On an unfinished turn a durable agent goes on from it by the rules of `plan.admit`, or with `own_turn` finishes
        it first; any other agent's turn is replaced. `attachments` become parts of the message that is stored. `key`
        names the request: sent again, it gives the outcome that it had and never runs twice. A signal that comes while
        the session is somebody else's raises `WaitAbortedError`; later it stops the turn, which comes back as aborted.
        Raises what `execute` raises; `history` is then as it was.
        """
        said = await _said(input, attachments, key, own_turn, requested_by, context)
        return await self._send(said, Watch(listener=listener, signal=signal))

    def stream(
        self,
        input: Input,
        *,
        attachments: Sequence[Attachment] = (),
        key: str | None = None,
        own_turn: bool = False,
        requested_by: str | None = None,
        context: JsonValue = None,
    ) -> RunStream:
        """The same as `send`, as a stream of events. `result` settles after the save; leaving early aborts the turn."""

        async def begin(watch: Watch) -> RunResult:
            said = await _said(input, attachments, key, own_turn, requested_by, context)
            return await self._send(said, watch)

        return RunStream(begin)

    async def resume(self, *, listener: Listener | None = None, signal: AbortSignal | None = None) -> RunResult | None:
        """Carry an interrupted turn on; None when nothing is pending.

        A turn that waited for a human goes on once that is decided (`SessionAwaitingApprovalError` until then). Raises
        `ConfigurationError` for an agent without a store of its own.
        """
        if not self.durable:
            raise ConfigurationError(f"Agent {self.agent.name!r} has no store: there is no run to resume.")
        watch = Watch(listener=listener, signal=signal)
        async with self._held(signal) as held:
            watch = replace(watch, check=held.check)
            stored = await self._stored()
            if stored is None or stored.status is Status.FINISHED:
                return None
            if stored.approval_id is not None:
                approval = stored.approval_id
                result = await resume_after_approval(self.agent, approval, store=self.store, watch=watch)
            else:
                result = await run_to_pause(self.agent, stored, saved=stored, store=self.store, watch=watch)
            return await self._maintained(result)

    async def load(self) -> ConversationSessionRecord | None:
        """The record; None for a session that was never sent to, was cleared or has expired."""
        stored = await self._stored()
        return None if stored is None else conversation.record_of(stored)

    async def history(self) -> list[Conversational]:
        """The messages of the finished turns, in order."""
        stored = await self._stored()
        return [] if stored is None else list(stored.messages[: stored.committed])

    async def fork(self, new_id: str, *, message_count: int | None = None) -> Self:
        """Begin a session with the first messages of this one (None: all), unchanged, and give it.

        Raises `SessionExistsError` when there is a session `new_id`, and what `conversation.check_cut` raises.
        """
        check_session_id(new_id)
        async with self._held() as held:
            await held.check()
            count = message_count
            await fork_messages(self.agent, self.id, store=self.store, message_count=count, new_session_id=new_id)
        return replace(self, id=new_id)

    async def truncate(self, message_count: int) -> None:
        """Keep the first messages and drop the others; raises what `conversation.check_cut` raises."""
        async with self._held() as held:
            stored = await self._there()
            cut = conversation.truncated(stored, message_count)
            if len(cut.messages) < len(stored.messages):
                await held.check()
                await save_checkpoint(self.agent, self.store, cut, after=stored)

    async def clear(self) -> None:
        """Delete the session. What its turn waited for is cancelled; a run elsewhere stops at its next save."""
        async with self._held():
            stored = await self._stored()
            if stored is not None and stored.approval_id is not None:
                approval = await cross(self.store.approvals.get, stored.approval_id)
                if approval is not None:
                    await cross(cancel, approval, approvals=self.store.approvals, now=self.agent.clock())
            await cross(self.store.checkpoints.delete, self.id)

    async def _send(self, said: "_Said", watch: Watch) -> RunResult:
        with counted():
            async with self._held(watch.signal) as held:
                watch = replace(watch, check=held.check)
                stored = await self._stored()
                known = redelivered(stored, *said.request) if said.request is not None else None
                if known is not None and stored is not None:
                    if known.finish_reason is not None or known.run_id != stored.run_id:
                        return recorded_result(stored, known)
                    said = _Said()  # its run is not over: it goes on
                if said.own_turn and self.durable and stored is not None:
                    stored = await self._finished_before(stored, said, watch)
                return await self._turn(stored, said, held, watch)

    async def _turn(self, stored: Checkpoint | None, said: "_Said", held: Held, watch: Watch) -> RunResult:
        before = stored if self.durable or stored is None else conversation.replaceable(stored)
        accepted = self._admitted(before, said)
        if accepted.status is Status.FINISHED:
            return result_of(accepted, output=self.agent.output_adapter)
        await held.check()
        if accepted is not stored:
            accepted = await save_checkpoint(self.agent, self.store, accepted, after=stored)
        if self.durable:
            result = await run_to_pause(self.agent, accepted, saved=accepted, store=self.store, watch=watch)
        else:
            result = await self._run_in_memory(before, accepted, watch)
        return await self._maintained(result)

    async def _finished_before(self, stored: Checkpoint, said: "_Said", watch: Watch) -> Checkpoint:
        """The session with its unfinished turn carried to its end, if what is said would only be added to that."""
        added = self._admitted(stored, said)
        if stored.status is Status.FINISHED or added is stored or added.run_id != stored.run_id:
            return stored
        result = await run_to_pause(self.agent, stored, saved=stored, store=self.store, watch=watch)
        if result.checkpoint.status is Status.IN_PROGRESS:
            raise WaitAbortedError(self.id)
        return result.checkpoint

    def _admitted(self, stored: Checkpoint | None, said: "_Said") -> Checkpoint:
        return admitted(
            self.agent,
            stored,
            said.messages,
            session_id=self.id,
            requested_by=said.requested_by,
            request=said.request,
            context=said.context,
        )

    async def _run_in_memory(self, before: Checkpoint | None, accepted: Checkpoint, watch: Watch) -> RunResult:
        """Run a turn of which only the end is saved. One that has no end leaves the session as it was before."""
        try:
            result = await run_to_pause(self.agent, accepted, saved=None, store=None, watch=watch)
            if result.checkpoint.status is Status.FINISHED:
                await watch.check()
                saved = await save_checkpoint(self.agent, self.store, result.checkpoint, after=accepted)
                return replace(result, checkpoint=saved)
        except (Exception, anyio.get_cancelled_exc_class()):
            with anyio.CancelScope(shield=True):
                await self._unmark(before, accepted)
            raise
        await self._unmark(before, accepted)
        return result

    async def _unmark(self, before: Checkpoint | None, accepted: Checkpoint) -> None:
        """Take the pending mark away: nothing of the turn can be resumed. A mark that stays is replaced by a send."""
        left = conversation.without_pending(accepted) if before is None else before
        try:
            await cross(self.store.checkpoints.save, left, after=accepted)
        except DurableError as error:
            _log.warning("Session %r keeps the mark of a turn that is over: %s.", self.id, error.code)

    async def _maintained(self, result: RunResult) -> RunResult:
        """Keep the session short to load. What fails here is left for the next turn: this one is saved."""
        checkpoints = self.store.checkpoints
        if result.checkpoint.status is not Status.FINISHED or not isinstance(checkpoints, MaintainedCheckpoints):
            return result
        try:
            maintained = await cross(checkpoints.maintain, self.id, after=result.checkpoint)
        except DurableError as error:
            _log.warning("Session %r was not maintained: %s.", self.id, error.code)
            return result
        return replace(result, checkpoint=maintained)

    async def _stored(self) -> Checkpoint | None:
        return await cross(self.store.checkpoints.load, self.id)

    async def _there(self) -> Checkpoint:
        if (stored := await self._stored()) is None:
            raise SessionNotFoundError(self.id)
        return stored

    @asynccontextmanager
    async def _held(self, signal: AbortSignal | None = None) -> AsyncGenerator[Held]:
        held = await self._acquired(signal)
        try:
            yield held
        finally:
            with anyio.CancelScope(shield=True):
                await held.release()

    async def _acquired(self, signal: AbortSignal | None) -> Held:
        """Wait for the session; a signal that comes first ends the waiting."""
        if signal is None:
            return await self.lock.acquire(self.id)
        held: Held | None = None
        failure: BaseException | None = None
        async with cancelled_by(signal):
            try:
                held = await self.lock.acquire(self.id)
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as error:
                failure = error  # out of the task group, which would wrap it
        if failure is not None:
            raise failure
        if held is None:
            raise WaitAbortedError(self.id)
        if signal.aborted:
            await held.release()
            raise WaitAbortedError(self.id)
        return held


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """What a call says, and how."""

    messages: tuple[Message, ...] = ()
    request: tuple[str, str] | None = None
    own_turn: bool = False
    requested_by: str | None = None
    context: JsonValue = None


async def _said(
    input: Input,
    attachments: Sequence[Attachment],
    key: str | None,
    own_turn: bool,
    requested_by: str | None,
    context: JsonValue,
) -> _Said:
    messages = as_messages(input)
    if attachments:
        messages = conversation.with_parts(messages, await resolved(attachments))
    request = None if key is None else (key, conversation.digest_of(messages, context))
    return _Said(messages=messages, request=request, own_turn=own_turn, requested_by=requested_by, context=context)


def session_of(
    agent: AgentDefinition,
    own: Store | None,
    id: str,
    *,
    store: Store | None = None,
    lock: SessionLock | Literal[False] | None = None,
) -> ConversationSession:
    """Give the session `id` of an agent, whose `own` store is the one it has, if any; see `Agent.session`."""
    if store is not None and own is not None and store is not own:
        raise ConfigurationError(
            f"Agent {agent.name!r} has a store, and its runs are its sessions: leave `store` out, or give the same."
        )
    kept_in = own or store
    if kept_in is None:
        raise ConfigurationError(f"Agent {agent.name!r} has no store: give the session one.")
    if lock is None:
        lock = InProcessLock(kept_in.checkpoints)
    return ConversationSession(
        id=check_session_id(id), agent=agent, store=kept_in, lock=lock or Unlocked(), durable=own is not None
    )
