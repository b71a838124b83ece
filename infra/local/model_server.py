"""A model on the loopback interface: it speaks OpenAI Chat Completions (without streaming) and plays a conversation.

    with ModelServer.recorded(folder / "openai-chat-sequential-tools-1.json") as model:
        os.environ["OPENAI_BASE_URL"] = model.base_url

    with ModelServer([calls(("refund", {"order": 7})), text("Refunded.")]) as model:
        with model.hold(1) as held:     # the second answer is kept back
            held.wait()                 # until it is asked for
            cloud.kill_function("RunsFunction")
        with model.down(503, 529):      # out of service: every request is refused, with these in turn
            ...

Which answer a request gets follows from the request alone: the number of model turns it already contains. So a request
that is sent again gets the same answer again. What a real provider refuses is refused here: no key, a stream, a
tool call without its result or a result without its call, a tool that the request does not offer.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from pathlib import Path
from types import TracebackType
from typing import Any, Self

Json = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What goes back over the wire for one request."""

    body: Json
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def tools(self) -> set[str]:
        """The tools that this answer calls."""
        choices = self.body.get("choices") or [{}]
        tool_calls = choices[0].get("message", {}).get("tool_calls") or []
        return {call["function"]["name"] for call in tool_calls}


@dataclass(frozen=True)
class ModelRequest:
    """A request that arrived, and which answer of the conversation it asked for (None: it was refused)."""

    exchange: int | None
    body: Json


class Held:
    """An answer that is kept back until `release`, or until the `with` block ends."""

    def __init__(self) -> None:
        self._arrived = threading.Event()
        self._released = threading.Event()

    def wait(self, seconds: float = 30) -> None:
        """Return when the answer has been asked for."""
        if not self._arrived.wait(seconds):
            raise TimeoutError(f"Nobody asked for the answer that is held back within {seconds} seconds.")

    def release(self) -> None:
        """Let the answer go, and every later one."""
        self._released.set()

    def stop_here(self, seconds: float = 120) -> None:
        """Called for a request that arrives while the answer is held."""
        self._arrived.set()
        self._released.wait(seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class ModelServer:
    """The server, as a context manager. A conversation that goes on after the last answer begins again."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        if not answers:
            raise ValueError("a conversation needs at least one answer")
        self._answers = answers
        self._held: dict[int, Held] = {}
        self._outage: Iterator[int] | None = None
        self._lock = threading.Lock()
        self.requests: list[ModelRequest] = []  # all that arrived, oldest first

    @classmethod
    def recorded(cls, file: Path) -> Self:
        """Plays the answers of one recorded conversation: `{"exchanges": [{"response": {"status", "body"}}]}`."""
        recording = json.loads(file.read_text())
        if recording["protocol"] != "openai-chat" or recording["streaming"]:
            raise ValueError(f"{file.name} is not a Chat Completions conversation without streaming")
        responses = [exchange["response"] for exchange in recording["exchanges"]]
        return cls([Answer(r["body"], r["status"], r.get("headers", {})) for r in responses])

    @property
    def base_url(self) -> str:
        """What `OPENAI_BASE_URL` is to be set to."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def count(self, exchange: int) -> int:
        """How often one answer of the conversation was asked for."""
        with self._lock:
            return sum(request.exchange == exchange for request in self.requests)

    def hold(self, exchange: int) -> Held:
        """Keep one answer back. Requests for it arrive and are counted, but are answered only after `release`."""
        with self._lock:
            held = self._held[exchange] = Held()
        return held

    @contextmanager
    def down(self, *statuses: int) -> Iterator[None]:
        """Answer every request with one of these errors, in turn; one that is held back as well, when it is let go."""
        with self._lock:
            self._outage = cycle(statuses)
        try:
            yield
        finally:
            with self._lock:
                self._outage = None

    def refused(self) -> int:
        """How many requests were answered with an error."""
        with self._lock:
            return sum(request.exchange is None for request in self.requests)

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self.answer))
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for held in self._held.values():
            held.release()
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str, authorization: str | None, raw: bytes) -> Answer:
        """The answer to one request; returns when it is no longer held back."""
        try:
            body = json.loads(raw)
            if not isinstance(body, dict):
                raise ValueError("it is not an object")
        except ValueError as error:
            return _refusal(400, f"We could not parse the JSON body of your request: {error}")
        exchange = _turns(body) % len(self._answers)
        answer = self._answers[exchange]
        refusal = _refuse(path, authorization, body, answer) or self._failing()
        with self._lock:
            self.requests.append(ModelRequest(None if refusal else exchange, body))
            held = self._held.get(exchange)
        if refusal is None and held is not None:
            held.stop_here()
            refusal = self._failing()
        return refusal or answer

    def _failing(self) -> Answer | None:
        with self._lock:
            return failure(next(self._outage), "out of service") if self._outage else None


# --- Answers that are made up rather than recorded --------------------------------------------------------------------


def text(content: str) -> Answer:
    """The model ends its turn with a text."""
    return _completion({"content": content}, "stop")


def calls(*tool_calls: tuple[str, Json], content: str | None = None) -> Answer:
    """The model asks for tools: pairs of a name and arguments."""
    asked = [
        {"id": f"call_{name}_{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for n, (name, arguments) in enumerate(tool_calls)
    ]
    return _completion({"content": content, "tool_calls": asked}, "tool_calls")


def failure(status: int, message: str = "made to fail", **headers: str) -> Answer:
    """The provider answers with an error, every time that this answer is asked for."""
    return Answer(_refusal(status, message).body, status, headers)


def _completion(message: Json, finish_reason: str) -> Answer:
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    return Answer({
        "id": "chatcmpl-made-up", "object": "chat.completion", "created": 1_750_000_000, "model": "made-up",
        "choices": [choice], "usage": usage,
    })  # fmt: skip


# --- What a provider refuses ------------------------------------------------------------------------------------------


def _refuse(path: str, authorization: str | None, body: Json, answer: Answer) -> Answer | None:
    if path != "/v1/chat/completions":
        return _refusal(404, f"Unknown request URL: POST {path}")
    if not authorization or not authorization.startswith("Bearer "):
        return _refusal(401, "You didn't provide an API key.", code="invalid_api_key")
    if body.get("stream"):
        return _refusal(400, "This server does not stream.")
    if not isinstance(body.get("model"), str):
        return _refusal(400, "You must provide a model parameter.")
    mistake = transcript_mistake(body.get("messages"))
    if mistake:
        return _refusal(400, mistake)
    offered = {tool["function"]["name"] for tool in body.get("tools") or []}
    if not answer.tools <= offered:
        return _refusal(400, f"The conversation calls {sorted(answer.tools - offered)}; offered are {sorted(offered)}.")
    return None


def transcript_mistake(messages: Any) -> str | None:
    """What is wrong with a transcript: every tool call is answered right after its turn, by exactly one result."""
    if not isinstance(messages, list) or not messages:
        return "'messages' must be a non-empty list."
    pending: set[str] = set()
    for n, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in (
            "system",
            "developer",
            "user",
            "assistant",
            "tool",
        ):
            return f"messages[{n}] has no known role."
        if message["role"] == "tool":
            if message.get("tool_call_id") not in pending:
                return f"messages[{n}]: no preceding tool call has the id {message.get('tool_call_id')!r}."
            pending.remove(message["tool_call_id"])
            continue
        if pending:
            return f"messages[{n}]: the tool calls {sorted(pending)} have no result."
        asked = message.get("tool_calls") or []
        pending = {call["id"] for call in asked}
        if len(pending) != len(asked) or "" in pending:
            return f"messages[{n}]: the ids of its tool calls are empty or repeat."
    return f"the tool calls {sorted(pending)} have no result." if pending else None


def _turns(body: Json) -> int:
    messages = body.get("messages")
    if not isinstance(messages, list):
        return 0
    return sum(isinstance(message, dict) and message.get("role") == "assistant" for message in messages)


def _refusal(status: int, message: str, *, code: str | None = None) -> Answer:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return Answer({"error": {"message": message, "type": kind, "param": None, "code": code}}, status)


def _handler_of(answer: Callable[[str, str | None, bytes], Answer]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            found = answer(self.path, self.headers.get("Authorization"), raw)
            content = json.dumps(found.body).encode()
            try:
                self.send_response(found.status)
                for name, value in {"Content-Type": "application/json", **found.headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
            except (BrokenPipeError, ConnectionResetError):  # whoever asked was killed meanwhile, as tests do
                self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the signature that it overrides
            """Nothing: what arrived is in `requests`."""

    return Handler
