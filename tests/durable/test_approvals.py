"""Approvals: who may decide what and until when, and what a run does with the decision."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from durable import (
    Agent,
    Approval,
    ApprovalClosedError,
    ApprovalDecision,
    ApprovalNotFoundError,
    ApprovalStatus,
    Checkpoint,
    ConfigurationError,
    FinishReason,
    InvalidDecisionError,
    ProviderUnavailableError,
    ResumeToolMissingError,
    SessionAwaitingApprovalError,
    SessionNotFoundError,
    StaleCheckpointError,
    Status,
    ToolContext,
    decide,
    resume_after_approval,
    tool,
)
from durable.approval_stream import Applied, Cancelled, Expired, Requested, Voted
from durable.approvals import MAX_NOTE, Decided, cancel
from durable.ports import ApprovalEvent
from durable.transcript import first_fault
from stores import LogStore
from stores._bundle import log_store
from tests.support.runs import (
    START,
    Clock,
    Crash,
    CrashingCheckpoints,
    Stores,
    fresh_agent,
    memory_store,
    numbered,
    run,
)

DOWN = ProviderUnavailableError("scripted", "It is down.", status=500)


class Desk:
    """A store, a clock, and an agent whose one tool moves money and says so."""

    def __init__(self, answers: Any = None, **options: Any) -> None:
        self.clock = Clock()
        self.store: Any = memory_store(clock=self.clock)
        self.answers = answers or [("pay", {"amount": 5}), "done", "and again"]
        self.options = {"needs_approval": True, **options}
        self.paid: list[int] = []
        self.grants: list[Any] = []
        self.agent = self.new_agent()

    def new_agent(self, store: Any = None, answers: Any = None) -> Agent:
        @tool(**self.options)
        def pay(amount: int, ctx: ToolContext) -> dict[str, int]:
            self.paid.append(amount)
            self.grants.append(ctx.approval)
            return {"paid": amount}

        return fresh_agent(answers or self.answers, [pay], store or self.store, clock=self.clock, ids=numbered("run"))

    def pause(self) -> str:
        """Run until the agent asks; give the approval's id."""
        result = run(self.agent.send("go", session_id="s", requested_by="bob"))
        assert result.finish_reason is FinishReason.AWAITING_APPROVAL
        return result.approval_id

    def decide(self, id: str, approved: bool = True, **more: Any) -> Decided:
        return decide(
            ApprovalDecision(id=id, approved=approved, **more),
            approvals=self.store.approvals,
            checkpoints=self.store.checkpoints,
            tools=self.agent.toolset,
            now=self.clock(),
        )

    def resume(self, id: str, agent: Agent | None = None) -> Any:
        return run(resume_after_approval(agent or self.agent, id, store=self.store))

    def approval(self, id: str) -> Approval:
        approval = self.store.approvals.get(id)
        assert approval is not None
        return approval

    def stored(self) -> Checkpoint:
        checkpoint = self.store.checkpoints.load("s")
        assert checkpoint is not None
        return checkpoint

    def results(self) -> list[Any]:
        return [message.content for message in self.stored().messages if message.role == "tool"]


# --- the pause -------------------------------------------------------------------------------------------------------


def test_a_pause_says_everything_that_a_human_needs() -> None:
    """The approval names session, run, agent, tool, final arguments and requester, and is listed; nothing has run."""
    desk = Desk()
    id = desk.pause()
    request = desk.approval(id).request
    assert (request.session_id, request.run_id, request.agent) == ("s", "run1", "t")
    assert (request.tool_name, request.arguments, request.call_id) == ("pay", {"amount": 5}, "call_0_0")
    assert (request.requested_by, request.at, request.deadline) == ("bob", START, None)
    assert (desk.stored().status, desk.stored().approval_id) == (Status.AWAITING_APPROVAL, id)
    assert [approval.id for approval in run(desk.agent.approvals.list()).items] == [id]
    assert run(desk.agent.approvals.get(id)) == desk.approval(id)
    assert desk.paid == []


def test_an_approval_exists_before_a_checkpoint_names_it() -> None:
    """A crash between the two leaves an orphan, which cannot be decided; the repeated pause renews its deadline."""
    desk = Desk(approval_timeout=timedelta(hours=1))
    dying = CrashingCheckpoints(desk.store.checkpoints, at=1)
    with pytest.raises(Crash):
        run(desk.new_agent(Stores(dying, desk.store.approvals)).send("go", session_id="s"))
    [orphan] = desk.store.approvals.list(status=None).items
    with pytest.raises(ApprovalClosedError, match="orphaned"):
        desk.decide(orphan.id)
    desk.clock.advance(minutes=90)
    assert desk.pause() == orphan.id
    assert desk.approval(orphan.id).request.deadline == desk.clock() + timedelta(hours=1)
    assert len(desk.store.approvals.list(status=None).items) == 1
    assert desk.decide(orphan.id).approval.status is ApprovalStatus.APPROVED


# --- deciding --------------------------------------------------------------------------------------------------------


def test_an_approved_call_runs_once() -> None:
    """An approval runs the call with its grant, the run finishes, and the record says who, how and when."""
    desk = Desk()
    id = desk.pause()
    desk.clock.advance(days=4)
    result = run(desk.agent.approvals.resolve(id, approved=True, note="fine", by="ada"))
    assert (result.text, desk.paid) == ("done", [5])
    [grant] = desk.grants
    assert (grant.id, grant.note, grant.by) == (id, "fine", "ada")
    approval = desk.approval(id)
    assert approval.decision is not None
    assert (approval.status, approval.applied) == (ApprovalStatus.APPROVED, True)
    assert (approval.decision.by, approval.decision.via, approval.decision.note) == ("ada", "library", "fine")
    assert approval.decision.decided_at == START + timedelta(days=4)
    assert [type(event) for event in approval.events] == [Requested, Voted, Applied]
    assert run(desk.agent.approvals.list()).items == []


def test_a13_a_reason_for_a_rejection_reaches_the_model() -> None:
    """The model is told that the call was rejected, with the note that the human wrote."""
    desk = Desk()
    run(desk.agent.approvals.resolve(desk.pause(), approved=False, note="Ask for a receipt first.", by="ada"))
    provider: Any = desk.agent.provider
    content: Any = provider.requests[-1].messages[-1].content
    assert (content["kind"], content["note"]) == ("rejected", "Ask for a receipt first.")
    assert desk.paid == []


ENTRY_POINTS: dict[str, Callable[[Desk, str], Any]] = {
    "resolve": lambda desk, id: run(desk.new_agent().approvals.resolve(id, approved=False)),
    "resolve with a yes": lambda desk, id: run(desk.new_agent().approvals.resolve(id, approved=True)),
    "resolve with arguments": lambda desk, id: run(
        desk.new_agent().approvals.resolve(id, approved=True, args={"amount": 1})
    ),
    "resume_after_approval": lambda desk, id: desk.resume(id, desk.new_agent()),
    "send": lambda desk, id: run(desk.new_agent().send("go", session_id="s")),
    "send nothing": lambda desk, id: run(desk.new_agent().send([], session_id="s")),
    "resume": lambda desk, id: run(desk.new_agent().resume("s")),
}


@pytest.mark.parametrize("enter", ENTRY_POINTS.values(), ids=ENTRY_POINTS)
@pytest.mark.parametrize("saves", range(3))
def test_a2_a_rejected_tool_never_runs(saves: int, enter: Callable[[Desk, str], Any]) -> None:
    """Reject, crash after any save of the resume, and enter by any way: the tool does not run, now or later."""
    desk = Desk()
    id = desk.pause()
    desk.decide(id, approved=False)
    dying = CrashingCheckpoints(desk.store.checkpoints, at=saves, after=True)
    with pytest.raises(Crash):
        run(resume_after_approval(desk.new_agent(), id, store=Stores(dying, desk.store.approvals)))
    enter(desk, id)
    assert desk.paid == []
    assert [content["kind"] for content in desk.results()] == ["rejected"]


@pytest.mark.parametrize("enter", ENTRY_POINTS.values(), ids=ENTRY_POINTS)
def test_an_approved_tool_runs_at_most_once(enter: Callable[[Desk, str], Any]) -> None:
    """Approve, crash after the result is saved, and enter by any way: the call does not run again."""
    desk = Desk()
    id = desk.pause()
    desk.decide(id)
    dying = CrashingCheckpoints(desk.store.checkpoints, at=2, after=True)
    with pytest.raises(Crash):
        run(resume_after_approval(desk.new_agent(), id, store=Stores(dying, desk.store.approvals)))
    enter(desk, id)
    assert desk.paid == [5]
    assert desk.results() == [{"paid": 5}]


@pytest.mark.parametrize("enter", ["send", "send nothing", "resume", "resume_after_approval"])
def test_a4_nothing_but_a_decision_is_a_yes(enter: str) -> None:
    """Whoever carries on without a decision is refused, and the approval is still pending."""
    desk = Desk()
    id = desk.pause()
    with pytest.raises(SessionAwaitingApprovalError) as refused:
        ENTRY_POINTS[enter](desk, id)
    assert refused.value.approval_id == id
    assert (desk.paid, desk.approval(id).status) == ([], ApprovalStatus.PENDING)


def test_edited_arguments_are_validated_and_both_versions_kept() -> None:
    """A human may correct the arguments: what does not fit is refused with nothing recorded, what fits is what runs."""
    desk = Desk()
    id = desk.pause()
    for args in ({"amount": "much"}, {}, {"amount": 3, "to": "me"}, {"amount": float("nan")}):
        with pytest.raises(InvalidDecisionError):
            desk.decide(id, args=args)
    assert len(desk.approval(id).events) == 1
    run(desk.agent.approvals.resolve(id, approved=True, args={"amount": 3}))
    assert desk.paid == [3]
    decision = desk.approval(id).decision
    assert decision is not None
    assert (desk.approval(id).request.arguments, decision.args) == ({"amount": 5}, {"amount": 3})


def test_a_decision_that_makes_no_sense_is_not_recorded() -> None:
    """A note beyond its limit, arguments for a rejection and arguments for a tool that is gone are refused."""
    desk = Desk()
    id = desk.pause()
    with pytest.raises(InvalidDecisionError, match="note"):
        desk.decide(id, note="x" * (MAX_NOTE + 1))
    with pytest.raises(InvalidDecisionError, match="rejection"):
        desk.decide(id, approved=False, args={"amount": 3})
    with pytest.raises(InvalidDecisionError, match="pay"):
        decide(
            ApprovalDecision(id=id, approved=True, args={"amount": 3}),
            approvals=desk.store.approvals,
            checkpoints=desk.store.checkpoints,
            tools={},
            now=START,
        )
    assert desk.approval(id).status is ApprovalStatus.PENDING
    assert not desk.decide(id, note="x" * MAX_NOTE).already


def test_an_unknown_approval_cannot_be_decided() -> None:
    """An id that names no approval is `ApprovalNotFoundError` by every way."""
    desk = Desk()
    with pytest.raises(ApprovalNotFoundError):
        desk.decide("apr_unknown")
    with pytest.raises(ApprovalNotFoundError):
        desk.resume("apr_unknown")
    with pytest.raises(ApprovalNotFoundError):
        run(desk.agent.approvals.get("apr_unknown"))


@pytest.mark.parametrize(
    ("again", "same"),
    [
        ({"approved": True}, True),
        ({"approved": True, "note": "another", "by": "eve"}, True),
        ({"approved": False}, False),
        ({"approved": True, "args": {"amount": 3}}, False),
        ({"approved": True, "args": {"nonsense": 1}}, False),
    ],
)
def test_the_first_decision_stands(again: dict[str, Any], same: bool) -> None:
    """Deciding again gives the recorded decision, says that it was there before and whether it is the same."""
    desk = Desk()
    id = desk.pause()
    first = desk.decide(id, note="yes", by="ada")
    assert (first.already, first.same) == (False, True)
    second = desk.decide(id, **again)
    assert (second.already, second.same) == (True, same)
    assert second.approval == first.approval == desk.approval(id)


@pytest.mark.parametrize(("seconds", "in_time"), [(-1, True), (-0.001, True), (0, False), (1, False)])
def test_a_decision_counts_until_the_deadline(seconds: float, in_time: bool) -> None:
    """Before its deadline an approval can be decided, and nobody expires it; at the deadline it is expired."""
    desk = Desk(approval_timeout=timedelta(hours=1))
    id = desk.pause()
    desk.clock.advance(hours=1, seconds=seconds)
    if in_time:
        with pytest.raises(SessionAwaitingApprovalError):
            desk.resume(id)
        assert desk.decide(id).approval.status is ApprovalStatus.APPROVED
        return
    for _ in range(2):
        with pytest.raises(ApprovalClosedError) as late:
            desk.decide(id)
        assert late.value.status == "expired"
    assert [type(event) for event in desk.approval(id).events] == [Requested, Expired]


def test_a19_a_deadline_that_passes_rejects_and_says_so() -> None:
    """A run resumed after the deadline goes on with a rejection, and the record says that it was a time-out."""
    desk = Desk(approval_timeout=timedelta(hours=1))
    id = desk.pause()
    desk.clock.advance(hours=1)
    result = desk.resume(id)
    decision = desk.approval(id).decision
    assert decision is not None
    assert (decision.via, decision.by, decision.approved) == ("timeout", None, False)
    assert (result.text, desk.paid, desk.results()[0]["kind"]) == ("done", [], "rejected")


def test_a_decision_made_in_time_is_applied_after_the_deadline() -> None:
    """The deadline ends the wait for a human, not the life of a decision."""
    desk = Desk(approval_timeout=timedelta(hours=1))
    id = desk.pause()
    desk.decide(id)
    desk.clock.advance(days=2)
    assert (desk.resume(id).text, desk.paid) == ("done", [5])


def test_a_record_that_no_session_waits_for_cannot_be_decided() -> None:
    """When the session is gone or waits for something else, its approval is orphaned, and nothing is recorded."""
    desk = Desk()
    id = desk.pause()
    desk.store.checkpoints.delete("s")
    with pytest.raises(ApprovalClosedError, match="orphaned"):
        desk.decide(id)
    assert len(desk.approval(id).events) == 1
    with pytest.raises(SessionNotFoundError):
        desk.resume(id)


def test_a_question_that_was_never_asked_does_not_expire() -> None:
    """A pause that a crash cut short is made up for: who answers its record too early or too late changes nothing."""
    desk = Desk(approval_timeout=timedelta(hours=1))
    dying = CrashingCheckpoints(desk.store.checkpoints, at=1)
    with pytest.raises(Crash):
        run(desk.new_agent(Stores(dying, desk.store.approvals)).send("go", session_id="s"))
    [id] = [approval.id for approval in desk.store.approvals.list().items]
    desk.clock.advance(hours=2)
    with pytest.raises(ApprovalClosedError, match="orphaned"):
        desk.decide(id)
    result = desk.resume(id)
    assert (result.finish_reason, result.approval_id) == (FinishReason.AWAITING_APPROVAL, id)
    assert desk.approval(id).status is ApprovalStatus.PENDING
    assert desk.approval(id).request.deadline == desk.clock() + timedelta(hours=1)
    desk.decide(id)
    assert desk.resume(id).finish_reason is FinishReason.STOP
    assert desk.paid == [5]


@pytest.mark.parametrize("how", ["cancelled", "halted"])
def test_a_call_that_had_begun_is_not_said_to_have_not_run(how: str) -> None:
    """A human was asked whether to run it again, and the run stops instead: what came of the first time is unknown."""
    desk = Desk(recovery="ask", approval_timeout=timedelta(hours=1), on_timeout="halt")
    id = desk.pause()
    paused, call_id = desk.stored(), desk.approval(id).request.call_id
    desk.store.checkpoints.save(
        paused.but(started=(call_id,)), after=paused
    )  # as a crash of the call would have left it
    if how == "cancelled":
        cancel(desk.approval(id), approvals=desk.store.approvals, now=desk.clock())
    else:
        desk.clock.advance(hours=1)
    desk.resume(id)
    assert [result["kind"] for result in desk.results()] == ["unknown-outcome"]
    assert (desk.paid, desk.approval(id).applied) == ([], True)


def test_a_cancelled_approval_cannot_be_decided() -> None:
    """An approval that was cancelled is closed, and its call does not run."""
    desk = Desk()
    id = desk.pause()
    desk.store.approvals.append(Cancelled(at=START, by="bob"), after=desk.approval(id))
    with pytest.raises(ApprovalClosedError, match="cancelled"):
        desk.decide(id)
    desk.resume(id)
    assert desk.paid == []


class Overtaken:
    """An approval store on which somebody else is faster, once."""

    def __init__(self, inner: Any, act: Callable[[], object]) -> None:
        self._inner = inner
        self._act: Callable[[], object] | None = act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def append(self, event: ApprovalEvent, *, after: Approval) -> Approval | None:
        act, self._act = self._act, None
        if act is not None:
            act()
        return self._inner.append(event, after=after)


@pytest.mark.parametrize("theirs", [True, False])
def test_of_two_who_decide_at_once_one_wins(theirs: bool) -> None:
    """Who loses the append reads what was decided: the other one's decision stands, and is told."""
    desk = Desk()
    id = desk.pause()
    inner = desk.store.approvals
    overtaken = Overtaken(inner, lambda: Desk.decide(desk, id, approved=theirs, by="eve"))
    desk.store = Stores(desk.store.checkpoints, inner)
    mine = decide(
        ApprovalDecision(id=id, approved=True, by="ada"),
        approvals=overtaken,
        checkpoints=desk.store.checkpoints,
        tools=desk.agent.toolset,
        now=START,
    )
    assert (mine.already, mine.same) == (True, theirs)
    assert mine.approval.decision is not None
    assert (mine.approval.decision.by, mine.approval.decision.approved) == ("eve", theirs)


def test_a_vote_and_an_expiry_race_to_one_outcome() -> None:
    """A time-out that loses to a vote reads the vote, and the vote is what the run applies."""
    desk = Desk(approval_timeout=timedelta(hours=1))
    id = desk.pause()
    inner = desk.store.approvals
    on_time = START + timedelta(minutes=59)

    def vote() -> None:
        said = ApprovalDecision(id=id, approved=True, by="ada")
        decide(said, approvals=inner, checkpoints=desk.store.checkpoints, tools=desk.agent.toolset, now=on_time)

    desk.clock.advance(hours=2)
    store = Stores(desk.store.checkpoints, Overtaken(inner, vote))
    assert run(resume_after_approval(desk.agent, id, store=store)).text == "done"
    assert desk.paid == [5]
    assert [type(event) for event in desk.approval(id).events] == [Requested, Voted, Applied]


# --- applying --------------------------------------------------------------------------------------------------------


def test_a_decision_is_saved_before_anything_is_done_about_it() -> None:
    """The first save of a resume attaches the decision to its call; a crash right after it asks nobody again."""
    desk = Desk()
    id = desk.pause()
    desk.decide(id, note="fine", by="ada")
    dying = CrashingCheckpoints(desk.store.checkpoints, at=0, after=True)
    with pytest.raises(Crash):
        run(resume_after_approval(desk.new_agent(), id, store=Stores(dying, desk.store.approvals)))
    stored = desk.stored()
    assert (stored.status, stored.approval_id, desk.paid) == (Status.IN_PROGRESS, None, [])
    assert stored.decisions["call_0_0"].by == "ada"
    assert desk.resume(id).text == "done"
    assert desk.paid == [5]
    assert desk.grants[0].note == "fine"
    assert desk.stored().decisions == {}


def test_a_decision_is_bound_to_what_was_shown() -> None:
    """When the arguments of the call are not those that the human saw, the call is refused and does not run."""
    desk = Desk()
    id = desk.pause()
    desk.decide(id)
    paused = desk.stored()
    turn: Any = paused.messages[1]
    changed = turn.tool_calls[0].model_copy(update={"arguments": json.dumps({"amount": 5_000})})
    turn = turn.model_copy(update={"tool_calls": (changed,)})
    desk.store.checkpoints.save(paused.but(messages=(paused.messages[0], turn)), after=paused)
    desk.resume(id)
    assert desk.paid == []
    assert desk.results()[0]["kind"] == "validation"


def test_a14_a_policy_is_evaluated_once() -> None:
    """The decision comes first; the policy is not asked again when the run resumes."""
    looked: list[Any] = []

    def policy(arguments: Any, context: ToolContext) -> bool:
        looked.append(arguments)
        return True

    desk = Desk(needs_approval=policy)
    run(desk.agent.approvals.resolve(desk.pause(), approved=True))
    assert (looked, desk.paid) == ([{"amount": 5}], [5])


def test_a1_a16_three_gated_calls_are_answered_one_after_the_other() -> None:
    """Each gated call of a turn has its own approval, each answer reaches its own call, and none is lost."""
    desk = Desk([[("pay", {"amount": amount}) for amount in (1, 2, 3)], "done"])
    ids = [desk.pause()]
    result = None
    for number, approved in enumerate((True, False, True)):
        [pending] = run(desk.agent.approvals.list()).items
        assert (pending.id, pending.request.arguments) == (ids[-1], {"amount": number + 1})
        result = run(desk.new_agent().approvals.resolve(ids[-1], approved=approved, note=f"note {number}"))
        ids.append(result.approval_id)
    assert len(set(ids)) == 4
    assert ids[-1] is None
    assert (desk.paid, [grant.note for grant in desk.grants]) == ([1, 3], ["note 0", "note 2"])
    assert result is not None
    assert first_fault(result.messages) is None
    assert [call.id for call in result.messages[1].tool_calls] == ["call_0_0", "call_0_1", "call_0_2"]
    first, second, third = desk.results()
    assert (first, second["note"], third) == ({"paid": 1}, "note 1", {"paid": 3})
    assert desk.stored().pauses == 3


def test_an_answer_to_an_earlier_question_does_not_open_a_later_one() -> None:
    """Repeating the decision of the first approval while the second is pending changes nothing."""
    desk = Desk([[("pay", {"amount": amount}) for amount in (1, 2)], "done"])
    first = desk.pause()
    second = run(desk.agent.approvals.resolve(first, approved=True)).approval_id
    again = run(desk.agent.approvals.resolve(first, approved=True))
    assert (again.finish_reason, again.approval_id) == (FinishReason.AWAITING_APPROVAL, second)
    assert (desk.paid, desk.approval(second).status) == ([1], ApprovalStatus.PENDING)


def test_e25_a_cold_process_resolves_the_approval() -> None:
    """Everything is in the store: a process that has never seen the run decides and resumes it."""
    desk = Desk([("pay", {"amount": 5}), "done"])
    id = desk.pause()
    cold: LogStore = log_store(desk.store.log, desk.store.leases, desk.store.meter, clock=desk.clock)
    agent = desk.new_agent(cold)
    assert run(agent.approvals.resolve(id, approved=True)).text == "done"
    assert desk.paid == [5]


def test_a15_a_provider_that_fails_during_the_resume_loses_nothing() -> None:
    """The decision stays recorded and applied, the session is unfinished, and a retry finishes the run."""
    desk = Desk([("pay", {"amount": 5}), DOWN])
    id = desk.pause()
    for _ in range(2):
        with pytest.raises(ProviderUnavailableError):
            run(desk.new_agent().approvals.resolve(id, approved=True))
    assert desk.stored().status is Status.IN_PROGRESS
    assert desk.approval(id).applied
    assert run(desk.agent.approvals.list()).items == []
    recovered = desk.new_agent(answers=[("pay", {"amount": 5}), "done"])
    assert run(recovered.approvals.resolve(id, approved=True)).text == "done"
    assert (desk.paid, desk.results()) == ([5], [{"paid": 5}])


def test_a_missing_tool_leaves_the_decision_for_the_right_agent() -> None:
    """When the resume is refused, the paused checkpoint and the decision stay, and the right agent can apply it."""
    desk = Desk()
    id = desk.pause()
    before = desk.stored()
    wrong = fresh_agent(["x"], [], desk.store)
    with pytest.raises(ResumeToolMissingError):
        run(wrong.approvals.resolve(id, approved=True))
    assert desk.stored() == before
    assert desk.approval(id).status is ApprovalStatus.APPROVED
    assert not desk.approval(id).applied
    assert desk.resume(id).text == "done"


def test_e17_two_who_apply_one_decision_run_the_call_once() -> None:
    """Of two processes that resume one approval, one moves the session; the other gets `StaleCheckpointError`."""
    desk = Desk()
    id = desk.pause()
    desk.decide(id)

    class Slow(CrashingCheckpoints):
        def save(self, checkpoint: Checkpoint, *, after: Checkpoint | None) -> Checkpoint:
            if self.saves == 0:
                desk.resume(id, desk.new_agent())
            return super().save(checkpoint, after=after)

    with pytest.raises(StaleCheckpointError):
        run(resume_after_approval(desk.agent, id, store=Stores(Slow(desk.store.checkpoints), desk.store.approvals)))
    assert (desk.paid, desk.stored().status) == ([5], Status.FINISHED)


def test_an_approved_call_that_had_started_follows_its_recovery() -> None:
    """Crash while an approved call runs: its outcome is unknown, it runs again, or a human decides: by its tool."""
    for recovery, kind in (("report", "unknown-outcome"), ("rerun", None), ("ask", "ask")):
        desk = Desk(recovery=recovery)
        id = desk.pause()
        desk.decide(id)
        # The process dies with the call under way: after the save that names it, or the decision where none does.
        dying = CrashingCheckpoints(desk.store.checkpoints, at=0 if recovery == "rerun" else 1, after=True)
        with pytest.raises(Crash):
            run(resume_after_approval(desk.new_agent(), id, store=Stores(dying, desk.store.approvals)))
        result = desk.resume(id)
        if kind == "ask":
            assert result.finish_reason is FinishReason.AWAITING_APPROVAL
            assert result.approval_id != id
            assert desk.stored().decisions == {}
            result = run(desk.agent.approvals.resolve(result.approval_id, approved=True))
        if kind == "unknown-outcome":
            assert (desk.paid, desk.results()[0]["kind"]) == ([], kind)
        else:
            assert (desk.paid, desk.results()) == ([5], [{"paid": 5}])
        assert result.text == "done"


def test_calls_behind_a_gated_one_run_after_the_decision() -> None:
    """What stands before the gated call has run and is not run again; what stands behind it runs with the resume."""
    ran: list[str] = []

    @tool
    def look(name: str) -> str:
        ran.append(name)
        return name

    @tool(needs_approval=True)
    def pay() -> str:
        ran.append("pay")
        return "paid"

    store = memory_store(clock=Clock())
    answers = [[("look", {"name": "before"}), ("pay", {}), ("look", {"name": "behind"})], "done"]
    agent = fresh_agent(answers, [look, pay], store)
    paused = run(agent.send("go", session_id="s"))
    assert ran == ["before"]
    result = run(agent.approvals.resolve(paused.approval_id, approved=False))
    assert ran == ["before", "behind"]
    before, rejected, behind = (message.content for message in result.messages if message.role == "tool")
    assert (before, rejected["kind"], behind) == ("before", "rejected", "behind")


def test_the_same_question_in_a_later_run_is_a_new_approval() -> None:
    """A decision is about one call of one run: the next turn asks anew for the same tool and arguments."""
    desk = Desk([("pay", {"amount": 5}), "done", ("pay", {"amount": 5}), "done"])
    first = desk.pause()
    run(desk.agent.approvals.resolve(first, approved=True))
    second = desk.pause()
    assert second != first
    assert desk.paid == [5]
    run(desk.agent.approvals.resolve(second, approved=False))
    assert desk.paid == [5]


def test_an_approval_timeout_is_kept_to_the_microsecond() -> None:
    """The deadline is the pause plus the tool's time-out."""
    desk = Desk(approval_timeout=timedelta(microseconds=1_500_001))
    assert desk.approval(desk.pause()).request.deadline == START + timedelta(microseconds=1_500_001)


def test_an_agent_without_a_store_has_no_approvals() -> None:
    """Approvals need a store, and say so."""
    with pytest.raises(ConfigurationError, match="store"):
        _ = Agent().approvals
