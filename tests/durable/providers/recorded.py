"""Recorded conversations, read without the code under test.

A conversation is a file of `fixtures/` or of the folder of recordings. For each protocol there is a *view*: what of a
request is compared. It is the same function for the recorded request and for ours.

Not compared, because the recording client decided it, or because it says the same:

    all         order of keys; white space in arguments; a text as a list of one text block; absent against null;
                ids, which are numbered in order of appearance; turns that the client made up itself, with their results
    chat        several system messages against one; null content against none; `strict`; two assistant messages in a
                row against one; reasoning that a client left out, moved into the text or sent under two names (what we
                send of it must be what the server gave); who introduces an image of a tool, and how
    responses   `store` and `include`, unless the client named them; ids and status of items; `strict`; a null
                description against an empty one
    anthropic   `is_error: false` against none; `caller` of a call; `strict` and `defer_loading` of tools
    bedrock     `status: success` against none; a result as `json` against the same as text; an empty `system`
"""

import base64
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from durable.messages import ImagePart, Part, TextPart, UserMessage

FIXTURES = Path(__file__).parent / "fixtures"
REPOSITORY = Path(__file__).parents[3]
RECORDINGS = REPOSITORY / os.environ.get("RECORDINGS_DIR", "../shared/recordings")

Json = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """A tool's result as a recorded request shows it."""

    content: Any
    parts: tuple[Part, ...] = ()
    is_error: bool = False


@dataclass(frozen=True)
class Recorded:
    """One conversation."""

    name: str
    protocol: str
    exchanges: list[Json]

    @cached_property
    def bodies(self) -> list[Json]:
        return [one["request"]["body"] for one in self.exchanges]

    @property
    def is_error(self) -> bool:
        """Whether every exchange of it is one. (Groq's 400 in the middle is a turn.)"""
        return all(one["response"]["status"] >= 300 for one in self.exchanges)

    def answer(self, index: int) -> tuple[int, dict[str, str], bytes]:
        response = self.exchanges[index]["response"]
        body = response["body"]
        if response.get("encoding") == "base64":
            content = base64.b64decode(body)
        else:
            content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        headers = {"content-type": response["content_type"], **(response.get("headers") or {})}
        return response["status"], headers, content


def conversations() -> list[Recorded]:
    """Those of `fixtures/`, and the recorded ones where the folder is at hand."""
    found: list[Recorded] = []
    for path in [*sorted(FIXTURES.glob("*.json")), *sorted(RECORDINGS.glob("*.json"))]:
        value = json.loads(path.read_text(encoding="utf-8"))
        found.append(Recorded(path.stem, value.get("protocol", "openai-chat"), value["exchanges"]))
    return found


def recordings_at_hand() -> bool:
    return any(RECORDINGS.glob("*.json"))


# --- what a recorded request says -------------------------------------------------------------------------------------


def options(protocol: str, body: Json) -> Json:
    """The fields of a recorded body that are options of the model."""
    ours = {
        "openai-chat": {"model", "messages", "tools", "stream", "stream_options"},
        "openai-responses": {"model", "input", "instructions", "tools", "stream"},
        "anthropic-messages": {"model", "messages", "system", "tools", "stream"},
        "bedrock-converse": {"messages", "system", "toolConfig"},
    }[protocol]
    given = {name: value for name, value in body.items() if name not in ours}
    if choice := body.get("toolConfig", {}).get("toolChoice"):
        given["toolConfig"] = {"toolChoice": choice}
    return given


def tools(protocol: str, body: Json) -> list[tuple[str, str, Json]]:
    """Name, description and schema of each tool."""
    if protocol == "bedrock-converse":
        specs = [tool["toolSpec"] for tool in body.get("toolConfig", {}).get("tools", ())]
        return [(spec["name"], spec.get("description", ""), spec["inputSchema"]["json"]) for spec in specs]
    found: list[tuple[str, str, Json]] = []
    for tool in body.get("tools", ()):
        spec = tool.get("function", tool)
        found.append((spec["name"], spec.get("description") or "", spec.get("parameters") or spec.get("input_schema")))
    return found


def instructions(protocol: str, body: Json) -> str:
    if protocol == "openai-chat":
        return "\n\n".join(text_of(one) for one in body["messages"] if one["role"] == "system")
    if protocol == "openai-responses":
        return body.get("instructions") or ""
    system = body.get("system") or ""
    return system if isinstance(system, str) else "\n\n".join(block["text"] for block in system)


def said(protocol: str, body: Json) -> list[UserMessage]:
    """What the user said, message by message, without what a client showed in the user's name."""
    messages = body["input"] if protocol == "openai-responses" else body["messages"]
    found: list[UserMessage] = []
    for at, message in enumerate(messages):
        if message.get("role") != "user" or (at and is_shown(message)):
            continue
        content = message["content"]
        if isinstance(content, str):
            found.append(UserMessage(content=content))
            continue
        parts = [_image(one["image_url"]["url"]) if "image_url" in one else one.get("text") for one in content]
        parts = [part for part in parts if part is not None]
        if all(isinstance(part, str) for part in parts):
            found += [UserMessage(content=part) for part in parts if isinstance(part, str)]
        else:
            shown = tuple(TextPart(text=part) if isinstance(part, str) else part for part in parts)
            found.append(UserMessage(content=shown))
    return found


def is_shown(message: Json) -> bool:
    """Whether a user message only shows what a tool gave."""
    kinds = {block.get("type") for block in message["content"] if isinstance(block, dict)}
    return bool(kinds & {"image_url", "input_image", "tool_result"})


def results(protocol: str, body: Json) -> list[Result]:
    """The tools' results in order."""
    match protocol:
        case "openai-chat":
            return list(_chat_results(body["messages"]))
        case "openai-responses":
            return list(_responses_results(body["input"]))
        case "anthropic-messages":
            return [_anthropic_result(block) for block in _blocks(body) if block.get("type") == "tool_result"]
        case _:
            return [_bedrock_result(block["toolResult"]) for block in _blocks(body) if "toolResult" in block]


def _blocks(body: Json) -> Iterator[Json]:
    for message in body["messages"]:
        if isinstance(message["content"], list):
            yield from message["content"]


def _image(url: str) -> ImagePart:
    found = re.fullmatch(r"data:([^;]+);base64,(.*)", url)
    return ImagePart(media_type=found[1], data=found[2]) if found else ImagePart(url=url)


def _chat_results(messages: list[Json]) -> Iterator[Result]:
    for at, message in enumerate(messages):
        if message["role"] == "tool":
            after = messages[at + 1] if at + 1 < len(messages) else {"role": ""}
            shown = after["content"] if after["role"] == "user" and is_shown(after) else []
            images = tuple(_image(part["image_url"]["url"]) for part in shown if part["type"] == "image_url")
            yield Result(message["content"], images)


def _responses_results(items: list[Json]) -> Iterator[Result]:
    for at, item in enumerate(items):
        if item.get("type") == "function_call_output":
            after = items[at + 1] if at + 1 < len(items) else {}
            shown = after["content"] if after.get("role") == "user" and is_shown(after) else []
            images = tuple(_image(part["image_url"]) for part in shown if part["type"] == "input_image")
            yield Result(item["output"], images)


def _anthropic_result(block: Json) -> Result:
    content = block["content"]
    if isinstance(content, str):
        return Result(content, is_error=bool(block.get("is_error")))
    text = "".join(part["text"] for part in content if part["type"] == "text")
    images = tuple(
        ImagePart(media_type=part["source"]["media_type"], data=part["source"]["data"])
        for part in content
        if part["type"] == "image"
    )
    return Result(text, images, bool(block.get("is_error")))


def _bedrock_result(result: Json) -> Result:
    (part,) = result["content"]
    return Result(part["json"] if "json" in part else part["text"], is_error=result.get("status") == "error")


# --- views ------------------------------------------------------------------------------------------------------------


def view(protocol: str, body: Json) -> Json:
    """What of a request is compared."""
    made: Callable[[Json], Json] = {
        "openai-chat": _chat_view,
        "openai-responses": _responses_view,
        "anthropic-messages": _anthropic_view,
        "bedrock-converse": _bedrock_view,
    }[protocol]
    listed = [(name, text, {**schema}) for name, text, schema in tools(protocol, body)]
    return {**made(body), "tools": listed, "instructions": instructions(protocol, body), "options": _options(body)}


def _options(body: Json) -> Json:
    left_out = {"messages", "input", "system", "instructions", "tools", "toolConfig", "stream_options", "modelId"}
    given = {name: value for name, value in body.items() if name not in left_out and value not in (None, False, [])}
    if choice := body.get("toolConfig", {}).get("toolChoice"):
        given["toolChoice"] = choice
    return given


class _Numbered:
    """Ids by the order in which they appear."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def __call__(self, id: str) -> int:
        return self._seen.setdefault(id, len(self._seen))


def text_of(message: Json) -> str:
    """The text of a chat message: parts joined, reasoning left out (one client sends it inside the text)."""
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(part["text"] for part in content if part["type"] == "text")
    return re.sub(r"<think>.*?</think>", "", content, flags=re.DOTALL)


def _chat_view(body: Json) -> Json:
    number = _Numbered()
    seen: list[Any] = []
    for message in body["messages"]:
        if message["role"] == "system":
            continue
        if message["role"] == "user" and is_shown(message):
            seen.append(("shown", [part["image_url"] for part in message["content"] if "image_url" in part]))
            continue
        calls = [
            (number(call["id"]), call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message.get("tool_calls", ())
        ]
        answers = number(message["tool_call_id"]) if message["role"] == "tool" else None
        if message["role"] == "assistant" and seen and seen[-1][0] == "assistant":
            calls, text = [*seen[-1][2], *calls], seen.pop()[1] + text_of(message)
            seen.append(("assistant", text, calls, answers))
            continue
        seen.append((message["role"], text_of(message), calls, answers))
    return {"messages": seen}


def own_fields(body: Json) -> list[Json]:
    """What assistant messages of a chat request have beside text and calls."""
    known = {"role", "content", "tool_calls", "name", "refusal"}
    found: list[Json] = []
    for message in body["messages"]:
        if message["role"] == "assistant":
            own = {name: value for name, value in message.items() if name not in known and value is not None}
            if isinstance(message.get("content"), list):
                own["parts"] = [part for part in message["content"] if part["type"] != "text"]
            found.append(own)
    return found


def _responses_view(body: Json) -> Json:
    number = _Numbered()
    seen: list[Any] = []
    for item in body["input"]:
        match item:
            case {"type": "function_call"}:
                seen.append(("call", number(item["call_id"]), item["name"], json.loads(item["arguments"])))
            case {"type": "function_call_output"}:
                seen.append(("result", number(item["call_id"]), item["output"]))
            case {"role": "user"} if is_shown(item):
                seen.append(("shown", [part["image_url"] for part in item["content"] if "image_url" in part]))
            case {"role": str() as role}:
                content = item["content"]
                text = content if isinstance(content, str) else "".join(part["text"] for part in content)
                if text:
                    seen.append((role, text))
            case _:
                own = {name: value for name, value in item.items() if name not in ("id", "status", "content")}
                seen.append(("own", own))
    return {"input": seen}


def _anthropic_view(body: Json) -> Json:
    def block(one: Json) -> Json:
        match one["type"]:
            case "tool_use":
                return {name: one[name] for name in ("type", "id", "name", "input")}
            case "tool_result":
                content = one["content"]
                content = [{"type": "text", "text": content}] if isinstance(content, str) else content
                failed = bool(one.get("is_error"))
                return {"type": "tool_result", "id": one["tool_use_id"], "content": content, "failed": failed}
            case _:
                return {name: value for name, value in one.items() if name != "citations" or value}

    messages: list[Any] = []
    for message in body["messages"]:
        content = message["content"]
        content = [{"type": "text", "text": content}] if isinstance(content, str) else content
        messages.append((message["role"], [block(one) for one in content]))
    return {"messages": messages}


def _bedrock_view(body: Json) -> Json:
    def block(one: Json) -> Json:
        if "toolResult" not in one:
            return one
        result = one["toolResult"]
        texts = [part["text"] if "text" in part else json.dumps(part["json"]) for part in result["content"]]
        failed = result.get("status") == "error"
        return {"toolResult": {"id": result["toolUseId"], "texts": texts, "failed": failed}}

    return {"messages": [(one["role"], [block(part) for part in one["content"]]) for one in body["messages"]]}


# --- answers ---------------------------------------------------------------------------------------------------------


def said_by_the_model(protocol: str, body: Json) -> tuple[str, list[tuple[str, str, Any]], tuple[int, int, int]]:
    """Text, calls (id, name, arguments) and tokens (all input, cached, output) of a whole raw answer."""
    usage = body.get("usage") or {}
    if protocol == "openai-chat":
        message = body["choices"][0]["message"]
        calls = [
            (call["id"], call["function"]["name"], _object(call["function"].get("arguments")))
            for call in message.get("tool_calls") or ()
        ]
        details = usage.get("prompt_tokens_details") or {}
        cached = details.get("cached_tokens") or usage.get("prompt_cache_hit_tokens") or 0
        text = _joined(message.get("content") or "")
        return text, calls, (usage.get("prompt_tokens", 0), cached, usage.get("completion_tokens", 0))
    if protocol == "openai-responses":
        items = body["output"]
        text = "".join(_joined(item["content"]) for item in items if item["type"] == "message")
        called = [item for item in items if item["type"] == "function_call"]
        calls = [(item["call_id"], item["name"], _object(item["arguments"])) for item in called]
        cached = (usage.get("input_tokens_details") or {}).get("cached_tokens", 0)
        return text, calls, (usage["input_tokens"], cached, usage["output_tokens"])
    if protocol == "anthropic-messages":
        blocks = body["content"]
        calls = [(one["id"], one["name"], one["input"]) for one in blocks if one["type"] == "tool_use"]
        cached, written = usage.get("cache_read_input_tokens", 0), usage.get("cache_creation_input_tokens", 0)
        return _joined(blocks), calls, (usage["input_tokens"] + cached + written, cached, usage["output_tokens"])
    blocks = body["output"]["message"]["content"]
    uses = [one["toolUse"] for one in blocks if "toolUse" in one]
    cached = usage.get("cacheReadInputTokens", 0)
    return (
        "".join(one.get("text", "") for one in blocks),
        [(use["toolUseId"], use["name"], use["input"]) for use in uses],
        (usage["inputTokens"] + cached + usage.get("cacheWriteInputTokens", 0), cached, usage["outputTokens"]),
    )


def _joined(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(one if isinstance(one, str) else one.get("text", "") for one in content)


def _object(arguments: Any) -> Any:
    return json.loads(arguments or "{}") if isinstance(arguments, str | None) else arguments
