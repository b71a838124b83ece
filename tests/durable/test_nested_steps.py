"""What a run's sub-agents have done: found in its history, and compared step by step below the call that ran them."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from durable import (
    Agent,
    AssistantMessage,
    Checkpoint,
    Drift,
    Patch,
    PatchedResult,
    Status,
    ToolMessage,
    agents_at_work,
    compare_trajectories,
    render_comparison,
    subagents_of,
    tool,
)
from durable.fork import saves_behind
from durable.nesting import KnownAgents
from durable.providers.scripted import Answer, Scripted
from durable.trajectory import steps_of
from durable.transcript import call_ids
from tests.support.runs import Clock, memory_store, numbered, run
from tests.support.transcripts import finished as ended
from tests.support.transcripts import transcripts

SIGNS: list[Answer] = [("sign", {"name": "a"}), ("sign", {"name": "b"}), "Signed."]
SEARCHES: list[Answer] = [("search", {"text": "x"}), ("clerk", {"task": "Sign."}), "It is x."]


@tool
def search(text: str) -> str:
    return f"found {text}"


@tool(needs_approval=True)
def sign(name: str) -> str:
    return f"signed {name}"


class Desk:
    """A lead, a researcher and a clerk below it, as each process builds them anew."""

    def __init__(self, *, clerk: Sequence[Answer] = SIGNS, researcher: Sequence[Answer] = SEARCHES, **options: Any):
        self.store: Any = memory_store(clock=Clock(), **options)
        self.clerk, self.researcher = clerk, researcher
        self._ids = numbered()

    def agent(self) -> Agent:
        clerk = Agent(name="clerk", tools=[sign], provider=Scripted(self.clerk))
        researcher = Agent(name="researcher", tools=[search], subagents=[clerk], provider=Scripted(self.researcher))
        lead = Scripted([("researcher", {"task": "Look."}), "Done."])
        return Agent(
            name="desk", subagents=[researcher], provider=lead, store=self.store, clock=Clock(), ids=lambda: self._ids()
        )

    def send(self, session: str = "s") -> None:
        run(self.agent().send("hi", session_id=session))

    def decide(self, session: str = "s", *, approved: bool = True) -> None:
        waiting = self.stored(session).approval_id
        assert waiting is not None
        run(self.agent().approvals.resolve(waiting, approved=approved))

    def fork(self, session: str = "s", **options: Any) -> str:
        made = run(self.agent().fork(session, **options))
        return made.session_id

    def stored(self, session: str = "s") -> Checkpoint:
        return self.store.checkpoints.load(session)

    def compared(self, a: str, b: str, *, other: "Desk | None" = None) -> Any:
        there = other or self
        one, two = self.stored(a), there.stored(b)
        return compare_trajectories(
            one,
            two,
            subagents_a=subagents_of(saves_behind(self.store.checkpoints, one)),
            subagents_b=subagents_of(saves_behind(there.store.checkpoints, two)),
        )


def finished(desk: Desk, *decisions: bool) -> Desk:
    desk.send()
    for approved in decisions:
        desk.decide(approved=approved)
    return desk


def lines(comparison: Any) -> list[str]:
    return render_comparison(comparison).splitlines()[2:]


# --- who is at work --------------------------------------------------------------------------------------------------


def test_the_agents_at_work_are_known_with_what_they_wait_for() -> None:
    """Each agent is given after the one above it, with path, step and open calls; a finished run has none."""
    desk = Desk()
    desk.send()
    found = [
        (at.path, at.checkpoint.step, [call.name for call in at.open_calls]) for at in agents_at_work(desk.stored())
    ]
    assert found == [
        (("desk", "researcher"), 2, ["clerk"]),
        (("desk", "researcher", "clerk"), 1, ["sign"]),
    ]
    desk.decide()
    desk.decide()
    assert list(agents_at_work(desk.stored())) == []


# --- what the history knows ------------------------------------------------------------------------------------------


def test_the_newest_state_of_each_agent_is_found() -> None:
    """A finished run has no state of its agents any more; its history gives each one's newest, at any depth."""
    desk = finished(Desk(), True, True)
    history = desk.store.checkpoints.history("s")
    known = {state.agent: state for state in subagents_of(history).values() if state is not None}
    assert {name: state.step for name, state in known.items()} == {"researcher": 2, "clerk": 2}
    results = [message.content for message in known["clerk"].messages if message.role == "tool"]
    assert results == ["signed a", "signed b"]


def test_what_a_history_does_not_list_is_not_known() -> None:
    """A store that lists nothing knows of no agent, and the call is shown without steps."""
    desk = finished(Desk(history_limit=0), True, True)
    assert subagents_of(saves_behind(desk.store.checkpoints, desk.stored())) == {}
    [call] = steps_of(desk.stored())[0].calls
    assert (call.tool, call.outcome and call.outcome.content, call.steps) == ("researcher", "It is x.", None)


def test_a_fork_knows_what_its_source_knew() -> None:
    """What happened before a fork of a fork stands in the first session's history; what came later there does not."""
    desk = finished(Desk(), True, True)
    fork = desk.fork(desk.fork(from_step=2, patch=Patch(append_input="More.")), revision=0)
    early = desk.fork(revision=0)
    known, before = (
        subagents_of(saves_behind(desk.store.checkpoints, desk.stored(one))).values() for one in (fork, early)
    )
    assert {state.agent for state in known if state is not None} == {"researcher", "clerk"}
    assert list(before) == [None]


@pytest.mark.parametrize("gone", [True, False])
def test_a_session_whose_source_is_gone_knows_its_own(gone: bool) -> None:
    """A fork whose source was deleted, or comes from itself by a name that was used again, ends its search."""
    desk = finished(Desk(), True, True)
    fork = desk.fork(from_step=2)
    if gone:
        desk.store.checkpoints.delete("s")
    else:
        stored = desk.stored(fork)
        assert stored.forked_from is not None
        own = stored.forked_from.model_copy(update={"session_id": fork})
        desk.store.checkpoints.save(stored.but(forked_from=own), after=stored)
    assert len(list(saves_behind(desk.store.checkpoints, desk.stored(fork)))) == (1 if gone else 2)


def test_a_store_without_history_has_no_saves() -> None:
    """Three methods are a store, and nothing is looked for in it."""

    class Bare:
        def load(self, session_id: str) -> None: ...
        def save(self, checkpoint: Checkpoint, *, after: Checkpoint | None) -> Checkpoint: ...  # type: ignore[empty-body]
        def delete(self, session_id: str) -> None: ...

    assert list(saves_behind(Bare(), finished(Desk(), True, True).stored())) == []


# --- comparing -------------------------------------------------------------------------------------------------------


def test_the_steps_of_sub_agents_stand_below_their_call() -> None:
    """A step of an agent is indented below its call and numbered; a difference in it is one of the lead's step."""
    desk = finished(Desk(), True)
    fork = desk.fork(from_step=1)
    desk.decide()
    run(desk.agent().resume(fork))
    desk.decide(fork, approved=False)
    comparison = desk.compared("s", fork)
    assert comparison.diverged_at == 1
    assert comparison.drift == ()
    shown = lines(comparison)
    assert shown[:6] == [
        "@@ step 1, where they part @@",
        '  researcher({"task": "Look."}) -> "It is x."',
        '    1: search({"text": "x"}) -> "found x"',
        '    2: clerk({"task": "Sign."}) -> "Signed."',
        '      1: sign({"name": "a"}) -> "signed a"',
        '-     2: sign({"name": "b"}) -> "signed b"',
    ]
    assert shown[6].startswith('+     2: sign({"name": "b"}) failed: {')
    assert shown[7:] == ["@@ step 2 @@", '  says "Done."']
    [call] = comparison.to_json()["b"][0]["calls"]
    assert [step["calls"][0]["tool"] for step in call["steps"]] == ["search", "clerk"]
    json.dumps(comparison.to_json())


def test_a_fork_of_a_pause_below_is_as_its_source() -> None:
    """A fork where a sub-agent waits is equal to its source until one of them goes on."""
    desk = finished(Desk(), True)
    waits = desk.stored()
    fork = desk.fork(revision=waits.revision)
    comparison = desk.compared("s", fork)
    assert comparison.diverged_at is None
    assert lines(comparison)[4:6] == [
        '      1: sign({"name": "a"}) -> "signed a"',
        '      2: sign({"name": "b"}) has no result',
    ]
    desk.decide()
    assert lines(desk.compared("s", fork))[1:3] == [
        '- researcher({"task": "Look."}) -> "It is x."',
        '+ researcher({"task": "Look."}) has no result',
    ]


def test_a_call_below_that_a_patch_answered_reads_as_its_own() -> None:
    """A patch may give the result of a sub-agent's call; the comparison names it as the step's difference."""
    desk = Desk()
    desk.send()
    [*_, clerk] = agents_at_work(desk.stored())
    patch = Patch(tool_result=PatchedResult(clerk.open_calls[0].id, "signed by hand"))
    fork = desk.fork(from_step=1, patch=patch)
    changed = [line for line in lines(desk.compared("s", fork)) if line[0] in "-+"]
    assert changed == [
        '-     1: sign({"name": "a"}) has no result',
        '+     1: sign({"name": "a"}) -> "signed by hand"',
    ]


def test_tools_and_arguments_below_are_named_by_their_way() -> None:
    """Rows of what has changed name a sub-agent's tool with the calls above it, at the lead's step."""
    one = finished(Desk(), True, True)
    other = finished(Desk(clerk=[("sign", {"name": "A"}), "Signed."]), True)
    comparison = one.compared("s", "s", other=other)
    below = "researcher > clerk > sign"
    rest: list[JsonValue] = ["researcher", "researcher > search", "researcher > clerk", below]
    assert comparison.drift[:2] == (
        Drift("tools", [*rest, below], rest),
        Drift(
            "args",
            {"step": 1, "tool": below, "arguments": {"name": "a"}},
            {"step": 1, "tool": below, "arguments": {"name": "A"}},
        ),
    )


def test_an_agent_that_answers_at_once_has_no_steps() -> None:
    """That it did nothing is known from the save before, and differs from having done something."""
    one = finished(Desk(), True, True)
    other = finished(Desk(researcher=["It is x."]))
    comparison = one.compared("s", "s", other=other)
    assert comparison.diverged_at == 1
    assert [line for line in lines(comparison) if line.startswith("+")] == []
    assert len([line for line in lines(comparison) if line.startswith("-")]) == 4


def test_what_only_one_history_knows_is_not_a_difference() -> None:
    """Where one history no longer lists an agent's steps, the call is compared without them, on both sides."""
    one, other = finished(Desk(), True, True), finished(Desk(history_limit=0), True, True)
    comparison = one.compared("s", "s", other=other)
    assert (comparison.diverged_at, comparison.drift) == (None, ())
    assert "steps" not in comparison.to_json()["a"][0]["calls"][0]


@st.composite
def known_runs(draw: st.DrawFn, *, levels: int = 2, name: str = "r") -> tuple[Checkpoint, KnownAgents]:
    """A finished run, and what some history knows of the agents that its calls ran, at any depth."""

    def renamed(message: Any) -> Any:
        """The same with call ids that belong to this agent alone."""
        if isinstance(message, AssistantMessage):
            calls = [call.model_copy(update={"id": f"{name}/{call.id}"}) for call in message.tool_calls]
            return message.model_copy(update={"tool_calls": tuple(calls)})
        if isinstance(message, ToolMessage):
            return message.model_copy(update={"tool_call_id": f"{name}/{message.tool_call_id}"})
        return message

    messages = [renamed(message) for message in draw(transcripts(turns=2 if levels == 2 else 1))]
    known: dict[str, Checkpoint | None] = {}
    for id in sorted(call_ids(messages)):
        match draw(st.sampled_from(["unknown", "nothing", "agent"])) if levels else "unknown":
            case "nothing":
                known[id] = None
            case "agent":
                child, below = draw(known_runs(levels=levels - 1, name=id))
                known |= {id: child, **below}
            case _:
                pass
    return ended(*messages), known


@given(known_runs(), st.data())
def test_what_is_forgotten_is_never_a_difference(made: tuple[Checkpoint, KnownAgents], data: st.DataObject) -> None:
    """A run is equal to itself, whichever agents one of two histories has forgotten, at any depth."""
    checkpoint, known = made
    left = {id: state for id, state in known.items() if data.draw(st.booleans())}
    for one, other in ((known, known), (known, left), (left, known)):
        comparison = compare_trajectories(checkpoint, checkpoint, subagents_a=one, subagents_b=other)
        assert (comparison.diverged_at, comparison.drift) == (None, ())
        assert comparison.a == comparison.b
    shown = render_comparison(compare_trajectories(checkpoint, checkpoint, subagents_a=known, subagents_b=known))
    assert all(line[:2] in ("--", "++", "@@", "  ", "") for line in shown.split("\n"))


def test_how_an_agent_ended_is_said_by_its_result() -> None:
    """Whether the last turn of an agent was saved beside something else makes no difference."""
    desk = finished(Desk(), True, True)
    stored, known = desk.stored(), dict(subagents_of(desk.store.checkpoints.history("s")))
    with_ends = {
        id: state.but(messages=(*state.messages, AssistantMessage(content="end")), status=Status.FINISHED)
        for id, state in known.items()
        if state is not None
    }
    comparison = compare_trajectories(stored, stored, subagents_a=known, subagents_b={**known, **with_ends})
    assert (comparison.diverged_at, comparison.drift) == (None, ())
    assert "end" not in render_comparison(comparison)


def test_two_calls_of_one_step_are_not_two_steps() -> None:
    """The numbers tell whether a sub-agent's calls belong to one turn or to two."""
    two: list[Answer] = [[("sign", {"name": "a"}), ("sign", {"name": "b"})], "Signed."]
    comparison = finished(Desk(), True, True).compared("s", "s", other=finished(Desk(clerk=two), True, True))
    assert comparison.diverged_at == 1
    assert [line for line in lines(comparison) if line[0] in "-+"] == [
        '-     2: sign({"name": "b"}) -> "signed b"',
        '+     1: sign({"name": "b"}) -> "signed b"',
    ]
