"""A call's id is its idempotency key, so no two calls of a session may ever have the same: not after a cut either.

The provider here calls every first call of a conversation `call_0`, as some do.
"""

from typing import Any

import pytest

from durable import (
    Agent,
    AssistantMessage,
    Compaction,
    ProviderRequestError,
    Summary,
    ToolCall,
    ToolContext,
    UserMessage,
    tool,
)
from durable.providers.scripted import Scripted
from tests.support.runs import memory_store, run


class Shop:
    """Charges by idempotency key; `charged` are the keys in order."""

    def __init__(self, **options: Any) -> None:
        self.charged: list[str] = []
        self.trouble = False

        @tool
        def charge(amount: int, ctx: ToolContext) -> str:
            self.charged.append(ctx.tool_call_id)
            return "charged"

        self.agent = Agent(tools=[charge], provider=Scripted(self.answer), store=memory_store(), **options)

    def answer(self, request: Any) -> Any:
        if not isinstance(request.messages[-1], UserMessage):
            return ProviderRequestError("scripted", "refused", status=400) if self.trouble else "Done."
        return AssistantMessage(tool_calls=(ToolCall(id="call_0", name="charge", arguments='{"amount": 1}'),))

    def send(self) -> None:
        run(self.agent.send("charge", session_id="s"))


def test_after_a_truncation() -> None:
    """What was cut off has been done: the next call is another one."""
    shop = Shop()
    shop.send()
    run(shop.agent.session(id="s").truncate(0))
    shop.send()
    assert shop.charged[0] == "call_0"
    assert len(set(shop.charged)) == 2


def test_after_a_compaction() -> None:
    """The summary shows no ids, and none of them comes back."""
    shop = Shop(compaction=Compaction(after_tokens=1, keep=0, summarize=lambda request: Summary("It was charged.")))
    for _ in range(4):
        shop.send()
    assert len(set(shop.charged)) == 4


def test_after_a_turn_that_was_refused() -> None:
    """A turn that met a lasting error is taken back, and what it did is not done under the same key again."""
    shop = Shop()
    shop.trouble = True
    with pytest.raises(ProviderRequestError):
        shop.send()
    shop.trouble = False
    shop.send()
    assert len(set(shop.charged)) == 2


def test_the_providers_own_id_is_kept_beside() -> None:
    """The provider is sent what it knows by the id that the record has, and the record shows where it came from."""
    shop = Shop()
    shop.send()
    run(shop.agent.session(id="s").truncate(0))
    shop.send()
    stored = shop.agent.store.checkpoints.load("s")
    [call] = [call for message in stored.messages for call in getattr(message, "tool_calls", ())]
    assert (call.id, call.provider_id) == (shop.charged[1], "call_0")
