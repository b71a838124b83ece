"""Several approvers on the deployed template: links of their own, an edit that asks anew, votes at the same time."""

from typing import Any

import pytest

from tests.e2e.conftest import World, at_once
from tests.e2e.test_approvals import decide, paused, trail

pytestmark = pytest.mark.e2e

APPROVERS = ("ada", "bob", "cy")


def link_of(world: World, approval_id: str, approver: str) -> str:
    """The path of the link that was sent to this approver."""
    return world.callback_path(approval_id, says=f"For: {approver}.")


def vote(world: World, link: str, **body: Any) -> Any:
    return world.call("POST", link, {"approved": True, **body}, sign=False)


def test_an_edited_approval_is_voted_on_twice(world: World) -> None:
    """One approves, another edits, the first is asked anew and approves what is there now: that is what runs, once."""
    session, approval_id = paused(world, "together")
    stranger = decide(world, approval_id, approved=True)
    assert (stranger.status_code, stranger.json()["code"]) == (403, "NOT_AN_APPROVER")
    first = vote(world, link_of(world, approval_id, "ada"))
    assert (first.status_code, first.json()["status"], first.json()["missing"]) == (200, "pending", 1)
    edited = vote(world, link_of(world, approval_id, "bob"), args={"amount": 3}).json()
    assert (edited["status"], edited["missing"]) == ("pending", 1)
    again = world.callback_path(approval_id, says="Arguments, changed by bob")
    assert vote(world, again).json()["code"] == "ARGUMENTS_CHANGED"
    last = vote(world, again, digest=edited["digest"]).json()
    assert (last["status"], last["decision"]["voters"]) == ("approved", ["bob", "ada"])
    assert world.until(session, "finished")["text"] == "Paid by both."
    result = world.call("GET", f"/sessions/{session}/messages").json()["messages"][2]["content"]
    assert result == {"paid": 3, "voters": ["bob", "ada"]}
    assert world.ledger.count(session, "pay") == 1
    events = trail(world, approval_id)
    assert (events.count("voted"), events.count("token-attached"), events[-1]) == (3, 2, "applied")


def test_three_vote_at_the_same_time(world: World) -> None:
    """Two of the votes decide, the third is told so, and the call runs once."""
    session, approval_id = paused(world, "together")
    links = [link_of(world, approval_id, name) for name in APPROVERS]
    answers = at_once([lambda link=link: vote(world, link) for link in links])
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert sorted(answer.json()["already_decided"] for answer in answers) == [False, False, True]
    assert world.until(session, "finished")["text"] == "Paid by both."
    assert world.ledger.count(session, "pay") == 1
    assert trail(world, approval_id).count("voted") == 2
