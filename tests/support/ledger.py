"""The outside world, on the loopback interface: it counts what really happened, and can keep a caller waiting.

A tool that posts to it has had its side effect when the post is counted. While a step is held, its caller waits, so a
test can kill the caller at that very point.
"""

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


class Gate:
    """A step that is held: `wait` for the caller to arrive, then `open` the gate."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self.opened = threading.Event()

    def wait(self, seconds: float = 30) -> None:
        if not self.arrived.wait(seconds):
            raise TimeoutError("Nobody came to the held step.")

    def open(self) -> None:
        self.opened.set()


class Ledger:
    """The server, as a context manager. What happened is named `<session>/<step>`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._happened: Counter[str] = Counter()
        self._gates: dict[str, Gate] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def count(self, session: str, step: str) -> int:
        with self._lock:
            return self._happened[f"{session}/{step}"]

    def hold(self, session: str, step: str) -> Gate:
        """Keep whoever comes to this step waiting, after it is counted."""
        with self._lock:
            gate = self._gates[f"{session}/{step}"] = Gate()
        return gate

    def __enter__(self) -> Self:
        ledger = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                ledger.record(f"{body['session']}/{body['step']}")
                try:
                    self.send_response(204)
                    self.end_headers()
                except OSError:
                    pass  # the caller was killed while it waited

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            for gate in self._gates.values():
                gate.open()
        self._server.shutdown()
        self._server.server_close()

    def record(self, name: str) -> None:
        with self._lock:
            self._happened[name] += 1
            gate = self._gates.get(name)
        if gate is not None:
            gate.arrived.set()
            gate.opened.wait(60)
