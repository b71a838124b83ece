"""Puts the chunks of a Chat Completions stream together into the answer that would have come whole.

What compatible servers do, and what is made of it:

    [DONE] missing                               the last chunk is the one with a finish_reason
    finish_reason missing                        the last one is [DONE]
    calls without index                          told apart by id, else by the name that begins one
    the same index for another id                another call; so is a name again after whole arguments
    id and name repeated in each chunk           one call
    whole arguments again under the same id      the later ones count
    a whole message in the place of deltas       that message
    usage in every chunk, each one whole         the last one counts
    an `error` in a chunk                        the error that its code stands for
    reasoning and reasoning_details in pieces    joined, signatures included
"""

from collections.abc import Iterator
from typing import Any, cast

from pydantic import JsonValue

from durable.errors import ProviderResponseError
from durable.ports import Delta
from durable.providers._failures import Redact
from durable.providers._openai_chat_answer import rescued, stated
from durable.providers._sse import ServerEvent
from durable.providers._text import Flow, as_dict, as_list, as_text, mended_json, read_raw
from durable.providers._wire import written_arguments

_JOINED = frozenset({"content", "reasoning", "reasoning_content", "refusal"})
_JOINED_DETAILS = frozenset({"text", "summary", "data", "signature"})


class ChatStream:
    """One stream of the protocol."""

    def __init__(self, provider: str, redact: Redact) -> None:
        self._provider = provider
        self._redact = redact
        self._message: dict[str, Any] = {}
        self._calls = _Calls()
        self._reason = ""
        self._top: dict[str, Any] = {}
        self._flows: dict[str, Flow] = {}
        self._instead: dict[str, Any] = {}
        self._rescued: JsonValue = None
        self._seen = False
        self.done = False

    def feed(self, event: ServerEvent) -> Iterator[Delta]:
        if event.data.strip() == "[DONE]":
            self.done = True
            return
        chunk = as_dict(read_raw(event.data))
        if not chunk:
            raise ProviderResponseError(self._provider, "an event of the stream is not a JSON object")
        if chunk.get("error") or event.name == "error":
            self._fail(chunk)
            return
        for name in ("model", "usage"):
            if chunk.get(name):
                self._top[name] = chunk[name]
        choices = as_list(chunk.get("choices"))
        choice = as_dict(choices[0]) if choices else {}
        if not choice:
            return
        self._seen = True
        self._reason = as_text(choice.get("finish_reason")) or self._reason
        self._instead = as_dict(choice.get("message")) or self._instead
        yield from self._take(as_dict(choice.get("delta")))

    def whole(self) -> JsonValue:
        if self._rescued is not None:
            return self._rescued
        if not self._seen or not (self.done or self._reason):
            return None
        message = dict(self._message)
        if self._calls.all:
            message["tool_calls"] = self._calls.all
        elif not any(message.get(name) for name in ("content", "refusal")):
            message |= self._instead
        choice = {"index": 0, "message": message, "finish_reason": self._reason or None}
        try:
            return mended_json({**self._top, "choices": [choice]})
        except ValueError:
            raise ProviderResponseError(self._provider, "the answer is nested too deep") from None

    def _fail(self, chunk: dict[str, Any]) -> None:
        try:
            said = mended_json(chunk)
        except ValueError:
            said = None
        self._rescued = rescued(said)
        if self._rescued is None:
            raise stated(self._provider, said, self._redact)
        self.done = True

    def _take(self, delta: dict[str, Any]) -> Iterator[Delta]:
        shown = as_text(delta.get("reasoning_content") or delta.get("reasoning"))
        yield from self._told("reasoning", "reasoning", shown)
        for name, value in delta.items():
            if name == "tool_calls":
                for call in as_list(value):
                    yield from self._calls.take(as_dict(call))
            elif name == "content" and isinstance(value, list):
                yield from self._parts(as_list(delta[name]))
            elif name == "reasoning_details":
                kept: list[Any] = self._message.setdefault(name, [])
                for detail in as_list(value):
                    _add_detail(kept, detail)
            elif name in _JOINED and isinstance(value, str):
                self._message[name] = as_text(self._message.get(name)) + value
                if name in ("content", "refusal"):
                    yield from self._told("text", name, value)
            elif value is not None or name not in self._message:
                self._message[name] = value

    def _parts(self, parts: list[Any]) -> Iterator[Delta]:
        """Content as a list of parts (Mistral): pieces of one type in a row are one part."""
        kept = as_list(self._message.get("content"))
        self._message["content"] = kept
        for part in parts:
            _add_piece(kept, part)
            if as_dict(part).get("type") == "text":
                yield from self._told("text", "content", as_text(part.get("text")))

    def _told(self, kind: Any, flow: str, text: str) -> Iterator[Delta]:
        if piece := self._flows.setdefault(flow, Flow()).feed(text):
            yield Delta(kind, piece)


class _Calls:
    """The tool calls of a stream."""

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []
        self._places: dict[int | str, int] = {}
        self._flows: dict[int, Flow] = {}

    def take(self, delta: dict[str, Any]) -> Iterator[Delta]:
        function = as_dict(delta.get("function"))
        place = self._place(delta, function)
        call = self.all[place]
        call |= {n: v for n, v in delta.items() if n not in ("function", "index") and v not in (None, "")}
        held = call["function"]
        given = function.get("arguments")
        held |= {n: v for n, v in function.items() if n != "arguments" and v not in (None, "")}
        piece = given
        if isinstance(given, str) and not _again(held, given):
            held["arguments"] = as_text(held.get("arguments")) + given
            piece = self._flows.setdefault(place, Flow()).feed(given)
        elif given is not None:
            piece = "" if "arguments" in held else written_arguments(given)
            held["arguments"] = given
        if piece:
            id = str(call["id"]) if "id" in call else None
            yield Delta("arguments", piece, place, id, as_text(held.get("name")))

    def _place(self, delta: dict[str, Any], function: dict[str, Any]) -> int:
        """Which call a piece belongs to."""
        index, id = delta.get("index"), as_text(delta.get("id"))
        key = index if isinstance(index, int) else id
        last = len(self.all) - 1
        place = self._places.get(key) if key != "" else (None if function.get("name") else last)
        before = self.all[place] if place is not None and place >= 0 else {}
        other = bool(id) and before.get("id", id) != id
        if not id and function.get("name") and before:
            other = _again(before["function"], as_text(function.get("arguments")))
        if place is None or place < 0 or other:
            self.all.append({"function": {}})
            place = last + 1
        if key != "":
            self._places[key] = place
        return place


def _again(held: dict[str, Any], arguments: str) -> bool:
    """Whether these arguments begin anew: there are some, and what is held is a whole object already."""
    return bool(arguments.strip()) and isinstance(read_raw(as_text(held.get("arguments"))), dict)


def _add_detail(kept: list[Any], detail: Any) -> None:
    """One piece of `reasoning_details`: those of one index and type are one detail."""
    piece = as_dict(detail)
    key = (piece.get("index"), piece.get("type"))
    before = next((one for one in map(as_dict, kept) if one and (one.get("index"), one.get("type")) == key), None)
    if not piece or before is None:
        kept.append(dict(piece) if piece else detail)
        return
    for name, value in piece.items():
        joins = name in _JOINED_DETAILS and isinstance(before.get(name), str) and isinstance(value, str)
        before[name] = before[name] + value if joins else value


def _add_piece(kept: list[Any], part: Any) -> None:
    """One piece of a list of parts: joined to the last one where it is of the same type."""
    before, piece = as_dict(kept[-1] if kept else None), as_dict(part)
    if not piece or not before or before.get("type") != piece.get("type"):
        kept.append(part)
        return
    for name, value in piece.items():
        held = before.get(name)
        if isinstance(held, str) and isinstance(value, str) and name != "type":
            before[name] = held + value
        elif isinstance(held, list) and isinstance(value, list):
            for inner in as_list(cast(object, value)):
                _add_piece(as_list(cast(object, held)), inner)
        else:
            before[name] = value
