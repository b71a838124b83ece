"""Forks: where they start, what they keep and drop, how they are named, and that their source never knows."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from durable import (
    Agent,
    Checkpoint,
    CheckpointNotFoundError,
    ConfigurationError,
    Decision,
    FinishReason,
    InvalidSessionIdError,
    Patch,
    PatchedResult,
    RequestConflictError,
    SessionExistsError,
    Status,
    ToolContext,
    fork,
)
from durable.fork import KEPT, default_id
from durable.providers.scripted import Answer
from tests.support.runs import START, Clock, Stores, fresh_agent, memory_store, numbered, run, tool

PLAN: list[Answer] = [
    [("look", {"what": "a"}), ("look", {"what": "b"})],
    ("look", {"what": "c"}),
    "done",
]
PAID: list[Answer] = [("look", {"what": "a"}), [("look", {"what": "b"}), ("pay", {"amount": 5})], "paid"]

DROPPED = frozenset({"approval_id", "decisions", "pauses", "requests", "last_error", "finish_reason", "consumed"})
OWN = frozenset(
    {
        *("v", "session_id", "run_id", "revision", "status", "suspended", "requested_by", "forked_from"),
        *("began_at", "created_at", "updated_at"),
    }
)


class Desk:
    """Agents over one store, as processes that come and go; `ran` says which tools did their work, where."""

    def __init__(self, answers: Sequence[Answer] = PLAN, **store: Any) -> None:
        self.clock = Clock()
        self.store: Any = memory_store(clock=self.clock, **store)
        self.answers = answers
        self.ran: list[tuple[str | None, str]] = []
        self._ids = numbered("run")

    @property
    def agent(self) -> Agent:
        @tool
        def look(what: str, ctx: ToolContext) -> str:
            self.ran.append((ctx.session_id, what))
            return what.upper()

        @tool(needs_approval=True)
        def pay(amount: int, ctx: ToolContext) -> dict[str, Any]:
            self.ran.append((ctx.session_id, "pay"))
            return {"paid": amount, "by": ctx.approval.by if ctx.approval else None}

        return fresh_agent(self.answers, [look, pay], self.store, clock=self.clock, ids=self._ids, tool_concurrency=1)

    def send(self, input: Any = "go", session: str = "s") -> Any:
        return run(self.agent.send(input, session_id=session))

    def fork(self, **options: Any) -> Any:
        return run(self.agent.fork("s", **options))

    def resume(self, session: str) -> Any:
        return run(self.agent.resume(session))

    def approve(self, id: str, **options: Any) -> Any:
        return run(self.agent.approvals.resolve(id, approved=True, by="ada", **options))

    def stored(self, session: str = "s") -> Checkpoint:
        return self.store.checkpoints.load(session)

    def history(self, session: str = "s") -> Any:
        return self.store.checkpoints.history(session)

    def entries(self, session: str = "s") -> list[Any]:
        return [(entry, bytes(entry.body)) for entry in self.store.log.read(f"session/{session}")]


def results(checkpoint: Checkpoint) -> list[Any]:
    return [message.content for message in checkpoint.messages if message.role == "tool"]


# --- where a fork starts ---------------------------------------------------------------------------------------------


def test_a_fork_goes_on_from_the_newest_save_of_its_step() -> None:
    """It has what was known at the end of the step, resumes like any unfinished run, and re-runs nothing recorded."""
    desk = Desk()
    desk.send()
    forked = desk.fork(from_step=1)
    assert (forked.session_id, forked.step) == ("s.fork-1", 1)
    assert (forked.checkpoint.status, forked.checkpoint.revision) == (Status.IN_PROGRESS, 0)
    assert results(forked.checkpoint) == ["A", "B"]
    source = forked.checkpoint.forked_from
    assert source is not None
    assert (source.session_id, source.step) == ("s", 1)
    assert source.revision == next(entry.revision for entry in desk.history() if entry.step == 1)
    result = desk.resume("s.fork-1")
    assert (result.text, result.steps) == ("done", 3)
    assert [what for session, what in desk.ran if session == "s.fork-1"] == ["c"]


def test_a_fork_in_the_middle_of_a_batch_runs_only_what_has_no_result() -> None:
    """A save between two results can be forked by its revision: the call that had settled keeps its result."""
    desk = Desk()
    desk.send()
    middle = next(entry for entry in desk.history() if len(entry.checkpoint.messages) == 3)
    forked = desk.fork(revision=middle.revision)
    assert results(forked.checkpoint) == ["A"]
    assert desk.resume(forked.session_id).text == "done"
    assert [what for session, what in desk.ran if session == forked.session_id] == ["b", "c"]
    assert results(desk.stored(forked.session_id)) == results(desk.stored())


def test_a_fork_of_a_finished_step_is_finished() -> None:
    """Nothing of it is pending: it gives the recorded result, and the model is not asked."""
    desk = Desk()
    first = desk.send()
    forked = desk.fork(from_step=3)
    assert (forked.checkpoint.status, forked.checkpoint.finish_reason) == (Status.FINISHED, FinishReason.STOP)
    assert desk.resume(forked.session_id) is None
    assert desk.send([], session=forked.session_id).text == first.text


def test_a_finished_step_goes_on_with_appended_input() -> None:
    """Input appended to a finished save is answered within what is left of the run's steps, and its usage goes on."""
    desk = Desk([*PLAN, "done again"])
    first = desk.send()
    forked = desk.fork(from_step=3, patch=Patch(append_input="and now?"))
    assert (forked.checkpoint.status, forked.checkpoint.finish_reason) == (Status.IN_PROGRESS, None)
    result = desk.resume(forked.session_id)
    assert (result.text, result.steps, result.usage.model_calls) == ("done again", 4, first.usage.model_calls + 1)
    assert [message.content for message in result.messages[-2:]] == ["and now?", "done again"]


def test_a_fork_keeps_what_is_left_of_the_step_budget() -> None:
    """Steps and usage of the source count: a fork cannot take more steps than its source had left."""
    desk = Desk([("look", {"what": str(n)}) for n in range(20)])
    first = desk.send()
    assert (first.finish_reason, first.steps) == (FinishReason.MAX_STEPS, 10)
    result = desk.resume(desk.fork(from_step=8).session_id)
    assert (result.finish_reason, result.steps) == (FinishReason.MAX_STEPS, 10)
    assert result.usage == first.usage


def test_a_fork_of_the_input_alone_runs_everything() -> None:
    """What was accepted and not begun yet can be forked, too."""
    desk = Desk()
    desk.send()
    source = desk.history()[-1].checkpoint
    waiting = source.but(session_id="w", messages=(), queued=source.messages[:1], step=0, fingerprint=None)
    desk.store.checkpoints.save(waiting, after=None)
    forked = run(desk.agent.fork("w", from_step=0))
    assert desk.resume(forked.session_id).text == "done"


@pytest.mark.parametrize("options", [{}, {"from_step": 1, "revision": 1}])
def test_a_fork_starts_in_one_place(options: dict[str, int]) -> None:
    """A step or a revision is named, not both and not none."""
    desk = Desk()
    desk.send()
    with pytest.raises(ConfigurationError, match="a step or a revision"):
        desk.fork(**options)


# --- what cannot be forked -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "wanted"), [({"from_step": 7}, "step 7"), ({"revision": 70}, "revision 70")])
def test_a_place_that_is_not_listed_names_those_that_are(options: dict[str, int], wanted: str) -> None:
    """The error has a code of its own, says what was asked for, and lists the steps and revisions there are."""
    desk = Desk()
    desk.send()
    with pytest.raises(CheckpointNotFoundError) as caught:
        desk.fork(**options)
    assert (caught.value.code, caught.value.steps) == ("CHECKPOINT_NOT_FOUND", (1, 2, 3))
    assert wanted in str(caught.value)
    assert "steps 1, 2, 3 (revisions 0 to 5)" in str(caught.value)
    assert desk.store.checkpoints.load("s.fork-1") is None


def test_a_step_that_the_ring_has_dropped_cannot_be_forked() -> None:
    """What the history does not list any more is refused; every step that it lists can be forked and finished."""
    desk = Desk(history_limit=3)
    desk.send()
    with pytest.raises(CheckpointNotFoundError) as caught:
        desk.fork(from_step=1)
    assert caught.value.steps == (2, 3)
    for step in caught.value.steps:
        forked = desk.fork(from_step=step)
        assert desk.send([], session=forked.session_id).text == "done"


def test_an_unknown_session_has_no_steps() -> None:
    """A session that never was is told like a step that never ran."""
    with pytest.raises(CheckpointNotFoundError, match="no steps at all"):
        Desk().fork(from_step=1)


def test_a_store_without_history_cannot_fork() -> None:
    """Three methods make a checkpoint store, and forking needs a fourth: the error says so."""

    class ThreeMethods:
        def __init__(self, inner: Any) -> None:
            self.load, self.save, self.delete = inner.load, inner.save, inner.delete

    desk = Desk()
    desk.send()
    store = Stores(ThreeMethods(desk.store.checkpoints), desk.store.approvals)
    with pytest.raises(ConfigurationError, match="keeps no history"):
        run(fork(desk.agent, "s", store=store, from_step=1))


def test_an_agent_without_a_store_cannot_fork() -> None:
    """Without a store there is nothing to fork from."""
    with pytest.raises(ConfigurationError, match="no store"):
        run(Agent().fork("s", from_step=1))


# --- what is kept and what is not ------------------------------------------------------------------------------------


def test_every_field_of_a_checkpoint_is_kept_or_dropped_or_the_forks_own() -> None:
    """A field that is added to the checkpoint has to be decided about here."""
    assert {*KEPT, *DROPPED, *OWN} == set(Checkpoint.model_fields)
    assert len(KEPT) + len(DROPPED) + len(OWN) == len(Checkpoint.model_fields)


def test_a_fork_keeps_its_run_and_drops_its_requests_and_decisions() -> None:
    """Kept fields are the source's, dropped ones are as in a new checkpoint, and run, times and origin are its own."""
    desk = Desk(PAID)
    desk.approve(desk.send().approval_id)
    entry = next(entry for entry in desk.history() if entry.checkpoint.decisions)
    desk.clock.advance(hours=1)
    forked = run(fork(desk.agent, "s", store=desk.store, revision=entry.revision, requested_by="eve")).checkpoint
    assert {name: getattr(forked, name) for name in KEPT} == {name: getattr(entry.checkpoint, name) for name in KEPT}
    for name in DROPPED:
        assert getattr(forked, name) == Checkpoint.model_fields[name].get_default(call_default_factory=True), name
    assert forked.run_id not in {entry.checkpoint.run_id, ""}
    assert forked.created_at == forked.updated_at == entry.checkpoint.created_at + timedelta(hours=1)
    assert forked.requested_by == "eve"


def test_a_paused_sub_agent_is_forked_without_its_approval() -> None:
    """The state of a sub-agent is kept, without what was decided in it, at every depth."""
    decision = Decision(approval_id="apr_1", approved=True, decided_at=START)
    inner = child("inner", decisions={"c": decision})
    nested = child("outer", decisions={"b": decision}, step=2, suspended={"c": inner})
    desk = Desk(PAID)
    desk.send()
    stored = desk.stored()
    desk.store.checkpoints.save(stored.but(suspended={"call": nested}), after=stored)
    kept = desk.fork(from_step=2).checkpoint.suspended["call"]
    assert kept == nested.but(decisions={}, suspended={"c": inner.but(decisions={})})


def child(agent: str, **fields: Any) -> Checkpoint:
    return Checkpoint(session_id=None, run_id="", agent=agent, created_at=START, updated_at=START, **fields)


# --- approvals -------------------------------------------------------------------------------------------------------


def place(desk: Desk, what: str) -> int:
    """The revision before, at or after the approval of `pay`."""
    saves = {
        "before": lambda entry: entry.step == 1 and len(results(entry.checkpoint)) == 1,
        "at": lambda entry: entry.status is Status.AWAITING_APPROVAL,
        "decided": lambda entry: bool(entry.checkpoint.decisions) and len(results(entry.checkpoint)) == 2,
        "after": lambda entry: entry.step == 2 and len(results(entry.checkpoint)) == 3,
    }
    return next(entry.revision for entry in reversed(desk.history()) if saves[what](entry))


@pytest.mark.parametrize(
    ("where", "asks", "runs"),
    [
        ("before", True, ["b", "pay"]),
        ("at", True, ["pay"]),
        ("decided", True, ["pay"]),
        ("after", False, []),
    ],
)
def test_a23_a_fork_asks_anew_and_keeps_what_it_is_not_about(where: str, asks: bool, runs: list[str]) -> None:
    """Before, at and right after a decision a fork asks again, once; results that are there are never made again.

    So time travel neither reuses a stale answer nor runs everything again.
    """
    desk = Desk(PAID)
    first = desk.send()
    desk.approve(first.approval_id)
    forked = desk.fork(revision=place(desk, where))
    result = desk.resume(forked.session_id)
    if asks:
        assert result.finish_reason is FinishReason.AWAITING_APPROVAL
        assert result.approval_id != first.approval_id
        assert (forked.session_id, "pay") not in desk.ran
        result = desk.approve(result.approval_id)
    assert (result.text, result.finish_reason) == ("paid", FinishReason.STOP)
    assert [what for session, what in desk.ran if session == forked.session_id] == runs
    assert results(result.checkpoint) == results(desk.stored())


def test_a_call_that_had_begun_is_not_silently_begun_again() -> None:
    """A fork of a save where an approved call was running is told, as any resume is, that its outcome is unknown."""
    desk = Desk(PAID)
    desk.approve(desk.send().approval_id)
    entry = next(entry for entry in desk.history() if entry.checkpoint.started)
    result = desk.resume(desk.fork(revision=entry.revision).session_id)
    assert results(result.checkpoint)[-1]["kind"] == "unknown-outcome"
    assert [what for _, what in desk.ran].count("pay") == 1


def test_a10_deciding_one_of_two_forks_leaves_the_other_alone() -> None:
    """Two forks of one paused step share neither decision nor usage nor state with each other or their source."""
    desk = Desk(PAID)
    source = desk.send()
    first, second = (desk.fork(from_step=2) for _ in range(2))
    waiting = [desk.resume(each.session_id) for each in (first, second)]
    assert len({source.approval_id, *(each.approval_id for each in waiting)}) == 3
    done = desk.approve(waiting[0].approval_id)
    assert done.text == "paid"
    for session in ("s", second.session_id):
        stored = desk.stored(session)
        assert (stored.status, stored.decisions) == (Status.AWAITING_APPROVAL, {})
        assert stored.usage == source.usage != done.usage
    assert desk.store.approvals.get(waiting[1].approval_id).status == "pending"


def test_two_forks_share_no_value_that_can_be_changed() -> None:
    """What one of two forks does to its state in place is not seen by the other, nor by their source."""
    desk = Desk()
    desk.send()
    stored = desk.stored()
    desk.store.checkpoints.save(stored.but(business_state={"list": [1]}), after=stored)
    forks = [desk.fork(from_step=3).checkpoint for _ in range(2)]
    forks[0].business_state["list"].append(2)
    assert [forks[1].business_state, desk.stored().business_state] == [{"list": [1]}] * 2
    assert desk.stored(forks[0].session_id).business_state == {"list": [1]}


# --- the source ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answers", [PLAN, PAID])
def test_forking_and_resuming_never_changes_the_source(answers: list[Answer]) -> None:
    """Whatever is forked of a session and however it goes on, the session's entries are the same to the byte."""
    desk = Desk(answers)
    desk.send()
    before, head = desk.entries(), desk.store.log.head("session/s")
    for entry in desk.history():
        patches = [Patch(), Patch(append_input="more"), Patch(business_state={"n": 1}), Patch(messages=lambda m: m[:1])]
        for patch in patches:
            desk.answers = [*answers, "more"]
            result = desk.resume(desk.fork(revision=entry.revision, patch=patch).session_id)
            if result is not None and result.approval_id is not None:
                desk.approve(result.approval_id)
    assert desk.entries() == before
    assert desk.store.log.head("session/s") == head


def test_dropping_old_entries_breaks_neither_what_is_listed_nor_a_fork() -> None:
    """When the source is deleted its forks live on, and when a fork is deleted its source does."""
    desk = Desk()
    desk.send()
    one, two = desk.fork(from_step=1), desk.fork(from_step=2)
    desk.store.checkpoints.delete(two.session_id)
    assert desk.fork(from_step=2).session_id == two.session_id
    desk.store.checkpoints.delete("s")
    assert desk.resume(one.session_id).text == "done"
    assert [entry.step for entry in desk.history(one.session_id)][-1] == 1


def test_a_large_session_is_forked_as_it_is() -> None:
    """A session of 5 MB forks with every byte, and its fork can be forked."""
    desk = Desk()
    desk.send()
    large = "語" * 1_700_000
    patch = Patch(tool_result=PatchedResult("call_0_1", large))
    forked = desk.fork(from_step=1, patch=patch)
    again = run(desk.agent.fork(forked.session_id, from_step=1))
    assert again.session_id == "s.fork-1.fork-1"
    assert results(desk.stored(again.session_id)) == ["A", large]
    assert sum(len(body) for _, body in desk.entries(again.session_id)) > 5_000_000
    assert desk.resume(again.session_id).text == "done"


# --- names -----------------------------------------------------------------------------------------------------------


def test_twenty_forks_at_once_get_twenty_ids() -> None:
    """Names are claimed by compare-and-append: forks that are made at the same moment never share one."""
    desk = Desk()
    desk.send()

    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*(desk.agent.fork("s", from_step=1) for _ in range(20)))

    forks = run(all_at_once())
    assert {each.session_id for each in forks} == {f"s.fork-{n}" for n in range(1, 21)}
    assert len({each.checkpoint.run_id for each in forks}) == 20
    assert all(desk.stored(each.session_id) == each.checkpoint for each in forks)


def test_one_given_id_is_taken_once() -> None:
    """Of two forks that are given one id at the same moment, one gets it and the other is refused."""
    desk = Desk()
    desk.send()

    async def both() -> list[Any]:
        asked = (desk.agent.fork("s", from_step=step, new_session_id="mine") for step in (1, 2))
        return await asyncio.gather(*asked, return_exceptions=True)

    made, refused = sorted(run(both()), key=lambda one: isinstance(one, Exception))
    assert (made.session_id, desk.stored("mine")) == ("mine", made.checkpoint)
    assert isinstance(refused, SessionExistsError)
    assert refused.code == "SESSION_EXISTS"


@pytest.mark.parametrize("name", ["", "a\n", "x" * 257])
def test_a_given_id_is_a_session_id(name: str) -> None:
    """An id that no session could have is refused."""
    desk = Desk()
    desk.send()
    with pytest.raises(InvalidSessionIdError):
        desk.fork(from_step=1, new_session_id=name)


def test_a_default_id_that_is_too_long_is_cut_and_marked() -> None:
    """A cut name has 8 hex digits of the whole id's hash, so two long ids that begin alike have different forks."""
    assert default_id("s", "fork-1") == "s.fork-1"
    assert len(default_id("x" * 249, "fork-1")) == 256
    cut = default_id("x" * 256, "fork-1")
    assert (len(cut), cut[:3], cut[-7:]) == (256, "xxx", ".fork-1")
    assert len(cut.rpartition(".")[0].rpartition("-")[2]) == 8
    assert cut != default_id("x" * 255 + "y", "fork-1")
    desk = Desk()
    desk.send(session="x" * 256)
    assert run(desk.agent.fork("x" * 256, from_step=1)).session_id == cut


def test_a_request_that_comes_again_gives_the_fork_that_it_made() -> None:
    """The same key and body make one fork, also when it has gone on since; another body is refused."""
    desk = Desk()
    desk.send()

    def asked(digest: str) -> Any:
        made = fork(desk.agent, "s", store=desk.store, from_step=1, new_session_id="named", request=("key", digest))
        return run(made)

    first = asked("a")
    desk.resume("named")
    again = asked("a")
    assert (again.session_id, again.step, again.checkpoint.run_id) == ("named", 1, first.checkpoint.run_id)
    with pytest.raises(RequestConflictError):
        asked("b")
