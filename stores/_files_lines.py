"""The lines of a session's file, pure: a header, then one entry in each line.

    {"v":1,"stream":"session/s","file":"<random>","dropped":-1,"crc":"…"}
    {"revision":0,"kind":"reset","base":0,"save_id":"…","written_at":"…","body":"{…}","crc":"…"}

A line is written at the end and never changed; it counts when its line feed is there. `crc` is over the line up to it.
A body that is not text is kept as base64 under `base64`. `file` tells one writing of the file from the next: dropping
entries writes it anew, with the highest revision that was dropped.
"""

import base64
import json
import zlib
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from durable.errors import RecordFormatError
from durable.ports import Entry
from stores._streams import stamp

FORMAT: Final = 1
"""The number of the file format that this version writes. A newer one is refused."""

_CRC: Final = len(',"crc":"00000000"}')


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of a file. `dropped` is the highest revision that was dropped: it stays taken."""

    stream: str
    file: str
    dropped: int = -1


def header_line(header: Header) -> bytes:
    return _line({"v": FORMAT, "stream": header.stream, "file": header.file, "dropped": header.dropped})


def header_of(line: bytes, what: str) -> Header:
    """Give the header of a first line without its line feed; `what` names file and line in an error."""
    content = _content(line, what)
    version = content.get("v")
    if isinstance(version, int) and version > FORMAT:
        raise RecordFormatError(what, f"has file format {version}, and this version reads up to {FORMAT}")
    try:
        return Header(content["stream"], content["file"], content["dropped"])
    except KeyError as error:
        raise RecordFormatError(what, "is no header of a session's file: it is damaged") from error


def entry_line(entry: Entry) -> bytes:
    content: dict[str, Any] = {
        "revision": entry.revision,
        "kind": entry.kind,
        "base": entry.base,
        "save_id": entry.save_id,
        "written_at": stamp(entry.written_at),
    }
    if entry.fresh_until is not None:
        content["fresh_until"] = stamp(entry.fresh_until)
    if entry.expires_at is not None:
        content["expires_at"] = stamp(entry.expires_at)
    try:
        content["body"] = entry.body.decode()
    except UnicodeDecodeError:
        content["base64"] = base64.b64encode(entry.body).decode()
    return _line(content)


def entry_of(line: bytes, what: str) -> Entry:
    """Give the entry of a line without its line feed; damage is `RecordFormatError` with `what`."""
    content = _content(line, what)
    try:
        return Entry(
            revision=content["revision"],
            kind=content["kind"],
            base=content["base"],
            save_id=content["save_id"],
            written_at=datetime.fromisoformat(content["written_at"]),
            body=content["body"].encode() if "body" in content else base64.b64decode(content["base64"]),
            fresh_until=_moment(content.get("fresh_until")),
            expires_at=_moment(content.get("expires_at")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordFormatError(what, "is no entry: it is damaged") from error


def _line(content: dict[str, Any]) -> bytes:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()[:-1]
    return b'%s,"crc":"%08x"}\n' % (text, zlib.crc32(text))


def _content(line: bytes, what: str) -> dict[str, Any]:
    text, crc = line[:-_CRC], line[-_CRC:]
    if crc != b',"crc":"%08x"}' % zlib.crc32(text):
        raise RecordFormatError(what, "is not as it was written: it is damaged")
    content = json.loads(line)
    if not isinstance(content, dict):
        raise RecordFormatError(what, "is no record: it is damaged")
    return content


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
