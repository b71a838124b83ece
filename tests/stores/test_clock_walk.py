"""A session under a clock that walks, and a backend that removes what has expired when it likes.

What must hold at every moment:

1. `load` gives the newest save while it is fresh, for T after it was written or for ever while it waits for a human
2. `history` lists the newest saves that are fresh, none from before a deletion, and each as it was saved
3. neither changes when the backend removes, early or late, entries and heads whose time is over
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from durable.messages import UserMessage
from durable.records import Checkpoint, Status
from stores import _bases
from stores._bundle import log_store, new_id
from stores._meter import Meter
from stores.contract import MovedClock
from stores.contract.samples import checkpoint, with_messages
from stores.memory import MemoryLeases, MemoryLog

T = timedelta(days=10)
LIMIT = 4


@dataclass
class Save:
    """One save as the model remembers it. A pause counts as written when something else came after it."""

    checkpoint: Checkpoint
    counts_from: datetime | None

    def is_fresh(self, now: datetime) -> bool:
        return self.counts_from is None or now < self.counts_from + T


class ClockWalk(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.clock = MovedClock()
        self.log = MemoryLog(Meter(), clock=self.clock)
        self.saves: list[Save] = []
        self.current: Checkpoint | None = None
        self.held: Checkpoint | None = None

    def store(self) -> Any:
        """Open the store as a new process does."""
        meter = Meter()
        leases = MemoryLeases(meter, clock=self.clock)
        return log_store(self.log, leases, meter, clock=self.clock, ids=new_id, ttl=T, history_limit=LIMIT)

    @rule(
        by=st.sampled_from([timedelta(microseconds=1), timedelta(seconds=1), timedelta(days=1), T, T / 2, 2 * T, 3 * T])
    )
    def walk(self, by: timedelta) -> None:
        self.clock.forward(by)
        self._expire()

    @rule()
    def walk_to_the_edge(self) -> None:
        """Stop right before the newest save expires."""
        if self.saves:
            edge = (self.saves[-1].counts_from or self.clock()) + T - timedelta(microseconds=1)
            self.clock.now = max(self.clock.now, edge)
            self._expire()

    def _expire(self) -> None:
        if self.current is not None and not self.saves[-1].is_fresh(self.clock()):
            self.current = self.held = None

    @rule(status=st.sampled_from(list(Status)), reset=st.booleans(), times=st.integers(1, 3))
    def save(self, status: Status, reset: bool, times: int) -> None:
        store = self.store()
        for _ in range(times):
            said = UserMessage(content=f"message {len(self.saves)}")
            if self.held is None:
                new = checkpoint("s", said, status=status)
            elif reset:
                new = self.held.but(messages=(said,), status=status)
            else:
                new = with_messages(self.held, said, status=status)
            self.current = self.held = store.checkpoints.save(new, after=self.held)
            if status is Status.AWAITING_APPROVAL:
                self.saves.append(Save(self.current, None))
            else:
                self._end_pauses()
                self.saves.append(Save(self.current, self.clock()))

    def _end_pauses(self) -> None:
        for save in self.saves:
            save.counts_from = save.counts_from or self.clock()

    @rule()
    def maintain(self) -> None:
        if self.held is not None:
            self.current = self.held = self.store().checkpoints.maintain("s", after=self.held)

    @rule(keep_history=st.booleans())
    def delete(self, keep_history: bool) -> None:
        self.store().checkpoints.delete("s", keep_history=keep_history)
        if self.current is not None:
            self._end_pauses()
        self.current = self.held = None
        if not keep_history:
            self.saves.clear()

    @rule(fraction=st.floats(0, 1))
    def reap(self, fraction: float) -> None:
        """Remove some of what may be removed, oldest first or not."""
        now = self.clock()
        for entries in self.log._streams.values():
            over = [one.revision for one in entries.values() if one.expires_at is not None and one.expires_at <= now]
            for revision in over[: round(fraction * len(over))] if now.second % 2 else over[::-1]:
                del entries[revision]
        for stream in [stream for stream, entries in self.log._streams.items() if not entries]:
            self.log._dropped.pop(stream, None)  # what was dropped stays taken for a week, and this is longer
        for stream, head in list(self.log._heads.items()):
            if head.expires_at is not None and head.expires_at <= now:
                del self.log._heads[stream]

    @invariant()
    def what_is_fresh_is_loaded_and_nothing_else(self) -> None:
        assert self.store().checkpoints.load("s") == self.current

    @invariant()
    def what_is_fresh_is_listed_and_nothing_else(self) -> None:
        """The newest that are fresh are listed; the first that is not ends the list."""
        expected: list[Checkpoint] = []
        for save in reversed(self.saves):
            if len(expected) == LIMIT or not save.is_fresh(self.clock()):
                break
            expected.append(save.checkpoint)
        listed = [save.checkpoint for save in self.store().checkpoints.history("s")]
        assert listed == expected


class Impatient(ClockWalk):
    """The same with bases after a few entries."""

    def __init__(self) -> None:
        super().__init__()
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(_bases, "MIN_ENTRIES", 3)

    def teardown(self) -> None:
        self._patch.undo()


TestClockWalk = ClockWalk.TestCase
TestClockWalk.__doc__ = "The invariants above hold whatever happens to a session, in any order."
TestClockWalk.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestImpatient = Impatient.TestCase
TestImpatient.__doc__ = "They hold with a base after every few entries."
TestImpatient.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
