"""What the calls of leases do to a record: pure, for the backends that change it under a lock."""

from dataclasses import replace
from datetime import datetime

from durable.ports import Lease
from stores._streams import NEVER_HELD


def unheld(stream: str) -> Lease:
    """Give the record of a session whose lease nobody has acquired yet."""
    return Lease(stream=stream, owner=None, until=NEVER_HELD, fence=0)


def acquired(old: Lease, owner: str, *, until: datetime, revision: int, now: datetime) -> Lease | None:
    """Give the record after an `acquire`, or None while another owner's lease is live."""
    if old.owner not in (None, owner) and old.until > now:
        return None
    attempt = old.attempt + 1 if old.attempt and old.revision == revision >= 0 else 1
    return replace(old, owner=owner, until=until, fence=old.fence + 1, attempt=attempt, revision=revision)


def released(there: Lease, lease: Lease, now: datetime, *, counts: bool) -> Lease | None:
    """Give the record after a `release`, or None when somebody has acquired the lease since, or nobody ever did."""
    if there.fence != lease.fence or there.fence == 0:
        return None
    return replace(there, owner=None, until=now, attempt=lease.attempt if counts else max(0, lease.attempt - 1))
