"""Sub-agents at work side by side when something fails: a save, a model, a tool, a lease, an agent that has changed."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from durable import (
    Agent,
    AgentDriftError,
    Checkpoint,
    FinishReason,
    LeaseLostError,
    PropagatingToolError,
    ProviderUnavailableError,
    ResumeToolMissingError,
    StaleCheckpointError,
    StoreError,
    StoreRejectedError,
    StoreUnavailableError,
    ToolContext,
    ToolMessage,
    Watch,
    execute,
    tool,
)
from durable.crossing import SAVE_ATTEMPTS
from durable.providers.scripted import Scripted
from tests.support.runs import Clock, Crash, Stores, fresh_agent, memory_store, numbered, run
from tests.support.sessions import FailingCheckpoints, crashes, dying, results, stored


def rejected() -> StoreError:
    return StoreRejectedError("PutItem", "AccessDenied")


def stale() -> StoreError:
    return StaleCheckpointError("s", 1)


def unanswered() -> StoreError:
    return StoreUnavailableError("PutItem", "throttled")


def lost() -> StoreError:
    return LeaseLostError("s")


async def at_once(seconds: float) -> None:
    pass


async def in_time(work: Any) -> Any:
    with anyio.fail_after(20):
        return await work


def below(name: str, answers: Any, tools: Sequence[Any], **options: Any) -> Agent:
    return Agent(name=name, provider=Scripted(answers), tools=tools, **{"abort_grace": 0.05, **options})


def task(name: str) -> tuple[str, dict[str, str]]:
    return name, {"task": f"Do it, {name}."}


def failing(store: Any, error: Callable[[], Exception], *at: int) -> tuple[Any, Any]:
    checkpoints = FailingCheckpoints(store.checkpoints, error, at)
    return Stores(checkpoints, store.approvals), checkpoints


class Two:
    """Two sub-agents side by side: the first one's save fails while the second one's tool, or model, is at work."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.failed = anyio.Event()

        @tool
        async def first() -> str:
            self.ran.append("first")
            return "1"

        @tool
        async def hang() -> str:
            self.ran.append("hang")
            await anyio.sleep_forever()
            return "never"

        @tool
        async def heed(ctx: ToolContext) -> str:
            self.ran.append("heed")
            await ctx.signal.wait()
            return "heeded"

        @tool
        async def late() -> str:
            self.ran.append("late")
            return "late"

        self.first, self.hang, self.heed, self.late = first, hang, heed, late


@pytest.mark.parametrize("error", [rejected, stale])
def test_no_failure_of_the_store_becomes_a_result_below(error: Callable[[], StoreError]) -> None:
    """A save that fails for one agent leaves the calls of the other without a result: nobody has aborted the run."""
    two, store = Two(), memory_store(clock=Clock())
    # saves: 0 the lead's turn, 1 and 2 the turns below, 3 the first result
    stores, checkpoints = failing(store, error, 3)
    a = below("a", [("first", {}), "A"], [two.first])
    b = below("b", [[("hang", {}), ("heed", {})], "B"], [two.hang, two.heed], abort_grace=0.01)
    lead = fresh_agent([[task("a"), task("b")], "done"], [], stores, subagents=[a, b], abort_grace=0.05)
    with pytest.raises(type(error())):
        run(in_time(lead.send("go", session_id="s")))
    there = stored(store)
    states = {state.agent: state for state in there.suspended.values()}
    found = [result.content for result in states["b"].results.values()]
    assert (found, two.ran) == ([] if error is stale else ["heeded"], ["first", "hang", "heed"])
    assert error is rejected or checkpoints.saves == 4  # after a stale save nothing more is written


@pytest.mark.parametrize("error", [rejected, stale])
def test_nothing_starts_beside_an_agent_that_winds_down(error: Callable[[], StoreError]) -> None:
    """While one agent waits for its own tools to stop after a save that failed, the other starts nothing more."""
    two, store = Two(), memory_store(clock=Clock())
    stores, checkpoints = failing(store, error, 2)

    async def answers(request: Any) -> Any:
        while checkpoints.saves < 3:  # until A's save has failed
            await anyio.lowlevel.checkpoint()
        return ("late", {})

    a = below("a", [[("first", {}), ("hang", {})], "A"], [two.first, two.hang], abort_grace=0.3)
    b = below("b", answers, [two.late])
    lead = fresh_agent([[task("a"), task("b")], "done"], [], stores, subagents=[a, b], abort_grace=0.05)
    with pytest.raises(type(error())):
        run(in_time(lead.send("go", session_id="s")))
    assert "late" not in two.ran


def test_who_has_lost_the_session_writes_nothing() -> None:
    """The lease is found to be another's while a tool runs beside: it may end, and its result is not written."""
    two, store = Two(), memory_store(clock=Clock())
    stores, checkpoints = failing(store, rejected)

    async def check() -> None:
        if two.ran.count("heed") == 2 and checkpoints.saves == 4:
            raise LeaseLostError("s")

    a = below("a", [("first", {}), "A"], [two.first])
    b = below("b", [("heed", {}), "B"], [two.heed])
    lead = fresh_agent([[task("a"), task("b"), ("heed", {})], "done"], [two.heed], stores, subagents=[a, b])
    with pytest.raises(LeaseLostError):
        run(in_time(execute(lead, "go", session_id="s", store=stores, watch=Watch(check=check))))
    there = stored(store)
    assert (checkpoints.saves, there.results) == (4, {})


def test_what_waits_for_a_slot_below_does_not_start_in_a_run_that_ends() -> None:
    """A tool that ends the run lets those that run come to their end, at any depth; nothing more begins."""
    two, store = Two(), memory_store(clock=Clock())
    release = anyio.Event()

    @tool
    async def ends() -> None:
        await anyio.lowlevel.checkpoint()
        while "slow" not in two.ran:
            await anyio.lowlevel.checkpoint()
        release.set()
        raise PropagatingToolError("no more")

    @tool
    async def slow() -> str:
        two.ran.append("slow")
        await release.wait()
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        return "slow"

    a = below("a", [[("slow", {}), ("late", {})], "A"], [slow, two.late], tool_concurrency=1)
    lead = fresh_agent([[task("a"), ("ends", {})], "done"], [ends], store, subagents=[a])
    with pytest.raises(PropagatingToolError):
        run(in_time(lead.send("go", session_id="s")))
    assert two.ran == ["slow"]
    (state,) = stored(store).suspended.values()
    assert [m.content for m in state.messages[2:]] == ["slow"]


@pytest.mark.parametrize("change", ["drift", "missing"])
def test_an_agent_below_that_has_changed_stops_the_run_before_anything_runs(change: str) -> None:
    """A resumed run looks at every agent at work before a tool or a model is called at any level."""
    two, store = Two(), memory_store(clock=Clock())

    @tool
    def other(more: int) -> str:
        return "other"

    def lead(at: Any, *tools: Any, **options: Any) -> Agent:
        c = below("c", [("late", {}), "C"], tools, on_agent_drift="error" if change == "drift" else "ignore")
        a = below("a", [task("c"), "A"], [], subagents=[c])
        calls = [task("a"), ("first", {})]
        return fresh_agent([calls, "done"], [two.first], at, subagents=[a], **options)

    # saves: 0 the lead's turn, 1 and 2 the turns below
    crashes(lead(dying(store, 1), two.late, tool_concurrency=1).send("go", session_id="s"))
    crashes(lead(dying(store, 0), two.late, tool_concurrency=1).send("go", session_id="s"))
    before = stored(store)
    changed = lead(store, two.late, other) if change == "drift" else lead(store, other)
    with pytest.raises(AgentDriftError if change == "drift" else ResumeToolMissingError):
        run(changed.resume("s"))
    assert (two.ran, stored(store)) == ([], before)
    assert run(lead(store, two.late).resume("s")).text == "done"
    assert sorted(two.ran) == ["first", "late"]


def test_a_tool_below_that_asks_to_stop_stops_the_run() -> None:
    """A tool that sets its signal aborts the run, whichever agent's it is."""
    store = memory_store(clock=Clock())

    @tool
    def stop(ctx: ToolContext) -> str:
        ctx.signal.abort()
        return "stopped"

    a = below("a", [("stop", {}), "A"], [stop])
    lead = fresh_agent([task("a"), "done"], [], store, subagents=[a])
    result = run(in_time(lead.send("go", session_id="s")))
    assert result.finish_reason is FinishReason.ABORTED
    assert len(a.provider.requests) == 1  # type: ignore[union-attr]
    assert results(stored(store).messages) == ["unknown-outcome"]


def test_an_answer_that_is_no_json_is_an_error_of_the_call() -> None:
    """A value that cannot be kept ends the call, and the run goes on."""
    store = memory_store(clock=Clock())
    a = below("a", ["NaN"], [], output_type=float)
    result = run(fresh_agent([task("a"), "done"], [], store, subagents=[a]).send("go", session_id="s"))
    assert (result.text, results(result.messages)) == ("done", ["execution"])


def test_an_error_that_is_over_is_not_told_any_more() -> None:
    """What stopped the run is on the checkpoint until a model has answered again, the lead's or one below."""
    store = memory_store(clock=Clock())
    down = [ProviderUnavailableError("scripted", "overloaded")]

    def answers(request: Any) -> Any:
        return down.pop() if down else ("ask", {})

    @tool(needs_approval=True)
    def ask() -> str:
        return "asked"

    def lead() -> Agent:
        a = below("a", answers, [ask])
        return fresh_agent([task("a"), "done"], [], store, subagents=[a])

    with pytest.raises(ProviderUnavailableError):
        run(lead().send("go", session_id="s"))
    assert stored(store).last_error is not None
    result = run(lead().send([], session_id="s"))
    assert (result.finish_reason, stored(store).last_error) == (FinishReason.AWAITING_APPROVAL, None)


def test_what_ends_the_process_comes_out_as_it_is() -> None:
    """What is no `Exception`, such as the end of the process, leaves the run unwrapped from any depth."""

    @tool
    async def dies() -> None:
        raise Crash

    a = below("a", [("dies", {}), "A"], [dies])
    b = below("b", [task("a"), "B"], [], subagents=[a])
    for lead in (
        fresh_agent([("dies", {})], [dies], memory_store(clock=Clock())),
        fresh_agent([task("b")], [], memory_store(clock=Clock()), subagents=[b]),
    ):
        crashes(lead.send("go", session_id="s"))


class Tree:
    """Three sub-agents side by side, one with another below it, whose tools take their time; what ran, by call."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.ran: Counter[str] = Counter()

    def lead(self, store: Any) -> Agent:
        @tool
        async def work(ctx: ToolContext) -> str:
            self.ran[ctx.tool_call_id] += 1
            await self._some_time()
            return "worked"

        async def answers(request: Any) -> Any:
            await self._some_time()
            return [[("work", {}), ("work", {})], ("work", {}), "done"][turns(request)]

        async def answers_of_b(request: Any) -> Any:
            await self._some_time()
            return [[task("d"), ("work", {})], "done"][turns(request)]

        a, c, d = (below(name, answers, [work], abort_grace=0.0) for name in "acd")
        b = below("b", answers_of_b, [work], subagents=[d], abort_grace=0.0, tool_concurrency=1)
        calls = [task("a"), ("work", {}), task("b"), task("c")]
        options = {"subagents": [a, b, c], "abort_grace": 0.0, "sleep": at_once, "ids": numbered(f"id{id(store)}-")}
        return fresh_agent([calls, "done"], [work], store, **options)

    async def _some_time(self) -> None:
        for _ in range(self._random.choice([0, 0, 1, 3, 7])):
            await anyio.lowlevel.checkpoint()


def turns(request: Any) -> int:
    return sum(message.role == "assistant" for message in request.messages)


def everything(checkpoint: Checkpoint) -> Iterator[ToolMessage]:
    """The results at every level."""
    yield from (message for message in checkpoint.messages if isinstance(message, ToolMessage))
    yield from checkpoint.results.values()
    for state in checkpoint.suspended.values():
        yield from everything(state)


MODEL_CALLS = 2 + 3 + 3 + 2 + 3
SAVES = 24


@pytest.mark.parametrize("error", [rejected, stale, unanswered, lost])
@pytest.mark.parametrize("at", range(SAVES))
def test_wherever_a_failure_of_the_store_stops_agents_side_by_side(error: Callable[[], StoreError], at: int) -> None:
    """Nothing with a result runs again, nothing gets a result that it has not given, and what models took is right."""
    for seed in range(2):
        tree, store = Tree(seed), memory_store(clock=Clock())
        stores, checkpoints = failing(store, error, *range(at, at + SAVE_ATTEMPTS))
        stores.checkpoints.blocks = False
        try:
            run(in_time(tree.lead(stores).send("go", session_id="s")))
        except type(error()):
            assert error is unanswered or error is rejected or checkpoints.saves == at + 1
        else:
            assert checkpoints.saves <= at
        before = store.checkpoints.load("s")
        recorded = {result.tool_call_id: result for result in everything(before)} if before else {}
        assert [result for result in recorded.values() if result.is_error] == []
        ran = tree.ran.copy()
        result = run(in_time(tree.lead(store).send([] if before else "go", session_id="s")))
        assert (result.text, results(result.messages)) == ("done", ["done", "worked", "done", "done"])
        assert result.usage.model_calls == MODEL_CALLS
        assert all(tree.ran[call] == ran[call] for call in recorded)
