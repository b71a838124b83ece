"""Who asks and who decides: the principal that signed, the user whom a trusted caller names, and nobody else."""

from typing import Any

import pytest

from tests.handlers.conftest import PAY, Deployment
from tests.support.events import CALLER

ROLE = "arn:aws:iam::123456789012:role/desk"
OTHER = "arn:aws:sts::123456789012:assumed-role/boss/bob"
ADA = {"Durable-Principal": "ada"}


@pytest.fixture
def trusting(cloud: Deployment, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """A deployment that trusts the caller's role to name its users."""
    monkeypatch.setenv("TRUSTED_CALLERS", f"arn:aws:iam::1:role/x, {ROLE}")
    cloud.script = PAY
    cloud.cold_start()
    return cloud


@pytest.fixture
def separate(trusting: Deployment, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """One where, in addition, nobody approves what they asked for."""
    monkeypatch.setenv("SEPARATE_APPROVERS", "true")
    trusting.cold_start()
    return trusting


def decide(cloud: Deployment, id: str, *, approved: bool = True, **event: Any) -> Any:
    return cloud.request("POST", f"/approvals/{id}/decision", body={"approved": approved}, **event)


def test_a_role_is_named_without_its_session(trusting: Deployment) -> None:
    """The session's name is the holder's own choice, so it says nothing."""
    id = trusting.send("pay").json["approval_id"]
    assert trusting.approval(id).request.requested_by == ROLE
    assert CALLER.endswith("/ada")


def test_a_trusted_caller_names_its_user(trusting: Deployment) -> None:
    """The user asks, and another one decides: both stand on the record."""
    id = trusting.send("pay", headers=ADA).json["approval_id"]
    assert trusting.approval(id).request.requested_by == "ada"
    assert decide(trusting, id, headers={"Durable-Principal": "bob"}).json["decision"]["by"] == "bob"


def test_nobody_else_may_name_one(trusting: Deployment) -> None:
    """A header that is not a trusted caller's is refused, not ignored."""
    answered = trusting.send("pay", headers=ADA, caller=OTHER)
    assert (answered.status, answered.json["code"]) == (400, "REQUEST_INVALID")
    assert trusting.store.checkpoints.load("s") is None


@pytest.mark.parametrize("named", ["", "x" * 257, "a\nb"])
def test_a_name_is_short_and_printable(trusting: Deployment, named: str) -> None:
    """What stands on a record can be read."""
    assert trusting.send("pay", headers={"Durable-Principal": named}).status == 400


def test_who_asked_may_not_approve(separate: Deployment) -> None:
    """403 `SELF_APPROVAL`, and nothing is recorded; rejecting is open to everybody."""
    id = separate.send("pay", headers=ADA).json["approval_id"]
    refused = decide(separate, id, headers=ADA)
    assert (refused.status, refused.json["code"]) == (403, "SELF_APPROVAL")
    assert separate.approval(id).status == "pending"
    assert decide(separate, id, approved=False, headers=ADA).status == 200


def test_somebody_else_may(separate: Deployment) -> None:
    """Another user of the trusted caller, or another principal."""
    for session, event in (("a", {"headers": {"Durable-Principal": "bob"}}), ("b", {"caller": OTHER})):
        id = separate.send("pay", session=session, headers=ADA).json["approval_id"]
        assert decide(separate, id, **event).json["status"] == "approved"


def test_a_shared_role_must_say_for_whom_it_asks(separate: Deployment) -> None:
    """Where everybody comes with one role a run is refused at its start unless its user is named."""
    answered = separate.send("pay")
    assert (answered.status, answered.json["code"]) == (400, "REQUEST_INVALID")
    assert separate.store.checkpoints.load("s") is None


def test_a_link_and_a_task_token_approve_nothing_there(separate: Deployment) -> None:
    """Who holds them is not known, so it could be who asked; both may reject."""
    id = separate.send("pay", headers=ADA).json["approval_id"]
    separate.slice()
    separate.ask(id)
    link = f"/callbacks/{separate.callback()}"
    assert separate.request("POST", link, body={"approved": True}, caller=None).json["code"] == "SELF_APPROVAL"
    left = separate.slice(answer={"approval_id": id, "output": {"approved": True}})
    assert (left["outcome"], separate.approval(id).status) == ("awaiting-approval", "pending")
    assert separate.request("POST", link, body={"approved": False}, caller=None).json["status"] == "rejected"
    assert separate.paid == []
