"""Hooks: what each may change, when each is asked, and what becomes of a run whose hook raises."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from durable import (
    AbortSignal,
    AssistantMessage,
    Bounds,
    ConfigurationError,
    Deny,
    FinishReason,
    GiveResult,
    Hooks,
    ModelRequest,
    ModelTurn,
    ReplaceArguments,
    RunResult,
    Status,
    ToolCall,
    ToolContext,
    ToolMessage,
    Watch,
    execute,
    tool,
)
from tests.support.runs import Clock, fresh_agent, memory_store, run
from tests.support.sessions import crashes, dying, look, recorder, results, stored, texts


def hooked(answers: Any, tools: Any, store: Any = None, *, hooks: Hooks, **options: Any) -> Any:
    return fresh_agent(answers, tools, store or memory_store(clock=Clock()), hooks=hooks, **options)


def plain_and_async(intervention: Any) -> list[Any]:
    """The same hook, synchronous and not."""

    async def later(*arguments: Any) -> Any:
        return intervention

    return [pytest.param(lambda *arguments: intervention, id="plain"), pytest.param(later, id="async")]


class Bank:
    """A tool that moves money, with and without a human."""

    def __init__(self, **options: Any) -> None:
        self.paid: list[Any] = []

        @tool(**options)
        def pay(amount: int, to: str = "bob") -> str:
            self.paid.append((amount, to))
            return f"{amount} to {to}"

        self.pay = pay


PAY = [("pay", {"amount": 5}), "done"]

# --- before_tool -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before_tool", plain_and_async(Deny("Not on a Sunday.")))
def test_a_denied_call_does_not_run(before_tool: Any) -> None:
    """A hook may deny a call: its result is `denied` with the reason, and the run goes on."""
    bank = Bank()
    result = run(hooked(PAY, [bank.pay], hooks=Hooks(before_tool=before_tool)).send("go"))
    [message] = [message for message in result.messages if isinstance(message, ToolMessage)]
    assert message.content == {
        "error": True,
        "kind": "denied",
        "tool_name": "pay",
        "message": "Not on a Sunday.",
        "reason": "Not on a Sunday.",
    }
    assert (message.is_error, bank.paid, result.text) == (True, [], "done")


@pytest.mark.parametrize("before_tool", plain_and_async(ReplaceArguments({"amount": 3, "to": "eve"})))
def test_replaced_arguments_are_what_runs(before_tool: Any) -> None:
    """A hook may replace the arguments; the transcript keeps those that the model wrote."""
    bank = Bank()
    result = run(hooked(PAY, [bank.pay], hooks=Hooks(before_tool=before_tool)).send("go"))
    assert (bank.paid, results(result.messages)) == ([(3, "eve")], ["3 to eve"])
    turn: Any = result.messages[1]
    assert turn.tool_calls[0].arguments == '{"amount": 5}'


@pytest.mark.parametrize("arguments", [{"amount": "much"}, {}, {"amount": 3, "for": "x"}, {"amount": object()}, [3]])
def test_replaced_arguments_are_validated_again(arguments: Any) -> None:
    """Arguments that a hook gives must fit as the model's must: else the result is `validation` and nothing runs."""
    bank = Bank()
    hooks = Hooks(before_tool=lambda *_: ReplaceArguments(arguments))
    result = run(hooked(PAY, [bank.pay], hooks=hooks).send("go"))
    assert (results(result.messages), bank.paid) == (["validation"], [])


@pytest.mark.parametrize("before_tool", plain_and_async(GiveResult({"at": 17, "items": []})))
def test_a_result_that_a_hook_gives_is_the_calls(before_tool: Any) -> None:
    """A hook may give the result: the tool does not run, nobody is asked, and the result is no error."""
    bank = Bank(needs_approval=True)
    agent = hooked(PAY, [bank.pay], hooks=Hooks(before_tool=before_tool))
    result = run(agent.send("go", session_id="s"))
    assert (results(result.messages), bank.paid) == ([{"at": 17, "items": []}], [])
    assert run(agent.approvals.list(status=None)).items == []


def test_a_given_result_is_converted_like_a_tools() -> None:
    """What a hook gives is kept as JSON, so that a resumed run sees the same."""
    given: Any = {"when": datetime(2030, 1, 1, tzinfo=UTC), "who": ("a", "b")}
    result = run(hooked(PAY, [Bank().pay], hooks=Hooks(before_tool=lambda *_: GiveResult(given))).send("go"))
    assert results(result.messages) == [{"when": "2030-01-01T00:00:00Z", "who": ["a", "b"]}]


def test_a_hook_sees_calls_that_could_run() -> None:
    """`before_tool` gets valid arguments and the context, in call order; other calls it is not asked about."""
    seen: list[Any] = []

    def before_tool(call: ToolCall, arguments: Any, context: ToolContext) -> None:
        seen.append((call.name, arguments, context.tool_call_id, context.session_id, context.step))

    answers = [[("pay", {"amount": 1}), ("nonsense", {}), ("pay", {"amount": "x"}), ("pay", {"amount": 2})], "done"]
    run(hooked(answers, [Bank().pay], hooks=Hooks(before_tool=before_tool)).send("go", session_id="s"))
    assert seen == [("pay", {"amount": 1}, "call_0_0", "s", 1), ("pay", {"amount": 2}, "call_0_3", "s", 1)]


def test_approval_is_asked_for_the_replaced_arguments() -> None:
    """The human sees the final arguments, the policy judges them, and approved they are what runs."""
    judged: list[Any] = []
    bank = Bank(needs_approval=lambda arguments, context: judged.append(arguments) or True)  # type: ignore[func-returns-value]
    agent = hooked(PAY, [bank.pay], hooks=Hooks(before_tool=lambda *_: ReplaceArguments({"amount": 3})))
    paused = run(agent.send("go", session_id="s"))
    assert run(agent.approvals.get(paused.approval_id)).request.arguments == {"amount": 3}
    assert judged == [{"amount": 3}]
    run(agent.approvals.resolve(paused.approval_id, approved=True))
    assert bank.paid == [(3, "bob")]


def test_arguments_changed_in_place_are_replaced_arguments() -> None:
    """A hook that changes what it was given is taken at its word: validated, asked about, and kept as JSON."""

    def before_tool(call: ToolCall, arguments: Any, context: ToolContext) -> None:
        arguments["to"] = datetime(2030, 1, 1, tzinfo=UTC)

    bank = Bank(needs_approval=True)
    agent = hooked(PAY, [bank.pay], hooks=Hooks(before_tool=before_tool))
    paused = run(agent.send("go", session_id="s"))
    shown = run(agent.approvals.get(paused.approval_id)).request.arguments
    assert shown == {"amount": 5, "to": "2030-01-01T00:00:00Z"}
    run(agent.approvals.resolve(paused.approval_id, approved=True))
    assert bank.paid == [(5, "2030-01-01T00:00:00Z")]


def raised(amount: int) -> Callable[..., ReplaceArguments]:
    return lambda call, arguments, context: ReplaceArguments({**arguments, "amount": amount})


@pytest.mark.parametrize("args", [None, {"amount": 4}])
def test_a_hook_that_changes_what_was_approved_is_refused(args: Any) -> None:
    """Hooks run again on an approved call: when they change its arguments now, it does not run."""
    store = memory_store(clock=Clock())
    bank = Bank(needs_approval=True)
    paused = run(fresh_agent(PAY, [bank.pay], store).send("go", session_id="s"))
    later = hooked(PAY, [bank.pay], store, hooks=Hooks(before_tool=raised(500)))
    result = run(later.approvals.resolve(paused.approval_id, approved=True, args=args))
    assert (results(result.messages), bank.paid) == (["validation"], [])


def test_a_hook_cannot_change_a_recorded_decision() -> None:
    """Edited arguments that a hook changes in place are refused, and the decision stays as the human made it."""
    store = memory_store(clock=Clock())
    bank = Bank(needs_approval=True)
    paused = run(fresh_agent(PAY, [bank.pay], store).send("go", session_id="s"))
    seen: list[Any] = []

    def before_tool(call: ToolCall, arguments: Any, context: ToolContext) -> None:
        seen.append(dict(arguments))
        arguments["amount"] = 500

    for _ in range(2):
        agent = hooked(PAY, [bank.pay], dying(store, 1, after=False), hooks=Hooks(before_tool=before_tool))
        crashes(agent.approvals.resolve(paused.approval_id, approved=True, args={"amount": 4}))
        assert stored(store).decisions["call_0_0"].args == {"amount": 4}
    assert seen == [{"amount": 4}, {"amount": 4}]
    assert bank.paid == []


@pytest.mark.parametrize(
    ("intervention", "outcome"), [(Deny("no more"), "denied"), (GiveResult("done already"), "done already")]
)
def test_a_hook_may_still_stop_an_approved_call(intervention: Any, outcome: str) -> None:
    """A yes of a human does not overrule the agent's owner."""
    store = memory_store(clock=Clock())
    bank = Bank(needs_approval=True)
    paused = run(fresh_agent(PAY, [bank.pay], store).send("go", session_id="s"))
    later = hooked(PAY, [bank.pay], store, hooks=Hooks(before_tool=lambda *_: intervention))
    result = run(later.approvals.resolve(paused.approval_id, approved=True))
    assert (results(result.messages), bank.paid) == ([outcome], [])


# --- after_tool ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", ["plain", "async"])
def test_another_result_of_the_same_call(colour: str) -> None:
    """`after_tool` may give another result, also in place of an error; that one is kept and sent to the model."""

    @tool
    def fail() -> None:
        raise RuntimeError("down")

    def after_tool(call: ToolCall, result: ToolMessage, context: ToolContext) -> ToolMessage | None:
        assert context.tool_call_id == call.id == result.tool_call_id
        content = "unavailable" if result.is_error else f"{result.content}!"
        return None if call.name == "look" and result.content == "B" else result.model_copy(update={"content": content})

    async def later(*arguments: Any) -> Any:
        return after_tool(*arguments)

    store = memory_store(clock=Clock())
    hook: Any = after_tool if colour == "plain" else later
    answers = [[("look", {"what": "a"}), ("fail", {}), ("look", {"what": "b"})], "done"]
    agent = hooked(answers, [look, fail], store, hooks=Hooks(after_tool=hook))
    run(agent.send("go", session_id="s"))
    sent = [message.content for message in agent.provider.requests[1].messages[2:]]
    assert sent == texts(stored(store).messages)[2:-1] == ["A!", "unavailable", "B"]


def test_the_result_of_another_call_is_refused() -> None:
    """A hook that mixes two calls up ends the run instead of mixing the transcript up."""

    def after_tool(call: ToolCall, result: ToolMessage, context: ToolContext) -> ToolMessage:
        return ToolMessage(tool_call_id="another", tool_name=call.name)

    store = memory_store(clock=Clock())
    with pytest.raises(ConfigurationError, match="another call"):
        run(
            hooked([("look", {}), "done"], [look], store, hooks=Hooks(after_tool=after_tool)).send("go", session_id="s")
        )
    assert results(stored(store).messages) == []


# --- before_model, after_model ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", ["plain", "async"])
def test_what_the_model_is_asked_may_be_changed(colour: str) -> None:
    """`before_model` may give another request: it is what the model gets, and the transcript does not know of it."""

    def before_model(request: ModelRequest) -> ModelRequest:
        return ModelRequest(instructions="Be kind.", messages=request.messages[-1:], tools=())

    async def later(request: ModelRequest) -> ModelRequest:
        return before_model(request)

    store = memory_store(clock=Clock())
    hook: Any = before_model if colour == "plain" else later
    agent = hooked(lambda request: "hello", [look], store, hooks=Hooks(before_model=hook))
    for text in ("a", "b"):
        run(agent.send(text, session_id="s"))
    assert [texts(request.messages) for request in agent.provider.requests] == [["a"], ["b"]]
    assert {(request.instructions, request.tools) for request in agent.provider.requests} == {("Be kind.", ())}
    assert texts(stored(store).messages) == ["a", "hello", "b", "hello"]
    assert stored(store).instructions is None


@pytest.mark.parametrize("colour", ["plain", "async"])
def test_what_the_model_answered_may_be_changed(colour: str) -> None:
    """`after_model` may give another turn: it is what is saved and what the run goes on with."""
    ran: list[str] = []

    def after_model(request: ModelRequest, turn: ModelTurn) -> ModelTurn | None:
        if not turn.message.tool_calls:
            return None
        return ModelTurn(message=AssistantMessage(content="No tools today."), finish_reason=FinishReason.CONTENT_FILTER)

    async def later(request: ModelRequest, turn: ModelTurn) -> ModelTurn | None:
        return after_model(request, turn)

    store = memory_store(clock=Clock())
    hook: Any = after_model if colour == "plain" else later
    answers = [("work", {}), "fine"]
    agent = hooked(answers, [recorder(ran)], store, hooks=Hooks(after_model=hook))
    first = run(agent.send("go", session_id="s"))
    assert (first.text, first.finish_reason, ran) == ("No tools today.", FinishReason.CONTENT_FILTER, [])
    assert run(agent.send("and?", session_id="s")).text == "fine"
    assert texts(stored(store).messages) == ["go", "No tools today.", "and?", "fine"]


# --- on_run_end ------------------------------------------------------------------------------------------------------


def test_every_end_of_a_run_is_told() -> None:
    """`on_run_end` gets the result of a run that pauses, is aborted, is out of time or finishes, when it is saved."""
    told: list[tuple[FinishReason, Status]] = []
    store = memory_store(clock=Clock())

    def on_run_end(result: RunResult) -> None:
        assert result.checkpoint == stored(store)
        told.append((result.finish_reason, result.checkpoint.status))

    bank = Bank(needs_approval=True)
    agent = hooked(PAY, [bank.pay], store, hooks=Hooks(on_run_end=on_run_end))
    stopped = AbortSignal()
    stopped.abort()
    run(agent.send("go", session_id="s", signal=stopped))
    run(execute(agent, [], session_id="s", store=store, bounds=Bounds(remaining=lambda: 1.0)))
    paused = run(agent.send([], session_id="s"))
    run(agent.approvals.resolve(paused.approval_id, approved=True))
    assert told == [
        (FinishReason.ABORTED, Status.IN_PROGRESS),
        (FinishReason.DEADLINE, Status.IN_PROGRESS),
        (FinishReason.AWAITING_APPROVAL, Status.AWAITING_APPROVAL),
        (FinishReason.STOP, Status.FINISHED),
    ]
    run(agent.send([], session_id="s"))
    assert len(told) == 4


def test_the_end_may_be_told_to_a_coroutine() -> None:
    """`on_run_end` may be asynchronous; `execute` comes back after it."""
    told: list[str] = []

    async def on_run_end(result: RunResult) -> None:
        await anyio.lowlevel.checkpoint()
        told.append(result.text)

    run(hooked(["hello"], [], hooks=Hooks(on_run_end=on_run_end)).send("go"))
    assert told == ["hello"]


# --- hooks that raise ------------------------------------------------------------------------------------------------


class Unwell(Exception):
    pass


def unwell(*arguments: Any) -> Any:
    raise Unwell


async def unwell_later(*arguments: Any) -> Any:
    raise Unwell


@pytest.mark.parametrize("raises", [unwell, unwell_later])
@pytest.mark.parametrize("name", ["before_model", "after_model", "before_tool", "after_tool", "on_run_end"])
def test_a_hook_that_raises_rejects_the_run(name: str, raises: Any) -> None:
    """The run ends with the hook's own error, what was saved stays, and an agent whose hook is well goes on."""
    store = memory_store(clock=Clock())
    answers = [("look", {}), "done"]
    with pytest.raises(Unwell):
        run(hooked(answers, [look], store, hooks=Hooks(**{name: raises})).send("go", session_id="s"))
    saved = store.checkpoints.load("s")
    match name:
        case "before_model" | "after_model":
            assert saved is None
        case "before_tool" | "after_tool":
            assert (saved.status, texts(saved.messages)) == (Status.IN_PROGRESS, ["go", ""])
        case _:
            assert saved.status is Status.FINISHED
    assert texts(
        run(fresh_agent(answers, [look], store).send("go" if saved is None else [], session_id="s")).messages
    ) == [
        "go",
        "",
        "IT",
        "done",
    ]


def test_siblings_of_a_call_whose_hook_raises_are_awaited_and_saved() -> None:
    """Calls that run when a hook raises come to their end and keep their result; calls that wait do not start."""
    raised = anyio.Event()
    ran: list[str] = []

    @tool
    async def slow() -> str:
        await raised.wait()
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        return "slow"

    def after_tool(call: ToolCall, result: ToolMessage, context: ToolContext) -> None:
        if call.name == "look":
            raised.set()
            raise Unwell

    store = memory_store(clock=Clock())
    answers = [[("slow", {}), ("look", {}), ("work", {})], "done"]
    agent = hooked(answers, [slow, look, recorder(ran)], store, hooks=Hooks(after_tool=after_tool), tool_concurrency=2)
    with pytest.raises(Unwell):
        run(agent.send("go", session_id="s"))
    assert (results(stored(store).messages), ran) == (["slow"], [])
    raised.set()
    result = run(fresh_agent(answers, [slow, look, recorder(ran)], store).send([], session_id="s"))
    assert (results(result.messages), ran) == (["slow", "IT", "it"], ["it"])


def test_nothing_starts_when_a_gate_raises() -> None:
    """`before_tool` is asked about all calls of a turn before any starts: when it raises, none has run."""
    ran: list[str] = []

    def before_tool(call: ToolCall, arguments: Any, context: ToolContext) -> None:
        if arguments["name"] == "b":
            raise Unwell

    store = memory_store(clock=Clock())
    answers = [[("work", {"name": name}) for name in "abc"], "done"]
    with pytest.raises(Unwell):
        run(hooked(answers, [recorder(ran)], store, hooks=Hooks(before_tool=before_tool)).send("go", session_id="s"))
    assert (ran, results(stored(store).messages)) == ([], [])


# --- crashes ---------------------------------------------------------------------------------------------------------


def test_hooks_run_again_for_what_runs_again() -> None:
    """After a crash the hooks are asked about the calls and turns that are made again, and about no recorded one."""
    seen: list[str] = []
    hooks = Hooks(
        before_model=lambda request: seen.append("model"),
        before_tool=lambda call, arguments, context: seen.append(call.id),
        after_tool=lambda call, result, context: seen.append(f"{call.id} gave {result.content}"),
    )
    store = memory_store(clock=Clock())
    answers = [[("look", {"what": "a"}), ("look", {"what": "b"})], "done"]
    crashes(hooked(answers, [look], dying(store, 1), hooks=hooks, tool_concurrency=1).send("go", session_id="s"))
    assert seen == ["model", "call_0_0", "call_0_1", "call_0_0 gave A"]
    seen.clear()
    run(hooked(answers, [look], store, hooks=hooks).send([], session_id="s"))
    assert seen == ["call_0_1", "call_0_1 gave B", "model"]


def test_hooks_are_asked_by_a_stream_and_by_a_watched_run() -> None:
    """A hook does not depend on how the run is watched."""
    told: list[str] = []
    agent = hooked(["hello"], [], hooks=Hooks(on_run_end=lambda result: told.append(result.text)))

    async def both() -> None:
        async with agent.stream("go") as events:
            await events.result
        await execute(agent, "go", watch=Watch(signal=AbortSignal(), listener=lambda event: None))

    run(both())
    assert told == ["hello", "hello"]
