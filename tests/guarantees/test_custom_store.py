"""A store of one's own: three methods for checkpoints are enough for the executor."""

import asyncio
from itertools import count

import pytest

from durable import Agent, get_checkpoint_history, tool
from durable.providers.scripted import Scripted
from stores.memory import memory_store
from tests.support.documents import DocumentStore, Table
from tests.support.runs import Clock, Crash, CrashingCheckpoints, Stores

CALLS = [("work", {"n": 1}), ("work", {"n": 2}), "Done."]


class World:
    """A custom store, and what the tools have done."""

    def __init__(self) -> None:
        self.store = DocumentStore(Table(), Clock())
        self.approvals = memory_store().approvals
        self.done: list[int] = []

    def agent(self, *, at: int | None = None, after: bool = False, gated: bool = False) -> Agent:
        """Give the agent of a new process, which dies around its save number `at`."""

        @tool(needs_approval=gated)
        def work(n: int) -> int:
            """Work."""
            self.done.append(n)
            return n

        checkpoints = CrashingCheckpoints(self.store, at=at, after=after)
        return Agent(tools=[work], provider=Scripted(CALLS), store=Stores(checkpoints, self.approvals))


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_run_in_a_custom_store_survives_a_crash_at_every_save(after: bool) -> None:
    """Wherever the process dies, the next one finishes the run, and no result that was saved is produced again."""
    crashed = 0
    for at in count():
        world = World()
        try:
            result = asyncio.run(world.agent(at=at, after=after).send("Work.", session_id="s"))
        except Crash:
            crashed += 1
            agent = world.agent()
            if world.store.load("s") is None:
                asyncio.run(agent.send("Work.", session_id="s"))
            else:
                asyncio.run(agent.resume("s"))  # gives None where the last save was made: the run is over
            finished = world.store.load("s")
            assert finished is not None
            assert (finished.status, finished.messages[-1].content) == ("finished", "Done.")
            assert set(world.done) == {1, 2}
            assert len(world.done) - 2 == (not after and at in (1, 3))  # ran, and died before its result was saved
        else:
            assert (result.text, world.done) == ("Done.", [1, 2])
            break
    assert crashed == 5


def test_a_custom_store_has_no_history() -> None:
    """`get_checkpoint_history` gives None for a store without history, and the list for one with it."""
    world = World()
    asyncio.run(world.agent().send("Work.", session_id="s"))
    assert asyncio.run(get_checkpoint_history(world.store, "s")) is None
    assert asyncio.run(get_checkpoint_history(memory_store().checkpoints, "s")) == []


def test_a_custom_store_may_pause() -> None:
    """A run whose checkpoints are in a custom store waits for an approval and goes on after it."""
    world = World()
    agent = world.agent(gated=True)
    paused = asyncio.run(agent.send("Work.", session_id="s"))
    assert paused.finish_reason == "awaiting-approval"
    assert world.done == []
    again = asyncio.run(agent.approvals.resolve(str(paused.approval_id), approved=True))
    assert again.finish_reason == "awaiting-approval"
    final = asyncio.run(agent.approvals.resolve(str(again.approval_id), approved=True))
    assert (final.text, world.done) == ("Done.", [1, 2])
