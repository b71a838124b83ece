"""Server-sent events, as the HTML standard frames them.

Bytes may be cut anywhere, inside a character too. Lines end with LF, CR or CRLF; a line that begins with a colon is a
comment (keep-alive); an event ends with an empty line. What follows the last empty line is no event, except that some
servers leave the last one out: `end` gives what is whole by then.
"""

import codecs
from collections.abc import Iterator
from dataclasses import dataclass

MAX_EVENT = 64 * 1024 * 1024
"""Characters of one event. More is no answer of a model."""


class TooLarge(ValueError):
    """An event that does not end."""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event: its name (empty where the server gives none) and its data, lines joined."""

    name: str
    data: str


class EventReader:
    """Cuts bytes into events. One for each stream."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._pieces: list[str] = []
        self._after_cr = False
        self._first = True
        self._name = ""
        self._data: list[str] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[ServerEvent]:
        """Give the events that end in this chunk."""
        yield from self._events(self._decoder.decode(chunk))

    def end(self) -> Iterator[ServerEvent]:
        """Give the last event where the stream ended without the empty line behind it."""
        yield from self._events(self._decoder.decode(b"", final=True))
        if self._pieces:
            yield from self._line("".join(self._pieces))
            self._pieces = []
        yield from self._line("")

    def _events(self, text: str) -> Iterator[ServerEvent]:
        if self._first and text:
            self._first = False
            text = text.removeprefix("\ufeff")
        if self._after_cr and text:
            self._after_cr = False
            text = text.removeprefix("\n")
        self._after_cr = self._after_cr or text.endswith("\r")
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._size += len(text)
        if self._size > MAX_EVENT:
            raise TooLarge(f"an event of more than {MAX_EVENT} characters")
        for line in lines[:-1]:
            self._pieces.append(line)
            whole, self._pieces = "".join(self._pieces), []
            yield from self._line(whole)
        if lines[-1]:
            self._pieces.append(lines[-1])

    def _line(self, line: str) -> Iterator[ServerEvent]:
        if not line:
            if self._data:
                yield ServerEvent(self._name, "\n".join(self._data))
            self._name, self._data, self._size = "", [], 0
            return
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
