"""A save that fails stops the run: what its siblings do then, what is tried again, and what never becomes a result."""

import threading
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from durable import (
    AbortSignal,
    Bounds,
    Checkpoint,
    FinishReason,
    RecordFormatError,
    StaleCheckpointError,
    Status,
    StoreError,
    StoreRejectedError,
    StoreUnavailableError,
    ToolContext,
    execute,
    loop,
    tool,
)
from durable.crossing import SAVE_ATTEMPTS
from tests.support.runs import Clock, CrashingCheckpoints, Stores, fresh_agent, memory_store, numbered, run
from tests.support.sessions import FailingCheckpoints, asked, ids, look, pay, recorder, results, stored, texts


def rejected() -> StoreError:
    return StoreRejectedError("PutItem", "AccessDenied")


def throttled() -> StoreError:
    return StoreUnavailableError("PutItem", "throttled")


def stale() -> StoreError:
    return StaleCheckpointError("s", 1)


async def at_once(seconds: float) -> None:
    pass


def failing(store: Any, error: Callable[[], Exception], *at: int, after: bool = False) -> tuple[Any, Any]:
    checkpoints = FailingCheckpoints(store.checkpoints, error, at, after=after)
    return Stores(checkpoints, store.approvals), checkpoints


async def in_time(work: Any) -> Any:
    with anyio.fail_after(20):
        return await work


# --- the siblings ----------------------------------------------------------------------------------------------------


class Batch:
    """A turn whose first call is done at once and whose save (number 1) fails while the others run."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.ended: list[str] = []
        self.answers = [[("look", {}), ("heed", {}), ("ignore", {}), ("work", {})], "done"]
        self.hangs = True

        @tool
        async def heed(ctx: ToolContext) -> str:
            self.ran.append("heed")
            if self.hangs:
                await ctx.signal.wait()
            return "stopped early"

        @tool
        async def ignore() -> str:
            self.ran.append("ignore")
            try:
                if self.hangs:
                    await anyio.sleep_forever()
            finally:
                self.ended.append("ignore")
            return "ignored"

        self.tools = [look, heed, ignore, recorder(self.ran)]

    def agent(self, store: Any, **options: Any) -> Any:
        given = {"tool_concurrency": 3, "abort_grace": 0.01, "sleep": at_once, **options}
        return fresh_agent(self.answers, self.tools, store, **given)


@pytest.mark.parametrize("error", [rejected, stale])
def test_siblings_get_the_signal_and_the_grace(error: Callable[[], StoreError]) -> None:
    """Running siblings are asked to stop and may end in the grace period; what waits never starts."""
    batch, store = Batch(), memory_store(clock=Clock())
    stores, checkpoints = failing(store, error, 1)
    agent = batch.agent(stores)
    with pytest.raises(type(error())):
        run(in_time(agent.send("go", session_id="s")))
    assert (batch.ran, batch.ended, asked(agent)) == (["heed", "ignore"], ["ignore"], 1)
    # After a stale save nothing is written; after any other one last save holds all that has settled.
    assert checkpoints.saves == (2 if error is stale else 3)
    assert ids(stored(store).messages) == ([] if error is stale else ["call_0_0", "call_0_1"])
    assert (stored(store).status, stored(store).finish_reason) == (Status.IN_PROGRESS, None)


@pytest.mark.parametrize("error", [rejected, stale])
def test_a_run_that_was_stopped_so_goes_on(error: Callable[[], StoreError]) -> None:
    """No failure of the store is a result: the next process runs what has none, and every call has one in the end."""
    batch, store = Batch(), memory_store(clock=Clock())
    stores, _ = failing(store, error, 1)
    with pytest.raises(StoreError):
        run(in_time(batch.agent(stores).send("go", session_id="s")))
    batch.hangs = False
    batch.ran.clear()
    result = run(batch.agent(store).send("go", session_id="s"))
    assert results(result.messages) == ["IT", "stopped early", "ignored", "it"]
    assert batch.ran == (["heed", "ignore", "it"] if error is stale else ["ignore", "it"])


def test_the_first_failure_is_the_one_that_is_raised() -> None:
    """When the last save fails as well, the run ends with the error of the first."""
    batch, store = Batch(), memory_store(clock=Clock())
    errors = iter([rejected(), RecordFormatError("messages", "is another error")])
    stores, checkpoints = failing(store, lambda: next(errors), 1, 2)
    with pytest.raises(StoreRejectedError):
        run(in_time(batch.agent(stores).send("go", session_id="s")))
    assert checkpoints.saves == 3
    assert ids(stored(store).messages) == []


def test_plain_siblings_that_hang_do_not_hold_it_up() -> None:
    """A thread that never comes back does not keep the store's error from the caller."""
    release = threading.Event()

    @tool
    def hang() -> None:
        release.wait(20)

    store = memory_store(clock=Clock())
    stores, _ = failing(store, rejected, 1)
    agent = fresh_agent([[("look", {}), ("hang", {})]], [look, hang], stores, abort_grace=0.01)
    try:
        with pytest.raises(StoreRejectedError):
            run(in_time(agent.send("go", session_id="s")))
    finally:
        release.set()
    assert results(stored(store).messages) == ["IT"]


def test_results_that_settle_during_a_save_go_into_the_next_one() -> None:
    """Saves come one at a time: whatever settles while one is in flight is saved together after it."""
    saving, release = threading.Event(), threading.Event()
    settled: list[tuple[str, ...]] = []

    class Slow(CrashingCheckpoints):
        def save(self, checkpoint: Checkpoint, *, after: Checkpoint | None) -> Checkpoint:
            settled.append(tuple(ids(checkpoint.messages)))
            if self.saves == 1:
                saving.set()
                assert release.wait(20)
            return super().save(checkpoint, after=after)

    @tool
    async def later(last: bool = False) -> None:
        while not saving.is_set():
            await anyio.lowlevel.checkpoint()
        if last:
            release.set()

    store = memory_store(clock=Clock())
    calls = [("look", {}), ("later", {}), ("later", {}), ("later", {"last": True})]
    agent = fresh_agent([calls, "done"], [look, later], Stores(Slow(store.checkpoints), store.approvals))
    assert run(in_time(agent.send("go", session_id="s"))).text == "done"
    assert settled[:3] == [(), ("call_0_0",), ("call_0_0", "call_0_1", "call_0_2", "call_0_3")]


# --- which failures are tried again ----------------------------------------------------------------------------------


@pytest.mark.parametrize("jitter", [0.0, 0.5, 1.0])
def test_a_store_that_does_not_answer_is_asked_again_with_jitter(jitter: float) -> None:
    """Each pause is a random part of twice as long as the one before, at most four tries of one save."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    store = memory_store(clock=Clock())
    stores, checkpoints = failing(store, throttled, *range(SAVE_ATTEMPTS))
    agent = fresh_agent(["done"], [], stores, sleep=sleep, random=lambda: jitter)
    with pytest.raises(StoreUnavailableError):
        run(agent.send("go", session_id="s"))
    assert pauses == [0.1 * jitter, 0.2 * jitter, 0.4 * jitter]
    assert checkpoints.saves == SAVE_ATTEMPTS == 4


def test_a_store_that_answers_at_the_last_try() -> None:
    """Three failures in a row are overcome, and each save has its own tries."""
    store = memory_store(clock=Clock())
    stores, _ = failing(store, throttled, 0, 1, 2, 4, 5, 6)
    result = run(fresh_agent([("look", {}), "done"], [look], stores, sleep=at_once).send("go", session_id="s"))
    assert (result.text, results(result.messages)) == ("done", ["IT"])
    assert stored(store).revision == 2


@pytest.mark.parametrize("error", [rejected, lambda: RecordFormatError("business_state", "holds a set")])
def test_a_permanent_failure_is_not_tried_again(error: Callable[[], StoreError]) -> None:
    """What will fail again is raised at once and says what is at fault."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    store = memory_store(clock=Clock())
    stores, checkpoints = failing(store, error, 0)
    with pytest.raises(StoreError, match=r"AccessDenied|business_state"):
        run(fresh_agent(["done"], [], stores, sleep=sleep).send("go", session_id="s"))
    assert (pauses, checkpoints.saves) == ([], 1)


@pytest.mark.parametrize("at", range(6))
def test_a_save_that_was_applied_without_an_answer_counts(at: int) -> None:
    """A store that wrote and did not say so finds its own entry: no conflict, nothing twice, no revision left out."""
    ran: list[str] = []
    answers = [[("work", {"name": "a"}), ("work", {"name": "b"})], ("pay", {}), "done"]
    store = memory_store(clock=Clock())
    stores, _ = failing(store, throttled, at, after=True)
    agent = fresh_agent(answers, [recorder(ran), pay], stores, sleep=at_once, tool_concurrency=1)
    result = run(agent.send("go", session_id="s"))
    assert result.finish_reason is FinishReason.AWAITING_APPROVAL
    result = run(agent.approvals.resolve(result.approval_id, approved=True))
    assert (result.text, ran, results(result.messages)) == ("done", ["a", "b"], ["a", "b", {"paid": 5}])
    assert result.checkpoint == stored(store)
    assert stored(store).revision == 8


def test_a_save_that_was_applied_and_then_overtaken_is_stale() -> None:
    """When somebody else has moved the session since the unanswered save, the run stops and writes nothing more."""
    store = memory_store(clock=Clock())
    other = fresh_agent(["x", "their answer"], [], store, ids=numbered("other"))

    class Overtaken(FailingCheckpoints):
        def save(self, checkpoint: Checkpoint, *, after: Checkpoint | None) -> Checkpoint:
            try:
                return super().save(checkpoint, after=after)
            except StoreUnavailableError:
                run(other.send("me first", session_id="s"))
                raise

    overtaken = Overtaken(store.checkpoints, throttled, [0], after=True)
    agent = fresh_agent(["mine"], [], Stores(overtaken, store.approvals), sleep=at_once)
    with pytest.raises(StaleCheckpointError):
        run(agent.send("go", session_id="s"))
    assert overtaken.saves == 2
    assert texts(stored(store).messages) == ["go", "mine", "me first", "their answer"]


# --- where else a save may fail --------------------------------------------------------------------------------------


def test_when_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A save that fails after the deadline has cut a batch off ends the run with the store's own error."""
    monkeypatch.setattr(loop, "MIN_TOOL_SECONDS", 0.0)
    saving, cut_off = threading.Event(), threading.Event()

    @tool
    async def during_the_save() -> None:
        while not saving.is_set():
            await anyio.lowlevel.checkpoint()

    @tool
    async def slow() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            cut_off.set()

    class Late(CrashingCheckpoints):
        """The time is up while the first result is being saved; the second one cannot be."""

        def save(self, checkpoint: Checkpoint, *, after: Checkpoint | None) -> Checkpoint:
            if self.saves == 1:
                saving.set()
                assert cut_off.wait(20)
            if self.saves > 1:
                self.saves += 1
                raise rejected()
            return super().save(checkpoint, after=after)

    store = memory_store(clock=Clock())
    late = Late(store.checkpoints)
    left = iter([100.0, 100.0])
    bounds = Bounds(remaining=lambda: next(left, 0.01))
    calls = [("look", {}), ("during_the_save", {}), ("slow", {})]
    agent = fresh_agent([calls], [look, during_the_save, slow], Stores(late, store.approvals))
    with pytest.raises(StoreRejectedError):
        run(in_time(execute(agent, "go", session_id="s", store=agent.store, bounds=bounds)))
    assert (late.saves, stored(store).revision, results(stored(store).messages)) == (3, 1, ["IT"])


def test_when_the_time_is_up_in_the_grace_period(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deadline that comes while siblings wind down neither hides the store's error nor the last save."""
    monkeypatch.setattr(loop, "MIN_TOOL_SECONDS", 0.0)
    batch, store = Batch(), memory_store(clock=Clock())
    stores, checkpoints = failing(store, rejected, 1)
    left = iter([100.0, 100.0])
    bounds = Bounds(remaining=lambda: next(left, 0.05))
    agent = batch.agent(stores, abort_grace=100)
    with pytest.raises(StoreRejectedError):
        run(in_time(execute(agent, "go", session_id="s", store=stores, bounds=bounds)))
    assert (checkpoints.saves, ids(stored(store).messages)) == (3, ["call_0_0", "call_0_1"])


def test_when_the_run_is_aborted() -> None:
    """An abort that cannot be saved raises the store's error, and the run is as it was."""
    signal = AbortSignal()
    signal.abort()
    store = memory_store(clock=Clock())
    stores, _ = failing(store, rejected, 0)
    with pytest.raises(StoreRejectedError):
        run(fresh_agent(["x"], [], stores).send("go", session_id="s", signal=signal))
    assert store.checkpoints.load("s") is None


@pytest.mark.parametrize("error", [rejected, stale])
def test_when_the_run_pauses(error: Callable[[], StoreError]) -> None:
    """A pause whose checkpoint cannot be saved is no pause: its record is an orphan that the next pause takes up."""
    store = memory_store(clock=Clock())
    stores, _ = failing(store, error, 1)
    agent = fresh_agent([("pay", {}), "done"], [pay], stores)
    with pytest.raises(StoreError):
        run(agent.send("go", session_id="s"))
    [orphan] = store.approvals.list(status=None).items
    assert stored(store).status is Status.IN_PROGRESS
    paused = run(fresh_agent([("pay", {}), "done"], [pay], store).resume("s"))
    assert paused.approval_id == orphan.id


def test_when_the_approval_cannot_be_written() -> None:
    """Without its approval record a run does not pause: the checkpoint never names one that is missing."""

    class NoApprovals:
        def __getattr__(self, name: str) -> Any:
            return getattr(store.approvals, name)

        def request(self, *arguments: Any) -> Any:
            raise rejected()

    store = memory_store(clock=Clock())
    agent = fresh_agent([("pay", {}), "done"], [pay], Stores(store.checkpoints, NoApprovals()))  # type: ignore[arg-type]
    with pytest.raises(StoreRejectedError):
        run(agent.send("go", session_id="s"))
    assert (stored(store).status, stored(store).approval_id) == (Status.IN_PROGRESS, None)
    assert run(fresh_agent([("pay", {})], [pay], store).resume("s")).finish_reason is FinishReason.AWAITING_APPROVAL


@pytest.mark.parametrize("error", [rejected, stale])
def test_when_a_decision_is_applied(error: Callable[[], StoreError]) -> None:
    """A decision that could not be saved has not been applied: nothing ran, and it can be applied again."""
    ran: list[str] = []
    store = memory_store(clock=Clock())
    gated = recorder(ran, needs_approval=True)
    paused = run(fresh_agent([("work", {}), "done"], [gated], store).send("go", session_id="s"))
    stores, _ = failing(store, error, 0)
    with pytest.raises(StoreError):
        run(fresh_agent([("work", {}), "done"], [gated], stores).approvals.resolve(paused.approval_id, approved=True))
    assert (ran, stored(store).status) == ([], Status.AWAITING_APPROVAL)
    assert not store.approvals.get(paused.approval_id).applied
    result = run(
        fresh_agent([("work", {}), "done"], [gated], store).approvals.resolve(paused.approval_id, approved=True)
    )
    assert (result.text, ran) == ("done", ["it"])


@pytest.mark.parametrize("at", range(8))
@pytest.mark.parametrize("error", [rejected, stale])
def test_wherever_a_save_fails_nothing_is_lost(error: Callable[[], StoreError], at: int) -> None:
    """After a failure at any save the next process comes to the end of the uninterrupted run."""
    ran: list[str] = []
    answers = [[("work", {"name": "a"}), ("work", {"name": "b"})], ("pay", {}), "done"]
    store = memory_store(clock=Clock())
    stores, _ = failing(store, error, at)

    def to_the_end(made: Any) -> Any:
        before = made.store.checkpoints.load("s")
        if before is None or before.status is Status.IN_PROGRESS:
            run(made.send("go", session_id="s"))
        if stored(store).status is Status.AWAITING_APPROVAL:
            return run(made.approvals.resolve(stored(store).approval_id, approved=True))
        return run(made.send([], session_id="s"))

    rerun_pay = tool(name="pay", needs_approval=True, recovery="rerun")(pay.function)
    tools = [recorder(ran), rerun_pay]
    with pytest.raises(StoreError):
        to_the_end(fresh_agent(answers, tools, stores, tool_concurrency=1))
    result = to_the_end(fresh_agent(answers, tools, store, tool_concurrency=1))
    assert texts(result.messages) == ["go", "", "a", "b", "", {"paid": 5}, "done"]
    again = 1 if error is stale and at in (1, 2) else 0
    assert len(ran) == 2 + again


def test_a_text_that_no_store_can_keep() -> None:
    """What a model says and no JSON can hold ends the run with an error that names the place, and is not saved."""
    store = memory_store(clock=Clock())
    with pytest.raises(RecordFormatError, match="messages"):
        run(fresh_agent(["half \ud800"], [], store).send("go", session_id="s"))
    assert store.checkpoints.load("s") is None
