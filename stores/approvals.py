"""Approvals over any log: each a small stream of events, and what was decided is computed from them.

An entry holds one event; the entry of a request, or of an escalation, is a reset and repeats the events before it, so
that it and what follows have the times of the newest deadline and need nothing older:

    {"v": 1, "events": [event, …]}
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

from pydantic import TypeAdapter, ValidationError

from durable.approval_stream import (
    Applied,
    Approval,
    ApprovalEvent,
    ApprovalStatus,
    Cancelled,
    Escalated,
    Expired,
    Requested,
    Voted,
)
from durable.errors import ConfigurationError, RecordFormatError, StoreUnavailableError
from durable.ports import Clock, Entry, Head, IdFactory, Log, Page
from stores._json import from_body, to_body, to_plain
from stores._streams import Absent, append, examine, lifetime, newest, read_twice

KIND: Final = "approval"
PENDING: Final = "pending"
DECIDED: Final = "decided"

Times = tuple[datetime | None, datetime | None]
"""Until when something counts, and until when it is there."""

_ATTEMPTS: Final = 10

_events: TypeAdapter[list[ApprovalEvent]] = TypeAdapter(list[ApprovalEvent])


def stream_of(approval_id: str) -> str:
    """Give the name of an approval's stream."""
    return f"{KIND}/{approval_id}"


class LogApprovals:
    """An `ApprovalStore` over any `Log`.

    An approval is kept for `ttl` after its deadline. Where it has none a run may wait for it for ever, so it is kept
    until `ttl` after its decision was applied.
    """

    def __init__(self, log: Log, *, clock: Clock, ids: IdFactory, ttl: timedelta | None = None) -> None:
        self.blocks: bool = getattr(log, "blocks", True)
        self._log = log
        self._clock = clock
        self._ids = ids
        self._ttl = ttl

    def request(self, approval_id: str, event: Requested) -> Approval:
        """Ask, or ask again with a new deadline. What is decided stays so and is given back."""
        for _ in range(_ATTEMPTS):
            known = self.get(approval_id)
            if known is not None and known.status is not ApprovalStatus.PENDING:
                return known
            if known is None:
                last = newest(self._log, stream_of(approval_id))
                known = Approval(id=approval_id, revision=last.revision if last is not None else -1, events=())
            # Before the entry: once a checkpoint names the approval, no list may miss it.
            self._mark(known, PENDING, times=self._times(known.but(events=(*known.events, event))))
            if approval := self.append(event, after=known):
                return approval
        raise StoreUnavailableError("request", f"others keep writing approval {approval_id!r}")

    def get(self, approval_id: str) -> Approval | None:
        """Give the approval as it stands, or None when it is unknown or no longer kept."""
        stream = stream_of(approval_id)
        found = read_twice(stream, lambda: examine(list(self._log.read(stream)), None, self._clock()))
        if isinstance(found, Absent):
            return None
        events = tuple(event for entry in found.entries for event in _events_of(entry, stream))
        return Approval(id=approval_id, revision=found.entries[-1].revision, events=events)

    def append(self, event: ApprovalEvent, *, after: Approval) -> Approval | None:
        """Put an event after what the caller read; None when somebody else was first."""
        approval = after.but(revision=after.revision + 1, events=(*after.events, event))
        asks = isinstance(event, Requested | Escalated)
        written = approval.events if asks else (event,)
        content = {"events": [{"event": one.event, **to_plain(one, one.event)} for one in written]}
        fresh_until, expires_at = self._times(approval)
        entry = Entry(
            revision=approval.revision,
            kind="reset" if asks else "delta",
            base=approval.revision - _events_since_reset(approval.events),
            save_id=self._ids(),
            written_at=self._clock(),
            body=to_body(content),
            fresh_until=fresh_until,
            expires_at=expires_at,
        )
        if not append(self._log, stream_of(approval.id), entry):
            return None
        if approval.status is not ApprovalStatus.PENDING and isinstance(event, Voted | Expired | Cancelled):
            with suppress(StoreUnavailableError):  # the event is committed, and a head is a hint
                self._mark(approval, DECIDED)
        if isinstance(event, Escalated):
            with suppress(StoreUnavailableError):
                self._mark(approval, PENDING)
        if isinstance(event, Applied):
            with suppress(StoreUnavailableError):  # it only stays longer
                self._give_end(approval)
        return approval

    def list(
        self, *, status: ApprovalStatus | None = None, limit: int = 50, cursor: str | None = None
    ) -> Page[Approval]:
        """Give approvals of a status (None: all), read anew one by one: the heads only say where to look."""
        if isinstance(limit, bool) or limit < 1:
            raise ConfigurationError(f"`limit` must be a whole number from 1 up, not {limit!r}.")
        shown = None if status is None else PENDING if status is ApprovalStatus.PENDING else DECIDED
        found: list[Approval] = []
        while True:
            page = self._log.heads(KIND, status=shown, limit=limit - len(found), cursor=cursor)
            approvals = [approval for head in page.items if (approval := self.get(head.id)) is not None]
            found += [approval for approval in approvals if status is None or approval.status is status]
            cursor = page.cursor
            if cursor is None or len(found) >= limit:
                return Page(found, cursor)

    def _give_end(self, approval: Approval) -> None:
        """Give an end to an approval that had none for want of a deadline: nobody waits for it any more."""
        fresh_until, expires_at = lifetime(self._clock(), self._ttl)
        if approval.request.deadline is not None or fresh_until is None or expires_at is None:
            return
        self._log.expire(
            stream_of(approval.id), until=approval.revision, fresh_until=fresh_until, expires_at=expires_at
        )
        self._mark(approval, DECIDED, times=(fresh_until, expires_at))

    def _mark(self, approval: Approval, status: str, *, times: Times | None = None) -> None:
        fresh_until, expires_at = times or self._times(approval)
        self._log.mark(
            Head(
                kind=KIND,
                id=approval.id,
                status=status,
                revision=approval.revision,
                updated_at=self._clock(),
                fresh_until=fresh_until,
                expires_at=expires_at,
            )
        )

    def _times(self, approval: Approval) -> Times:
        return (None, None) if approval.closes_at is None else lifetime(approval.closes_at, self._ttl)


def _events_since_reset(events: Sequence[ApprovalEvent]) -> int:
    return next(count for count, event in enumerate(reversed(events)) if isinstance(event, Requested | Escalated))


def _events_of(entry: Entry, stream: str) -> Sequence[ApprovalEvent]:
    what = f"{stream!r} revision {entry.revision}"
    try:
        return _events.validate_python(from_body(entry.body, what).get("events"))
    except ValidationError as error:
        places = sorted({".".join(map(str, flaw["loc"])) for flaw in error.errors(include_input=False)})
        # The cause shows the values, which no error may.
        raise RecordFormatError(what, f"is damaged at {', '.join(places[:3])}") from None
