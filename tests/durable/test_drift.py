"""Resuming with another agent: what counts as a difference, and what each policy does about it."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from durable import (
    AgentDrift,
    AgentDriftError,
    ApprovalStatus,
    Event,
    FinishReason,
    ResumeToolMissingError,
    Status,
    Tool,
    resume_after_approval,
    tool,
)
from durable.fingerprint import drift, fingerprint
from durable.providers.scripted import Scripted
from tests.support.runs import Clock, fresh_agent, memory_store, run
from tests.support.sessions import asked, crashes, dying, look, pay, recorder, stored


@tool(name="look")
def look_longer(what: str = "it", seconds: int = 1) -> str:
    return what


@tool(name="look")
def another_look(what: str = "it") -> str:
    return f"Look, {what}!"


@tool
def extra() -> None: ...


ANSWERS = [("look", {}), ("pay", {}), "done"]


def deployed(store: Any, **changes: Any) -> Any:
    """The agent, as the next deployment changes it."""
    given = {"tools": [look, pay], "instructions": "Be brief.", **changes}
    model = given.pop("model", "scripted")
    agent = fresh_agent(ANSWERS, given.pop("tools"), store, **given)
    return replace(agent, provider=Scripted(ANSWERS, name=model))


def interrupted() -> Any:
    """A store with a session that crashed before its first tool ran."""
    store = memory_store(clock=Clock())
    crashes(deployed(dying(store, 0)).send("go", session_id="s"))
    return store


def paused() -> tuple[Any, str]:
    store = memory_store(clock=Clock())
    return store, run(deployed(store).send("go", session_id="s")).approval_id


DIFFERENCES: dict[str, tuple[dict[str, Any], AgentDrift, str]] = {
    "model": ({"model": "other"}, AgentDrift(model=("scripted", "other")), "model 'scripted' -> 'other'"),
    "a tool more": ({"tools": [look, pay, extra]}, AgentDrift(tools_added=("extra",)), "tools added ['extra']"),
    "a tool changed": (
        {"tools": [look_longer, pay]},
        AgentDrift(tools_changed=("look",)),
        "tools changed ['look']",
    ),
    "instructions": ({"instructions": "Be long."}, AgentDrift(instructions=True), "instructions"),
    "no instructions": ({"instructions": None}, AgentDrift(instructions=True), "instructions"),
    "everything": (
        {"model": "other", "tools": [look_longer, extra], "instructions": "x"},
        AgentDrift(
            model=("scripted", "other"),
            tools_added=("extra",),
            tools_removed=("pay",),
            tools_changed=("look",),
            instructions=True,
        ),
        "model 'scripted' -> 'other', tools added ['extra'], tools removed ['pay'], tools changed ['look'], "
        "instructions",
    ),
}


@pytest.mark.parametrize(("changes", "found", "words"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_each_difference_is_named(
    changes: dict[str, Any], found: AgentDrift, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """By default a resume with another agent logs one warning and tells one event, which name what changed."""
    store = interrupted()
    events: list[Event] = []
    with caplog.at_level(logging.WARNING, logger="durable"):
        agent = deployed(store, **changes)
        result = run(agent.send([], session_id="s", listener=events.append))
    [event] = [event for event in events if isinstance(event, AgentDrift)]
    assert replace(event, seq=0, path=()) == found
    assert (event.seq, event.type, event.in_words()) == (2, "agent.drift", words)
    assert [record.getMessage() for record in caplog.records] == [f"Session 's' resumes with another agent: {words}."]
    expected = FinishReason.STOP if "pay" in event.tools_removed else FinishReason.AWAITING_APPROVAL
    assert result.finish_reason is expected


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tools": [pay, look]},
        {"tools": [another_look, pay]},
        {"max_steps": 3, "tool_concurrency": 1},
    ],
    ids=["nothing", "the order of tools", "only code", "limits"],
)
def test_what_is_no_difference(changes: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """The order of the tools, their code and the agent's limits are not part of what is compared."""
    events: list[Event] = []
    with caplog.at_level(logging.WARNING, logger="durable"):
        agent = deployed(interrupted(), on_agent_drift="error", **changes)
        run(agent.send([], session_id="s", listener=events.append))
    assert caplog.records == []
    assert not [event for event in events if isinstance(event, AgentDrift)]


@pytest.mark.parametrize("changes", [changes for changes, _, _ in DIFFERENCES.values()], ids=DIFFERENCES)
def test_ignore_does_nothing(changes: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """With `ignore` the run goes on without a word."""
    events: list[Event] = []
    with caplog.at_level(logging.WARNING, logger="durable"):
        agent = deployed(interrupted(), on_agent_drift="ignore", **changes)
        run(agent.send([], session_id="s", listener=events.append))
    assert caplog.records == []
    assert not [event for event in events if isinstance(event, AgentDrift)]


ENTRIES: dict[str, Callable[[Any], Any]] = {
    "send": lambda agent: agent.send("go", session_id="s"),
    "send nothing": lambda agent: agent.send([], session_id="s"),
    "send another message": lambda agent: agent.send("stop that", session_id="s"),
    "resume": lambda agent: agent.resume("s"),
    "stream": lambda agent: agent.stream("go", session_id="s").result,
}


async def enter(entry: str, agent: Any) -> Any:
    return await ENTRIES[entry](agent)


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("changes", [changes for changes, _, _ in DIFFERENCES.values()], ids=DIFFERENCES)
def test_error_refuses_and_leaves_everything(changes: dict[str, Any], entry: str) -> None:
    """With `error` every way in is refused before a model call or tool; the agent that started the run goes on."""
    store = interrupted()
    before, written = stored(store), store.consumed().bytes_written
    agent = deployed(store, on_agent_drift="error", **changes)
    with pytest.raises(AgentDriftError) as refused:
        run(enter(entry, agent))
    assert (refused.value.code, refused.value.session_id) == ("AGENT_DRIFT", "s")
    assert (stored(store), store.consumed().bytes_written, asked(agent)) == (before, written, 0)
    assert run(enter(entry, deployed(store, on_agent_drift="error"))).finish_reason is FinishReason.AWAITING_APPROVAL


@pytest.mark.parametrize("changes", [changes for changes, _, _ in DIFFERENCES.values()][:-1])
def test_error_leaves_the_approval_for_the_right_agent(changes: dict[str, Any]) -> None:
    """A decision that the wrong agent may not apply stays recorded, and the right agent applies it."""
    store, id = paused()
    before = stored(store)
    wrong = deployed(store, on_agent_drift="error", **changes)
    for _ in range(2):
        with pytest.raises(AgentDriftError):
            run(wrong.approvals.resolve(id, approved=True))
        with pytest.raises(AgentDriftError):
            run(resume_after_approval(wrong, id, store=store))
    approval = store.approvals.get(id)
    assert stored(store) == before
    assert (approval.status, approval.applied, asked(wrong)) == (ApprovalStatus.APPROVED, False, 0)
    assert run(resume_after_approval(deployed(store, on_agent_drift="error"), id, store=store)).text == "done"


def test_a_resume_after_an_approval_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    """An approval that another agent applies is told as one difference."""
    store, id = paused()
    events: list[Event] = []
    with caplog.at_level(logging.WARNING, logger="durable"):
        result = run(deployed(store, model="other").approvals.resolve(id, approved=True, listener=events.append))
    assert result.text == "done"
    assert len(caplog.records) == len([event for event in events if isinstance(event, AgentDrift)]) == 1


def test_a_resumed_run_keeps_the_fingerprint_that_it_began_with() -> None:
    """The run belongs to the agent that started it: each resume is compared with that one."""
    store = interrupted()
    began_with = stored(store).fingerprint
    id = run(deployed(store, model="other").send([], session_id="s")).approval_id
    assert stored(store).fingerprint == began_with
    events: list[Event] = []
    run(deployed(store).approvals.resolve(id, approved=True, listener=events.append))
    assert not [event for event in events if isinstance(event, AgentDrift)]


def test_a_new_turn_is_not_compared() -> None:
    """A finished session may go on with any agent: the next turn begins with the agent as it is then."""
    store = memory_store(clock=Clock())
    run(fresh_agent(["one"], [look], store, instructions="Be brief.").send("a", session_id="s"))
    other = fresh_agent(["one", "two"], [pay], store, instructions="Be long.", on_agent_drift="error")
    assert run(other.send("b", session_id="s")).text == "two"
    assert stored(store).instructions == other.provider.requests[0].instructions == "Be long."


def test_a_resumed_run_keeps_the_instructions_that_it_began_with() -> None:
    """The agent's current instructions apply to the next turn, not to the run that is under way."""
    store = interrupted()
    agent = deployed(store, instructions="Be long.")
    run(agent.send([], session_id="s"))
    assert agent.provider.requests[0].instructions == "Be brief."


@pytest.mark.parametrize("kept", [None, {"v": 99, "hash": "x", "tools": {"look": "?", "pay": "?"}}, {}])
def test_what_cannot_be_compared_is_not(kept: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A checkpoint without a fingerprint, or with one of another version, resumes without a word."""
    store = interrupted()
    before = stored(store)
    store.checkpoints.save(before.but(fingerprint=kept), after=before)
    agent = deployed(store, on_agent_drift="error", model="other", instructions="x")
    with caplog.at_level(logging.WARNING, logger="durable"):
        assert run(agent.send([], session_id="s")).finish_reason is FinishReason.AWAITING_APPROVAL
    assert caplog.records == []


# --- a tool that is gone ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("policy", ["warn", "error", "ignore"])
def test_a_missing_tool_is_always_an_error(policy: Any, entry: str) -> None:
    """Whatever the policy, a pending call whose tool is gone refuses every way in; with the tool the run goes on."""
    store = interrupted()
    before = stored(store)
    agent = deployed(store, tools=[pay], on_agent_drift=policy)
    with pytest.raises(ResumeToolMissingError) as refused:
        run(enter(entry, agent))
    assert (refused.value.code, refused.value.tool_names) == ("RESUME_TOOL_MISSING", ("look",))
    assert (stored(store), asked(agent)) == (before, 0)
    assert run(enter(entry, deployed(store))).finish_reason is FinishReason.AWAITING_APPROVAL


@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize("policy", ["warn", "error", "ignore"])
def test_an_approved_call_whose_tool_is_gone(policy: Any, approved: bool) -> None:
    """A decision about a tool that is gone is not applied: the session stays paused, and the decision recorded."""
    store, id = paused()
    before = stored(store)
    wrong = deployed(store, tools=[look], on_agent_drift=policy)
    with pytest.raises(ResumeToolMissingError, match="pay"):
        run(wrong.approvals.resolve(id, approved=approved))
    assert stored(store) == before
    assert run(resume_after_approval(deployed(store), id, store=store)).text == "done"


def test_a_tool_that_is_gone_and_has_its_result_is_not_missed() -> None:
    """Only pending calls need their tool: one that is done may be gone."""
    ran: list[str] = []
    store = memory_store(clock=Clock())
    answers = [("work", {}), "done"]
    crashes(fresh_agent(answers, [recorder(ran)], dying(store, 1)).send("go", session_id="s"))
    assert run(fresh_agent(answers, [], store).resume("s")).text == "done"
    assert (stored(store).status, ran) == (Status.FINISHED, ["it"])


def test_without_a_fingerprint_a_missing_tool_counts_as_gone() -> None:
    """Where nothing tells which tools there were, an unknown name is taken for one that is gone."""
    store = interrupted()
    before = stored(store)
    store.checkpoints.save(before.but(fingerprint=None), after=before)
    with pytest.raises(ResumeToolMissingError):
        run(deployed(store, tools=[pay]).resume("s"))


# --- the fingerprint -------------------------------------------------------------------------------------------------


def printed(*tools: Tool, model: str = "m", instructions: str | None = None) -> dict[str, Any]:
    return fingerprint(model=model, tools=[made.spec for made in tools], instructions=instructions)


def test_a_fingerprint_has_its_parts() -> None:
    """It keeps version, model, a short hash for each tool's schema and the instructions, and one over all of them."""
    made = printed(look, pay, instructions="Be brief.")
    assert list(made) == ["v", "model", "tools", "instructions", "hash"]
    assert (made["v"], made["model"], sorted(made["tools"])) == (1, "m", ["look", "pay"])
    hashes = [*made["tools"].values(), made["instructions"], made["hash"]]
    assert all(len(text) == 16 and int(text, 16) >= 0 for text in hashes)


def test_a_fingerprint_is_the_same_in_every_process() -> None:
    """The hashes are of key-sorted JSON: these are the ones of version 1, for ever."""
    made = printed(look, instructions="Be brief.")
    assert made == {
        "v": 1,
        "model": "m",
        "tools": {"look": "150f24618bfd9b66"},
        "instructions": "fecef222d7732bb7",
        "hash": "c72d358fdf0f6e46",
    }


def test_no_instructions_and_empty_ones_are_two_things() -> None:
    """A missing text is not the same as an empty one."""
    assert drift(printed(), printed(instructions="")) == AgentDrift(instructions=True)
    assert drift(printed(), printed()) is None
    assert drift(None, printed()) is None
