"""Removing what is old from a store whose backend does not do that by itself."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import chain

from durable.approval_stream import Approval, ApprovalStatus
from durable.ports import Head, Leases, Log
from durable.records import Status
from stores import approvals, checkpoints
from stores._streams import DELETED, TAKEN_FOR, newest


@dataclass(frozen=True, slots=True)
class Prune:
    """One pass over a store: sessions that nobody has saved since `before`, and saves that are older, are removed.

    What stays, however old: a session that a pending approval waits for and that approval; a session that is being run
    or is due; the newest checkpoint of every session that is younger. A session that is removed leaves a tombstone for
    a week, so that a writer who was left behind cannot save, and an approval stays for a week after its last event.
    """

    log: Log
    leases: Leases
    checkpoints: checkpoints.LogCheckpoints
    approvals: approvals.LogApprovals
    before: datetime
    now: datetime

    def run(self) -> int:
        """Give how many sessions and approvals were removed."""
        sessions = [self._session(head) for head in self._heads(checkpoints.KIND)]
        return sum(sessions) + sum(self._approval(head) for head in self._heads(approvals.KIND))

    def _session(self, head: Head) -> bool:
        """Remove a session, or the old saves of one that stays. In this order:

        1. due or being run: recovery or its runner is about to move it
        2. only a head: nothing was ever saved
        3. deleted: the tombstone goes when its time is over
        4. paused, or younger: it stays, with what it and its younger saves need
        5. everything else is deleted, if it has not moved meanwhile
        """
        if head.due_at is not None or self._is_run(head.stream):
            return False
        last = newest(self.log, head.stream)
        if last is None:
            self._drop_if_past(head.stream, head.updated_at)
            return False
        if last.kind == "tombstone":
            self._drop_if_past(head.stream, last.written_at)
            return False
        expired = last.expires_at is not None and last.expires_at <= self.now
        if (last.written_at >= self.before and not expired) or self._paused_on(head.id) is not None:
            self.checkpoints.drop_unneeded(head.id, since=self.before)
            return False
        return self.checkpoints.end(head.id, last)

    def _approval(self, head: Head) -> bool:
        approval = self.approvals.get(head.id)
        if approval is not None and self._is_needed(approval):
            return False
        last = newest(self.log, head.stream)
        gone = self._drop_if_past(head.stream, last.written_at if last is not None else head.updated_at)
        return gone and last is not None

    def _is_needed(self, approval: Approval) -> bool:
        session_id = approval.request.session_id
        if session_id is None:
            return approval.status is ApprovalStatus.PENDING
        return self._paused_on(session_id) == approval.id

    def _paused_on(self, session_id: str) -> str | None:
        """Give the approval that a session waits for."""
        checkpoint = self.checkpoints.load(session_id)
        if checkpoint is None or checkpoint.status is not Status.AWAITING_APPROVAL:
            return None
        return checkpoint.approval_id

    def _drop_if_past(self, stream: str, written_at: datetime) -> bool:
        if written_at >= min(self.before, self.now - TAKEN_FOR):
            return False
        self.log.drop(stream)
        return True

    def _is_run(self, stream: str) -> bool:
        lease = self.leases.look(stream)
        return lease is not None and lease.owner is not None and lease.until > self.now

    def _heads(self, kind: str) -> Iterator[Head]:
        return chain(self._listed(kind, None), self._listed(kind, DELETED))

    def _listed(self, kind: str, status: str | None) -> Iterator[Head]:
        cursor = None
        while True:
            page = self.log.heads(kind, status=status, limit=100, cursor=cursor)
            yield from page.items
            cursor = page.cursor
            if cursor is None:
                return
