"""A provider's server on the loopback interface: gives recorded answers byte for byte, and keeps what it was asked."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Loopback:
    """Answers each request with the next answer of `answers`: status, headers, body."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        self.paths: list[str] = []
        self.bodies: list[Any] = []
        self.piece = 7


@contextmanager
def served() -> Iterator[Loopback]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status, headers, content = loopback.answers[len(loopback.bodies)]
            loopback.paths.append(self.path)
            loopback.bodies.append(json.loads(body))
            self.send_response(status)
            for name, value in {**headers, "transfer-encoding": "chunked"}.items():
                self.send_header(name, value)
            self.end_headers()
            step = max(loopback.piece, len(content) // 50)  # pieces that fit nothing, but not thousands of them
            with suppress(ConnectionError):  # a client may have heard enough
                for start in range(0, len(content), step):
                    piece = content[start : start + step]
                    self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except ConnectionError:
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    loopback = Loopback(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield loopback
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
