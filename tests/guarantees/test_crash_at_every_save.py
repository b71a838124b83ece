"""A run that crashes at any save resumes to the same end: nothing recorded runs again, no saved turn is asked again."""

from typing import Any

import pytest

from durable import FinishReason, RunResult, Status, ToolContext
from durable.tools import Recovery
from tests.support.runs import (
    Clock,
    Crash,
    CrashingCheckpoints,
    Ledger,
    Stores,
    fresh_agent,
    memory_store,
    result_text,
    run,
    settled_ids,
    tool,
)

THREE_TOOLS = [
    [("look", {"what": "a"}), ("look", {"what": "b"})],
    ("pay", {"amount": 5}),
    "done",
]


def agent(ledger: Ledger, store: Any, *, gated: bool, recovery: Recovery = "rerun") -> Any:
    @tool
    async def look(what: str, ctx: ToolContext) -> str:
        ledger.ran[ctx.tool_call_id] += 1
        return what.upper()

    @tool(needs_approval=gated, recovery=recovery)
    def pay(amount: int, ctx: ToolContext) -> dict[str, int]:
        ledger.ran[ctx.tool_call_id] += 1
        return {"paid": amount}

    # One call at a time, so that the saves of every run are the same and can be counted off.
    return fresh_agent(THREE_TOOLS, [look, pay], store, tool_concurrency=1)


def go_on(made: Any) -> RunResult:
    """What a client, or the state machine, does after a crash: send the same again, approve what waits."""
    stored = made.store.checkpoints.load("s")
    if stored is not None and stored.status is Status.AWAITING_APPROVAL:
        return run(made.approvals.resolve(stored.approval_id, approved=True, by="ada"))
    if stored is not None and stored.status is Status.FINISHED:
        return run(made.send([], session_id="s"))
    return run(made.send("go", session_id="s"))


def to_the_end(made: Any) -> RunResult:
    result = go_on(made)
    while result.finish_reason is FinishReason.AWAITING_APPROVAL:
        result = go_on(made)
    return result


def uncrashed(*, gated: bool) -> tuple[RunResult, int]:
    inner = memory_store(clock=Clock())
    counting = CrashingCheckpoints(inner.checkpoints)
    result = to_the_end(agent(Ledger(), Stores(counting, inner.approvals), gated=gated))
    return result, counting.saves


SCHEDULES = [
    pytest.param(gated, at, after, id=f"{'gated' if gated else 'free'}-{'after' if after else 'before'}-{at}")
    for gated in (False, True)
    for at in range(uncrashed(gated=gated)[1])
    for after in (False, True)
]


@pytest.mark.parametrize(("gated", "at", "after"), SCHEDULES)
def test_a_crash_at_any_save_changes_nothing(gated: bool, at: int, after: bool) -> None:
    """Crash before or after any save, resume in a new process: same transcript, nothing recorded is done twice."""
    expected, _ = uncrashed(gated=gated)
    inner, ledger = memory_store(clock=Clock()), Ledger()
    crashing = CrashingCheckpoints(inner.checkpoints, at=at, after=after)
    first = agent(ledger, Stores(crashing, inner.approvals), gated=gated)
    with pytest.raises(Crash):
        to_the_end(first)
    stored = inner.checkpoints.load("s")
    before = dict(ledger.ran)
    turns = 0 if stored is None else sum(message.role == "assistant" for message in stored.messages)

    second = agent(ledger, inner, gated=gated)
    result = to_the_end(second)

    assert result_text(result) == result_text(expected)
    recorded = set() if stored is None else settled_ids(stored)
    assert {call: ledger.ran[call] for call in recorded} == {call: before[call] for call in recorded}
    asked = [sum(message.role == "assistant" for message in request.messages) for request in second.provider.requests]
    assert all(turn >= turns for turn in asked)
    assert len(set(asked)) == len(asked)


def test_saves_come_where_the_document_says() -> None:
    """A save before tools run, as each result settles and at the end; an approval adds the pause and the decision."""
    assert uncrashed(gated=False)[1] == len(["turn", "look a", "look b", "turn", "pay", "end"])
    assert uncrashed(gated=True)[1] == len(["turn", "look a", "look b", "turn", "pause", "decision", "pay", "end"])


@pytest.mark.parametrize("gated", [False, True])
def test_a_call_of_recovery_report_never_runs_twice(gated: bool) -> None:
    """Wherever the run crashes, a call that must not silently run twice runs at most once, and has one result."""
    at, crashed = 0, True
    while crashed:
        inner, ledger, crashed = memory_store(clock=Clock()), Ledger(), False
        crashing = CrashingCheckpoints(inner.checkpoints, at=at)
        try:
            to_the_end(agent(ledger, Stores(crashing, inner.approvals), gated=gated, recovery="report"))
        except Crash:
            crashed = True
        result = to_the_end(agent(ledger, inner, gated=gated, recovery="report"))
        [pay] = [message for message in result.messages if message.role == "tool" and message.tool_name == "pay"]
        assert ledger.ran[pay.tool_call_id] <= 1
        assert pay.content == {"paid": 5} or (pay.is_error and pay.content["kind"] == "unknown-outcome")
        at += 1
    assert at > 6
