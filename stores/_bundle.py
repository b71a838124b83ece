"""A log and what is written once over it, put together."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from durable.ports import Capacity, Clock, IdFactory, Leases, Log, Metered
from stores.approvals import LogApprovals
from stores.checkpoints import DEFAULT_HISTORY_LIMIT, LogCheckpoints


def utc_now() -> datetime:
    """Give the time, aware and in UTC: the `Clock` outside tests."""
    return datetime.now(UTC)


def new_id() -> str:
    """Give a random id: the `IdFactory` outside tests."""
    return uuid4().hex


@dataclass(frozen=True, slots=True)
class LogStore:
    """A `durable.ports.Store` over a log, with the log itself, its leases and what their calls have taken."""

    log: Log
    leases: Leases
    checkpoints: LogCheckpoints
    approvals: LogApprovals
    meter: Metered

    def consumed(self) -> Capacity:
        return self.meter.consumed()


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
    return LogStore(log, leases, checkpoints, LogApprovals(log, clock=clock, ids=ids, ttl=ttl), meter)
