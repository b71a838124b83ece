"""What a run says that its store calls took: all of its own, nobody else's, over all of its processes."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import anyio
import anyio.lowlevel

from durable import Agent, ApprovalDecision, RunResult, ToolContext, execute, resume_after_approval, tool
from durable.approvals import decide
from durable.bounds import Bounds
from durable.capacity import NOTHING, Capacity
from durable.counting import counted
from durable.providers.scripted import Scripted
from stores.memory import memory_store
from tests.support.documents import DocumentStore, Table
from tests.support.runs import Clock, Stores

CALLS: list[Any] = [("work", {"n": 1}), ("work", {"n": 2}), "Done."]
PAYS: list[Any] = [("pay", {"n": 1}), "Paid."]


@tool
async def work(n: int, ctx: ToolContext) -> int:
    """Work, and let others do so, too."""
    for _ in range(3):
        await anyio.lowlevel.checkpoint()
    return n


@tool(needs_approval=True)
def pay(n: int) -> int:
    """Pay."""
    return n


def agent(store: Any, answers: list[Any] = CALLS) -> Agent:
    return Agent(tools=[work, pay], provider=Scripted(answers), store=store)


def taken(store: Any, work: Any) -> tuple[RunResult, Capacity]:
    """The result, and what the store itself has counted meanwhile."""
    before = store.consumed()
    result = asyncio.run(work)
    return result, store.consumed() - before


def test_a_run_says_what_its_store_calls_took() -> None:
    """A result counts every store call of the run, the first load and the last save included."""
    store = memory_store()
    result, all_of_it = taken(store, agent(store).send("Work.", session_id="s"))
    assert result.consumed == all_of_it
    assert result.consumed.requests >= result.checkpoint.revision + 2


def test_runs_beside_each_other_count_their_own() -> None:
    """Runs that share a store at the same time do not count each other's calls, and miss none of their own."""
    store = memory_store()
    alone = asyncio.run(agent(memory_store()).send("Work.", session_id="s0")).consumed

    async def together() -> list[RunResult]:
        return list(await asyncio.gather(*(agent(store).send("Work.", session_id=f"s{n}") for n in range(5))))

    results = asyncio.run(together())
    assert sum((result.consumed for result in results), NOTHING) == store.consumed()
    assert {result.consumed.requests for result in results} == {alone.requests}


def test_a_run_inside_a_tool_counts_for_itself() -> None:
    """A tool that runs another agent is another run: its calls are not the outer run's."""
    store, inner = memory_store(), list[RunResult]()

    @tool
    async def ask() -> str:
        """Ask another agent."""
        inner.append(await agent(store).send("Work.", session_id="inner"))
        return inner[0].text

    outer = Agent(tools=[ask], provider=Scripted([("ask", {}), "Asked."]), store=store)
    result, all_of_it = taken(store, outer.send("Ask.", session_id="outer"))
    assert result.consumed + inner[0].consumed == all_of_it
    assert inner[0].consumed.requests > 0


def test_slices_add_up() -> None:
    """A run that is carried on over several processes gives the sum; the record lacks the save that it is part of."""
    store = memory_store()
    left = iter([100.0, 100.0, 100.0])
    bounds = Bounds(remaining=lambda: next(left, 0.0))
    first, one = taken(store, execute(agent(store), "Work.", session_id="s", store=store, bounds=bounds))
    assert (first.finish_reason, first.consumed) == ("deadline", one)
    second, two = taken(store, agent(store).resume("s"))
    recorded = store.checkpoints.load("s").consumed
    assert second.finish_reason == "stop"
    assert 0 < recorded.requests < second.consumed.requests < (one + two).requests + 1
    last_save_of_the_first = one.requests - first.checkpoint.consumed.requests
    assert second.consumed.requests == one.requests + two.requests - last_save_of_the_first


def test_a_pause_adds_up() -> None:
    """What was taken before the human decided, and applying the decision, is part of the run's sum."""
    store = memory_store()
    paused, one = taken(store, agent(store, PAYS).send("Pay.", session_id="s"))
    assert (paused.finish_reason, paused.consumed) == ("awaiting-approval", one)
    said = ApprovalDecision(id=paused.approval_id or "", approved=True)
    decide(said, approvals=store.approvals, checkpoints=store.checkpoints, tools={}, now=datetime.now(UTC))
    finished, two = taken(store, resume_after_approval(agent(store, PAYS), said.id, store=store))
    unrecorded = one.requests - (paused.checkpoint.consumed or NOTHING).requests
    assert finished.finish_reason == "stop"
    assert finished.consumed.requests == one.requests + two.requests - unrecorded


def test_the_next_turn_and_a_fork_start_anew() -> None:
    """Each run counts for itself: neither the turn before nor the run that was forked is in the sum."""
    store = memory_store()
    asyncio.run(agent(store).send("Work.", session_id="s"))
    result, all_of_it = taken(store, agent(store, [*CALLS, "Good."]).send("And?", session_id="s"))
    assert result.consumed == all_of_it
    fork = asyncio.run(agent(store).fork("s", from_step=1))
    assert fork.checkpoint.consumed is None


def test_a_store_that_does_not_count_gives_nothing() -> None:
    """With a store of one's own that counts nothing, the sum is nothing, and the run as good as any."""
    stores = Stores(DocumentStore(Table(), Clock()), memory_store().approvals)
    assert asyncio.run(agent(stores).send("Work.", session_id="s")).consumed == NOTHING


def test_without_a_store_there_is_nothing_to_count() -> None:
    """A run that is not kept has no store calls."""
    assert asyncio.run(agent(None).send("Work.")).consumed == NOTHING


def test_the_innermost_counts() -> None:
    """A count inside another one is its own, except where it joins."""
    store = memory_store()
    with counted() as outer:
        store.checkpoints.load("a")
        with counted() as inner, counted(join=True) as joined:
            store.checkpoints.load("b")
    assert joined is inner
    assert outer.consumed() == inner.consumed() != NOTHING
