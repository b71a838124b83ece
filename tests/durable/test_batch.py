"""The calls of one turn: gates in call order, results as they settle, and nothing after something has gone wrong."""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from durable import (
    ConfigurationError,
    Decision,
    PropagatingToolError,
    StaleCheckpointError,
    StoreUnavailableError,
    Tool,
    ToolCall,
    ToolContext,
    ToolMessage,
    tool,
)
from durable.batch import Terms, run_calls
from durable.gate import Ask, Gate
from durable.results import approval_digest
from durable.signals import AbortSignal
from tests.support.runs import START, Clock, fresh_agent, memory_store, run


class Saves:
    """A ledger that keeps what was written, in order. It dies at its write number `dies_at`."""

    def __init__(self, *, dies_at: int | None = None, error: Exception | None = None) -> None:
        self.writes: list[tuple[str, tuple[str, ...]]] = []
        self.results: dict[str, ToolMessage] = {}
        self._dies_at = dies_at
        self._error = error or StoreUnavailableError("PutItem", "throttled")

    async def begin(self, call_ids: Sequence[str]) -> None:
        await self._write("begin", call_ids)

    async def settle(self, results: Sequence[ToolMessage]) -> None:
        await self._write("settle", [result.tool_call_id for result in results])
        self.results |= {result.tool_call_id: result for result in results}

    async def _write(self, what: str, call_ids: Sequence[str]) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.lowlevel.checkpoint()
        if len(self.writes) == self._dies_at:
            raise self._error
        self.writes.append((what, tuple(call_ids)))


def call(id: str, name: str, arguments: str = "{}") -> ToolCall:
    return ToolCall(id=id, name=name, arguments=arguments)


def approved(tool_name: str, arguments: Any = None, *, approved: bool = True, **more: Any) -> Decision:
    digest = approval_digest(tool_name, more.get("args") or arguments or {})
    return Decision(approval_id="apr_1", approved=approved, digest=digest, decided_at=START, **more)


def work(
    calls: Sequence[ToolCall],
    tools: Sequence[Tool],
    *,
    ledger: Saves | None = None,
    decisions: Mapping[str, Decision] | None = None,
    started: Sequence[str] = (),
    concurrency: int | None = None,
) -> tuple[Ask | None, Saves]:
    """Run a batch to its end."""
    ledger = ledger or Saves()
    gate = Gate(
        tools={made.name: made for made in tools},
        decisions=decisions or {},
        started=started,
        context=lambda call, grant: ToolContext(
            tool_call_id=call.id, session_id="s", run_id="r", step=1, approval=grant
        ),
    )
    terms = Terms(signal=AbortSignal(), concurrency=concurrency, grace=0.01)

    async def in_time() -> Ask | None:
        with anyio.fail_after(20):
            return await run_calls(calls, gate, ledger, terms)

    return run(in_time()), ledger


def recorder(ran: list[str], **options: Any) -> Callable[[str], Tool]:
    """Tools that say that they ran."""

    def make(name: str) -> Tool:
        async def record(ctx: ToolContext) -> str:
            ran.append(ctx.tool_call_id)
            return name

        return tool(name=name, **options)(record)

    return make


# --- results ---------------------------------------------------------------------------------------------------------


@tool
def pay(amount: int) -> dict[str, int]:
    return {"paid": amount}


@tool
def fail() -> None:
    raise RuntimeError("the service is down")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@tool
def fail_without_words() -> None:
    raise Unspeakable


@tool
def fail_with_odd_text() -> None:
    raise FileNotFoundError("caf\udce9.txt")


@tool
async def fail_at_length() -> None:
    raise ValueError("x" * 5_000)


@tool
async def leak_a_cancellation() -> None:
    raise asyncio.CancelledError


ERRORS: dict[str, tuple[ToolCall, str, str]] = {
    "unknown tool": (call("c", "nonsense"), "not-found", "nonsense"),
    "malformed arguments": (call("c", "pay", '{"amount": '), "validation", "not JSON"),
    "arguments that do not fit": (call("c", "pay", '{"amount": "much"}'), "validation", "amount"),
    "missing arguments": (call("c", "pay", ""), "validation", "amount"),
    "a tool that raises": (call("c", "fail"), "execution", "RuntimeError: the service is down"),
    "an error without text": (call("c", "fail_without_words"), "execution", "Unspeakable"),
    "an error with half a surrogate": (call("c", "fail_with_odd_text"), "execution", "FileNotFoundError: caf?.txt"),
    "an error that goes on and on": (call("c", "fail_at_length"), "execution", "ValueError: xxx"),
    "a cancellation that is nobody's": (call("c", "leak_a_cancellation"), "execution", "CancelledError"),
}


@pytest.mark.parametrize(("asked", "kind", "says"), ERRORS.values(), ids=ERRORS)
def test_a_failure_is_a_result(asked: ToolCall, kind: str, says: str) -> None:
    """Whatever goes wrong with a call is told to the model as its result: kind, tool and a short message, no stack."""
    tools = [pay, fail, fail_without_words, fail_with_odd_text, fail_at_length, leak_a_cancellation]
    ask, ledger = work([asked], tools)
    assert ask is None
    [result] = ledger.results.values()
    content: Any = result.content
    assert result.is_error
    assert (result.tool_call_id, result.tool_name) == ("c", asked.name)
    assert (content["error"], content["kind"], content["tool_name"]) == (True, kind, asked.name)
    assert says in content["message"]
    assert len(content["message"]) <= 2_000
    assert "Traceback" not in content["message"]


def test_a_validation_result_names_the_issues() -> None:
    """Arguments that do not fit are told with the place of each issue."""
    _, ledger = work([call("c", "pay", '{"amount": "much"}')], [pay])
    content: Any = ledger.results["c"].content
    assert [issue["loc"] for issue in content["issues"]] == [["amount"]]


def test_a2_a_rejected_call_never_runs() -> None:
    """A rejected call gets a `rejected` result with the note, and its tool is not touched; later calls go on."""
    ran: list[str] = []
    make = recorder(ran, needs_approval=True, recovery="rerun")
    decisions = {"a": approved("a", approved=False, note="too dear"), "b": approved("b")}
    ask, ledger = work([call("a", "a"), call("b", "b")], [make("a"), make("b")], decisions=decisions)
    assert (ask, ran) == (None, ["b"])
    content: Any = ledger.results["a"].content
    assert (content["kind"], content["note"], content["message"]) == ("rejected", "too dear", "too dear")


def test_a_rejection_without_a_note_says_so() -> None:
    """A rejection that nobody explained is still told as one, without a note."""
    _, ledger = work([call("c", "pay")], [pay], decisions={"c": approved("pay", approved=False)})
    content: Any = ledger.results["c"].content
    assert content["kind"] == "rejected"
    assert "note" not in content


def test_a_call_that_had_started_is_reported() -> None:
    """A call of recovery `report` that began before a crash does not run again: its outcome is unknown."""
    ran: list[str] = []
    make = recorder(ran, recovery="report")
    ask, ledger = work([call("a", "a"), call("b", "b")], [make("a"), make("b")], started=["a"])
    assert (ask, ran) == (None, ["b"])
    content: Any = ledger.results["a"].content
    assert content["kind"] == "unknown-outcome"


def test_a_human_decides_about_a_call_that_had_started() -> None:
    """A call of recovery `ask` that began before a crash waits for a human, even when it was approved before."""
    ran: list[str] = []
    a = recorder(ran, recovery="ask")("a")
    for decisions in ({}, {"a": approved("a")}):
        ask, ledger = work([call("a", "a")], [a], started=["a"], decisions=decisions)
        assert ask is not None
        assert (ask.call.id, ran, ledger.writes) == ("a", [], [])


def test_a_call_of_recovery_rerun_runs_again() -> None:
    """A call of recovery `rerun` is not named before it starts, and runs again after a crash."""
    ran: list[str] = []
    _, ledger = work([call("a", "a")], [recorder(ran)("a")], started=["a"])
    assert ran == ["a"]
    assert ledger.writes == [("settle", ("a",))]


# --- gates -----------------------------------------------------------------------------------------------------------


def test_nothing_after_the_first_gated_call_starts() -> None:
    """What stands before the first call that must be asked about runs and settles; what stands behind it waits."""
    ran: list[str] = []
    free, gated = recorder(ran), recorder(ran, needs_approval=True)
    calls = [call("1", "free"), call("2", "nonsense"), call("3", "gated"), call("4", "free"), call("5", "gated")]
    ask, ledger = work(calls, [free("free"), gated("gated")])
    assert ask is not None
    assert ask.call.id == "3"
    assert ran == ["1"]
    assert set(ledger.results) == {"1", "2"}


def test_gates_are_passed_in_call_order() -> None:
    """Policies are asked one after the other in call order, and not beyond the first that says yes."""
    looked: list[str] = []

    def policy(arguments: Any, context: ToolContext) -> bool:
        looked.append(context.tool_call_id)
        return arguments["amount"] > 10

    careful = tool(name="careful", needs_approval=policy)(pay.function)
    calls = [call(str(amount), "careful", f'{{"amount": {amount}}}') for amount in (5, 20, 1, 30)]
    ask, ledger = work(calls, [careful])
    assert ask is not None
    assert (ask.call.id, ask.arguments) == ("20", {"amount": 20})
    assert looked == ["5", "20"]
    assert ledger.results["5"].content == {"paid": 5}


@pytest.mark.parametrize("arguments", ['{"amount": ', '{"amount": NaN}', '{"amount": 1e999}', "[5]", '{"amount": "x"}'])
def test_a8_arguments_that_no_policy_can_judge_never_run(arguments: str) -> None:
    """A gated call with malformed arguments does not slip past its policy: it is an error, and nothing runs."""
    looked: list[Any] = []
    ran: list[str] = []

    def policy(arguments: Any, context: ToolContext) -> bool:
        looked.append(arguments)
        return False

    @tool(needs_approval=policy)
    def careful(amount: int) -> None:
        ran.append("careful")

    ask, ledger = work([call("c", "careful", arguments)], [careful])
    assert (ask, looked, ran) == (None, [], [])
    content: Any = ledger.results["c"].content
    assert content["kind"] == "validation"


def test_a14_a_policy_is_not_asked_again_after_the_decision() -> None:
    """An approved call runs without its policy being evaluated once more."""
    looked: list[Any] = []

    @tool(needs_approval=lambda arguments, context: looked.append(arguments) or True)  # type: ignore[func-returns-value]
    def careful(amount: int) -> int:
        return amount

    calls = [call("c", "careful", '{"amount": 5}')]
    ask, _ = work(calls, [careful])
    assert ask is not None
    ask, ledger = work(calls, [careful], decisions={"c": approved("careful", {"amount": 5})})
    assert (ask, len(looked)) == (None, 1)
    assert ledger.results["c"].content == 5


@pytest.mark.parametrize("arguments", ['{"amount": 6}', '{"amount": 5, "to": "me"}', '{"amount": 5.0}'])
def test_a_decision_is_about_the_arguments_that_were_shown(arguments: str) -> None:
    """A decision is bound to the tool and its final arguments: a call that has others is refused and does not run."""
    ran: list[str] = []

    @tool(needs_approval=True)
    def send(amount: float, to: str = "you") -> None:
        ran.append("send")

    decisions = {"c": approved("send", {"amount": 5})}
    _, ledger = work([call("c", "send", arguments)], [send], decisions=decisions)
    content: Any = ledger.results["c"].content
    assert (content["kind"], ran) == ("validation", [])
    _, ledger = work([call("c", "send", ' {"amount":5} ')], [send], decisions=decisions)
    assert (ledger.results["c"].is_error, ran) == (False, ["send"])


def test_a9_a_decision_of_another_tool_does_not_count() -> None:
    """The tool's name is part of what was decided."""
    ran: list[str] = []
    make = recorder(ran, needs_approval=True)
    _, ledger = work([call("c", "drop")], [make("drop")], decisions={"c": approved("look")})
    assert (ledger.results["c"].is_error, ran) == (True, [])


def test_edited_arguments_replace_the_models() -> None:
    """A call that was approved with other arguments runs with those, and its context names the approval."""
    seen: list[Any] = []

    @tool(needs_approval=True)
    def send(amount: int, ctx: ToolContext) -> None:
        assert ctx.approval is not None
        seen.append((amount, ctx.approval.id, ctx.approval.note, ctx.approval.by))

    decision = approved("send", args={"amount": 3}, note="less", by="ada")
    work([call("c", "send", '{"amount": 5}')], [send], decisions={"c": decision})
    work([call("c", "send", "garbage")], [send], decisions={"c": decision})
    assert seen == [(3, "apr_1", "less", "ada")] * 2


# --- running ---------------------------------------------------------------------------------------------------------


def test_results_are_written_as_they_settle() -> None:
    """A result is written when its call is done, also while an earlier call still runs."""
    ledger = Saves()
    later_written = anyio.Event()

    @tool
    async def slow() -> str:
        await later_written.wait()
        return "slow"

    @tool
    async def quick() -> str:
        return "quick"

    async def watch() -> None:
        settle = ledger.settle

        async def settled(results: Sequence[ToolMessage]) -> None:
            await settle(results)
            if "quick" in ledger.results:
                later_written.set()

        ledger.settle = settled  # type: ignore[method-assign]

    run(watch())
    work([call("slow", "slow"), call("quick", "quick")], [slow, quick], ledger=ledger)
    assert ledger.writes == [("settle", ("quick",)), ("settle", ("slow",))]


@pytest.mark.parametrize("colour", ["async", "plain"])
def test_e2_thirty_tools_that_end_together_lose_nothing(colour: str) -> None:
    """Thirty calls that settle at the same moment all have their result, however the saves fall."""
    together = threading.Barrier(30, timeout=20)
    arrived: list[int] = []

    @tool
    def plain(number: int) -> int:
        together.wait()
        return number

    gate: list[anyio.Event] = []

    async def coroutine(number: int) -> int:
        if not gate:
            gate.append(anyio.Event())
        arrived.append(number)
        if len(arrived) == 30:
            gate[0].set()
        await gate[0].wait()
        return number

    meet = plain if colour == "plain" else tool(name="plain")(coroutine)
    asked = [[("plain", {"number": number}) for number in range(30)], "done"]
    store = memory_store(clock=Clock())
    result = run(fresh_agent(asked, [meet], store).send("go", session_id="s"))
    stored = store.checkpoints.load("s")
    assert stored is not None
    for messages in (result.messages, stored.messages):
        assert [message.content for message in messages if message.role == "tool"] == list(range(30))


@pytest.mark.parametrize(("concurrency", "most"), [(1, 1), (3, 3), (None, 8), (50, 8)])
def test_no_more_calls_run_at_once_than_allowed(concurrency: int | None, most: int) -> None:
    """A call starts when a slot is free; without a limit all of them run together."""
    running: list[int] = [0, 0]

    @tool
    async def count() -> None:
        running[0] += 1
        running[1] = max(running)
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        running[0] -= 1

    _, ledger = work([call(str(n), "count") for n in range(8)], [count], concurrency=concurrency)
    assert running == [0, most]
    assert len(ledger.results) == 8


def test_calls_start_in_call_order() -> None:
    """With one slot the calls run one after the other, each saved before the next one starts."""
    ran: list[str] = []
    ids = tuple("abcd")
    _, ledger = work([call(id, "go") for id in ids], [recorder(ran)("go")], concurrency=1)
    assert ran == list(ids)
    assert ledger.writes == [("settle", (id,)) for id in ids]


def test_calls_that_start_together_are_named_in_one_write() -> None:
    """Calls that must not silently run twice are named before they start, those that start together at once."""
    ran: list[str] = []
    once, often = recorder(ran, recovery="report"), recorder(ran)
    calls = [call("1", "once"), call("2", "often"), call("3", "once")]
    _, ledger = work(calls, [once("once"), often("often")])
    assert ledger.writes[0] == ("begin", ("1", "3"))
    _, ledger = work(calls, [once("once"), often("often")], concurrency=1)
    assert [write for write in ledger.writes if write[0] == "begin"] == [("begin", ("1",)), ("begin", ("3",))]


# --- when something goes wrong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [StoreUnavailableError("PutItem", "throttled"), StaleCheckpointError("s", 3)])
def test_e12_e15_no_tool_starts_after_a_save_that_failed(error: Exception) -> None:
    """A failing save raises the store's error, no further tool runs, and no error becomes a result."""
    for dies_at in range(4):
        ran: list[str] = []
        ledger = Saves(dies_at=dies_at, error=error)
        with pytest.raises(type(error)):
            work([call(id, "go") for id in "abcd"], [recorder(ran)("go")], ledger=ledger, concurrency=1)
        assert ran == list("abcd")[: dies_at + 1]
        assert not any(result.is_error for result in ledger.results.values())


def test_a_call_that_could_not_be_named_does_not_start() -> None:
    """When the save that names a call fails, the call has not run."""
    ran: list[str] = []
    with pytest.raises(StoreUnavailableError):
        work([call("a", "go")], [recorder(ran, recovery="report")("go")], ledger=Saves(dies_at=0))
    assert ran == []


def test_a_failing_save_of_a_refusal_starts_nothing() -> None:
    """Refusals are saved before anything starts: when that fails, nothing has run."""
    ran: list[str] = []
    with pytest.raises(StoreUnavailableError):
        work([call("a", "nonsense"), call("b", "go")], [recorder(ran)("go")], ledger=Saves(dies_at=0))
    assert ran == []


def test_a_running_sibling_is_stopped_by_a_failing_save() -> None:
    """A sibling that still runs when a save fails is cancelled, and the run does not wait for it."""
    ended: list[str] = []

    @tool
    async def slow() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("slow")

    with pytest.raises(StoreUnavailableError):
        work([call("a", "slow"), call("b", "go")], [slow, recorder([])("go")], ledger=Saves(dies_at=0))
    assert ended == ["slow"]


def test_a_propagating_error_waits_for_its_siblings() -> None:
    """A `PropagatingToolError` ends the batch; siblings that run are awaited and kept, and nothing more starts."""
    raised = anyio.Event()
    ran: list[str] = []

    @tool
    async def stop() -> None:
        raised.set()
        raise PropagatingToolError("enough")

    @tool
    async def slow() -> str:
        await raised.wait()
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        return "slow"

    ledger = Saves()
    calls = [call("a", "slow"), call("b", "stop"), call("c", "go")]
    with pytest.raises(PropagatingToolError, match="enough"):
        work(calls, [slow, stop, recorder(ran)("go")], ledger=ledger, concurrency=2)
    assert ran == []
    assert {id: result.content for id, result in ledger.results.items()} == {"a": "slow"}


def test_the_first_propagating_error_is_the_one_that_is_raised() -> None:
    """Of several propagating errors one is raised, and the run ends as it would with one."""

    @tool
    async def stop(why: str) -> None:
        raise PropagatingToolError(why)

    calls = [call(why, "stop", f'{{"why": "{why}"}}') for why in ("first", "second")]
    with pytest.raises(PropagatingToolError, match="first"):
        work(calls, [stop])


def test_a_run_that_was_cut_off_keeps_what_had_settled() -> None:
    """When the time is up, results that are there are written and running calls are left without a result."""
    ledger = Saves()
    done = anyio.Event()

    @tool
    async def quick() -> str:
        done.set()
        return "quick"

    @tool
    async def slow() -> None:
        await anyio.sleep_forever()

    async def cut_off() -> None:
        gate = Gate(
            tools={"quick": quick, "slow": slow},
            decisions={},
            started=(),
            context=lambda call, grant: ToolContext(tool_call_id=call.id, session_id="s", run_id="r", step=1),
        )
        calls = [call("q", "quick"), call("s", "slow")]
        async with anyio.create_task_group() as group:

            async def stop_it() -> None:
                await done.wait()
                group.cancel_scope.cancel()

            group.start_soon(stop_it)
            await run_calls(calls, gate, ledger, Terms(signal=AbortSignal()))

    run(cut_off())
    assert list(ledger.results) == ["q"]


def test_a_tool_may_raise_any_error_of_ours() -> None:
    """Only a propagating error ends the run; any other error of this package is a result like a stranger's."""

    @tool
    async def odd() -> None:
        raise ConfigurationError("not set up")

    _, ledger = work([call("c", "odd")], [odd])
    content: Any = ledger.results["c"].content
    assert content["message"] == "ConfigurationError: not set up"
