"""Attachments: a user turn is stored with its resolved parts, so the next request sends the same bytes."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from durable import AbortSignal, FilePart, ImagePart, TextPart, UserMessage, attachments
from durable.attachments import kind_of, resolved
from durable.errors import InvalidInputError
from stores.sqlite import sqlite_store
from tests.support.runs import fresh_agent, memory_store, run

PNG = b"\x89PNG\r\n\x1a\n" + b"p" * 64
PDF = b"%PDF-1.7 " + b"d" * 64
SHOWN = [ImagePart.from_bytes(PNG, "image/png"), FilePart.from_bytes(PDF, "application/pdf")]


class Pages(BaseHTTPRequestHandler):
    """/pic.png, /doc, a redirect to each, and nothing else."""

    def do_GET(self) -> None:
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", {"/to/pic": "/pic.png", "/to/file": "file:///etc/hostname"}[self.path])
            self.end_headers()
            return
        data, kind = {"/pic.png": (PNG, "image/png"), "/notes": (b"notes", "text/plain")}.get(self.path, (None, ""))
        self.send_response(200 if data else 404)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(data or b"")

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def site() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("durable", [True, False])
def test_the_next_request_sends_the_same_bytes(durable: bool, tmp_path: Path) -> None:
    """A file is read once: what became of it later changes nothing in what is stored and sent again."""
    store = sqlite_store(tmp_path / "store.db")
    picture = tmp_path / "picture.png"
    picture.write_bytes(PNG)
    agent = fresh_agent(["one"], [], store if durable else None)
    run(agent.session("s", store=store).send("look", attachments=[picture, PDF]))
    picture.unlink()
    again = fresh_agent(["one", "two"], [], store if durable else None)
    run(again.session("s", store=store).send("and?"))
    first, second = agent.provider.requests[0].messages[0], again.provider.requests[0].messages[0]  # type: ignore[union-attr]
    assert first == second == UserMessage(content=(TextPart(text="look"), *SHOWN))


def test_a_large_attachment_is_stored_and_comes_back() -> None:
    """Bytes beyond the size of an item are the store's business."""
    chat = fresh_agent(["one"], [], memory_store()).session("s")
    data = PNG + bytes(range(256)) * 8_000
    run(chat.send("look", attachments=[data]))
    assert run(chat.history())[0].content[1] == ImagePart.from_bytes(data, "image/png")


def test_every_kind_of_attachment(site: str, tmp_path: Path) -> None:
    """Parts stay as they are; bytes, files and URLs become an image or a file by their content, header or name."""
    notes = tmp_path / "notes.txt"
    notes.write_bytes(b"notes")
    linked = ImagePart(url="https://example.org/x.png")
    given = [linked, TextPart(text="x"), PNG, notes, f"{site}/pic.png", f"{site}/to/pic", f"{site}/notes"]
    assert run(resolved(given)) == (
        linked,
        TextPart(text="x"),
        SHOWN[0],
        FilePart.from_bytes(b"notes", "text/plain", name="notes.txt"),
        SHOWN[0],
        SHOWN[0],
        FilePart.from_bytes(b"notes", "text/plain", name="notes"),
    )


@pytest.mark.parametrize("path", ["/missing", "/to/file"])
def test_a_url_that_gives_nothing_is_refused(site: str, path: str) -> None:
    """A page that is not there, or a redirect to anything but http, is refused before the turn begins."""
    chat = fresh_agent(["one"], [], memory_store()).session("s")
    with pytest.raises(InvalidInputError, match="Attachment 1"):
        run(chat.send("look", attachments=[f"{site}{path}"]))
    assert run(chat.load()) is None


@pytest.mark.parametrize("given", [b"what is this", "file:///etc/passwd", "no url", Path("/nowhere/x.png")])
def test_what_cannot_be_resolved_is_refused(given: Any) -> None:
    """Bytes of no kind that can be told, other schemes than http and files that are not there are refused by number."""
    chat = fresh_agent(["one"], [], memory_store()).session("s")
    with pytest.raises(InvalidInputError, match="Attachment 2"):
        run(chat.send("look", attachments=[PNG, given]))
    assert run(chat.load()) is None


def test_an_attachment_has_a_most(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """At the most it is taken, one byte above it is not."""
    monkeypatch.setattr(attachments, "MAX_BYTES", len(PNG))
    path = tmp_path / "x.png"
    for data, taken in ((PNG, True), (PNG + b"p", False)):
        path.write_bytes(data)
        for given in (data, path):
            if taken:
                assert run(resolved([given])) == (SHOWN[0],)
            else:
                with pytest.raises(InvalidInputError, match="more than"):
                    run(resolved([given]))


def test_kinds_are_told_by_their_first_bytes() -> None:
    """PNG, JPEG, GIF, WebP and PDF are known by their signatures, and nothing else is guessed."""
    webp = b"RIFF\x00\x00\x00\x00WEBPVP8 "
    kinds = [kind_of(data) for data in (PNG, b"\xff\xd8\xff\xe0", b"GIF89a", b"GIF87a", webp, PDF, b"text", b"")]
    assert kinds == ["image/png", "image/jpeg", "image/gif", "image/gif", "image/webp", "application/pdf", None, None]


def test_attachments_go_with_the_users_message() -> None:
    """They follow the text, or the parts, of the last message, also in a stream; an empty text is left out."""
    chat = fresh_agent(["one", "two"], [], memory_store()).session("s")
    run(chat.send("", attachments=[PNG]))

    async def streamed() -> None:
        await chat.stream([UserMessage(content=(TextPart(text="a"),))], attachments=[PDF]).result

    run(streamed())
    history = run(chat.history())
    assert [history[0].content, history[2].content] == [(SHOWN[0],), (TextPart(text="a"), SHOWN[1])]


def test_a_key_tells_attachments_apart() -> None:
    """The same words with another picture are another request: its key may not be used again."""
    chat = fresh_agent(["one", "two"], [], memory_store()).session("s")
    run(chat.send("look", attachments=[PNG], key="k", signal=AbortSignal()))
    assert run(chat.send("look", attachments=[PNG], key="k")).text == "one"
    with pytest.raises(Exception, match="another body"):
        run(chat.send("look", attachments=[PDF], key="k"))
