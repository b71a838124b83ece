"""The framing of server-sent events: cut anywhere, ended in any way."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from durable.providers import _sse
from durable.providers._sse import EventReader, ServerEvent, TooLarge

TEXT = "é🦔\u2028 x"
WIRE = f": comment\n\nevent: a\nid: 7\ndata: {TEXT}\ndata:  two\nretry: 3\n\ndata\n\ndata:[DONE]\n\n"
EVENTS = [ServerEvent("a", f"{TEXT}\n two"), ServerEvent("", ""), ServerEvent("", "[DONE]")]


def read(content: bytes, cuts: list[int]) -> list[ServerEvent]:
    reader = EventReader()
    places = [0, *sorted(cut % (len(content) + 1) for cut in cuts), len(content)]
    found = [event for start, end in pairwise(places) for event in reader.feed(content[start:end])]
    return [*found, *reader.end()]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@given(cuts=st.lists(st.integers(0, 500), max_size=8))
@example(cuts=list(range(200)))
def test_events_are_the_same_however_they_are_cut(end: str, cuts: list[int]) -> None:
    """Cut inside a character, a line end or a field, with any line ends: the same events, comments left out."""
    content = WIRE.replace("\n", end).encode()
    assert read(content, cuts) == EVENTS
    assert read(b"\xef\xbb\xbf" + content, cuts) == EVENTS


@pytest.mark.parametrize("end", ["", "\n", "\r", "\r\n"])
def test_the_last_event_needs_no_empty_line(end: str) -> None:
    """A server that ends without it has still said what it said."""
    assert read(f"data: one\n\ndata: two{end}".encode(), []) == [ServerEvent("", "one"), ServerEvent("", "two")]


@given(content=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=5))
def test_any_bytes_are_read(content: bytes, cuts: list[int]) -> None:
    """Nothing that a server sends makes the reader fail, and no cut makes a difference."""
    assert read(content, cuts) == read(content, [])


def test_an_event_that_does_not_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded: an event may have so many characters and not more; many small ones may."""
    monkeypatch.setattr(_sse, "MAX_EVENT", 100)
    assert len(read(b"data: small\n\n" * 50, list(range(0, 600, 13)))) == 50
    with pytest.raises(TooLarge):
        read(b"data: " + b"x" * 200, list(range(0, 200, 20)))
