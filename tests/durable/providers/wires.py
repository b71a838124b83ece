"""The four protocols for tests: a model over each, and a whole answer as the stream that would have given it."""

import json
import struct
import threading
import zlib
from collections.abc import Iterator
from typing import Any

import httpx

from durable.ports import Delta, ModelRequest, ModelTurn, StreamingProvider
from durable.providers import HttpSettings
from durable.providers.anthropic import Anthropic
from durable.providers.bedrock import Bedrock
from durable.providers.openai_chat import OpenAIChat
from durable.providers.openai_responses import OpenAIResponses

KEY = "sk-secret-0123456789"
OVER_HTTP = {"openai-chat": OpenAIChat, "openai-responses": OpenAIResponses, "anthropic-messages": Anthropic}


async def no_sleep(seconds: float) -> None:
    """Go on at once."""


def model_over(protocol: str, handler: Any, **http: Any) -> Any:
    """A model of this protocol whose server is a function of the request."""
    settings = HttpSettings(**{"sleep": no_sleep, "attempts": 1, **http}, transport=httpx.MockTransport(handler))
    return OVER_HTTP[protocol]("m", api_key=KEY, http=settings)


class Cut(httpx.AsyncByteStream):
    """A body in pieces of these sizes, the rest as one; with an error at its end where one is given."""

    def __init__(self, content: bytes, sizes: list[int] | None = None, error: Exception | None = None) -> None:
        self.content, self.sizes, self.error = content, sizes or [], error

    async def __aiter__(self) -> Any:
        at = 0
        for size in self.sizes:
            yield self.content[at : at + size]
            at += size
        yield self.content[at:]
        if self.error is not None:
            raise self.error


def stream_of(content: bytes, sizes: list[int] | None = None, error: Exception | None = None) -> httpx.Response:
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Cut(content, sizes, error))


async def streamed(model: StreamingProvider, request: ModelRequest) -> tuple[ModelTurn, list[Delta]]:
    told: list[Delta] = []
    return await model.stream(request, told.append), told


# --- a whole answer as a stream --------------------------------------------------------------------------------------


def _pieces(text: str, size: int = 3) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def as_stream(protocol: str, answer: Any) -> list[str]:
    """The data of each event, as the protocol's documentation has them; `[DONE]` included."""
    made = {"openai-chat": _chat, "openai-responses": _responses, "anthropic-messages": _anthropic}[protocol]
    return [event if isinstance(event, str) else json.dumps(event) for event in made(answer)]


def framed(events: list[str], *, end: str = "\n", named: bool = False) -> bytes:
    """The events as bytes on the wire."""
    lines: list[str] = [": keep-alive", ""]
    for event in events:
        if named:
            lines.append(f"event: {json.loads(event).get('type', '')}")
        lines += [f"data: {event}", ""]
    return "".join(line + end for line in lines).encode("utf-8", "surrogatepass")


def _chat(answer: Any) -> Iterator[Any]:
    choice = answer["choices"][0]
    message = choice["message"]

    def chunk(delta: Any, reason: Any = None, **more: Any) -> Any:
        return {
            "model": answer.get("model"),
            "choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
            **more,
        }

    yield chunk({"role": "assistant", "content": None})
    for name, value in message.items():
        if name == "tool_calls":
            for index, call in enumerate(value or ()):
                function = call["function"]
                text = function.get("arguments")
                start = {**function, "arguments": ""} if isinstance(text, str) else function
                yield chunk({"tool_calls": [{**call, "index": index, "function": start}]})
                for piece in _pieces(text) if isinstance(text, str) else ():
                    yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        elif isinstance(value, str) and name in ("content", "reasoning", "reasoning_content"):
            for piece in _pieces(value):
                yield chunk({name: piece})
        elif name != "role":
            yield chunk({name: value})
    yield chunk({}, choice.get("finish_reason"))
    yield {"choices": [], "usage": answer.get("usage")}
    yield "[DONE]"


def _anthropic(answer: Any) -> Iterator[Any]:
    yield {"type": "message_start", "message": {**answer, "content": [], "stop_reason": None}}
    yield {"type": "ping"}
    for index, block in enumerate(answer["content"]):
        kind = block["type"]
        empty = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}, "tool_use": {"input": {}}}
        yield {"type": "content_block_start", "index": index, "content_block": {**block, **empty.get(kind, {})}}
        deltas: list[Any] = []
        if kind == "text":
            deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(block["text"])]
        elif kind == "thinking":
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(block["thinking"])]
            deltas += [{"type": "signature_delta", "signature": piece} for piece in _pieces(block["signature"], 40)]
        elif kind == "tool_use":
            text = json.dumps(block["input"]) if block["input"] else ""
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ["", *_pieces(text)]]
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    delta = {"stop_reason": answer["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": answer["usage"]["output_tokens"]}}
    yield {"type": "message_stop"}


def _responses(answer: Any) -> Iterator[Any]:
    yield {"type": "response.created", "response": {**answer, "output": [], "status": "in_progress"}}
    for index, item in enumerate(answer["output"]):
        yield {"type": "response.output_item.added", "output_index": index, "item": item}
        if item["type"] == "function_call":
            for piece in _pieces(item["arguments"]):
                yield {"type": "response.function_call_arguments.delta", "output_index": index, "delta": piece}
        for part in item.get("content") or ():
            for piece in _pieces(part.get("text", "")):
                yield {"type": "response.output_text.delta", "output_index": index, "delta": piece}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{answer.get('status', 'completed')}", "response": answer}


# --- Bedrock ---------------------------------------------------------------------------------------------------------


class Client:
    """What boto3 gives: a whole answer, or the events of a stream; an exception is raised in its place."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[Any] = []
        self.closed = threading.Event()

    def converse(self, **body: Any) -> Any:
        self.asked.append(body)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def converse_stream(self, **body: Any) -> Any:
        self.asked.append(body)
        if isinstance(self.answer, Exception):
            raise self.answer
        return {"stream": Events(self.answer, self.closed)}


class Events:
    """A stream of events that may end with an exception, and is closed at the end."""

    def __init__(self, events: Any, closed: threading.Event) -> None:
        self.events, self.closed = events, closed

    def __iter__(self) -> Iterator[Any]:
        for event in self.events:
            if isinstance(event, Exception):
                raise event
            yield event

    def close(self) -> None:
        self.closed.set()


def bedrock_over(answer: Any, **http: Any) -> tuple[Bedrock, Client]:
    client = Client(answer)
    settings = HttpSettings(**{"sleep": no_sleep, "attempts": 1, **http})
    return Bedrock("us.anthropic.claude-v1:0", client=lambda: client, http=settings), client


def bedrock_events(answer: Any) -> list[Any]:
    """A whole answer as the events that boto3 would have given."""
    events: list[Any] = [{"messageStart": {"role": "assistant"}}]
    for index, block in enumerate(answer["output"]["message"]["content"]):
        at = {"contentBlockIndex": index}
        deltas: list[Any] = []
        if "toolUse" in block:
            use = block["toolUse"]
            start = {"toolUse": {"toolUseId": use["toolUseId"], "name": use["name"]}}
            events.append({"contentBlockStart": {**at, "start": start}})
            deltas = [
                {"toolUse": {"input": piece}} for piece in _pieces(json.dumps(use["input"]) if use["input"] else "")
            ]
        elif "text" in block:
            deltas = [{"text": piece} for piece in _pieces(block["text"])]
        elif "reasoningText" in block.get("reasoningContent", {}):
            text = block["reasoningContent"]["reasoningText"]
            deltas = [{"reasoningContent": {"text": piece}} for piece in _pieces(text["text"])]
            deltas.append({"reasoningContent": {"signature": text["signature"]}})
        else:
            deltas = [{"reasoningContent": {"redactedContent": block["reasoningContent"]["redactedContent"]}}]
        events += [{"contentBlockDelta": {**at, "delta": delta}} for delta in deltas]
        events.append({"contentBlockStop": at})
    events.append({"messageStop": {"stopReason": answer["stopReason"]}})
    events.append({"metadata": {"usage": answer["usage"]}})
    return events


def event_frame(kind: str, payload: Any, *, message: str = "event") -> bytes:
    """One message of an AWS event stream: lengths, headers, payload and both checksums."""
    names = {":message-type": message, ":content-type": "application/json"}
    names[":exception-type" if message == "exception" else ":event-type"] = kind
    headers = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
        for name, value in names.items()
    )
    body = json.dumps(payload).encode()
    prelude = struct.pack(">II", 16 + len(headers) + len(body), len(headers))
    head = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + body
    return head + struct.pack(">I", zlib.crc32(head))
