"""When a run is resumed, the agent's fingerprint is compared with the saved one, before any model call or tool runs.

| `on_agent_drift` | On a different model, tools or instructions |
| - | - |
| `"warn"` (default) | A warning naming what changed and an `agent.drift` event; the run continues. |
| `"error"` | Rejects with `AgentDriftError`. The checkpoint is left as it was; an approval can still be applied. |
| `"ignore"` | Nothing. |

A pending tool call whose tool no longer exists always rejects with `ResumeToolMissingError`, whatever the option.
"""

import logging
from dataclasses import replace
from typing import Any

import pytest

from durable import AgentDrift, AgentDriftError, Event, ResumeToolMissingError, resume_after_approval, tool
from durable.providers.scripted import Scripted
from tests.support.runs import Clock, fresh_agent, memory_store, run
from tests.support.sessions import asked, crashes, dying, recorder, results, stored

ANSWERS = [("work", {}), "done"]


@tool(name="work")
def changed_work(name: str = "it", loudly: bool = False) -> str:
    return name.upper()


def agent(store: Any, tools: Any, *, model: str = "model-1", instructions: str = "Be brief.", **options: Any) -> Any:
    made = fresh_agent(ANSWERS, tools, store, instructions=instructions, **options)
    return replace(made, provider=Scripted(ANSWERS, name=model))


CHANGES: dict[str, dict[str, Any]] = {
    "model": {"model": "model-2"},
    "tools": {"tools": [changed_work]},
    "instructions": {"instructions": "Be long."},
}


def started(ran: list[str], *, gated: bool) -> Any:
    """A session whose call waits: for a process, or for a human."""
    store = memory_store(clock=Clock())
    tools = [recorder(ran, needs_approval=gated)]
    if gated:
        run(agent(store, tools).send("go", session_id="s"))
    else:
        crashes(agent(dying(store, 0), tools).send("go", session_id="s"))
    return store


def resume(made: Any, store: Any, *, gated: bool, **watch: Any) -> Any:
    if gated and stored(store).approval_id is not None:
        return run(made.approvals.resolve(stored(store).approval_id, approved=True, **watch))
    return run(made.send([], session_id="s", **watch))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("what", CHANGES)
def test_warn(what: str, gated: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The difference is logged and told, and the run continues."""
    ran: list[str] = []
    store = started(ran, gated=gated)
    events: list[Event] = []
    with caplog.at_level(logging.WARNING, logger="durable"):
        made = agent(store, **{"tools": [recorder(ran)], **CHANGES[what]})
        assert resume(made, store, gated=gated, listener=events.append).text == "done"
    assert what.removesuffix("s") in caplog.text
    assert len([event for event in events if isinstance(event, AgentDrift)]) == len(caplog.records) == 1


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("what", CHANGES)
def test_error(what: str, gated: bool) -> None:
    """Nothing runs and nothing changes; the agent that started the run finishes it."""
    ran: list[str] = []
    store = started(ran, gated=gated)
    before = stored(store)
    made = agent(store, **{"tools": [recorder(ran)], **CHANGES[what]}, on_agent_drift="error")
    with pytest.raises(AgentDriftError):
        resume(made, store, gated=gated)
    assert (asked(made), ran, stored(store)) == (0, [], before)
    right = agent(store, [recorder(ran)], on_agent_drift="error")
    if gated:
        result = run(resume_after_approval(right, before.approval_id or "", store=store))
    else:
        result = run(right.send([], session_id="s"))
    assert (result.text, ran) == ("done", ["it"])


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("what", CHANGES)
def test_ignore(what: str, gated: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The run continues without a word."""
    ran: list[str] = []
    store = started(ran, gated=gated)
    events: list[Event] = []
    with caplog.at_level(logging.WARNING, logger="durable"):
        made = agent(store, **{"tools": [recorder(ran)], **CHANGES[what]}, on_agent_drift="ignore")
        assert resume(made, store, gated=gated, listener=events.append).text == "done"
    assert not [event for event in events if isinstance(event, AgentDrift)]
    assert caplog.records == []


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("policy", ["warn", "error", "ignore"])
def test_a_missing_tool(policy: Any, gated: bool) -> None:
    """A call whose tool is gone is never skipped and never run by another tool."""
    ran: list[str] = []
    store = started(ran, gated=gated)
    before = stored(store)
    with pytest.raises(ResumeToolMissingError, match="work"):
        resume(agent(store, [], on_agent_drift=policy), store, gated=gated)
    assert (stored(store), ran) == (before, [])


def test_code_is_not_part_of_it() -> None:
    """Changing only what a tool does never counts as a change."""
    store = started([], gated=False)

    @tool
    def work(name: str = "it") -> str:
        return f"{name}, done better"

    assert results(resume(agent(store, [work], on_agent_drift="error"), store, gated=False).messages) == [
        "it, done better"
    ]
