"""A log and what is written once over it, put together."""

import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from durable.capacity import Capacity
from durable.ports import Clock, IdFactory, Leases, Log, Metered
from stores._prune import Prune
from stores.approvals import LogApprovals
from stores.checkpoints import DEFAULT_HISTORY_LIMIT, LogCheckpoints


def utc_now() -> datetime:
    """Give the time, aware and in UTC: the `Clock` outside tests."""
    return datetime.now(UTC)


def new_id() -> str:
    """Give a random id: the `IdFactory` outside tests."""
    return os.urandom(16).hex()


@dataclass(frozen=True, slots=True)
class LogStore:
    """A `durable.ports.Store` over a log, with the log itself, its leases and what their calls have taken."""

    log: Log
    leases: Leases
    checkpoints: LogCheckpoints
    approvals: LogApprovals
    meter: Metered
    clock: Clock = utc_now

    def consumed(self) -> Capacity:
        return self.meter.consumed()

    def prune(self, older_than: timedelta) -> int:
        """Remove sessions not saved for so long, their approvals, and saves that old; give how many streams went.

        For the stores without a time to live of their own: memory, files, SQLite. Never removes what a pending approval
        needs, a run that is under way, or what the newest checkpoint of a younger session is made of.
        """
        now = self.clock()
        return Prune(self.log, self.leases, self.checkpoints, self.approvals, now - older_than, now).run()


def log_store(
    log: Log,
    leases: Leases,
    meter: Metered,
    *,
    clock: Clock = utc_now,
    ids: IdFactory = new_id,
    ttl: timedelta | None = None,
    history_limit: int = DEFAULT_HISTORY_LIMIT,
) -> LogStore:
    """Put checkpoints and approvals on a log. `ttl` is how long a session is kept after its newest save."""
    checkpoints = LogCheckpoints(log, clock=clock, ids=ids, ttl=ttl, history_limit=history_limit)
    return LogStore(log, leases, checkpoints, LogApprovals(log, clock=clock, ids=ids, ttl=ttl), meter, clock)
