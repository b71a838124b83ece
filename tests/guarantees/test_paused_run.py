"""Paused awaiting approval (`awaiting-approval`).

`execute()` raises `SessionAwaitingApprovalError` (with `session_id` and `approval_id`) and does not call the model or
any tool: new input must not bypass a pending decision. Resolve it with `resume_after_approval()` first, then send the
new message.
"""

from typing import Any

import pytest

from durable import ApprovalDecision, SessionAwaitingApprovalError, decide, execute, resume_after_approval
from tests.support.runs import START, Clock, fresh_agent, memory_store, run
from tests.support.sessions import asked, pay, recorder, stored, texts
from tests.support.transcripts import user


@pytest.mark.parametrize("input", ["go", "another message", [], [user("go"), user("more")]])
def test_nothing_bypasses_the_decision(input: Any) -> None:
    """Any input is refused with the ids; no model call, no tool, nothing written."""
    store = memory_store(clock=Clock())
    ran: list[str] = []
    tools = [pay, recorder(ran)]
    answers = [[("pay", {}), ("work", {})], "done"]
    paused = run(fresh_agent(answers, tools, store).send("go", session_id="s"))
    before, written = stored(store), store.consumed().bytes_written
    agent = fresh_agent(answers, tools, store)
    with pytest.raises(SessionAwaitingApprovalError) as refused:
        run(execute(agent, input, session_id="s", store=store))
    assert (refused.value.session_id, refused.value.approval_id) == ("s", paused.approval_id)
    assert (asked(agent), ran, stored(store), store.consumed().bytes_written) == (0, [], before, written)


def test_after_the_decision_the_message_is_taken() -> None:
    """Decide, resume, send: in this order the session goes on."""
    store = memory_store(clock=Clock())
    agent = fresh_agent([("pay", {}), "paid", "you are welcome"], [pay], store)
    paused = run(agent.send("go", session_id="s"))
    with pytest.raises(SessionAwaitingApprovalError):
        run(resume_after_approval(agent, paused.approval_id, store=store))
    decide(
        ApprovalDecision(id=paused.approval_id, approved=True),
        approvals=store.approvals,
        checkpoints=store.checkpoints,
        tools=agent.toolset,
        now=START,
    )
    with pytest.raises(SessionAwaitingApprovalError):
        run(agent.send("thanks", session_id="s"))
    assert run(resume_after_approval(agent, paused.approval_id, store=store)).text == "paid"
    run(agent.send("thanks", session_id="s"))
    assert texts(stored(store).messages) == ["go", "", {"paid": 5}, "paid", "thanks", "you are welcome"]
