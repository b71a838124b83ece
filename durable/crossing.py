"""The one crossing from the asynchronous run into the synchronous stores."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import anyio.lowlevel
import anyio.to_thread

from durable.definition import AgentDefinition
from durable.errors import StaleCheckpointError, StoreUnavailableError
from durable.ports import Store
from durable.records import Checkpoint

T = TypeVar("T")

SAVE_ATTEMPTS = 4
FIRST_PAUSE = 0.1
"""Seconds before the second try of a save; each further pause is twice as long, all with full jitter."""


async def cross(call: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Call a store in a worker thread; one that says that it does not block (`blocks = False`) is called in place.

    Others have their turn either way, so that an abort or a time-out is noticed between two saves.
    """
    if getattr(getattr(call, "__self__", None), "blocks", True):
        return await anyio.to_thread.run_sync(partial(call, *arguments, **options))
    await anyio.lowlevel.cancel_shielded_checkpoint()
    return call(*arguments, **options)


async def save_checkpoint(
    agent: AgentDefinition, store: Store, checkpoint: Checkpoint, *, after: Checkpoint | None
) -> Checkpoint:
    """Save, again with jitter while the store does not answer; every other failure is raised at once.

    A store that did not answer may have written. So a stale save after such a failure is looked at: what stands there
    may be our own.
    """
    unanswered = 0
    while True:
        try:
            return await cross(store.checkpoints.save, checkpoint, after=after)
        except StoreUnavailableError:
            unanswered += 1
            if unanswered == SAVE_ATTEMPTS:
                raise
            await agent.sleep(agent.random() * FIRST_PAUSE * 2 ** (unanswered - 1))
        except StaleCheckpointError:
            written = await _our_own(store, checkpoint, after) if unanswered else None
            if written is None:
                raise
            return written


async def _our_own(store: Store, checkpoint: Checkpoint, after: Checkpoint | None) -> Checkpoint | None:
    """The checkpoint as it was saved by an earlier try, if that is what is stored now."""
    stored = await cross(store.checkpoints.load, checkpoint.session_id or "")
    if stored is None or (after is not None and stored.revision != after.revision + 1):
        return None
    ours = checkpoint.but(revision=stored.revision, created_at=stored.created_at, updated_at=stored.updated_at)
    return ours if ours == stored else None
