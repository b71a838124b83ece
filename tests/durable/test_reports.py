"""Faults that users of other systems reported in public, and the tests that show the right behaviour here.

A test that is named `test_e2_…` belongs to row `e2` of this table. Rows that are not about a run are tested where they
belong, and are not listed here.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from durable import (
    Agent,
    AssistantMessage,
    Checkpoint,
    FinishReason,
    ModelRequest,
    ResumeToolMissingError,
    SessionAwaitingApprovalError,
    StaleCheckpointError,
    Status,
    ToolCall,
    ToolContext,
    tool,
)
from durable.providers.anthropic import Anthropic
from durable.providers.bedrock import Bedrock
from durable.providers.openai_chat import OpenAIChat
from durable.providers.openai_responses import OpenAIResponses
from durable.providers.scripted import Scripted
from durable.transcript import first_fault
from tests.support.runs import Clock, CrashingCheckpoints, Stores, fresh_agent, memory_store, numbered, run
from tests.support.sessions import asked, crashes, dying, ids, look, pay, recorder, results, stored, texts

ROWS = {
    "e1": "langgraph#8039: writes are not ordered before the checkpoint, and a crash decides what is done again",
    "e2": "langgraph#8115: a race between writes drops results of other tasks",
    "e3": "langgraph#7417: a slow tool is dispatched again, and both workers commit",
    "e5": "pydantic-ai#7157: a payload that cannot be stored is retried for ever",
    "e6": "aws-durable-execution-sdk-python#692: a replay serves the result of another operation",
    "e8": "aws-durable-execution-sdk-python#543: the first run sees the raw object, a replay the decoded one",
    "e11": "aws-durable-execution-sdk-java#338: a replay writes a finished operation once more and fails",
    "e12": "aws-durable-execution-sdk-java#51: a checkpoint that fails does not fail the run",
    "e15": "dbos-transact-py#679: a failure of the store is recorded as the error of a tool",
    "e17": "dbos-transact-ts#1205: two recoveries of one run, of which one waits for ever",
    "e18": "adk-python#7108: one of several parallel calls is answered, and the others never run",
    "e20": "adk-python#5064: a streamed call and its record have different ids",
    "e22": "temporal sdk-python#1890: a chat of 100 tool calls outgrows its history",
    "e23": "microsoft/agent-framework#6675: long sessions end at the size of one record",
    "e25": "microsoft/agent-framework#7137: a new machine starts over and has lost the pending approval",
    "a1": "langgraph#6626: parallel questions share an id, and answers go to the wrong tool",
    "a2": "langchain#37093: a rejected tool is run by another path",
    "a4": "pydantic-ai#3350: a call that nobody decided about counts as approved",
    "a7": "openai-agents-python#4447: an approval for always overrides the rejection of one call",
    "a8": "openai-agents-python#3867: malformed arguments slip past a policy",
    "a9": "openai-agents-python#4256: the approval of one tool opens another one of the same name",
    "a11": "openai-agents-python#4414: an approval inside an agent that is a tool is skipped or lost",
    "a13": "openai-agents-python#3360: the reason for a rejection is lost",
    "a14": "openai-agents-python#3229: the policy is asked again after the decision",
    "a15": "microsoft/agent-framework#8575: a failure during the resume leaves a session that nobody can use",
    "a16": "microsoft/agent-framework#7271: a call is there twice after a round trip, or only the last one is kept",
    "a18": "vercel/eve#236: a tool that was approved never runs, and the provider misses its output",
    "a19": "hermes-agent#54110: a time-out is taken for an answer by a human",
    "p1": "openai-agents-python#1797: results stand before the calls that they answer",
    "p3": "pydantic-ai#3647: a stream loses the signature of a call",
    "p5": "a call with an empty id cannot be resumed",
    "p6": "langchain-aws#739: a repair of orphaned calls closes those that wait for a human",
    "p7": "langgraph#6718: values change their type in the store without a word",
    "p8": "openai-agents-python#4307: structured results are lost or become their repr",
    "p11": "openai-agents-js#131: fields that a schema does not know are stripped",
}

TESTS = Path(__file__).parents[1]


def test_every_row_has_its_tests() -> None:
    """Each row of the table is named by at least one test of the suite."""
    named: Counter[str] = Counter()
    for path in TESTS.rglob("test_*.py"):
        for prefix in re.findall(r"^ *(?:async )?def test_((?:[a-z]\d+_)+)", path.read_text(), re.M):
            named.update(prefix.strip("_").split("_"))
    assert [row for row in ROWS if not named[row]] == []


# --- durability and recovery -----------------------------------------------------------------------------------------


def test_e1_nothing_happens_before_the_save_that_it_follows() -> None:
    """A tool starts when the turn that asks for it is stored, the model is asked when every result of it is."""
    store = memory_store(clock=Clock())
    happened: list[Any] = []

    class Watched(CrashingCheckpoints):
        def save(self, checkpoint: Checkpoint, *, after: Checkpoint | None) -> Checkpoint:
            saved = super().save(checkpoint, after=after)
            happened.append(("stored", len(saved.messages)))
            return saved

    @tool
    async def work(ctx: ToolContext) -> str:
        happened.append(ctx.tool_call_id)
        return "worked"

    def model(request: ModelRequest) -> Any:
        happened.append(("asked", len(request.messages)))
        return "done" if len(request.messages) > 3 else [("work", {}), ("work", {})]

    agent = fresh_agent(model, [work], Stores(Watched(store.checkpoints), store.approvals), tool_concurrency=1)  # type: ignore[arg-type]
    run(agent.send("go", session_id="s"))
    assert happened == [
        ("asked", 1),
        ("stored", 2),
        "call_0_0",
        ("stored", 3),
        "call_0_1",
        ("stored", 4),
        ("asked", 4),
        ("stored", 5),
    ]


def test_e3_a_worker_that_was_overtaken_cannot_commit() -> None:
    """When a second worker has finished the run, the first one's result is refused, and it does nothing further."""
    store = memory_store(clock=Clock())
    answers = [[("slow", {}), ("look", {})], "done"]
    ran: list[str] = []

    def worker(name: str, *, overtaken: bool) -> Any:
        @tool
        def slow() -> str:
            ran.append(name)
            if overtaken:
                run(worker("second", overtaken=False).send([], session_id="s"))
            return name

        return fresh_agent(answers, [slow, look], store, ids=numbered(name), tool_concurrency=1)

    first = worker("first", overtaken=True)
    with pytest.raises(StaleCheckpointError):
        run(first.send("go", session_id="s"))
    assert results(stored(store).messages) == ["second", "IT"]
    assert (stored(store).status, ran, asked(first)) == (Status.FINISHED, ["first", "second"], 1)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [object(), {1, object()}, float("nan"), nested(150), 10**5_000, "half \ud800"],
    ids=["object", "set", "nan", "deep", "5001 digits", "surrogate"],
)
def test_e5_a_result_that_cannot_be_kept_names_its_tool(value: Any) -> None:
    """A result that no store can hold is told to the model once, with the tool's name, and the run comes to its end."""

    @tool
    def measure() -> Any:
        return value

    agent = fresh_agent([("measure", {}), "done"], [measure], memory_store(clock=Clock()))
    result = run(agent.send("go", session_id="s"))
    [content] = [message.content for message in result.messages if message.role == "tool"]
    assert (result.text, asked(agent)) == ("done", 2)
    assert content["kind"] == "execution"
    assert "measure" in content["message"]


@pytest.mark.parametrize(
    "value", [10**4_250, 10**4_300 - 1, nested(99), -(10**20)], ids=["4251 digits", "4300 digits", "deep", "negative"]
)
def test_e5_a_result_at_the_limit_is_kept(value: Any) -> None:
    """Whatever the executor takes for a result, the store takes, too."""

    @tool
    def measure() -> Any:
        return value

    store = memory_store(clock=Clock())
    run(fresh_agent([("measure", {}), "done"], [measure], store).send("go", session_id="s"))
    assert results(stored(store).messages) == [value]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_e6_a_result_belongs_to_its_call_whatever_changes_around_it(order: tuple[int, ...]) -> None:
    """Tools that are listed in another order after a crash serve their own calls; one that is gone is a typed error."""
    ran: list[str] = []

    def named(name: str) -> Any:
        async def work(ctx: ToolContext) -> str:
            ran.append(f"{name} for {ctx.tool_call_id}")
            return name

        return tool(name=name)(work)

    tools = [named(name) for name in ("a", "b", "c")]
    answers = [[("a", {}), ("b", {}), ("c", {})], "done"]
    store = memory_store(clock=Clock())
    crashes(fresh_agent(answers, tools, dying(store, 1), tool_concurrency=1).send("go", session_id="s"))
    with pytest.raises(ResumeToolMissingError, match="'c'"):
        run(fresh_agent(answers, tools[:2], store).resume("s"))
    changed = [tools[index] for index in order]
    result = run(
        fresh_agent(answers, changed, store, tool_concurrency=1, on_agent_drift="error").send([], session_id="s")
    )
    assert results(result.messages) == ["a", "b", "c"]
    assert ran == ["a for call_0_0", "b for call_0_1", "c for call_0_2"]


@pytest.mark.parametrize("settled", range(5))
@pytest.mark.parametrize("backwards", [False, True])
def test_e18_exactly_the_missing_calls_run(settled: int, backwards: bool) -> None:
    """After a crash with any number of results, in any order, the resume runs the other calls, then asks the model."""
    turns = [anyio.Event() for _ in range(5)]
    ran: list[int] = []
    first = True
    loops: list[asyncio.AbstractEventLoop] = []

    async def model(request: ModelRequest) -> Any:
        loops.append(asyncio.get_running_loop())
        return answers[sum(message.role == "assistant" for message in request.messages)]

    @tool
    async def work(number: int) -> int:
        ran.append(number)
        if first:
            await turns[number].wait()
            following = number - 1 if backwards else number + 1
            crashing.after_save = lambda: turns[following].set() if 0 <= following < 4 else None
        return number

    class Crashing(CrashingCheckpoints):
        after_save: Any = staticmethod(lambda: None)

        def save(self, checkpoint: Checkpoint, *, after: Checkpoint | None) -> Checkpoint:
            saved = super().save(checkpoint, after=after)
            act, self.after_save = self.after_save, lambda: None
            loops[-1].call_soon_threadsafe(act)
            return saved

    store = memory_store(clock=Clock())
    answers = [[("work", {"number": number}) for number in range(4)], "done"]
    crashing = Crashing(store.checkpoints, at=settled, after=True)
    turns[3 if backwards else 0].set()
    crashes(fresh_agent(model, [work], Stores(crashing, store.approvals)).send("go", session_id="s"))  # type: ignore[arg-type]
    before = stored(store)
    assert len(ids(before.messages)) + len(before.results) == settled
    missing = [number for number in range(4) if not (number >= 4 - settled if backwards else number < settled)]
    first = False
    ran.clear()
    agent = fresh_agent(answers, [work], store)
    result = run(agent.send([], session_id="s"))
    assert (ran, results(result.messages), asked(agent)) == (missing, [0, 1, 2, 3], 1)


def test_e22_what_is_written_grows_with_the_transcript() -> None:
    """A run of 100 calls with large results completes, and twice the calls write about twice the bytes."""
    written: list[int] = []
    for calls in (50, 100):
        store = memory_store(clock=Clock())
        answers = [*(("look", {"what": f"{number} " * 800}) for number in range(calls)), "done"]
        result = run(fresh_agent(answers, [look], store, max_steps=200).send("go", session_id="s"))
        assert (result.text, result.tool_calls) == ("done", calls)
        assert stored(store) == result.checkpoint
        written.append(store.consumed().bytes_written)
    assert written[1] < 2.2 * written[0]
    assert written[1] < 3 * sum(len(text) for text in map(str, texts(result.messages)))


def test_e23_a_session_of_megabytes_goes_on() -> None:
    """A session that holds 5 MB pauses, is loaded by another process and takes its next message."""

    @tool
    def read(page: int) -> str:
        return f"{page:06} " * 36_000

    store = memory_store(clock=Clock())
    answers = [[("read", {"page": page}) for page in range(20)], ("pay", {}), "done", "and?"]
    paused = run(fresh_agent(answers, [read, pay], store).send("go", session_id="s"))
    result = run(fresh_agent(answers, [read, pay], store).approvals.resolve(paused.approval_id, approved=True))
    assert sum(len(str(text)) for text in texts(result.messages)) > 5_000_000
    assert run(fresh_agent(answers, [read, pay], store).send("and?", session_id="s")).text == "and?"
    assert stored(store).messages[:-2] == result.messages


# --- approvals -------------------------------------------------------------------------------------------------------


def test_a11_an_agent_inside_a_tool_cannot_skip_an_approval() -> None:
    """An agent that a tool runs by itself has nobody to ask: its gated call does not run, the outer run is told."""
    paid: list[str] = []

    @tool(name="pay", needs_approval=True)
    def gated() -> str:
        paid.append("paid")
        return "paid"

    @tool
    async def clerk() -> str:
        """Let the clerk do it."""
        return (await Agent(tools=[gated], provider=Scripted([("pay", {}), "Done."])).send("pay")).text

    outer = Agent(tools=[clerk], provider=Scripted([("clerk", {}), "I could not."]), store=memory_store())
    result = run(outer.send("pay", session_id="s"))
    [told] = results(result.messages)
    assert (told, paid, result.text) == ("execution", [], "I could not.")


def test_a11_an_approval_in_a_nested_agent_surfaces_on_the_outer_run() -> None:
    """Asked two agents down, the outer run pauses and names the agents; it is resumed cold, as often as it asks."""
    paid: list[int] = []
    store, ids = memory_store(clock=Clock()), numbered("id")

    def process() -> Agent:
        @tool(needs_approval=True)
        def pay(amount: int) -> str:
            paid.append(amount)
            return "paid"

        clerk = Agent(
            name="clerk", tools=[pay], provider=Scripted([("pay", {"amount": 1}), ("pay", {"amount": 2}), "Ok."])
        )
        desk = Agent(name="desk", subagents=[clerk], provider=Scripted([("clerk", {"task": "Pay."}), "Ok."]))
        return fresh_agent([("desk", {"task": "Pay."}), "All paid."], [], store, subagents=[desk], ids=ids)

    paused = run(process().send("pay", session_id="s"))
    for _ in range(2):
        [open_one] = run(process().approvals.list()).items
        assert (open_one.id, open_one.request.path) == (paused.approval_id, ("t", "desk", "clerk"))
        paused = run(process().approvals.resolve(open_one.id, approved=True))
    assert (paused.text, paid) == ("All paid.", [1, 2])


def test_a7_a_decision_is_about_one_call() -> None:
    """Approving a call opens no other one with the same tool and arguments, and a rejection of that one stands."""
    ran: list[str] = []
    gated = recorder(ran, needs_approval=True)
    answers = [[("work", {"name": "same"}), ("work", {"name": "same"})], ("work", {"name": "same"}), "done"]
    store = memory_store(clock=Clock())
    agent = fresh_agent(answers, [gated], store)
    paused = run(agent.send("go", session_id="s"))
    paused = run(agent.approvals.resolve(paused.approval_id, approved=True))
    assert (paused.finish_reason, ran) == (FinishReason.AWAITING_APPROVAL, ["same"])
    paused = run(agent.approvals.resolve(paused.approval_id, approved=False))
    assert (paused.finish_reason, ran) == (FinishReason.AWAITING_APPROVAL, ["same"])
    result = run(agent.approvals.resolve(paused.approval_id, approved=False))
    assert (results(result.messages), ran) == (["same", "rejected", "rejected"], ["same"])


PROTOCOLS = [
    pytest.param(OpenAIChat("m", api_key=None), id="openai chat"),
    pytest.param(OpenAIResponses("m", api_key=None), id="openai responses"),
    pytest.param(Anthropic("m", api_key=None), id="anthropic"),
    pytest.param(Bedrock("m"), id="bedrock"),
]


def pairs(protocol: Any, request: ModelRequest) -> list[tuple[str, Any]]:
    """Who speaks in what is sent, with the ids of calls and results."""
    sent: list[tuple[str, Any]] = []
    for kind, id in _spoken(protocol.body(request)):
        if kind == "call" and sent[-1][0] != "assistant":
            sent.append(("assistant", []))
        if kind == "call":
            sent[-1][1].append(id)
        else:
            sent.append((kind, id))
    return sent


def _spoken(body: Any) -> Iterator[tuple[str, Any]]:
    """One after the other: what a user says, a call, a result."""
    for message in body.get("input") or body["messages"]:
        content = message.get("content")
        blocks = content if isinstance(content, list) else [message]
        for block in blocks:
            match block:
                case {"toolUse": {"toolUseId": id}} | {"type": "tool_use", "id": id}:
                    yield "call", id
                case {"type": "function_call", "call_id": id}:
                    yield "call", id
                case {"toolResult": {"toolUseId": id}} | {"type": "tool_result", "tool_use_id": id}:
                    yield "tool", id
                case {"type": "function_call_output", "call_id": id} | {"role": "tool", "tool_call_id": id}:
                    yield "tool", id
                case {"tool_calls": calls}:
                    yield from (("call", call["id"]) for call in calls)
                case _:
                    yield "user", []


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("approved", [True, False])
def test_a18_what_was_decided_reaches_the_provider(approved: bool, protocol: Any) -> None:
    """The request after a decision has the call and, right behind it, its one result, in the provider's own words."""
    store = memory_store(clock=Clock())
    answers = [[("look", {}), ("pay", {}), ("look", {})], "done"]
    paused = run(fresh_agent(answers, [look, pay], store).send("go", session_id="s"))
    agent = fresh_agent(answers, [look, pay], store)
    run(agent.approvals.resolve(paused.approval_id, approved=approved))
    provider: Any = agent.provider
    [request] = provider.requests
    assert pairs(protocol, request) == [
        ("user", []),
        ("assistant", ["call_0_0", "call_0_1", "call_0_2"]),
        ("tool", "call_0_0"),
        ("tool", "call_0_1"),
        ("tool", "call_0_2"),
    ]


# --- transcript and provider -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_p1_results_follow_their_calls_in_order(protocol: Any) -> None:
    """However calls settle, and whatever is said meanwhile, each request has the results in call order first."""
    later = anyio.Event()

    @tool
    async def slow() -> str:
        await later.wait()
        return "slow"

    @tool
    async def quick() -> str:
        later.set()
        return "quick"

    store = memory_store(clock=Clock())
    answers = [[("slow", {}), ("quick", {})], [("quick", {})], "done"]
    agent = fresh_agent(answers, [slow, quick], store)
    crashes(fresh_agent(answers, [slow, quick], dying(store, 0)).send("go", session_id="s"))
    run(agent.send("and quickly", session_id="s"))
    provider: Any = agent.provider
    assert pairs(protocol, provider.requests[-1]) == [
        ("user", []),
        ("assistant", ["call_0_0", "call_0_1"]),
        ("tool", "call_0_0"),
        ("tool", "call_0_1"),
        ("user", []),
        ("assistant", ["call_1_0"]),
        ("tool", "call_1_0"),
    ]


@pytest.mark.parametrize("saves", range(3))
def test_p5_a_call_without_an_id_is_resumed(saves: int) -> None:
    """Calls whose provider gave no ids get one with the turn's save, and keep it through every crash."""
    seen: list[str] = []

    @tool
    async def work(ctx: ToolContext) -> str:
        seen.append(ctx.tool_call_id)
        return "worked"

    turn = AssistantMessage(tool_calls=(ToolCall(id="", name="work"), ToolCall(id="", name="work")))
    store = memory_store(clock=Clock())
    crashes(fresh_agent([turn, "done"], [work], dying(store, saves), tool_concurrency=1).send("go", session_id="s"))
    named = [
        call.id for message in stored(store).messages if message.role == "assistant" for call in message.tool_calls
    ]
    result = run(
        fresh_agent([turn, "done"], [work], store, ids=numbered("other"), tool_concurrency=1).send([], session_id="s")
    )
    assert ids(result.messages) == named
    assert seen == named
    assert first_fault(result.messages) is None


def test_p6_a_call_that_waits_for_a_human_is_not_repaired() -> None:
    """Loading, listing and refused messages leave a pending call without a result; the decision finds it so."""
    store = memory_store(clock=Clock())
    answers = [[("look", {}), ("pay", {}), ("look", {})], "done"]
    agent = fresh_agent(answers, [look, pay], store)
    paused = run(agent.send("go", session_id="s"))
    before = stored(store)
    for input in ("hello?", [], [*before.messages]):
        with pytest.raises(SessionAwaitingApprovalError):
            run(agent.send(input, session_id="s"))
    with pytest.raises(SessionAwaitingApprovalError):
        run(agent.resume("s"))
    run(agent.approvals.list())
    assert stored(store) == before
    assert results(before.messages) == ["IT"]
    result = run(agent.approvals.resolve(paused.approval_id, approved=True))
    assert results(result.messages) == ["IT", {"paid": 5}, "IT"]
