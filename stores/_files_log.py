"""The log in files: an append is one line at the end of the session's file."""

import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Final

from durable.capacity import Capacity
from durable.errors import RecordFormatError
from durable.ports import Clock, Entry, Head, Lease, Page
from stores import _private
from stores._files_folder import Folder
from stores._files_lines import Header, entry_line, entry_of, header_line, header_of
from stores._heads import announced, is_listed, is_still_due, marked, settled
from stores._leases import acquired, released, unheld
from stores._meter import Meter
from stores._streams import ended

_KEPT: Final = 1000
"""How many files' contents are remembered."""


@dataclass(frozen=True, slots=True)
class Line:
    """Where an entry is in its file."""

    offset: int
    length: int
    number: int
    kind: str
    save_id: str


@dataclass(slots=True)
class Contents:
    """What is known of a file up to `end`: where the last whole line ends. What is behind it is torn."""

    path: Path
    header: Header
    first: bytes
    end: int
    lines: int = 1
    entries: dict[int, Line] = field(default_factory=dict[int, Line])


class FilesLog:
    """A `Log` in a folder. What is in a file is remembered, so that a call reads only what was added since."""

    def __init__(self, folder: Folder, meter: Meter, *, clock: Clock) -> None:
        self._folder = folder
        self._meter = meter
        self._clock = clock
        self._known: OrderedDict[str, Contents] = OrderedDict()
        self._lock = Lock()

    def append(self, stream: str, entry: Entry) -> bool:
        line = entry_line(entry)
        self._meter.add(Capacity(requests=1, bytes_written=len(line)))
        path = self._folder.file(stream, "jsonl")
        with (
            self._folder.locked("append", stream),
            _opened(path, os.O_RDWR, self._folder.file_mode) as descriptor,
        ):
            known = self._contents(stream, path, descriptor)
            there = known.entries.get(entry.revision) if known is not None else None
            if there is not None:
                os.fsync(descriptor)  # an attempt that failed may have written the line and not got it to the disk
                return there.save_id == entry.save_id
            if known is None:
                first = header_line(Header(stream, self._folder.ids()))
                self._write(descriptor, first + line, 0)
            elif entry.revision <= known.header.dropped:
                return False
            else:
                self._write(descriptor, line, known.end)
            self._contents(stream, path, descriptor)
        return True

    def _write(self, descriptor: int, content: bytes, end: int) -> None:
        """Write behind the last whole line, over what is torn there. What fails leaves nothing."""
        if os.fstat(descriptor).st_size > end:
            os.ftruncate(descriptor, end)
        try:
            _private.write_whole(descriptor, content, end)
        except OSError:
            os.ftruncate(descriptor, end)
            raise

    def read(
        self, stream: str, *, after: int = -1, newest_first: bool = False, limit: int | None = None
    ) -> Iterable[Entry]:
        self._meter.add(Capacity(requests=1))
        return self._entries(stream, after, newest_first, limit)

    def _entries(self, stream: str, after: int, newest_first: bool, limit: int | None) -> Iterator[Entry]:
        path = self._folder.file(stream, "jsonl")
        with _private.file_errors("read"):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return
        try:
            # Lines do not change, and a file that is written anew is another one: the lock is not needed for long.
            with self._folder.locked("read", stream, shared=True):
                known = self._contents(stream, path, descriptor)
                entries = {} if known is None else known.entries
                chosen = sorted((revision for revision in entries if revision > after), reverse=newest_first)
                lines = [entries[revision] for revision in chosen[:limit]]
            for line in lines:
                with _private.file_errors("read"):
                    content = _read(descriptor, line.length, line.offset)
                yield entry_of(content, _place(path, line.number))
        finally:
            os.close(descriptor)

    def drop(self, stream: str, *, until: int | None = None) -> None:
        self._meter.add(Capacity(requests=1))
        path = self._folder.file(stream, "jsonl")
        with self._folder.locked("drop", stream):
            if until is None:
                self._folder.remove(path)
                self._folder.remove(self._folder.file(stream, "head"))
                return
            if not path.exists():
                return
            with _opened(path, os.O_RDWR, self._folder.file_mode) as descriptor:
                known = self._contents(stream, path, descriptor)
                if known is None or until <= known.header.dropped:
                    return
                kept = [
                    _read(descriptor, line.length + 1, line.offset)
                    for revision, line in sorted(known.entries.items())
                    if revision > until or line.kind == "tombstone"
                ]
            self._write_anew(path, replace(known.header, dropped=until), kept)

    def expire(self, stream: str, *, until: int, fresh_until: datetime, expires_at: datetime) -> None:
        self._meter.add(Capacity(requests=1))
        path = self._folder.file(stream, "jsonl")
        with self._folder.locked("expire", stream):
            if not path.exists():
                return
            with _opened(path, os.O_RDWR, self._folder.file_mode) as descriptor:
                known = self._contents(stream, path, descriptor)
                places = sorted(known.entries.items()) if known is not None else []
                lines = {revision: _read(descriptor, place.length + 1, place.offset) for revision, place in places}
            changed: dict[int, bytes] = {}
            for revision, place in places:
                entry = entry_of(lines[revision][:-1], _place(path, place.number))
                if revision <= until and (new := ended(entry, fresh_until, expires_at)):
                    changed[revision] = entry_line(new)
            if known is not None and changed:
                self._write_anew(path, known.header, list((lines | changed).values()))

    def _write_anew(self, path: Path, header: Header, lines: Sequence[bytes]) -> None:
        """Put another file in the place of a session's: with a name of its own, so that everybody notices."""
        header = replace(header, file=self._folder.ids())
        whole = header_line(header) + b"".join(lines)
        _private.replace_file(path, whole, self._folder.file_mode, unique=header.file)

    def _contents(self, stream: str, path: Path, descriptor: int) -> Contents | None:
        """Give what is in a file, reading only what is new; None while it has no whole line. Needs the lock."""
        with self._lock:
            known = self._known.get(stream)
            if known is None or _read(descriptor, len(known.first), 0) != known.first:
                # The name may be new to the disk, too, if its writer ended before it could say so.
                _private.sync_directory(path.parent)
                known = _begun(stream, path, descriptor)
            if known is None:
                return None
            _follow(known, descriptor)
            self._known[stream] = known
            self._known.move_to_end(stream)
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
            return known

    # The head

    def head(self, stream: str) -> Head | None:
        self._meter.add(Capacity(requests=1))
        return self._folder.get(Head, stream)

    def mark(self, head: Head) -> None:
        self._meter.add(Capacity(requests=1))
        with self._folder.locked("mark", head.stream):
            if new := marked(self._folder.get(Head, head.stream), head):
                self._folder.put(new)

    def announce(self, stream: str, *, run_id: str, due_at: datetime) -> None:
        self._meter.add(Capacity(requests=1))
        with self._folder.locked("announce", stream):
            old = self._folder.get(Head, stream)
            self._folder.put(announced(old, stream, run_id=run_id, due_at=due_at, now=self._clock()))

    def settle(self, head: Head) -> None:
        self._meter.add(Capacity(requests=1))
        with self._folder.locked("settle", head.stream):
            there = self._folder.get(Head, head.stream)
            if there is None or not is_still_due(there, head):
                return
            if left := settled(there):
                self._folder.put(left)
            else:
                self._folder.remove(self._folder.file(head.stream, "head"))

    def heads(
        self,
        kind: str,
        *,
        status: str | None = None,
        due_before: datetime | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[Head]:
        self._meter.add(Capacity(requests=1))
        found: list[Head] = []
        last = ""
        for name in self._folder.names(kind, ".head", cursor or ""):
            head = self._folder.get_at(Head, self._folder.path / name)
            if head is None or not is_listed(head, kind, status=status, due_before=due_before):
                continue
            if len(found) == limit:
                return Page(found, last)
            found.append(head)
            last = name
        return Page(found)


class FilesLeases:
    """`Leases` in the same folder."""

    def __init__(self, folder: Folder, meter: Meter, *, clock: Clock) -> None:
        self._folder = folder
        self._meter = meter
        self._clock = clock

    def acquire(self, stream: str, owner: str, *, until: datetime, revision: int) -> Lease | None:
        with self._folder.locked("acquire", stream):
            lease = acquired(self._get(stream), owner, until=until, revision=revision, now=self._clock())
            if lease is not None:
                self._folder.put(lease)
            return lease

    def look(self, stream: str) -> Lease | None:
        self._meter.add(Capacity(requests=1))
        return self._folder.get(Lease, stream)

    def note_execution(self, stream: str, execution: str) -> None:
        with self._folder.locked("note_execution", stream):
            self._folder.put(replace(self._get(stream), execution=execution))

    def request_abort(self, stream: str, run_id: str) -> None:
        with self._folder.locked("request_abort", stream):
            self._folder.put(replace(self._get(stream), abort_run=run_id))

    def release(self, lease: Lease, *, counts: bool = True) -> None:
        with self._folder.locked("release", lease.stream):
            if ended := released(self._get(lease.stream), lease, self._clock(), counts=counts):
                self._folder.put(ended)

    def _get(self, stream: str) -> Lease:
        self._meter.add(Capacity(requests=1))
        return self._folder.get(Lease, stream) or unheld(stream)


@contextmanager
def _opened(path: Path, flags: int, mode: int) -> Iterator[int]:
    descriptor = _private.open_private(path, flags, mode)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _begun(stream: str, path: Path, descriptor: int) -> Contents | None:
    """Read the header of a file; None where there is no whole one yet."""
    first, size = b"", 1024
    while b"\n" not in first:
        size *= 4
        if len(first) == len(first := _read(descriptor, size, 0)):
            return None
    first = first[: first.index(b"\n") + 1]
    header = header_of(first[:-1], _place(path, 1))
    if header.stream != stream:
        raise RecordFormatError(_place(path, 1), f"is of {header.stream!r}, not of {stream!r}")
    return Contents(path, header, first, len(first))


def _follow(known: Contents, descriptor: int) -> None:
    """Take the lines that were added since. One without a line feed is torn and does not count."""
    added = os.fstat(descriptor).st_size - known.end
    *whole, _torn = _read(descriptor, added, known.end).split(b"\n")
    for line in whole:
        entry = entry_of(line, _place(known.path, known.lines + 1))
        place = Line(known.end, len(line), known.lines + 1, entry.kind, entry.save_id)
        known.entries.setdefault(entry.revision, place)
        known.end += len(line) + 1
        known.lines += 1


def _read(descriptor: int, size: int, offset: int) -> bytes:
    """Give `size` bytes from `offset` on, fewer only at the end of the file."""
    parts: list[bytes] = []
    while size > 0 and (part := os.pread(descriptor, size, offset)):
        parts.append(part)
        size, offset = size - len(part), offset + len(part)
    return b"".join(parts)


def _place(path: Path, line: int) -> str:
    return f"{os.fspath(path)} line {line}"
