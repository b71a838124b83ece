"""Votes: how many must approve a call, who may, and what counts, whatever the order in which they come.

1. approved means: as many different principals as were asked for, for the very arguments that run
2. one rejection rejects
3. a vote counts once, and only for the arguments that its voter has named
4. everybody is told the truth about their vote
"""

import itertools
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from durable import (
    Agent,
    ApprovalClosedError,
    ApprovalDecision,
    ApprovalStatus,
    ApprovalTerms,
    ArgumentsChangedError,
    ConfigurationError,
    Decided,
    FinishReason,
    NotAnApproverError,
    SelfApprovalError,
    Status,
    decide,
    escalate,
    level,
    tool,
)
from durable.approval_stream import Expired, Requested, Voted, count
from durable.approvals import apply_deadline, expire_if_due
from durable.approvers import DIRECT, TOKEN_HOLDER, UNKNOWN, known
from durable.results import approval_digest
from tests.durable.test_approvals import Desk
from tests.support.interleavings import Act, interleavings
from tests.support.runs import START, run

EDITED = {"amount": 3}
ORIGINAL_DIGEST = approval_digest("pay", {"amount": 5})
EDITED_DIGEST = approval_digest("pay", EDITED)


def vote(desk: Desk, id: str, by: str | None, approved: bool = True, *, separate: bool = False, **more: Any) -> Decided:
    said = ApprovalDecision(id=id, approved=approved, by=by, **more)
    store, now = desk.store, desk.clock()
    return decide(
        said,
        approvals=store.approvals,
        checkpoints=store.checkpoints,
        tools=desk.agent.toolset,
        now=now,
        separate=separate,
    )


def paused(**options: Any) -> tuple[Desk, str]:
    desk = Desk(**{"approvals": 2, **options})
    return desk, desk.pause()


def voted(desk: Desk, id: str) -> list[str | None]:
    """Who has approved the arguments as they are now."""
    return [one.by for one in desk.approval(id).ballot.approving]


# --- counting --------------------------------------------------------------------------------------------------------


def test_as_many_as_are_asked_for_must_approve() -> None:
    """The call waits until the last of them has approved; then it runs once, and is told who they were."""
    desk, id = paused(approvals=3)
    for number, name in enumerate(("ada", "bob"), 1):
        told = vote(desk, id, name)
        assert (told.approval.status, told.already, told.repeated) == (ApprovalStatus.PENDING, False, False)
        assert (told.approval.ballot.missing, voted(desk, id)[-1]) == (3 - number, name)
        assert desk.approval(id).decision is None
    assert vote(desk, id, "cy", note="fine").approval.status is ApprovalStatus.APPROVED
    assert desk.resume(id).text == "done"
    assert desk.paid == [5]
    [grant] = desk.grants
    assert (grant.voters, grant.by, grant.note) == (("ada", "bob", "cy"), "cy", "fine")


def test_a_run_stays_paused_while_votes_are_missing() -> None:
    """Resolving through the agent counts the vote, and gives the run as it waits; the last vote carries it on."""
    desk, id = paused()
    waiting = run(desk.agent.approvals.resolve(id, approved=True, by="ada"))
    assert (waiting.finish_reason, waiting.approval_id) == (FinishReason.AWAITING_APPROVAL, id)
    assert [one.id for one in run(desk.agent.approvals.list()).items] == [id]
    assert run(desk.agent.approvals.resolve(id, approved=True, by="bob")).text == "done"
    assert run(desk.agent.approvals.list()).items == []
    assert desk.paid == [5]


def test_a_run_without_a_session_waits_for_votes_too() -> None:
    """Its vote is counted, and the run comes back as the record keeps it."""
    desk = Desk(approvals=2)
    id = run(desk.agent.send("go")).approval_id
    assert run(desk.agent.approvals.resolve(id, approved=True, by="ada")).approval_id == id
    assert run(desk.agent.approvals.resolve(id, approved=True, by="bob")).text == "done"
    assert desk.paid == [5]


def test_one_rejection_rejects() -> None:
    """However many have approved, and by one of them too: the call never runs."""
    for rejecting in ("bob", "ada"):
        desk, id = paused(approvals=3)
        vote(desk, id, "ada")
        assert vote(desk, id, rejecting, False, note="no").approval.status is ApprovalStatus.REJECTED
        desk.resume(id)
        assert desk.paid == []
        assert desk.results()[0]["note"] == "no"


def test_a_vote_that_comes_twice_is_one_vote() -> None:
    """A voter who approves again is told so, and nothing is recorded; after the decision they hear what it was."""
    desk, id = paused()
    vote(desk, id, "ada")
    events = desk.approval(id).events
    told = vote(desk, id, "ada", note="again")
    assert (told.repeated, told.same, told.approval.status) == (True, True, ApprovalStatus.PENDING)
    assert desk.approval(id).events == events
    vote(desk, id, "bob")
    late = vote(desk, id, "ada")
    assert (late.already, late.same) == (True, True)
    assert len(desk.approval(id).events) == len(events) + 1


@pytest.mark.parametrize("first", [None, TOKEN_HOLDER, DIRECT, UNKNOWN])
@pytest.mark.parametrize("second", [None, TOKEN_HOLDER, DIRECT])
def test_those_who_are_not_known_have_one_vote_together(first: str | None, second: str | None) -> None:
    """A link for everybody, a completed task and a caller without a name may all be the same person."""
    desk, id = paused()
    vote(desk, id, first)
    assert vote(desk, id, second).repeated
    assert desk.approval(id).status is ApprovalStatus.PENDING
    assert vote(desk, id, "ada").approval.status is ApprovalStatus.APPROVED


def test_one_approval_is_what_a_tool_needs_unless_it_says_more() -> None:
    """Without `approvals` the first vote decides, as it always did."""
    desk = Desk()
    id = desk.pause()
    decided = vote(desk, id, "ada").approval
    assert (decided.status, decided.request.approvals, decided.request.approvers) == ("approved", 1, ())
    assert decided.decision is not None
    assert decided.decision.voters == ()
    desk.resume(id)
    assert desk.grants[0].voters == ("ada",)


# --- edited arguments ------------------------------------------------------------------------------------------------


def test_edited_arguments_start_the_votes_anew() -> None:
    """A vote for the older arguments does not count for the new ones; both versions stay on the record."""
    desk, id = paused()
    vote(desk, id, "ada")
    told = vote(desk, id, "bob", args=EDITED)
    assert (told.approval.status, voted(desk, id)) == (ApprovalStatus.PENDING, ["bob"])
    assert (told.approval.ballot.arguments, told.approval.request.arguments) == (EDITED, {"amount": 5})
    assert vote(desk, id, "ada", digest=EDITED_DIGEST).approval.status is ApprovalStatus.APPROVED
    decision = desk.approval(id).decision
    assert decision is not None
    assert (decision.args, decision.voters, decision.digest) == (EDITED, ("bob", "ada"), EDITED_DIGEST)
    desk.resume(id)
    assert desk.paid == [3]


def test_a_vote_is_for_the_arguments_that_its_voter_has_seen() -> None:
    """Who does not say which has seen the model's: once they were edited, such a vote counts for nothing."""
    desk, id = paused()
    vote(desk, id, "bob", args=EDITED)
    for unseen in ({}, {"digest": ORIGINAL_DIGEST}, {"digest": "x"}, {"args": {"amount": 4}}):
        with pytest.raises(ArgumentsChangedError):
            vote(desk, id, "ada", **unseen)
    assert voted(desk, id) == ["bob"]
    assert vote(desk, id, "ada", args=EDITED).approval.status is ApprovalStatus.APPROVED
    assert desk.approval(id).events[-1].args is None  # type: ignore[union-attr]


def test_an_edit_that_comes_twice_does_not_undo_the_next_one() -> None:
    """A redelivered edit was made looking at older arguments, so it is refused, and the votes stay."""
    desk, id = paused()
    vote(desk, id, "bob", args=EDITED)
    assert vote(desk, id, "bob", args=EDITED).repeated
    vote(desk, id, "ada", args={"amount": 2}, digest=EDITED_DIGEST)
    with pytest.raises(ArgumentsChangedError):
        vote(desk, id, "bob", args=EDITED)
    assert voted(desk, id) == ["ada"]


def test_edits_back_and_forth_never_bring_old_votes_back() -> None:
    """Votes for arguments that were replaced are gone, though the same arguments come again."""
    desk, id = paused()
    vote(desk, id, "ada")
    vote(desk, id, "bob", args=EDITED)
    vote(desk, id, "cy", args={"amount": 5}, digest=EDITED_DIGEST)
    assert (voted(desk, id), desk.approval(id).ballot.digest) == (["cy"], ORIGINAL_DIGEST)
    assert vote(desk, id, "ada").approval.status is ApprovalStatus.APPROVED
    desk.resume(id)
    assert desk.paid == [5]


def test_a_rejection_is_of_the_call_not_of_its_arguments() -> None:
    """Whatever somebody has made of the arguments meanwhile, a rejection counts."""
    desk, id = paused()
    vote(desk, id, "bob", args=EDITED)
    assert vote(desk, id, "ada", False).approval.status is ApprovalStatus.REJECTED


def test_a_question_asked_again_keeps_its_votes() -> None:
    """A pause that is repeated renews the deadline alone; about other arguments it is another question."""
    desk, id = paused()
    vote(desk, id, "ada")
    request = desk.approval(id).request
    desk.store.approvals.request(id, request.but(at=START + timedelta(hours=1)))
    assert voted(desk, id) == ["ada"]
    desk.store.approvals.request(id, request.but(arguments=EDITED, digest=EDITED_DIGEST))
    assert voted(desk, id) == []


def test_what_is_on_the_record_is_counted_by_the_same_rules() -> None:
    """A principal counts once, and a vote for arguments that nobody votes on counts for nothing."""
    desk, id = paused()
    request = desk.approval(id).request

    def says(by: str, digest: str = ORIGINAL_DIGEST, args: Any = None) -> Voted:
        return Voted(at=START, approved=True, digest=digest, args=args, by=by, via="api")

    twice = count([request, says("ada"), says("ada")])
    assert (len(twice.approving), twice.missing, twice.closing) == (1, 1, None)
    other = count([request, says("ada"), says("cy", EDITED_DIGEST)])
    assert ([one.by for one in other.approving], other.closing) == (["ada"], None)
    late = count([request, says("bob", EDITED_DIGEST, EDITED), says("ada"), says("cy", EDITED_DIGEST), says("dan")])
    assert late.closing == says("cy", EDITED_DIGEST)
    assert [one.by for one in late.approving] == ["bob", "cy"]


# --- approvers -------------------------------------------------------------------------------------------------------


def test_named_approvers_alone_decide() -> None:
    """Whoever else approves or rejects is refused, and nothing is recorded."""
    desk, id = paused(approvers=["ada", "bob"])
    assert desk.approval(id).request.approvers == ("ada", "bob")
    for name in ("eve", "Ada", "", None, TOKEN_HOLDER, DIRECT):
        for approved in (True, False):
            with pytest.raises(NotAnApproverError):
                vote(desk, id, name, approved)
    assert len(desk.approval(id).events) == 1
    vote(desk, id, "ada")
    assert vote(desk, id, "bob").approval.status is ApprovalStatus.APPROVED


def test_an_approver_is_one_principal_by_whichever_way() -> None:
    """The same name by a link and through the API is one vote."""
    desk, id = paused(approvers=["ada", "bob"])
    vote(desk, id, "ada", via="callback", callback="hash")
    assert vote(desk, id, "ada", via="api").repeated
    assert voted(desk, id) == ["ada"]


def test_an_agent_names_approvers_for_the_tools_that_name_none() -> None:
    """A tool's own approvers win over the agent's, and those over the deployment's."""
    one, two = (tool(name=name, needs_approval=True, **more)(lambda: None) for name, more in TOOLS)
    agent = Agent(tools=[one, two], approvers=["ada", "bob"])
    terms = [each.terms.among(agent.approvers).approvers for each in agent.toolset.values()]
    assert terms == [("ada", "bob"), ("cy", "dan")]
    assert agent.bind(approvers=["eve", "fay"]).approvers == ["ada", "bob"]
    assert Agent(tools=[one]).bind(approvers=["eve", "fay"]).approvers == ["eve", "fay"]


TOOLS: list[tuple[str, dict[str, Any]]] = [
    ("one", {"approvals": 2}),
    ("two", {"approvals": 2, "approvers": ["cy", "dan"]}),
]

IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "more than there are": {"approvals": 3, "approvers": ["ada", "bob"]},
    "none": {"approvals": 0},
    "negative": {"approvals": -1},
    "a bool": {"approvals": True},
    "half": {"approvals": 1.5},
    "a name twice": {"approvers": ["ada", "ada"]},
    "no name": {"approvers": [""]},
    "blanks around it": {"approvers": [" ada"]},
    "a line end": {"approvers": ["a\nb"]},
    "too long": {"approvers": ["x" * 257]},
    "not a name": {"approvers": [5]},
    "one text": {"approvers": "ada"},
    "nothing to approve": {"needs_approval": False, "approvals": 2},
    **{name: {"approvers": [name]} for name in (TOKEN_HOLDER, DIRECT, UNKNOWN)},
}


@pytest.mark.parametrize("options", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_terms_that_nobody_can_meet_are_refused_where_the_tool_is_made(options: dict[str, Any]) -> None:
    """Each error names the tool."""
    with pytest.raises(ConfigurationError, match="Tool 'pay'"):
        Desk(**options)


def test_an_agent_with_too_few_approvers_is_refused() -> None:
    """By the agent's own names or the deployment's, and for dynamic tools before their first run does anything."""
    needs_three = tool(name="pay", needs_approval=True, approvals=3)(lambda: None)
    with pytest.raises(ConfigurationError, match="tool 'pay': 3 approvals cannot come from 2 approvers"):
        Agent(tools=[needs_three], approvers=["ada", "bob"])
    agent = Agent(tools=[needs_three])
    with pytest.raises(ConfigurationError, match="tool 'pay'"):
        agent.bind(approvers=["ada", "bob"])
    dynamic = Agent(tools=lambda context: [needs_three], approvers=["ada", "bob"], provider=Desk().agent.provider)
    with pytest.raises(ConfigurationError, match="tool 'pay'"):
        run(dynamic.send("go"))
    for wrong in ("ada", ["ada", "ada"]):
        with pytest.raises(ConfigurationError, match="approvers"):
            Agent(approvers=wrong)


def test_a_sub_agent_asks_its_own_approvers_or_its_leads() -> None:
    """The lead's approvers hold for the agents below it that name nobody, and terms are checked at every level."""
    for own, approvers in (([], ("ada", "bob")), (["cy", "dan"], ("cy", "dan"))):
        desk = Desk([("payer", {"task": "pay"}), ("pay", {"amount": 5}), "paid", "done"], approvals=2)
        payer = Agent(name="payer", tools=desk.agent.tools, approvers=own)
        lead = replace(desk.agent, tools=(), subagents=[payer], approvers=["ada", "bob"])
        id = run(lead.send("go", session_id="s")).approval_id
        assert desk.approval(id).request.approvers == approvers
        for name in approvers:
            vote(desk, id, name)
        assert desk.resume(id, lead).finish_reason is FinishReason.STOP
        assert desk.paid == [5]
        with pytest.raises(ConfigurationError, match="Agent 'payer', tool 'pay'"):
            Agent(subagents=[replace(payer, approvers=[])], approvers=["ada"])
    with pytest.raises(ConfigurationError, match="Tool 'payer'"):
        Agent(name="payer").as_tool(needs_approval=True, approvals=2, approvers=["ada"])


def test_a_policy_says_how_many_and_who() -> None:
    """A policy's terms hold instead of its tool's; those hold where it only says yes, and where it fails."""

    def policy(arguments: Any, context: Any) -> Any:
        amount = arguments["amount"]
        if amount == 0:
            raise RuntimeError("the limits cannot be read")
        return ApprovalTerms(approvals=2, approvers=["cfo", "ceo"]) if amount > 100 else amount > 10

    for amount, terms in ((500, (2, ("cfo", "ceo"))), (50, (1, ("ada",))), (0, (1, ("ada",)))):
        desk = Desk([("pay", {"amount": amount}), "done"], needs_approval=policy, approvers=["ada"])
        request = desk.approval(desk.pause()).request
        assert (request.approvals, request.approvers) == terms
    small = Desk([("pay", {"amount": 5}), "done"], needs_approval=policy, approvers=["ada"])
    assert run(small.agent.send("go", session_id="s")).text == "done"


def begun(desk: Desk, id: str) -> str:
    """The approved call had begun when its process died, and it asks before it runs again; the new approval."""
    desk.resume(id)
    stored = desk.stored()
    died = stored.but(
        status=Status.IN_PROGRESS,
        finish_reason=None,
        messages=stored.messages[:2],
        started=("call_0_0",),
        committed=0,
        turns=0,
        decisions={"call_0_0": desk.approval(id).decision},
    )
    desk.store.checkpoints.delete("s")
    desk.store.checkpoints.save(died, after=None)
    desk.paid.clear()
    asking = run(desk.agent.resume("s"))
    assert asking is not None
    return asking.approval_id


def test_a_call_that_asks_before_it_runs_again_asks_as_many() -> None:
    """A call of recovery `ask` that had begun needs the approvals that it needed the first time."""
    terms = ApprovalTerms(approvals=2, approvers=["ada", "bob"])
    desk = Desk(needs_approval=lambda arguments, context: terms, recovery="ask")
    id = desk.pause()
    vote(desk, id, "ada")
    vote(desk, id, "bob")
    request = desk.approval(begun(desk, id)).request
    assert (request.approvals, request.approvers) == (2, ("ada", "bob"))


def test_a_call_that_runs_again_keeps_its_edited_arguments() -> None:
    """Approved with other arguments and asked about once more, it is these that are approved, and that run."""
    desk = Desk(recovery="ask")
    id = desk.pause()
    vote(desk, id, "ada", args=EDITED)
    again = begun(desk, id)
    assert desk.approval(again).request.arguments == EDITED
    vote(desk, again, "ada")
    desk.resume(again)
    assert (desk.paid, desk.results()) == ([3], [{"paid": 3}])


# --- who asks --------------------------------------------------------------------------------------------------------


def test_who_asks_has_no_vote_where_approvers_are_separate() -> None:
    """Nor have those whom nobody knows; the others' votes count, and whoever may decide may reject."""
    desk, id = paused()
    for by in ("bob", None, TOKEN_HOLDER, DIRECT):
        with pytest.raises(SelfApprovalError):
            vote(desk, id, by, separate=True)
        with pytest.raises(SelfApprovalError):
            vote(desk, id, by, separate=True, args=EDITED)
    vote(desk, id, "ada", separate=True)
    with pytest.raises(SelfApprovalError):
        vote(desk, id, "bob", separate=True)
    assert vote(desk, id, "cy", separate=True).approval.status is ApprovalStatus.APPROVED
    other = Desk(approvals=2)
    assert vote(other, other.pause(), "bob", False, separate=True).approval.status is ApprovalStatus.REJECTED


# --- races -----------------------------------------------------------------------------------------------------------

Voting = tuple[str | None, bool, dict[str, Any]]
YES: dict[str, Any] = {}

RACES: dict[str, tuple[int, list[Voting]]] = {
    "two of two": (2, [("ada", True, YES), ("cy", True, YES)]),
    "two of three": (2, [("ada", True, YES), ("cy", True, YES), ("dan", True, YES)]),
    "three of three": (3, [("ada", True, YES), ("cy", True, YES), ("dan", True, YES)]),
    "one against two": (2, [("ada", True, YES), ("cy", True, YES), ("dan", False, YES)]),
    "one who changes their mind": (2, [("ada", True, YES), ("ada", False, YES), ("cy", True, YES)]),
    "the same vote twice": (2, [("ada", True, YES), ("ada", True, YES), ("cy", True, YES)]),
    "two links for nobody": (2, [(TOKEN_HOLDER, True, YES), (DIRECT, True, YES), ("ada", True, YES)]),
    "an edit": (2, [("ada", True, YES), ("cy", True, {"args": EDITED}), ("dan", True, YES)]),
    "two edits": (2, [("ada", True, {"args": {"amount": 4}}), ("cy", True, {"args": EDITED})]),
    "the same edit twice": (2, [("ada", True, {"args": EDITED}), ("cy", True, {"args": EDITED}), ("dan", True, YES)]),
    "an edit and who has seen it": (
        2,
        [("ada", True, {"args": EDITED}), ("cy", True, {"digest": EDITED_DIGEST}), ("dan", True, YES)],
    ),
    "who asks votes": (2, [("bob", True, YES), ("ada", True, YES), ("cy", True, YES)]),
}


ENDS = {
    "one against two": {"approved", "rejected"},
    "one who changes their mind": {"approved", "rejected"},
    "an edit": {"approved", "pending"},
    "two edits": {"pending"},
    "an edit and who has seen it": {"approved", "pending"},
}
"""How a race may end, where not every order ends in an approval: a vote that was given is never lost."""


def acts(desk: Desk, id: str, votes: list[Voting], *, separate: bool = False) -> list[Act]:
    def act(by: str | None, approved: bool, more: dict[str, Any]) -> Act:
        said = ApprovalDecision(id=id, approved=approved, by=by, **more)

        def voting(approvals: Any) -> Decided:
            return decide(
                said,
                approvals=approvals,
                checkpoints=desk.store.checkpoints,
                tools=desk.agent.toolset,
                now=desk.clock(),
                separate=separate,
            )

        return voting

    return [act(*one) for one in votes]


def is_right(desk: Desk, id: str, needed: int) -> None:
    """What the record says follows from the votes on it, by the rules at the top; nothing is counted here."""
    approval = desk.approval(id)
    votes = [event for event in approval.events if isinstance(event, Voted)]
    match approval.status:
        case ApprovalStatus.APPROVED:
            decision = approval.decision
            assert decision is not None
            final = (
                EDITED if decision.digest == EDITED_DIGEST else {"amount": {ORIGINAL_DIGEST: 5}.get(decision.digest, 4)}
            )
            agreed = {one.by for one in votes if one.digest == approval_digest("pay", final)}
            assert len(agreed) >= needed
            assert all(one.approved for one in votes)
            assert set(decision.voters) <= agreed
            assert decision.args in (None, final)
        case ApprovalStatus.REJECTED:
            assert not votes[-1].approved
            assert all(one.approved for one in votes[:-1])
        case ApprovalStatus.PENDING:
            assert all(one.approved for one in votes)
            assert len({known(one.by) for one in votes if one.digest == votes[-1].digest}) < needed
        case status:
            raise AssertionError(status)


@pytest.mark.parametrize("race", RACES)
def test_votes_in_every_order(race: str) -> None:
    """Two or three vote at once, in every order of their reads and writes: the record is right, each answer is true."""
    needed, votes = RACES[race]
    desk = Desk(approvals=needed)
    asked = desk.approval(run(desk.agent.send("go", requested_by="bob")).approval_id)
    ids, orders, seen, ends = map(str, itertools.count()), 0, set[object](), set[str]()
    id = ""

    def begin() -> tuple[Any, list[Act]]:
        nonlocal id
        id = next(ids)
        desk.store.approvals.request(id, asked.request)
        return desk.store.approvals, acts(desk, id, votes, separate=race == "who asks votes")

    for outcomes in interleavings(begin):
        orders += 1
        is_right(desk, id, needed)
        record = desk.approval(id)
        ends.add(record.status)
        recorded = [(one.by, one.approved, one.digest) for one in record.events if isinstance(one, Voted)]
        assert len(recorded) == len(set(recorded))
        for (by, approved, _), outcome in zip(votes, outcomes, strict=True):
            match outcome:
                case Decided(already=False):
                    assert any(name == by and yes == approved for name, yes, _ in recorded) or outcome.repeated
                case Decided(already=True):
                    assert outcome.approval.decision == record.decision
                case ArgumentsChangedError() | SelfApprovalError():
                    pass
                case _:
                    raise AssertionError(outcome)
        if record.decision is not None and tuple(recorded) not in seen:
            seen.add(tuple(recorded))
            before = len(desk.paid)
            desk.resume(id)
            assert len(desk.paid) - before == record.decision.approved
    assert orders >= 6
    assert ends == ENDS.get(race, {"approved"})


@pytest.mark.parametrize("approved", [True, False])
def test_the_last_vote_and_the_deadline_in_every_order(approved: bool) -> None:
    """The vote in time or the time-out, one of them counts: a vote that is too late is told so and leaves no trace."""
    late: list[bool] = []
    current: list[tuple[Desk, str]] = []

    def begin() -> tuple[Any, list[Act]]:
        desk, id = paused(approval_timeout=timedelta(hours=1))
        vote(desk, id, "ada")
        current[:] = [(desk, id)]
        voting = acts(desk, id, [("cy", approved, YES)])

        def expiring(approvals: Any) -> object:
            return expire_if_due(approvals.get(id), approvals=approvals, now=START + timedelta(hours=1))

        return desk.store.approvals, [*voting, expiring]

    for told, _ in interleavings(begin):
        desk, id = current[0]
        kinds = [type(event) for event in desk.approval(id).events]
        late.append(isinstance(told, ApprovalClosedError))
        assert kinds == ([Requested, Voted, Expired] if late[-1] else [Requested, Voted, Voted])
        desk.clock.advance(hours=1)
        desk.resume(id)
        assert desk.paid == ([5] if approved and not late[-1] else [])
    assert set(late) == {True, False}


def test_the_last_vote_and_the_next_level_in_every_order() -> None:
    """Whether the level is told before the vote or not: no vote is lost, and the vote decides."""
    levels: set[int] = set()
    current: list[tuple[Desk, str]] = []
    terms = escalate(level("leads", wait=timedelta(hours=1)))

    def begin() -> tuple[Any, list[Act]]:
        desk, id = paused(approval_timeout=timedelta(hours=1), on_timeout=terms)
        vote(desk, id, "ada")
        desk.clock.advance(hours=1)
        current[:] = [(desk, id)]

        def escalating(approvals: Any) -> object:
            return apply_deadline(approvals.get(id), approvals=approvals, now=desk.clock())

        return desk.store.approvals, [*acts(desk, id, [("cy", True, YES)]), escalating]

    for _ in interleavings(begin):
        desk, id = current[0]
        levels.add(desk.approval(id).level)
        decision = desk.approval(id).decision
        assert decision is not None
        assert decision.voters == ("ada", "cy")
        desk.resume(id)
        assert desk.paid == [5]
    assert levels == {0, 1}


def test_votes_do_not_outlive_the_deadline() -> None:
    """One vote of two is no decision: at the deadline the call is rejected, as its tool says."""
    desk, id = paused(approval_timeout=timedelta(hours=1))
    vote(desk, id, "ada")
    desk.clock.advance(hours=1)
    with pytest.raises(ApprovalClosedError, match="expired"):
        vote(desk, id, "bob")
    desk.resume(id)
    assert (desk.paid, desk.approval(id).status) == ([], ApprovalStatus.EXPIRED)


@pytest.mark.parametrize("act", [lambda desk, id: vote(desk, id, "ada"), lambda desk, id: vote(desk, id, "ada", False)])
def test_no_error_and_no_repr_shows_arguments(act: Callable[[Desk, str], Any]) -> None:
    """What is said about votes names people and hashes, never arguments or notes."""
    desk, id = paused()
    vote(desk, id, "bob", args={"amount": 987654}, note="sesame")
    try:
        said = repr(act(desk, id))
    except ArgumentsChangedError as error:
        said = f"{error} {error.hint}"
    said += repr(desk.approval(id).ballot) + repr(desk.approval(id))
    assert "987654" not in said
    assert "sesame" not in said
