"""An agent as a tool of another: what it is given, what its lead gets back, and what is kept of it."""

from typing import Any

from durable import (
    Agent,
    FinishReason,
    tool,
)
from durable.providers.scripted import Scripted
from tests.support.runs import Clock, fresh_agent, memory_store, run


@tool
def search(text: str) -> str:
    return f"found {text}"


@tool(needs_approval=True)
def refund(amount: int) -> str:
    return f"paid {amount}"


def child(*answers: Any, name: str = "researcher", **options: Any) -> Agent:
    return Agent(name=name, provider=Scripted(answers), **{"tools": [search, refund], **options})


def lead(below: Agent, *answers: Any, **options: Any) -> Agent:
    return fresh_agent(answers, [], options.pop("store", memory_store(clock=Clock())), subagents=[below], **options)


ASK = ("researcher", {"task": "Look it up."})


def test_a_task_is_handed_over_and_its_answer_comes_back() -> None:
    """The sub-agent sees its task and nothing else; its answer is the call's result; what both used is summed up."""
    below = child(("search", {"text": "x"}), "It is x.", instructions="Search.")
    result = run(lead(below, ASK, "Done.").send("Hello", session_id="s"))
    assert (result.text, result.finish_reason, result.steps) == ("Done.", FinishReason.STOP, 2)
    assert [message.content for message in result.messages if message.role == "tool"] == ["It is x."]
    assert result.usage.model_calls == 4
    first, second = below.provider.requests  # type: ignore[union-attr]
    assert (first.instructions, [message.content for message in first.messages]) == ("Search.", ["Look it up."])
    assert second.messages[-1].content == "found x"
    assert result.checkpoint.suspended == {}


def test_a_pause_below_pauses_the_run() -> None:
    """The approval names the agents, the run sleeps, and the decision goes to the call that waits for it."""
    below = child(("refund", {"amount": 5}), "Paid.")
    agent = lead(below, ASK, "Done.")
    paused = run(agent.send("Hello", session_id="s"))
    assert paused.finish_reason is FinishReason.AWAITING_APPROVAL
    approval = run(agent.approvals.get(paused.approval_id))
    assert (approval.request.agent, approval.request.path) == ("t", ("t", "researcher"))
    assert approval.request.tool_name == "refund"
    done = run(agent.approvals.resolve(paused.approval_id, approved=True, args={"amount": 7}))
    assert (done.text, done.usage.model_calls) == ("Done.", 4)
    assert below.provider.requests[-1].messages[-1].content == "paid 7"  # type: ignore[union-attr]
