"""History, fork, resume and comparison on the deployed template."""

import json
from typing import Any

import pytest

from tests.e2e.conftest import World

pytestmark = pytest.mark.e2e


def fork(world: World, session: str, **body: Any) -> Any:
    answer = world.call("POST", f"/sessions/{session}/forks", body)
    assert answer.status_code == 201, answer.text
    return answer.json()


def call_ids(world: World, session: str) -> list[str]:
    messages = world.call("GET", f"/sessions/{session}/messages").json()["messages"]
    return [call["id"] for message in messages for call in message.get("tool_calls", [])]


def test_what_if_the_tool_had_said_something_else(world: World) -> None:
    """A finished run is forked with another result, resumed and compared; its source is as it was."""
    session = world.new_session()
    assert world.start(session, "steps").status_code == 200
    before = world.call("GET", f"/sessions/{session}/history", params={"full": "1"}).json()
    patch = {"tool_result": {"tool_call_id": call_ids(world, session)[0], "result": "one failed"}}
    made = fork(world, session, from_step=1, patch=patch)
    assert made["session_id"] == f"{session}.fork-1"
    resumed = world.call("POST", f"/sessions/{made['segment']}/resume")
    assert (resumed.status_code, resumed.json()["text"]) == (200, "Both done.")
    assert [world.ledger.count(made["session_id"], name) for name in ("one", "two")] == [0, 1]
    compared = world.call("GET", f"/sessions/{session}/compare/{made['segment']}").json()
    assert (compared["diverged_at"], compared["drift"]) == (1, [])
    assert '+ step({"name": "one"}) -> "one failed"' in compared["text"].splitlines()
    after = world.call("GET", f"/sessions/{session}/history", params={"full": "1"}).json()
    assert after == before


def test_one_entry_of_the_history(world: World) -> None:
    """Pages follow their cursor, and each listed save is at the path of its revision."""
    session = world.new_session()
    assert world.start(session, "talk").status_code == 200
    path = f"/sessions/{session}/history"
    first = world.call("GET", path, params={"limit": "1"}).json()
    second = world.call("GET", path, params={"limit": "1", "cursor": first["cursor"]}).json()
    assert [page["entries"][0]["revision"] for page in (first, second)] == [1, 0]
    assert second["cursor"] is None
    shown = world.call("GET", f"{path}/1").json()
    assert shown["checkpoint"]["messages"][-1]["content"] == "Hello."
    missing = world.call("GET", f"{path}/9")
    assert (missing.status_code, missing.json()["code"]) == (404, "CHECKPOINT_NOT_FOUND")


def test_a_fork_of_a_paused_run_is_approved_by_itself(world: World) -> None:
    """A fork of a run that waits asks anew, sleeps in a state machine of its own, and leaves its source waiting."""
    session = world.new_session()
    source = world.start(session, "pay").json()["approval_id"]
    made = fork(world, session, from_step=1)
    segment, name = made["segment"], made["session_id"]
    paused = world.call("POST", f"/sessions/{segment}/resume")
    assert (paused.status_code, paused.json()["status"]) == (202, "awaiting-approval")
    approval_id = paused.json()["approval_id"]
    world.mail(approval_id)
    assert world.call("POST", f"/approvals/{approval_id}/decision", {"approved": True}).status_code == 200
    assert world.until(segment, "finished")["text"] == "Paid."
    assert [world.ledger.count(name, step) for step in ("one", "pay", "two")] == [0, 1, 1]
    assert world.ledger.count(session, "pay") == 0
    assert world.call("GET", f"/approvals/{source}").json()["status"] == "pending"
    refused = world.call("POST", f"/sessions/{session}/resume")
    assert (refused.status_code, refused.json()["code"]) == (409, "SESSION_AWAITING_APPROVAL")


def test_a_large_session_is_forked(world: World) -> None:
    """A 5 MB result is patched in, forked again, and compared within what a Lambda may answer."""
    session = world.new_session()
    assert world.start(session, "steps").status_code == 200
    large = "x" * 900_000
    call_id = call_ids(world, session)[0]
    patch = {"tool_result": {"tool_call_id": call_id, "result": [large] * 5}}
    made = fork(world, session, from_step=1, patch=patch)
    again = fork(world, made["segment"], from_step=1)
    shown = world.call("GET", f"/sessions/{again['segment']}/history/0").json()["checkpoint"]["messages"][2]["content"]
    assert (shown["truncated"], shown["size"] > 4_500_000) == (True, True)
    path, offset = f"/sessions/{again['segment']}/messages/2", "0"
    parts: list[Any] = []
    while offset != "None":
        answered = world.call("GET", path, params={"value": "/content", "offset": offset})
        parts.append(answered.json())
        offset = str(parts[-1]["next"])
    assert json.loads("".join(part["part"] for part in parts)) == [large] * 5
    assert {part["sha256"] for part in parts} == {shown["sha256"]}
    compared = world.call("GET", f"/sessions/{made['segment']}/compare/{again['segment']}").json()
    assert compared["diverged_at"] is None
    assert world.call("POST", f"/sessions/{again['segment']}/resume").json()["text"] == "Both done."
