"""Checkpoints and their history over any log: one conditional append for each save."""

from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from durable.errors import ConfigurationError, StaleCheckpointError, StoreUnavailableError
from durable.ports import Clock, Entry, EntryKind, Head, HistoryEntry, IdFactory, Log
from durable.records import Checkpoint, Status, check_session_id
from stores import _bases, _history
from stores._json import to_body
from stores._log import delta_body, reset_body
from stores._places import Place, Places
from stores._replay import Replay
from stores._streams import (
    DELETED,
    LONG_AGO,
    TAKEN_FOR,
    WHOLE,
    Absent,
    Behind,
    Found,
    append,
    earlier,
    examine,
    is_fresh,
    later,
    lifetime,
    newest,
    read_twice,
    whole_second,
)

KIND: Final = "session"
DEFAULT_HISTORY_LIMIT: Final = 50

_DELETE_ATTEMPTS: Final = 10


def stream_of(session_id: str) -> str:
    """Give the name of a session's stream."""
    return f"{KIND}/{check_session_id(session_id)}"


class LogCheckpoints:
    """A `CheckpointStore` with `CheckpointHistory`, over any `Log`.

    A session is there while its newest entry is fresh: for `ttl` after it was written, for ever if that is None.
    `history_limit` is how many saves are listed; 0 lists none, and the log stays the checkpoint.
    """

    def __init__(
        self,
        log: Log,
        *,
        clock: Clock,
        ids: IdFactory,
        ttl: timedelta | None = None,
        history_limit: int = DEFAULT_HISTORY_LIMIT,
    ) -> None:
        self.blocks: bool = getattr(log, "blocks", True)
        self._log = log
        self._clock = clock
        self._ids = ids
        self._ttl = ttl
        self._history_limit = _count(history_limit, "history_limit")
        self._places = Places()

    def load(self, session_id: str) -> Checkpoint | None:
        """Give the newest checkpoint, or None; the past is never given for the present (`StaleReplicaError`)."""
        stream = stream_of(session_id)

        def read() -> tuple[Absent | Found, Head | None] | Behind:
            head, now = self._log.head(stream), self._clock()
            base = head.base if head is not None and is_fresh(head, now) else 0
            entries = list(self._log.read(stream, after=base - 1))
            if not entries and (head is None or head.revision < 0):
                self._places.put_absent(stream, now)
            outcome = examine(entries, head, now)
            return outcome if isinstance(outcome, Behind) else (outcome, head)

        outcome, head = read_twice(stream, read)
        if isinstance(outcome, Absent):
            return None
        replay = Replay(stream)
        for entry in outcome.entries:
            replay.apply(entry)
        base, *since = outcome.entries
        sizes = len(base.body), sum(len(entry.body) for entry in since)
        self._places.put(stream, _place(outcome.entries[-1], base.expires_at, head, sizes))
        return replay.checkpoint()

    def save(self, checkpoint: Checkpoint, *, after: Checkpoint | None) -> Checkpoint:
        """Append what is new since `after`. See `CheckpointStore` for the contract.

        The checkpoint that comes back shares its messages with the one given, and is the `after` of the next save.
        What both hold is compared by identity first, so nothing in them may be changed in place.
        """
        stream = stream_of(checkpoint.session_id or "")
        now = self._clock()
        place = self._free_place(stream, now) if after is None else self._place_after(stream, after)
        saved = checkpoint.but(
            revision=place.revision + 1, created_at=now if after is None else after.created_at, updated_at=now
        )
        ttl = self._ttl_of(saved)
        fresh_until, _ = lifetime(now, ttl)
        delta = None if after is None or not _lasts(place.base_expires, fresh_until) else delta_body(saved, after)
        if delta is not None:
            entry = self._entry("delta", saved.revision, place.base, now, delta, ttl)
        else:
            entry = self._entry("reset", saved.revision, saved.revision, now, reset_body(saved), ttl)
        entry = replace(entry, expires_at=later(entry.expires_at, place.ends))
        if not append(self._log, stream, entry):
            raise StaleCheckpointError(str(saved.session_id), saved.revision)
        self._places.put(stream, self._moved(stream, saved, entry, place))
        return saved

    def maintain(self, session_id: str, *, after: Checkpoint) -> Checkpoint:
        """Keep loads short: where many entries have gathered since the base, write the transcript as a new one.

        To be called after a turn, by whoever has the session's lease, with the checkpoint it holds; go on with the one
        that comes back. It is no save: the history does not list it and `updated_at` stays. Entries that neither the
        base nor a listed save needs are dropped, also where saves have moved the base (a compaction does); what is left
        of a drop that was interrupted goes with the next one.
        Raises what `save` raises; what was saved before is safe whatever happens here.
        """
        stream = stream_of(session_id)
        place = self._place_after(stream, after)
        if place.untidy and place.shown is not None:
            place = replace(place, untidy=False)
            self._places.put(stream, place)
            with suppress(StoreUnavailableError):
                self.drop_unneeded(session_id)
        if after.revision - place.base < _bases.MIN_ENTRIES:
            return after
        if place.sizes is None:
            place = replace(place, sizes=_bases.sizes(self._log.read(stream, after=place.base - 1)))
        if not _bases.is_due(place):
            return after
        now = self._clock()
        maintained = after.but(revision=after.revision + 1)
        entry = self._entry(
            "base", maintained.revision, maintained.revision, now, reset_body(maintained), self._ttl_of(after)
        )
        entry = replace(entry, written_at=after.updated_at, expires_at=later(entry.expires_at, place.ends))
        if not append(self._log, stream, entry):
            raise StaleCheckpointError(session_id, maintained.revision)
        moved = self._moved(stream, maintained, entry, place)
        self._places.put(stream, moved)
        if moved.shown is not None:  # first the index, then the drop
            with suppress(StoreUnavailableError):
                self.drop_unneeded(session_id)
        return maintained

    def drop_unneeded(self, session_id: str, *, since: datetime | None = None) -> None:
        """Drop the entries that neither the newest one nor a listed save needs; `since` counts only younger saves."""
        stream, count = stream_of(session_id), self._history_limit
        newest_first = list(self._log.read(stream, newest_first=True, limit=count + _bases.UNLISTED))
        needed = _bases.needed_from(newest_first, count, self._clock(), since)
        if needed is not None and needed > 0:
            self._log.drop(stream, until=needed - 1)

    def delete(self, session_id: str, *, keep_history: bool = False) -> None:
        """Make the session absent; with `keep_history` its listed saves stay. An absent session stays so.

        A run that is under way finds its next revision taken and stops with `StaleCheckpointError`.
        """
        stream = stream_of(session_id)
        revision = -1
        for _ in range(_DELETE_ATTEMPTS):
            last, now = newest(self._log, stream), self._clock()
            if last is None or (keep_history and (last.kind in ("cleared", "tombstone") or not is_fresh(last, now))):
                return
            revision = last.revision
            end = last if last.kind == "tombstone" else self._end(stream, last, now, keep_history=keep_history)
            if end is not None:
                if not keep_history:  # also what an interrupted delete has left
                    self._log.drop(stream, until=revision)
                self._give_end(stream, end)
                return
        raise StaleCheckpointError(session_id, revision + 1)

    def history(self, session_id: str, *, limit: int | None = None) -> list[HistoryEntry]:
        """Give the newest saves, newest first: at most `limit`, and never more than `history_limit`."""
        stream = stream_of(session_id)
        count = self._history_limit if limit is None else min(_count(limit, "limit"), self._history_limit)
        if count == 0:
            return []
        listed = read_twice(
            stream, lambda: _history.select(self._log.read(stream, newest_first=True), count, self._clock())
        )
        return _history.replay(stream, listed)

    def end(self, session_id: str, last: Entry) -> bool:
        """Delete the session if `last` is still its newest entry; False when it has moved, and then nothing changes."""
        stream = stream_of(session_id)
        end = self._end(stream, last, self._clock(), keep_history=False)
        if end is None:
            return False
        self._log.drop(stream, until=last.revision)
        self._give_end(stream, end)
        return True

    def _free_place(self, stream: str, now: datetime) -> Place:
        """Give the place that a new session starts after; a live one is `StaleCheckpointError`."""
        nothing = Place(-1, 0, None)
        if self._places.take_absent(stream, now) or (last := newest(self._log, stream)) is None:
            return nothing
        if last.kind not in ("tombstone", "cleared") and is_fresh(last, now):
            raise StaleCheckpointError(stream.removeprefix(f"{KIND}/"), last.revision)
        listed_from = last.revision + 1 if last.kind == "tombstone" else 0
        return Place(last.revision, last.base, None, listed_from, ends=last.expires_at)

    def _place_after(self, stream: str, after: Checkpoint) -> Place:
        """Give the place of the checkpoint that the caller holds: remembered, or read where it is not."""
        if after.revision < 0 or stream != stream_of(after.session_id or ""):
            raise ConfigurationError(f"`after` must be a saved checkpoint of the session itself, not {after!r}.")
        if place := self._places.at(stream, after.revision):
            return place
        last = next(iter(self._log.read(stream, after=after.revision - 1, limit=1)), None)
        if last is None or last.revision != after.revision:
            raise StaleCheckpointError(str(after.session_id), after.revision + 1)
        base = next(iter(self._log.read(stream, after=last.base - 1, limit=1)), None)
        expires = base.expires_at if base is not None and base.revision == last.base else LONG_AGO
        return _place(last, expires, self._log.head(stream))

    def _end(self, stream: str, last: Entry, now: datetime, *, keep_history: bool) -> Entry | None:
        """Append the entry that ends the session after `last`, and give it; None when a writer was faster."""
        if keep_history:
            end = self._entry("cleared", last.revision + 1, last.base, now, to_body({}), self._ttl)
        else:
            until = self._taken_until(now)
            if until is not None and last.expires_at is not None:
                until = max(until, last.expires_at)
            body = to_body({})
            end = Entry(last.revision + 1, "tombstone", last.revision + 1, self._ids(), now, body, until, until)
        # It must outlive what it hides.
        end = replace(end, expires_at=later(end.expires_at, last.expires_at))
        if not append(self._log, stream, end):
            return None
        self._show(stream, DELETED, end, None)
        return end

    def _give_end(self, stream: str, entry: Entry) -> datetime | None:
        """Give an end to what has none but because of a pause, up to this entry; gives when it may be gone now.

        A pause has no end, and what follows it none either until the pause has one: the newest entry must not go first.
        Who ends in between has written an entry that stays, and the next save makes up for it.
        """
        if entry.expires_at is not None or entry.fresh_until is None:
            return entry.expires_at
        until = self._taken_until(self._clock())
        if until is None:
            return None
        with suppress(StoreUnavailableError):
            self._log.expire(stream, until=entry.revision, fresh_until=entry.fresh_until, expires_at=until)
            return until
        return None

    def _taken_until(self, now: datetime) -> datetime | None:
        return None if self._ttl is None else whole_second(now + max(2 * self._ttl, TAKEN_FOR))

    def _moved(self, stream: str, saved: Checkpoint, entry: Entry, place: Place) -> Place:
        """Show what was appended, and give the place that it leads to."""
        shown = self._show(stream, saved.status.value, entry, place)
        ends = self._give_end(stream, entry)
        sizes, base_expires = place.sizes, place.base_expires
        if entry.kind in WHOLE:
            sizes, base_expires = (len(entry.body), 0), ends
        else:
            sizes = (sizes[0], sizes[1] + len(entry.body)) if sizes is not None else None
            base_expires = earlier(base_expires, ends) if ends is not None else base_expires
        untidy = place.untidy or (entry.kind == "reset" and _bases.is_far(place.base, entry.revision))
        return Place(entry.revision, entry.base, base_expires, place.listed_from, shown, sizes, ends, untidy)

    def _ttl_of(self, checkpoint: Checkpoint) -> timedelta | None:
        # A human may take longer than any ttl: a session that waits for one does not expire.
        return None if checkpoint.status is Status.AWAITING_APPROVAL else self._ttl

    def _entry(
        self, kind: EntryKind, revision: int, base: int, now: datetime, body: bytes, ttl: timedelta | None
    ) -> Entry:
        fresh_until, expires_at = lifetime(now, ttl)
        return Entry(revision, kind, base, self._ids(), now, body, fresh_until, expires_at)

    def _show(self, stream: str, status: str, entry: Entry, place: Place | None) -> tuple[str, int] | None:
        """Mark the head where it does not say so yet, and give what it says now.

        The entry is committed by then. A head is a hint, so one that could not be marked is no failed save; the next
        save marks it.
        """
        says = (status, entry.base)
        if place is not None and place.shown == says:
            return says
        kind, _, identity = stream.partition("/")
        # A head decides nothing, so it needs not outlive a pause before it.
        fresh_until, expires_at = entry.fresh_until, entry.expires_at
        if expires_at is None and fresh_until is not None:
            expires_at = self._taken_until(fresh_until)
        with suppress(StoreUnavailableError):
            self._log.mark(
                Head(
                    kind=kind,
                    id=identity,
                    status=status,
                    revision=entry.revision,
                    base=entry.base,
                    listed_from=place.listed_from if place is not None else 0,
                    updated_at=entry.written_at,
                    fresh_until=fresh_until,
                    expires_at=expires_at,
                )
            )
            return says
        return None


def _place(
    last: Entry, base_expires: datetime | None, head: Head | None, sizes: tuple[int, int] | None = None
) -> Place:
    if head is None:
        return Place(last.revision, last.base, base_expires, sizes=sizes, ends=last.expires_at)
    shown = head.status, head.base
    return Place(last.revision, last.base, base_expires, head.listed_from, shown, sizes, last.expires_at)


def _lasts(base_expires: datetime | None, fresh_until: datetime | None) -> bool:
    """Whether a base is there for as long as an entry counts that needs it: one written within a ttl after it."""
    return base_expires is None or (fresh_until is not None and fresh_until <= base_expires)


def _count(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigurationError(f"`{name}` must be a whole number from 0 up, not {value!r}.")
    return value
