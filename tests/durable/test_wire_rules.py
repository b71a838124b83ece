"""The rules that generated runs are checked by: what a protocol refuses is found, and what it takes is not."""

import pytest

from durable import AssistantMessage, Message, ModelRequest, ToolCall, ToolMessage, UserMessage
from tests.support.wire import PROTOCOLS

SAID = UserMessage(content="x")
TURN = AssistantMessage(tool_calls=(ToolCall(id="a", name="t"), ToolCall(id="b", name="t")))


def result(id: str) -> ToolMessage:
    return ToolMessage(tool_call_id=id, tool_name="t", content=1)


GOOD: dict[str, tuple[Message, ...]] = {
    "a question": (SAID,),
    "a batch": (SAID, TURN, result("a"), result("b")),
    "input behind a batch": (SAID, TURN, result("a"), result("b"), SAID, SAID),
    "an empty answer between": (SAID, AssistantMessage(content=""), SAID),
}
BAD: dict[str, tuple[Message, ...]] = {
    "out of order": (SAID, TURN, result("b"), result("a")),
    "one is missing": (SAID, TURN, result("a"), SAID),
    "one is missing at the end": (SAID, TURN, result("a")),
    "none is there": (SAID, TURN),
    "nobody asked": (SAID, result("a")),
    "input before the results": (SAID, TURN, SAID, result("a"), result("b")),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("case", GOOD)
def test_what_is_in_order_is_taken(protocol: str, case: str) -> None:
    """No false alarm."""
    assert PROTOCOLS[protocol](ModelRequest(instructions=None, messages=GOOD[case])) is None


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("case", BAD)
def test_what_is_out_of_order_is_found(protocol: str, case: str) -> None:
    """Each fault, in each protocol."""
    assert PROTOCOLS[protocol](ModelRequest(instructions=None, messages=BAD[case])) is not None
