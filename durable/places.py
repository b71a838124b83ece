"""Where the newest checkpoint of a run is, and how it moves on.

A run has one checkpoint, and a sub-agent's is a part of it. So a change is a function: it is applied to what is the
newest at that moment, one at a time, whichever of the agents that work at once it comes from.
"""

from collections.abc import Callable
from typing import Protocol

import anyio

from durable.capacity import NOTHING, Capacity
from durable.counting import Tally
from durable.crossing import save_checkpoint
from durable.definition import AgentDefinition
from durable.errors import LeaseLostError, StaleCheckpointError
from durable.events import CheckpointSaved, Emitter
from durable.nesting import with_child
from durable.ports import Store
from durable.records import Checkpoint

Change = Callable[[Checkpoint], Checkpoint]


class Save(Protocol):
    async def __call__(self, change: Change, *, write: bool = True) -> None: ...


class WrittenOff(Exception):
    """The call that a sub-agent works for has its result already: the run was stopped and did not wait for it."""


class Place(Protocol):
    """Where the checkpoint of one agent in a run is kept.

    `checkpoint` is that agent's own, `root` the whole run's. `save` changes the agent's own and makes that the newest;
    unless `write` is False it is stored when `save` returns. What is not written goes along with the next that is.
    `failure` is why the run stops here: a save that failed, for whichever agent, or what it was closed with.
    `close` says that nothing more is to be written: each save raises the error from then on.
    """

    @property
    def checkpoint(self) -> Checkpoint: ...
    @property
    def root(self) -> Checkpoint: ...
    @property
    def failure(self) -> Exception | None: ...
    def close(self, error: Exception) -> None: ...
    async def save(self, change: Change, *, write: bool = True) -> None: ...


class RootPlace:
    """The checkpoint of a run: in the store if there is one, where `saved` is the one that it has."""

    def __init__(
        self,
        agent: AgentDefinition,
        checkpoint: Checkpoint,
        *,
        saved: Checkpoint | None,
        store: Store | None,
        tally: Tally,
        emit: Emitter,
    ) -> None:
        self.checkpoint = checkpoint.but(finish_reason=None) if checkpoint.finish_reason else checkpoint
        self.saved = saved
        self.failure: Exception | None = None
        self._closed = False
        self._agent = agent
        self._store = store
        self._tally = tally
        self._emit = emit
        self._consumed_before = checkpoint.consumed or NOTHING
        self._lock = anyio.Lock(fast_acquire=True)

    @property
    def root(self) -> Checkpoint:
        return self.checkpoint

    @property
    def stored(self) -> bool:
        """Whether there is a store for it."""
        return self._store is not None

    async def save(self, change: Change, *, write: bool = True) -> None:
        """Change the run's checkpoint and store it. A save that fails leaves the one before as the newest."""
        with anyio.CancelScope(shield=True):
            async with self._lock:
                if self._closed and self.failure is not None:
                    raise self.failure
                checkpoint = change(self.checkpoint)
                if self._store is None or not write:
                    self.checkpoint = checkpoint
                    return
                if checkpoint.finish_reason or checkpoint.last_error:  # it may be left here
                    checkpoint = checkpoint.but(consumed=self.consumed())
                try:
                    checkpoint = await save_checkpoint(self._agent, self._store, checkpoint, after=self.saved)
                except Exception as error:
                    self.failure = self.failure or error
                    if isinstance(error, StaleCheckpointError | LeaseLostError):
                        self.close(error)
                    raise
                self.checkpoint = self.saved = checkpoint
                self._emit(CheckpointSaved(revision=checkpoint.revision, status=checkpoint.status))

    def close(self, error: Exception) -> None:
        self.failure = self.failure or error
        self._closed = True

    def consumed(self) -> Capacity:
        """What the store calls of this run have taken, in this process and in those that carried it on before."""
        return self._consumed_before + self._tally.consumed()


class ChildPlace:
    """The checkpoint of a sub-agent: the part of the one above it that belongs to the call which runs it."""

    def __init__(self, above: Place, call_id: str, save: Save) -> None:
        self._above = above
        self._call_id = call_id
        self._save = save

    @property
    def checkpoint(self) -> Checkpoint:
        return self._above.checkpoint.suspended[self._call_id]

    @property
    def root(self) -> Checkpoint:
        return self._above.root

    @property
    def failure(self) -> Exception | None:
        return self._above.failure

    def close(self, error: Exception) -> None:
        self._above.close(error)

    async def save(self, change: Change, *, write: bool = True) -> None:
        await self._save(self._within(change), write=write)

    def _within(self, change: Change) -> Change:
        def changed(above: Checkpoint) -> Checkpoint:
            if self._call_id not in above.suspended:
                raise WrittenOff
            return with_child(above, self._call_id, change(above.suspended[self._call_id]))

        return changed
