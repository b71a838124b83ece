"""Several approvers over HTTP and links: what each is told, when the execution is woken, and that every vote ends well.

At the end of each race and each crash the rules of `test_approval_crashes` hold, and an approved call was approved by
as many different principals as its tool asks for.
"""

import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from durable import ApprovalStatus, ConfigurationError, escalate, level
from durable.approval_stream import Voted
from durable.approvers import DIRECT, TOKEN_HOLDER
from handlers.steps import TryAgain
from tests.handlers.conftest import Deployment
from tests.handlers.test_approval_crashes import Clouds, at_every_point, came_to_an_end, goes_on, waiting
from tests.handlers.test_webhook import Endpoint, endpoint
from tests.support.aws import refused

__all__ = ["endpoint"]

ROLE = "arn:aws:iam::123456789012:role/desk"
YES, NO = {"approved": True}, {"approved": False}


def link(cloud: Deployment, approver: str | None = None) -> str:
    """The path of the newest link that was sent to this approver."""
    for sent in reversed(cloud.topics.messages):
        named = sent.get("MessageAttributes", {}).get("approver", {}).get("StringValue")
        if named == approver:
            found = re.search(r"/callbacks/\S+", sent["Message"])
            assert found is not None
            return found[0]
    raise AssertionError(f"nothing was sent to {approver}")


def press(cloud: Deployment, path: str, **body: Any) -> Any:
    return cloud.request("POST", path, body={**YES, **body}, caller=None)


def sign(cloud: Deployment, id: str, user: str, **body: Any) -> Any:
    """A vote through the API by a user of its own."""
    arn = f"arn:aws:iam::123456789012:user/{user}"
    return cloud.request("POST", f"/approvals/{id}/decision", body={**YES, **body}, caller=arn)


def user(name: str) -> str:
    return f"arn:aws:iam::123456789012:user/{name}"


def two_of(clouds: Clouds, *approvers: str, **terms: Any) -> tuple[Deployment, str]:
    return waiting(clouds, approvals=2, approvers=approvers, **terms)


# --- what a vote is answered -----------------------------------------------------------------------------------------


def test_a_vote_that_does_not_decide_is_counted(clouds: Clouds) -> None:
    """200 with status pending, who has voted and how many are missing; nothing is woken until the last vote."""
    cloud, id = two_of(clouds)
    first = sign(cloud, id, "ada")
    assert (first.status, first.json["status"], first.json["missing"]) == (200, "pending", 1)
    assert [(vote["by"], vote["via"]) for vote in first.json["votes"]] == [(user("ada"), "api")]
    assert (first.json["already_decided"], first.json["already_voted"]) == (False, False)
    assert (cloud.states.waiting["token-1"], cloud.slice()["outcome"]) == ([], "awaiting-approval")
    shown = cloud.get(f"/approvals/{id}").json
    assert (shown["approvals"], shown["missing"], shown["votes"]) == (2, 1, first.json["votes"])
    assert [one["id"] for one in cloud.get("/approvals").json["approvals"]] == [id]
    again = sign(cloud, id, "ada", note="again")
    assert (again.status, again.json["already_voted"], again.json["votes"]) == (200, True, first.json["votes"])
    second = sign(cloud, id, "bob")
    assert (second.status, second.json["status"], second.json["missing"]) == (200, "approved", 0)
    assert second.json["decision"]["voters"] == [user("ada"), user("bob")]
    assert len(cloud.states.waiting["token-1"]) == 1
    goes_on(cloud)
    came_to_an_end(cloud, id)
    assert cloud.paid == [5]


def test_a_partial_vote_leaves_the_run_asleep(clouds: Clouds) -> None:
    """Recovery looks once whether somebody still waits, and leaves the run to its deadline."""
    cloud, id = two_of(clouds, timeout=timedelta(hours=1))
    cloud.slice(execution=cloud.states.running[0])
    due = cloud.head().due_at
    sign(cloud, id, "ada")
    cloud.clock.advance(minutes=2)
    assert cloud.recover()["started"] == 0
    assert cloud.head().due_at == due
    assert (len(cloud.states.running), cloud.states.waiting["token-1"]) == (1, [])


def test_a_partial_vote_revives_a_run_whose_execution_is_gone(clouds: Clouds) -> None:
    """Nobody waits for the last vote any more: recovery starts an execution, which asks again."""
    cloud, id = two_of(clouds)
    for arn in cloud.states.running:
        cloud.states.end(arn, "ABORTED")
    sign(cloud, id, "ada")
    cloud.clock.advance(minutes=2)
    assert cloud.recover()["started"] == 1
    assert len(cloud.states.running) == 1
    assert sign(cloud, id, "bob").json["status"] == "approved"


@pytest.mark.parametrize("body", [YES, NO, {**YES, "args": {"amount": 3}}])
def test_who_is_not_an_approver_is_told_so(clouds: Clouds, body: dict[str, Any]) -> None:
    """403 `NOT_AN_APPROVER` for approving and for rejecting; nothing is recorded."""
    cloud, id = two_of(clouds, user("ada"), user("bob"))
    answered = sign(cloud, id, "eve", **body)
    assert (answered.status, answered.json["code"], answered.is_problem) == (403, "NOT_AN_APPROVER", True)
    assert cloud.get(f"/approvals/{id}").json["votes"] == []
    assert cloud.get(f"/approvals/{id}").json["approvers"] == [user("ada"), user("bob")]
    assert sign(cloud, id, "ada").status == 200


def test_a_vote_for_arguments_that_were_changed_is_refused(clouds: Clouds) -> None:
    """409 `ARGUMENTS_CHANGED` until the voter says, by their digest, that they have seen the new ones."""
    cloud, id = two_of(clouds)
    sign(cloud, id, "ada")
    edited = sign(cloud, id, "bob", args={"amount": 3}).json
    assert (edited["arguments"], edited["edited"], edited["missing"]) == ({"amount": 5}, {"amount": 3}, 1)
    refused_vote = sign(cloud, id, "ada")
    assert (refused_vote.status, refused_vote.json["code"]) == (409, "ARGUMENTS_CHANGED")
    digest = cloud.get(f"/approvals/{id}").json["digest"]
    assert sign(cloud, id, "ada", digest=digest).json["status"] == "approved"
    goes_on(cloud)
    assert cloud.paid == [3]


# --- links -----------------------------------------------------------------------------------------------------------


def test_every_approver_gets_a_link_of_their_own(clouds: Clouds) -> None:
    """One message each, marked for whom it is; a vote by the link is that approver's, and two links are two people."""
    cloud, _ = two_of(clouds, "ada", "bob", "cy")
    assert len(cloud.topics.messages) == 3
    assert len({link(cloud, name) for name in ("ada", "bob", "cy")}) == 3
    assert "For: bob." in cloud.topics.messages[1]["Message"]
    assert "Needs 2 approvals. Given by: nobody yet" in cloud.topics.messages[1]["Message"]
    assert cloud.request("GET", link(cloud, "bob"), caller=None).json["approver"] == "bob"
    first = press(cloud, link(cloud, "ada"))
    assert (first.json["status"], first.json["votes"][0]["by"]) == ("pending", "ada")
    assert press(cloud, link(cloud, "ada")).json["already_voted"] is True
    last = press(cloud, link(cloud, "cy"))
    assert (last.json["status"], last.json["decision"]["voters"]) == ("approved", ["ada", "cy"])
    late = press(cloud, link(cloud, "bob"))
    assert (late.status, late.json["already_decided"]) == (200, True)


def test_a_link_and_a_name_are_one_principal(clouds: Clouds) -> None:
    """An approver named by their principal has one vote, whichever way it comes."""
    cloud, id = two_of(clouds, user("ada"), user("bob"))
    press(cloud, link(cloud, user("ada")))
    assert sign(cloud, id, "ada").json["already_voted"] is True
    assert sign(cloud, id, "bob").json["status"] == "approved"


def test_links_for_nobody_and_a_completed_task_are_one_vote(clouds: Clouds) -> None:
    """Whoever holds them may be one person: together they give one of the two approvals."""
    cloud, id = two_of(clouds)
    press(cloud, link(cloud))
    cloud.ask(id, "token-2")
    assert press(cloud, link(cloud)).json["already_voted"] is True
    left = cloud.slice(answer={"approval_id": id, "output": YES})
    assert (left["outcome"], cloud.approval(id).ballot.missing) == ("awaiting-approval", 1)
    assert sign(cloud, id, "ada").json["decision"]["voters"] == [TOKEN_HOLDER, user("ada")]


def test_a_completed_task_is_a_vote(clouds: Clouds) -> None:
    """Its vote is counted, and people are asked on; where approvers are named it is nobody's."""
    cloud, id = two_of(clouds)
    answer = {"approval_id": id, "output": YES}
    assert cloud.slice(answer=answer)["outcome"] == "awaiting-approval"
    assert [vote.by for vote in cloud.approval(id).ballot.approving] == [DIRECT]
    cloud.ask(id, "token-2")
    assert sign(cloud, id, "ada").json["status"] == "approved"

    named, other = two_of(clouds, "ada", "bob")
    assert named.slice(answer={"approval_id": other, "output": NO})["outcome"] == "awaiting-approval"
    assert named.approval(other).ballot.approving == ()


def test_links_for_nobody_reject_only_where_approvers_are_separate(
    clouds: Clouds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link of an approver says who it is and approves; it is not the requester's to use for their own call."""
    monkeypatch.setenv("SEPARATE_APPROVERS", "true")
    cloud, id = two_of(clouds)
    assert press(cloud, link(cloud)).json["code"] == "SELF_APPROVAL"
    cloud.slice(answer={"approval_id": id, "output": YES})
    assert cloud.approval(id).ballot.approving == ()

    named, id = two_of(clouds, ROLE, "bob", "cy")
    own = press(named, link(named, ROLE))
    assert (own.status, own.json["code"]) == (403, "SELF_APPROVAL")
    assert named.approval(id).request.requested_by == ROLE
    press(named, link(named, "bob"))
    assert press(named, link(named, "cy")).json["status"] == "approved"


def test_who_has_voted_is_not_told_again(clouds: Clouds) -> None:
    """A reminder goes to those whose vote is missing, with new links; the older ones still work."""
    cloud, id = two_of(clouds, "ada", "bob", "cy", remind_every=timedelta(hours=1))
    old = link(cloud, "bob")
    press(cloud, link(cloud, "ada"))
    cloud.clock.advance(hours=1)
    cloud.ask(id, "token-2")
    reminders = cloud.topics.messages[3:]
    assert [sent["MessageAttributes"]["approver"]["StringValue"] for sent in reminders] == ["bob", "cy"]
    assert {sent["Subject"] for sent in reminders} == {"Reminder: approval wanted: pay"}
    assert "Given by: ada" in reminders[0]["Message"]
    assert press(cloud, old).json["status"] == "approved"


def test_the_next_level_is_told_of_the_votes(clouds: Clouds, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its people get links for the votes that are missing; the one that was given stays, and theirs decides."""
    monkeypatch.setenv("ESCALATION_TOPICS", "arn:aws:sns:eu-west-1:123456789012:bosses")
    next_level = escalate(level("bosses", wait=timedelta(hours=1)))
    cloud, id = two_of(clouds, "ada", "bob", timeout=timedelta(hours=1), on_timeout=next_level)
    press(cloud, link(cloud, "ada"))
    cloud.clock.advance(hours=1)
    assert cloud.slice()["outcome"] == "awaiting-approval"
    cloud.states.wait("token-2")
    cloud.ask(id, "token-2")
    [told] = cloud.topics.messages[2:]
    assert told["MessageAttributes"]["approver"]["StringValue"] == "bob"
    assert "Given by: ada" in told["Message"]
    assert press(cloud, link(cloud, "bob")).json["status"] == "approved"
    goes_on(cloud)
    came_to_an_end(cloud, id)
    assert cloud.paid == [5]


def test_an_edit_asks_everybody_anew(clouds: Clouds) -> None:
    """The wait begins again once, so that the others are told of the new arguments; the run itself sleeps on."""
    cloud, id = two_of(clouds, "ada", "bob")
    press(cloud, link(cloud, "ada"))
    assert cloud.states.waiting["token-1"] == []
    press(cloud, link(cloud, "bob"), args={"amount": 3})
    assert [json.loads(output) for output in cloud.states.waiting["token-1"]] == [{"wake": True}]
    assert cloud.slice()["outcome"] == "awaiting-approval"
    cloud.states.wait("token-2")
    cloud.ask(id, "token-2")
    [told] = cloud.topics.messages[2:]
    assert told["MessageAttributes"]["approver"]["StringValue"] == "ada"
    assert "Arguments, changed by bob:" in told["Message"]
    assert '"amount": 3' in told["Message"]
    digest = cloud.request("GET", link(cloud, "ada"), caller=None).json["digest"]
    press(cloud, link(cloud, "ada"), digest=digest)
    goes_on(cloud)
    came_to_an_end(cloud, id)
    assert cloud.paid == [3]


def test_an_approver_who_cannot_be_told_is_tried_again(clouds: Clouds) -> None:
    """The others are told nevertheless; the task fails and is tried again, so that nobody is forgotten."""
    cloud = clouds()
    cloud.approval_terms = {"approvals": 2, "approvers": ("ada", "bob")}
    id = cloud.pause()
    cloud.slice()
    cloud.topics.fail("publish", refused("Throttling"))
    with pytest.raises(TryAgain):
        cloud.ask(id)
    assert link(cloud, "bob")
    cloud.ask(id)
    assert press(cloud, link(cloud, "ada")).status == 200


def test_the_webhook_is_told_for_whom(clouds: Clouds, endpoint: Endpoint) -> None:
    """One signed message for each approver, each with an id of its own and the approver's link."""
    two_of(clouds, "ada", "bob")
    said = [json.loads(body)["data"] for _, body in endpoint.got]
    assert [(one["approver"], one["approvals"], one["missing"]) for one in said] == [("ada", 2, 2), ("bob", 2, 2)]
    assert len({headers["webhook-id"] for headers, _ in endpoint.got}) == 2
    assert len({one["link"] for one in said}) == 2


def test_a_deployment_names_approvers(clouds: Clouds, monkeypatch: pytest.MonkeyPatch) -> None:
    """`Approvers` holds for tools that name nobody; too few of them for a tool is told at the start."""
    monkeypatch.setenv("APPROVERS", "ada, bob")
    cloud, id = waiting(clouds, approvals=2)
    assert cloud.get(f"/approvals/{id}").json["approvers"] == ["ada", "bob"]
    _, id = waiting(clouds, approvers=["cy"])
    assert cloud.get(f"/approvals/{id}").json["approvers"] == ["cy"]
    with pytest.raises(ConfigurationError, match="3 approvals cannot come from 2 approvers"):
        waiting(clouds, approvals=3)


# --- crashes and races -----------------------------------------------------------------------------------------------


def votes_of(cloud: Deployment, id: str) -> set[str | None]:
    return {event.by for event in cloud.approval(id).events if isinstance(event, Voted) and event.approved}


def ended_well(cloud: Deployment, id: str) -> None:
    came_to_an_end(cloud, id)
    assert not cloud.paid or len(votes_of(cloud, id)) >= 2


@pytest.mark.parametrize("edited", [False, True])
def test_voting_dies(clouds: Clouds, edited: bool) -> None:
    """Whichever of the votes dies, and wherever: pressed once more it counts once, and the run goes on by itself."""
    body: dict[str, Any] = {"args": {"amount": 3}} if edited else {}

    def try_at(at: int) -> bool:
        cloud, id = two_of(clouds)
        died = False
        for name in ("ada", "bob"):
            died = cloud.dies(lambda name=name: sign(cloud, id, name, **body), at=at) or died
            if user(name) not in votes_of(cloud, id):
                sign(cloud, id, name, **body)
        goes_on(cloud)
        ended_well(cloud, id)
        assert (votes_of(cloud, id), cloud.paid) == ({user("ada"), user("bob")}, [3 if edited else 5])
        return died

    assert at_every_point(clouds, try_at) > 10


def test_an_edit_whose_process_died_is_told_of(clouds: Clouds) -> None:
    """Recovery wakes the wait for it, so that nobody waits for a vote of people who know of nothing."""

    def try_at(at: int) -> bool:
        cloud, id = two_of(clouds, "ada", "bob")
        cloud.slice(execution=cloud.states.running[0])
        press(cloud, link(cloud, "ada"))
        path = link(cloud, "bob")
        died = cloud.dies(lambda: press(cloud, path, args={"amount": 3}), at=at)
        if len(votes_of(cloud, id)) == 2:
            cloud.clock.advance(minutes=2)
            cloud.recover()
            assert {"wake": True} in [json.loads(output) for output in cloud.states.waiting["token-1"]]
        return died

    assert at_every_point(clouds, try_at) > 10


Act = Callable[[Deployment, str], Any]


def expire(cloud: Deployment, id: str) -> Any:
    """The execution's wait ends at the deadline, and its slice finds nobody's answer."""
    cloud.clock.advance(hours=1)
    return cloud.slice()


RACES: dict[str, tuple[Act, Act]] = {
    "two who approve": (lambda cloud, id: sign(cloud, id, "ada"), lambda cloud, id: sign(cloud, id, "bob")),
    "a vote twice": (lambda cloud, id: sign(cloud, id, "ada"), lambda cloud, id: sign(cloud, id, "ada")),
    "approve and reject": (lambda cloud, id: sign(cloud, id, "ada"), lambda cloud, id: sign(cloud, id, "bob", **NO)),
    "reject and approve": (lambda cloud, id: sign(cloud, id, "ada", **NO), lambda cloud, id: sign(cloud, id, "bob")),
    "a vote and the deadline": (lambda cloud, id: sign(cloud, id, "ada"), expire),
    "the deadline and a vote": (expire, lambda cloud, id: sign(cloud, id, "ada")),
    "a vote and an edit": (
        lambda cloud, id: sign(cloud, id, "ada"),
        lambda cloud, id: sign(cloud, id, "bob", args={"amount": 3}),
    ),
    "a vote and an abort": (
        lambda cloud, id: sign(cloud, id, "ada"),
        lambda cloud, id: cloud.request("POST", "/sessions/s/abort", request_id="r2"),
    ),
}


CASES = [*((race, 1) for race in RACES), ("two who approve", 0), ("a vote and an edit", 0)]


@pytest.mark.parametrize(("race", "before"), CASES)
def test_two_at_once(clouds: Clouds, race: str, before: int) -> None:
    """With one vote given before or none, and wherever the other comes in between: votes are counted right."""
    first, second = RACES[race]

    def try_at(at: int) -> bool:
        cloud, id = two_of(clouds, timeout=timedelta(hours=1))
        if before:
            sign(cloud, id, "cy")
        met = cloud.overtaken(lambda: first(cloud, id), at=at, by=lambda: second(cloud, id))
        if cloud.approval(id).status is ApprovalStatus.PENDING:
            digest = cloud.approval(id).ballot.digest
            for name in ("dan", "eve"):
                sign(cloud, id, name, digest=digest)
        goes_on(cloud)
        ended_well(cloud, id)
        return met

    assert at_every_point(clouds, try_at) > 5


def test_the_third_of_three_comes_in_between(clouds: Clouds) -> None:
    """While one votes two others do: two votes decide, and the third is told what they have decided."""

    def try_at(at: int) -> bool:
        cloud, id = two_of(clouds)
        answers: list[Any] = []

        def others() -> None:
            answers.extend([sign(cloud, id, "bob"), sign(cloud, id, "cy")])

        met = cloud.overtaken(lambda: answers.append(sign(cloud, id, "ada")), at=at, by=others)
        if not met:
            others()
        assert [answer.status for answer in answers] == [200, 200, 200]
        goes_on(cloud)
        ended_well(cloud, id)
        assert (len(votes_of(cloud, id)), cloud.paid) == (2, [5])
        return met

    assert at_every_point(clouds, try_at) > 5
