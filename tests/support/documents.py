"""A checkpoint store of one's own: three methods over whatever keeps documents, here a dictionary."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from threading import Lock
from typing import Any

from durable.errors import StaleCheckpointError
from durable.records import Checkpoint, Status, check_session_id


@dataclass(frozen=True)
class Row:
    """The whole checkpoint as one document, None when it was deleted: the revision never starts over."""

    revision: int
    document: str | None
    expires_at: datetime | None


@dataclass
class Table:
    """The database: one row for each session, replaced only by who knows the one that is there."""

    rows: dict[str, Row] = field(default_factory=dict[str, Row])
    lock: Lock = field(default_factory=Lock)

    def replace(self, key: str, row: Row, *, after: Row | None) -> bool:
        with self.lock:
            if self.rows.get(key) is not after:
                return False
            self.rows[key] = row
            return True


@dataclass
class DocumentStore:
    """Checkpoints alone: no history, no leases, no listing. `around` makes each call to the database."""

    table: Table
    clock: Callable[[], datetime]
    ttl: timedelta | None = None
    around: Callable[[Callable[[], Any]], Any] = lambda call: call()

    def load(self, session_id: str) -> Checkpoint | None:
        return self._live(self._row(session_id))

    def save(self, checkpoint: Checkpoint, *, after: Checkpoint | None) -> Checkpoint:
        session_id, now = check_session_id(checkpoint.session_id), self.clock()
        row = self._row(session_id)
        live, number = self._live(row), row.revision + 1 if row is not None else 0
        if (live.revision if live is not None else None) != (after.revision if after is not None else None):
            raise StaleCheckpointError(session_id, number)
        created_at = after.created_at if after is not None else now
        saved = checkpoint.but(revision=number, created_at=created_at, updated_at=now)
        waits = saved.status is Status.AWAITING_APPROVAL
        expires_at = None if self.ttl is None or waits else now + self.ttl
        new = Row(number, saved.model_dump_json(), expires_at)
        if not self.around(lambda: self.table.replace(session_id, new, after=row)):
            raise StaleCheckpointError(session_id, number)
        return saved

    def delete(self, session_id: str) -> None:
        row = self._row(session_id)
        if row is not None:
            gone = Row(row.revision + 1, None, None)
            self.around(lambda: self.table.replace(session_id, gone, after=row))

    def _row(self, session_id: str) -> Row | None:
        key = check_session_id(session_id)
        return self.around(lambda: self.table.rows.get(key))

    def _live(self, row: Row | None) -> Checkpoint | None:
        if row is None or row.document is None or (row.expires_at is not None and self.clock() >= row.expires_at):
            return None
        return Checkpoint.model_validate_json(row.document)
