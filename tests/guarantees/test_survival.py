"""Pass a `session_id` and a store: the run survives a crash, a restart, an abort or a human approval that takes days.

Nothing here depends on a particular host: any `CheckpointStore` (your own three methods) works the same way.
"""

import json
from typing import Any

import pytest

from durable import Checkpoint, StaleCheckpointError, Status, get_checkpoint_history
from durable.records import upgrade
from tests.support.runs import Clock, Crash, Stores, fresh_agent, memory_store, run
from tests.support.sessions import crashes, dying, look, pay, results, signal_after, stored, texts, to_the_end

ANSWERS = [("look", {}), ("pay", {}), "done"]


class ThreeMethods:
    """All that a store of one's own needs: it keeps the newest checkpoint of each session as JSON."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}

    def load(self, session_id: str) -> Checkpoint | None:
        kept = self.kept.get(session_id)
        return None if kept is None else Checkpoint.model_validate(upgrade(json.loads(kept)))

    def save(self, checkpoint: Checkpoint, *, after: Checkpoint | None) -> Checkpoint:
        session_id = checkpoint.session_id or ""
        there = self.load(session_id)
        if (there and there.revision) != (after and after.revision):
            raise StaleCheckpointError(session_id, there.revision if there else 0)
        saved = checkpoint.but(revision=after.revision + 1 if after else 0)
        self.kept[session_id] = saved.model_dump_json()
        return saved

    def delete(self, session_id: str) -> None:
        self.kept.pop(session_id, None)


def agent(store: Any, clock: Clock | None = None) -> Any:
    return fresh_agent(ANSWERS, [look, pay], store, clock=clock or Clock())


def logged() -> Any:
    return memory_store(clock=Clock())


def handmade() -> Any:
    return Stores(ThreeMethods(), memory_store(clock=Clock()).approvals)


STORES = [pytest.param(logged, id="a log"), pytest.param(handmade, id="three methods")]


@pytest.mark.parametrize("make", STORES)
@pytest.mark.parametrize("at", range(8))
def test_a_crash_and_a_restart(make: Any, at: int) -> None:
    """New objects on the same store come to the end that the first ones were on their way to."""
    expected = texts(to_the_end(agent(make())).messages)
    store = make()
    first = agent(dying(store, at))
    with pytest.raises(Crash):
        to_the_end(first)
    result = to_the_end(agent(store))
    assert result.text == "done"
    assert [text for text in texts(result.messages) if not isinstance(text, dict)] == [
        text for text in expected if not isinstance(text, dict)
    ]


@pytest.mark.parametrize("make", STORES)
def test_an_abort(make: Any) -> None:
    """An aborted run is there to be carried on."""
    store = make()
    run(agent(store).send("go", session_id="s", **signal_after(3)))
    assert stored(store).status is Status.IN_PROGRESS
    result = to_the_end(agent(store))
    assert result.text == "done"


@pytest.mark.parametrize("make", STORES)
def test_an_approval_that_takes_days(make: Any) -> None:
    """The decision of a human comes four days later, in another process."""
    store, clock = make(), Clock()
    paused = run(agent(store, clock).send("go", session_id="s"))
    clock.advance(days=4)
    result = run(agent(store, clock).approvals.resolve(paused.approval_id, approved=True, by="ada"))
    assert (result.text, results(result.messages)) == ("done", ["IT", {"paid": 5}])


@pytest.mark.parametrize("make", STORES)
def test_the_next_message_of_the_conversation(make: Any) -> None:
    """First message, later the next one, by the same process or another one."""
    store = make()
    run(fresh_agent(["Table for 2.", "Table for 3."], [], store).send("A table for 2 tonight", session_id="s"))
    run(fresh_agent(["Table for 2.", "Table for 3."], [], store).send("Make it 3 people", session_id="s"))
    assert texts(stored(store).messages) == [
        "A table for 2 tonight",
        "Table for 2.",
        "Make it 3 people",
        "Table for 3.",
    ]


def test_a_store_without_history_says_so() -> None:
    """History is an ability that a store may have: asked for it, one without gives None, one with it a list."""
    for make, found in ((handmade, None), (logged, [])):
        assert run(get_checkpoint_history(make().checkpoints, "unknown")) == found


def test_sessions_do_not_touch_each_other() -> None:
    """What happens to one session leaves every other one as it is."""
    store = logged()
    crashes(agent(dying(store, 0)).send("go", session_id="a"))
    before = stored(store, "a")
    run(agent(store).send("go", session_id="b"))
    assert stored(store, "a") == before
