"""A recorded result is never re-executed.

Results are checkpointed as calls finish; a resumed run only runs calls that have no recorded result.
"""

from collections import Counter
from typing import Any

import anyio
import pytest

from durable import FinishReason, ToolContext, tool
from tests.support.runs import Clock, fresh_agent, memory_store, run, settled_ids
from tests.support.sessions import crashes, dying, results, signal_after, stored, texts, to_the_end


class Work:
    """Three calls, of which the last one fails, and how often each was executed."""

    def __init__(self) -> None:
        self.store: Any = memory_store(clock=Clock())
        self.ran: Counter[str] = Counter()
        self.answers = [[("work", {"name": name}) for name in ("a", "b", "fails")], ("gated", {}), "done"]

    def agent(self, store: Any = None) -> Any:
        @tool
        async def work(name: str, ctx: ToolContext) -> str:
            self.ran[ctx.tool_call_id] += 1
            if name == "fails":
                raise RuntimeError(name)
            return name

        @tool(needs_approval=True)
        async def gated(ctx: ToolContext) -> str:
            self.ran[ctx.tool_call_id] += 1
            return "approved"

        return fresh_agent(self.answers, [work, gated], store or self.store, tool_concurrency=1)

    def check(self) -> None:
        """What is recorded now is not executed by whoever goes on, and the results are those of one run."""
        before = stored(self.store)
        recorded = {id: self.ran[id] for id in settled_ids(before)}
        result = to_the_end(self.agent())
        assert {id: self.ran[id] for id in recorded} == recorded
        assert set(recorded.values()) <= {1}
        assert results(result.messages) == ["a", "b", "execution", "approved"]


@pytest.mark.parametrize("at", range(1, 4))
@pytest.mark.parametrize("after", [False, True])
def test_after_a_crash(at: int, after: bool) -> None:
    """A process that dies before or after it has saved a result leaves what was recorded before, errors included."""
    work = Work()
    crashes(work.agent(dying(work.store, at, after=after)).send("go", session_id="s"))
    work.check()


def test_after_a_pause() -> None:
    """A human's decision re-executes nothing that was done before it."""
    work = Work()
    assert run(work.agent().send("go", session_id="s")).finish_reason is FinishReason.AWAITING_APPROVAL
    work.check()


def test_after_an_abort() -> None:
    """Results that an aborted run has recorded are kept, and its closed calls are not executed later."""
    work = Work()
    run(work.agent().send("go", session_id="s", **signal_after(5)))
    kept = texts(stored(work.store).messages)[2:]
    ran = Counter(work.ran)
    result = run(work.agent().send("more", session_id="s"))
    assert texts(result.messages)[2:5] == kept
    assert kept[0] == "a"
    assert {id: ran[id] for id in ran} == {id: work.ran[id] for id in ran}


def test_a_result_that_waits_for_an_earlier_call_is_recorded_too() -> None:
    """A call that finished while an earlier one still ran is not executed again, though its turn has not come."""
    ran: list[str] = []
    finished = anyio.Event()

    @tool
    async def slow() -> str:
        ran.append("slow")
        if len(ran) < 3:
            await finished.wait()
            await anyio.sleep_forever()
        return "slow"

    @tool
    async def quick() -> str:
        ran.append("quick")
        finished.set()
        return "quick"

    store = memory_store(clock=Clock())
    answers = [[("slow", {}), ("quick", {})], "done"]
    crashes(fresh_agent(answers, [slow, quick], dying(store, 1)).send("go", session_id="s"))
    assert list(stored(store).results) == ["call_0_1"]
    result = run(fresh_agent(answers, [slow, quick], store).resume("s"))
    assert (results(result.messages), ran) == (["slow", "quick"], ["slow", "quick", "slow"])
