"""What a user attaches to a message: images, files, bytes and URLs, as the parts that are stored and sent.

They are resolved once, before the turn begins. So the bytes that the model saw are the bytes that it sees in every
later turn, whatever becomes of the file or the page.
"""

import mimetypes
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    Request,
)

import anyio.to_thread

from durable.errors import InvalidInputError
from durable.messages import FilePart, ImagePart, Part, TextPart

Attachment = TextPart | ImagePart | FilePart | bytes | Path | str
"""A part as it is; bytes of a known kind; a file; or an http(s) URL, which is fetched now, by this process.

Give only URLs that this process may fetch: from users, `ImagePart(url=…)` leaves the fetching to the model's provider.
"""

MAX_BYTES: Final = 20_000_000
"""Bytes of one attachment."""

FETCH_SECONDS: Final = 30.0

_SIGNATURES: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
)


async def resolved(attachments: Sequence[Attachment]) -> tuple[Part, ...]:
    """Give the attachments as parts, in their order. Raises `InvalidInputError` that says which one and why."""
    return tuple([await _resolved(one, number) for number, one in enumerate(attachments, 1)])


async def _resolved(attachment: Attachment, number: int) -> Part:
    match attachment:
        case TextPart() | ImagePart() | FilePart():
            return attachment
        case bytes():
            return _part(attachment, kind_of(attachment), None, number)
        case Path():
            data = await anyio.to_thread.run_sync(_read, attachment, number)
            kind = kind_of(data) or mimetypes.guess_type(attachment.name)[0]
            return _part(data, kind, attachment.name, number)
        case str():
            data, said = await anyio.to_thread.run_sync(_fetch, attachment, number)
            name = unquote(urlsplit(attachment).path).rpartition("/")[2] or None
            kind = kind_of(data) or said or (mimetypes.guess_type(name)[0] if name else None)
            return _part(data, kind, name, number)


def kind_of(data: bytes) -> str | None:
    """The media type that the first bytes tell, None where they do not."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for signature, kind in _SIGNATURES if data.startswith(signature)), None)


def _part(data: bytes, kind: str | None, name: str | None, number: int) -> Part:
    if len(data) > MAX_BYTES:
        raise InvalidInputError(f"Attachment {number} has more than {MAX_BYTES:,} bytes.")
    if kind is None:
        reason = "give it as ImagePart.from_bytes or FilePart.from_bytes, with its media type"
        raise InvalidInputError(f"Attachment {number} is of no kind that can be told: {reason}.")
    if kind.startswith("image/"):
        return ImagePart.from_bytes(data, kind)
    return FilePart.from_bytes(data, kind, name=name)


def _read(path: Path, number: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidInputError(f"Attachment {number} cannot be read: {error.strerror}.") from error


def _fetch(url: str, number: int) -> tuple[bytes, str | None]:
    if urlsplit(url).scheme not in ("http", "https"):
        raise InvalidInputError(f"Attachment {number} is a text, and no http(s) URL: give a path as `Path`.")
    opener = OpenerDirector()  # nothing but these: no file, no ftp, also not behind a redirect
    for handler in (HTTPHandler, HTTPSHandler, HTTPRedirectHandler, HTTPErrorProcessor, HTTPDefaultErrorHandler):
        opener.add_handler(handler())
    try:
        with opener.open(Request(url), timeout=FETCH_SECONDS) as answer:
            return answer.read(MAX_BYTES + 1), answer.headers.get_content_type()
    except HTTPError as error:
        error.close()
        raise InvalidInputError(f"Attachment {number} cannot be fetched: HTTP status {error.code}.") from None
    except (URLError, OSError, ValueError) as error:
        raise InvalidInputError(f"Attachment {number} cannot be fetched: {type(error).__name__}.") from error
