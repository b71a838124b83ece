"""After a crash, `agent.resume(session_id)` finishes the interrupted run (and gives None when nothing is pending)."""

from typing import Any

import pytest

from durable import ConfigurationError, InvalidSessionIdError, SessionAwaitingApprovalError, Status
from tests.support.runs import Clock, fresh_agent, memory_store, run
from tests.support.sessions import asked, crashes, dying, look, pay, stored, texts

ANSWERS = [("look", {}), ("look", {}), "done"]


@pytest.mark.parametrize("at", range(4))
def test_it_finishes_an_interrupted_run(at: int) -> None:
    """From any save on, the run comes to its end, and a conversation goes on from there."""
    store = memory_store(clock=Clock())
    crashes(fresh_agent([*ANSWERS, "summary"], [look], dying(store, at)).send("go", session_id="job-1"))
    agent = fresh_agent([*ANSWERS, "summary"], [look], store)
    finished = run(agent.resume("job-1"))
    assert finished is not None
    assert texts(finished.messages) == ["go", "", "IT", "", "IT", "done"]
    assert run(agent.send("Now write a summary", session_id="job-1")).text == "summary"


@pytest.mark.parametrize("known", [False, True])
def test_it_gives_none_when_nothing_is_pending(known: bool) -> None:
    """A session that is finished, or that nobody knows, has nothing to resume: no model call, nothing written."""
    store = memory_store(clock=Clock())
    if known:
        run(fresh_agent(ANSWERS, [look], store).send("go", session_id="s"))
    written = store.consumed().bytes_written
    agent = fresh_agent(ANSWERS, [look], store)
    assert run(agent.resume("s")) is None
    assert (asked(agent), store.consumed().bytes_written) == (0, written)


def test_it_does_not_bypass_a_decision() -> None:
    """A run that waits for a human is not resumed by anything else."""
    store = memory_store(clock=Clock())
    run(fresh_agent([("pay", {}), "done"], [pay], store).send("go", session_id="s"))
    agent = fresh_agent([("pay", {}), "done"], [pay], store)
    with pytest.raises(SessionAwaitingApprovalError):
        run(agent.resume("s"))
    assert stored(store).status is Status.AWAITING_APPROVAL


def test_it_needs_a_store_and_an_id() -> None:
    """An agent without a store, and an id that cannot be one, are refused."""
    anything: Any = 5
    with pytest.raises(ConfigurationError, match="store"):
        run(fresh_agent([], [], None).resume("s"))
    with pytest.raises(InvalidSessionIdError):
        run(fresh_agent([], [], memory_store(clock=Clock())).resume(anything))
