"""A conversation on the deployed template: cut back, copied and deleted, with the permissions that its function has."""

import pytest

from tests.e2e.conftest import World

pytestmark = pytest.mark.e2e


def test_a_conversation_is_copied_cut_and_deleted(world: World) -> None:
    """Forked by its messages, truncated and deleted over HTTP, a session is then gone; a message begins it anew."""
    session = world.new_session()
    assert world.start(session, "steps").status_code == 200
    shown = world.call("GET", f"/sessions/{session}").json()
    assert (shown["committed"], shown["pending"]) == (shown["messages"], None)
    made = world.call("POST", f"/sessions/{session}/forks", {"message_count": 1})
    assert (made.status_code, made.json()["forked_from"]["message_count"]) == (201, 1)
    refused = world.call("POST", f"/sessions/{session}/truncate", {"message_count": 2})
    assert (refused.status_code, refused.json()["code"]) == (400, "INPUT_INVALID")
    cut = world.call("POST", f"/sessions/{session}/truncate", {"message_count": 3})
    assert (cut.status_code, cut.json()["messages"]) == (200, 3)
    deleted = world.call("DELETE", f"/sessions/{session}")
    assert deleted.status_code == 204, deleted.text
    assert world.call("GET", f"/sessions/{session}").status_code == 404
    assert world.start(session, "talk").json()["text"] == "Hello."


def test_a_session_that_waits_is_deleted(world: World) -> None:
    """Its approval is cancelled, and the execution that waited for the decision ends by itself."""
    session = world.new_session()
    approval_id = world.start(session, "pay").json()["approval_id"]
    world.mail(approval_id)
    assert world.call("DELETE", f"/sessions/{session}").status_code == 204
    assert world.call("GET", f"/approvals/{approval_id}").json()["status"] == "cancelled"
    late = world.call("POST", f"/approvals/{approval_id}/decision", {"approved": True})
    assert (late.status_code, late.json()["code"]) == (409, "APPROVAL_CLOSED")
    assert world.ledger.count(session, "pay") == 0
