"""A new session from a step of another one's history: "what if the tool had said something else?"

    rain = Patch(tool_result=PatchedResult("call_weather", {"forecast": "rain"}))
    forked = await fork(agent, "trip", store=store, from_step=1, patch=rain)
    result = await execute(agent, [], session_id=forked.session_id, store=store)

The source is only read. What it knows goes into the fork, except what belongs to its own requests and decisions:

    kept      the transcript, results and calls under way, input held back, usage, steps and time spent, the state, the
              agent as the run began with it
    dropped   approvals and decisions (they are asked anew), accepted requests, the last error, what it took
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from typing import Final

from durable import conversation
from durable.admission import redelivered
from durable.crossing import cross, save_checkpoint
from durable.definition import AgentDefinition
from durable.errors import (
    CheckpointNotFoundError,
    ConfigurationError,
    InvalidInputError,
    SessionExistsError,
    SessionNotFoundError,
    StaleCheckpointError,
)
from durable.messages import AssistantMessage
from durable.nesting import undecided
from durable.patches import NO_PATCH, Patch, patched
from durable.ports import CheckpointHistory, CheckpointStore, HistoryEntry, Store
from durable.records import MAX_SESSION_ID, AcceptedRequest, Checkpoint, ForkedFrom, Status, check_session_id

KEPT: Final = frozenset(
    {
        *(
            "agent",
            "messages",
            "results",
            "started",
            "queued",
            "step",
            "usage",
            "worked_seconds",
            "output_retries",
            "was_cut",
        ),
        *("business_state", "instructions", "fingerprint", "run_config", "turns", "committed"),
    }
)
"""The fields of the source that its fork begins with as they are; `suspended` comes without what it had decided."""


@dataclass(frozen=True, slots=True)
class Fork:
    """A session that was forked, and the step that it goes on from."""

    session_id: str
    step: int
    checkpoint: Checkpoint


async def fork(
    agent: AgentDefinition,
    session_id: str,
    *,
    store: Store,
    from_step: int | None = None,
    revision: int | None = None,
    patch: Patch = NO_PATCH,
    new_session_id: str | None = None,
    requested_by: str | None = None,
    request: tuple[str, str] | None = None,
) -> Fork:
    """Save a new session that goes on from a listed save of `session_id`, with the patch applied; nothing runs.

    The save is the newest one of `from_step`, or that of `revision`. The fork is unfinished and is resumed like any
    unfinished run; a fork of a finished save stays finished unless input is appended or the answer taken out.
    `new_session_id` names it, by default `<session_id>.fork-<n>` with the first `n` that is free. `request` is the key
    and the body's digest of a request that a deployment accepts: sent again, it gives the fork that it made.

    Raises `CheckpointNotFoundError` that lists the steps there are, `SessionExistsError` for a name that is taken,
    `InvalidInputError` for a patch that does not fit, and `ConfigurationError` for a store that keeps no history.
    """
    if (made := await _made_already(store, new_session_id, request)) is not None:
        return made
    entry = find(await listed(store.checkpoints, session_id), session_id, from_step=from_step, revision=revision)
    forked = fork_of(entry, patch, run_id=agent.ids(), now=agent.clock(), requested_by=requested_by)
    return await _claimed(agent, store, forked, session_id, new_session_id, request)


async def fork_messages(
    agent: AgentDefinition,
    session_id: str,
    *,
    store: Store,
    message_count: int | None = None,
    new_session_id: str | None = None,
    requested_by: str | None = None,
    request: tuple[str, str] | None = None,
) -> Fork:
    """Save a new session that begins with the first messages of `session_id` (None: all); the rest is as in `fork`.

    It is a finished conversation, for the next message to go on from. Raises `SessionNotFoundError`,
    `SessionExistsError`, and what `conversation.check_cut` raises.
    """
    if (made := await _made_already(store, new_session_id, request)) is not None:
        return made
    stored = await cross(store.checkpoints.load, check_session_id(session_id))
    if stored is None:
        raise SessionNotFoundError(session_id)
    forked = conversation.forked(stored, message_count, run_id=agent.ids(), now=agent.clock())
    return await _claimed(agent, store, forked.but(requested_by=requested_by), session_id, new_session_id, request)


async def listed(checkpoints: CheckpointStore, session_id: str) -> list[HistoryEntry]:
    """The saves that can be forked, newest first. Raises `ConfigurationError` for a store that keeps no history."""
    check_session_id(session_id)
    if not isinstance(checkpoints, CheckpointHistory):
        raise ConfigurationError("This checkpoint store keeps no history: nothing can be forked.")
    return await cross(checkpoints.history, session_id)


def saves_behind(checkpoints: CheckpointStore, checkpoint: Checkpoint) -> Iterator[HistoryEntry]:
    """The listed saves that led to a checkpoint, newest first: its session's, then its source's up to the fork, and on.

    A session that is gone, and a store that keeps no history, give none.
    """
    session_id, until, seen = checkpoint.session_id, checkpoint.revision, set[str]()
    while session_id is not None and session_id not in seen and isinstance(checkpoints, CheckpointHistory):
        seen.add(session_id)
        entries = [entry for entry in checkpoints.history(session_id) if entry.revision <= until]
        yield from entries
        origin = entries[0].checkpoint.forked_from if entries else checkpoint.forked_from
        session_id, until = (origin.session_id, origin.revision) if origin else (None, -1)


def find(
    entries: list[HistoryEntry], session_id: str, *, from_step: int | None = None, revision: int | None = None
) -> HistoryEntry:
    """The newest save of a step, or the save of a revision: `CheckpointNotFoundError` where it is not listed."""
    if (from_step is None) == (revision is None):
        raise InvalidInputError("Give a step or a revision to fork from, and not both.")
    for entry in entries:
        if entry.step == from_step or entry.revision == revision:
            return entry
    raise CheckpointNotFoundError(
        session_id,
        f"step {from_step}" if revision is None else f"revision {revision}",
        steps=sorted({entry.step for entry in entries}),
        revisions=[entry.revision for entry in entries],
    )


def fork_of(
    entry: HistoryEntry, patch: Patch, *, run_id: str, now: datetime, requested_by: str | None = None
) -> Checkpoint:
    """The checkpoint that a fork begins with, not named yet: pure."""
    source = entry.checkpoint
    base = Checkpoint(
        **{name: getattr(source, name) for name in KEPT},
        session_id=None,
        run_id=run_id,
        suspended=undecided(source).suspended,
        requested_by=requested_by,
        forked_from=ForkedFrom(
            session_id=source.session_id or "",
            revision=entry.revision,
            step=entry.step,
            message_count=len(source.messages),
        ),
        began_at=now,
        created_at=now,
        updated_at=now,
    )
    forked = patched(base, patch)
    if source.status is not Status.FINISHED or patch.append_input is not None:
        return forked
    if patch.messages is not None and not _is_answered(forked):
        return forked
    return forked.but(status=Status.FINISHED, finish_reason=source.finish_reason, committed=len(forked.messages))


def default_id(session_id: str, suffix: str) -> str:
    """`<session_id>.<suffix>`; where that is too long, the id is cut and gets 8 hex digits of its hash."""
    name = f"{session_id}.{suffix}"
    if len(name) <= MAX_SESSION_ID:
        return name
    mark = f"-{hashlib.sha256(session_id.encode()).hexdigest()[:8]}.{suffix}"
    return session_id[: MAX_SESSION_ID - len(mark)] + mark


async def _claimed(
    agent: AgentDefinition,
    store: Store,
    forked: Checkpoint,
    session_id: str,
    new_session_id: str | None,
    request: tuple[str, str] | None,
) -> Fork:
    """Save it under its name, or the first that is free; what this request made meanwhile is the fork that it gets."""
    if request is not None:
        key, digest = request
        forked = forked.but(requests={key: AcceptedRequest(digest=digest, run_id=forked.run_id)})
    if new_session_id is None:
        return await _claim_free(agent, store, forked, session_id)
    try:
        return await _claim(agent, store, forked, check_session_id(new_session_id))
    except StaleCheckpointError:
        if (made := await _made_already(store, new_session_id, request)) is not None:
            return made
        raise SessionExistsError(new_session_id) from None


async def _claim_free(agent: AgentDefinition, store: Store, forked: Checkpoint, session_id: str) -> Fork:
    for n in count(1):
        try:
            return await _claim(agent, store, forked, default_id(session_id, f"fork-{n}"))
        except StaleCheckpointError:
            pass  # taken, perhaps at this moment
    raise AssertionError("numbers do not end")


async def _claim(agent: AgentDefinition, store: Store, forked: Checkpoint, name: str) -> Fork:
    """Save it under this name, or raise `StaleCheckpointError` when there is such a session."""
    return _as_fork(await save_checkpoint(agent, store, forked.but(session_id=name), after=None))


async def _made_already(store: Store, new_session_id: str | None, request: tuple[str, str] | None) -> Fork | None:
    """The fork that this very request has made. Raises `RequestConflictError` for its key with another body."""
    if new_session_id is None or request is None:
        return None
    stored = await cross(store.checkpoints.load, check_session_id(new_session_id))
    if stored is None or redelivered(stored, *request) is None or stored.forked_from is None:
        return None
    return _as_fork(stored)


def _as_fork(checkpoint: Checkpoint) -> Fork:
    assert checkpoint.forked_from is not None
    return Fork(checkpoint.session_id or "", checkpoint.forked_from.step, checkpoint)


def _is_answered(checkpoint: Checkpoint) -> bool:
    last = checkpoint.messages[-1] if checkpoint.messages else None
    return isinstance(last, AssistantMessage) and not last.tool_calls
