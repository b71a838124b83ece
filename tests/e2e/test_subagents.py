"""Sub-agents through API Gateway, Lambda, DynamoDB and Step Functions."""

import pytest

from tests.e2e.agent import SIGNED
from tests.e2e.conftest import World

pytestmark = pytest.mark.e2e

PATH = ["e2e", "office", "clerk"]


def test_five_approvals_below_a_sub_agent(world: World) -> None:
    """A sub-agent of a sub-agent asks five times: each is slept on, decided by either way, and done once."""
    session = world.new_session()
    started = world.start(session, "delegate")
    assert started.status_code == 202
    asked: list[str] = [started.json()["approval_id"]]
    for number, name in enumerate(SIGNED):
        link = world.callback_path(asked[-1])
        assert "Agent 'e2e > office > clerk' asks to call 'sign'." in world.mail(asked[-1])
        shown = world.call("GET", f"/approvals/{asked[-1]}").json()
        assert (shown["path"], shown["arguments"], shown["status"]) == (PATH, {"name": name}, "pending")
        standing = world.call("GET", f"/sessions/{session}").json()
        assert [agent["path"] for agent in standing["agents"]] == [PATH[:2], PATH]
        assert standing["agents"][1]["step"] == number + 1
        if number % 2:
            decided = world.call("POST", link, {"approved": True}, sign=False)
        else:
            decided = world.call("POST", f"/approvals/{asked[-1]}/decision", {"approved": True})
        assert decided.status_code == 200
        asked += world.next_approval(session, after=asked[-1])
    assert len(set(asked)) == len(SIGNED)
    ended = world.call("GET", f"/sessions/{session}").json()
    assert (ended["status"], ended["text"], ended["agents"]) == ("finished", "Done.", [])
    happened = ["file", *(f"sign-{name}" for name in SIGNED), "model-0", "model-1", "office-0", "office-1"]
    happened += [f"clerk-{turn}" for turn in range(len(SIGNED) + 1)]
    assert {name: world.ledger.count(session, name) for name in happened} == dict.fromkeys(happened, 1)
    compared = world.call("GET", f"/sessions/{session}/compare/{session}").json()
    [delegated] = compared["a"][0]["calls"]
    [clerk] = [call for call in delegated["steps"][0]["calls"] if call["tool"] == "clerk"]
    assert [step["calls"][0]["result"] for step in clerk["steps"]] == [f"{name} signed" for name in SIGNED]
