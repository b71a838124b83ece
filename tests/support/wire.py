"""What each protocol demands of a transcript, checked on the request that would go over the wire.

Every call of a turn is answered, in call order, right after the turn, and nothing is answered that was not asked. In
Anthropic's and Amazon's protocols the roles alternate besides, the user is first, and no message is empty.
"""

from collections.abc import Callable, Iterable
from typing import Any

from durable import ModelRequest
from durable.providers.anthropic import Anthropic
from durable.providers.bedrock import Bedrock
from durable.providers.openai_chat import OpenAIChat
from durable.providers.openai_responses import OpenAIResponses

Turn = tuple[list[str], list[str]]
"""The ids of the calls that one message asks for, and of those that it answers."""


def wire_fault(request: ModelRequest) -> str | None:
    """Give the first thing that one of the protocols would refuse; None where all of them would take it."""
    for name, read in PROTOCOLS.items():
        if fault := read(request):
            return f"{name}: {fault}"
    return None


def _unpaired(turns: Iterable[Turn]) -> str | None:
    open_calls: list[str] = []
    for asked, answered in turns:
        for id in answered:
            if not open_calls or open_calls.pop(0) != id:
                return "a result does not answer the next call"
        if not answered and open_calls:
            return "a call has no result"
        open_calls += asked
    return "a call has no result at the end" if open_calls else None


def _chat(request: ModelRequest) -> str | None:
    body: Any = _CHAT.body(request)
    return _unpaired(
        ([call["id"] for call in m.get("tool_calls") or ()], [m["tool_call_id"]] if m["role"] == "tool" else [])
        for m in body["messages"]
    )


def _responses(request: ModelRequest) -> str | None:
    body: Any = _RESPONSES.body(request)
    turns: list[Turn] = []
    for item in body["input"]:
        if item.get("type") == "function_call":
            if turns and turns[-1][0] and not turns[-1][1]:
                turns[-1][0].append(item["call_id"])  # one turn's calls follow one another
            else:
                turns.append(([item["call_id"]], []))
        else:
            turns.append(([], [item["call_id"]] if item.get("type") == "function_call_output" else []))
    return _unpaired(turns)


def _anthropic(request: ModelRequest) -> str | None:
    body: Any = _ANTHROPIC.body(request)
    return _laid_out(body["messages"], lambda block: block["type"] == "tool_result") or _unpaired(
        (
            [block["id"] for block in message["content"] if block["type"] == "tool_use"],
            [block["tool_use_id"] for block in message["content"] if block["type"] == "tool_result"],
        )
        for message in body["messages"]
    )


def _bedrock(request: ModelRequest) -> str | None:
    body: Any = _BEDROCK.body(request)
    return _laid_out(body["messages"], lambda block: "toolResult" in block) or _unpaired(
        (
            [block["toolUse"]["toolUseId"] for block in message["content"] if "toolUse" in block],
            [block["toolResult"]["toolUseId"] for block in message["content"] if "toolResult" in block],
        )
        for message in body["messages"]
    )


def _laid_out(messages: list[Any], is_result: Callable[[Any], bool]) -> str | None:
    roles = [message["role"] for message in messages]
    if roles != [("user", "assistant")[at % 2] for at in range(len(roles))]:
        return "the roles do not alternate, from the user on"
    for message in messages:
        if not message["content"]:
            return "a message is empty"
        kinds = [is_result(block) for block in message["content"]]
        if kinds != sorted(kinds, reverse=True):
            return "a result stands behind something else"
    return None


_CHAT = OpenAIChat("m", api_key=None)
_RESPONSES = OpenAIResponses("m", api_key="key")
_ANTHROPIC = Anthropic("m", api_key="key")
_BEDROCK = Bedrock("m")

PROTOCOLS: dict[str, Callable[[ModelRequest], str | None]] = {
    "Chat Completions": _chat,
    "Responses": _responses,
    "Messages": _anthropic,
    "Converse": _bedrock,
}
