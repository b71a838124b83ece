"""An agent as a tool of another: what it is given, what its lead gets back, and what is kept of it."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

import anyio
import pytest
from pydantic import BaseModel

from durable import (
    AbortSignal,
    Agent,
    AgentDriftError,
    ApprovalRequested,
    ApprovalStatus,
    Bounds,
    ConfigurationError,
    Event,
    FinishReason,
    Hooks,
    InvalidDecisionError,
    Patch,
    PatchedResult,
    ProviderRequestError,
    ProviderUnavailableError,
    ResumeToolMissingError,
    RunContext,
    RunResult,
    RunStart,
    Status,
    ToolContext,
    ToolDone,
    execute,
    resume_after_approval,
    tool,
)
from durable.hooks import Deny
from durable.providers.scripted import Scripted
from tests.support.runs import Clock, CrashingCheckpoints, Stores, fresh_agent, memory_store, numbered, run

ASK = ("researcher", {"task": "Look it up."})


@tool
def search(text: str) -> str:
    return f"found {text}"


@tool(needs_approval=True)
def refund(amount: int) -> str:
    return f"paid {amount}"


def child(*answers: Any, name: str = "researcher", **options: Any) -> Agent:
    return Agent(name=name, provider=Scripted(answers), **{"tools": [search, refund], **options})


def lead(below: Agent, *answers: Any, **options: Any) -> Agent:
    store = options.pop("store", None) or memory_store(clock=Clock())
    return fresh_agent(answers or (ASK, "Done."), options.pop("tools", []), store, subagents=[below], **options)


def requests(agent: Agent) -> list[Any]:
    assert isinstance(agent.provider, Scripted)
    return agent.provider.requests


def send(agent: Agent, **options: Any) -> RunResult:
    return run(execute(agent, "Hello", session_id="s", store=agent.store, **options))


def resolve(agent: Agent, paused: RunResult, approved: bool = True, **more: Any) -> RunResult:
    return run(agent.approvals.resolve(paused.approval_id or "", approved=approved, **more))


def results(result: RunResult) -> list[Any]:
    return [message.content for message in result.messages if message.role == "tool"]


# --- handing a task over ---------------------------------------------------------------------------------------------


def test_a_task_is_handed_over_and_its_answer_comes_back() -> None:
    """The sub-agent sees its task and nothing else; its answer is the call's result; what both used is summed up."""
    below = child(("search", {"text": "x"}), "It is x.", instructions="Search.")
    result = send(lead(below))
    assert (result.text, result.finish_reason, result.steps) == ("Done.", FinishReason.STOP, 2)
    assert results(result) == ["It is x."]
    assert result.usage.model_calls == 4
    first, second = requests(below)
    assert (first.instructions, [message.content for message in first.messages]) == ("Search.", ["Look it up."])
    assert second.messages[-1].content == "found x"
    assert result.checkpoint.suspended == {}


def test_the_lead_s_model_is_told_of_it_as_of_a_tool() -> None:
    """Name and description are the agent's, or those that it is given as a tool; it takes a task and nothing else."""
    below = child("ok", description="Looks things up.", name="search desk/2")
    agent = fresh_agent(["Done."], [below.as_tool("look", "Other words.")], None, subagents=[below])
    run(agent.send("Hello"))
    other, own = requests(agent)[0].tools
    assert (own.name, own.description) == ("search_desk_2", "Looks things up.")
    assert (other.name, other.description) == ("look", "Other words.")
    assert list(own.parameters["properties"]) == own.parameters["required"] == ["task"]


@pytest.mark.parametrize("arguments", [{}, {"task": 1}, {"task": "x", "session_id": "other"}])
def test_a_model_chooses_the_task_and_nothing_else(arguments: dict[str, Any]) -> None:
    """A call without a task, or with anything beside it, such as a session, is told that it does not fit."""
    below = child("ok")
    [refused] = results(send(lead(below, ("researcher", arguments), "Done.")))
    assert refused["kind"] == "validation"
    assert requests(below) == []


def test_an_answer_with_a_type_is_a_value() -> None:
    """The result of an agent with an output type is the value itself."""

    class Found(BaseModel):
        price: int

    below = child('{"price": 7}', output_type=Found)
    assert results(send(lead(below))) == [{"price": 7}]


def test_an_agent_that_ends_without_an_answer_is_an_error_to_its_lead() -> None:
    """Out of its own steps, it gives an error that says so, and the lead goes on."""
    below = child(("search", {"text": "x"}), "never", max_steps=1)
    result = send(lead(below))
    [ended] = results(result)
    assert (ended["kind"], ended["finish_reason"]) == ("execution", "max-steps")
    assert result.text == "Done."


def test_a_task_that_its_model_refuses_is_an_error_to_its_lead() -> None:
    """What the same transcript would meet again does not end the run: the lead is told."""
    [refused] = results(send(lead(child(ProviderRequestError("m", "no")))))
    assert (refused["kind"], refused["code"]) == ("execution", "PROVIDER_REQUEST")


def test_a_provider_that_is_down_ends_the_run_which_goes_on_where_it_was() -> None:
    """What a sub-agent has done stays; the next call carries it on, and its turns are asked for once."""
    down = [ProviderUnavailableError("m", "down")]

    def answer(request: Any) -> Any:
        turns = len(request.messages)
        if turns == 1:
            return "search", {"text": "x"}
        if down:
            raise down.pop()
        return "It is x."

    below = Agent(name="researcher", provider=Scripted(answer), tools=[search])
    agent = lead(below)
    with pytest.raises(ProviderUnavailableError):
        send(agent)
    stored = run(agent.resume("s"))
    assert (stored.text, results(stored), stored.usage.model_calls) == ("Done.", ["It is x."], 4)
    assert [len(request.messages) for request in requests(below)] == [1, 3, 3]


def test_its_tools_know_the_run_and_not_the_lead_s_conversation() -> None:
    """They get the run's session, id and context, their agent's path, and call ids that no other call has."""
    seen: list[ToolContext] = []

    @tool
    def look(ctx: ToolContext) -> str:
        seen.append(ctx)
        return "ok"

    below = child(("look", {}), "ok", tools=[look])
    agent = lead(below, [ASK, ASK], "Done.")
    result = send(agent, context={"tenant": 7})
    assert {(ctx.session_id, ctx.run_id, ctx.path, ctx.step) for ctx in seen} == {
        ("s", result.run_id, ("t", "researcher"), 1)
    }
    assert [ctx.run_context for ctx in seen] == [{"tenant": 7}] * 2
    assert len({ctx.tool_call_id for ctx in seen} | {"call_0_0", "call_0_1"}) == 4


def test_what_it_has_not_of_its_own_it_has_of_its_lead() -> None:
    """Model and hooks are inherited, one by one; the end of a run is the lead's alone."""
    heard: list[str] = []
    hooks = Hooks(
        before_tool=lambda call, arguments, ctx: Deny("never") if call.name == "search" else None,
        after_tool=lambda call, result, ctx: heard.append(f"lead {call.name}"),
        on_run_end=lambda result: heard.append("end"),
    )

    def answer(request: Any) -> Any:
        asked = "Look it up." in str(request.messages[0].content)
        turns = len(request.messages)
        return (("search", {"text": "x"}) if asked else ASK) if turns == 1 else "ok"

    own = Hooks(after_model=lambda request, turn: heard.append("own"), on_run_end=lambda result: heard.append("no"))
    below = Agent(name="researcher", tools=[search], hooks=own)
    agent = Agent(subagents=[below], hooks=hooks).bind(provider=Scripted(answer))
    result = run(agent.send("Hello"))
    assert heard == ["own", "own", "lead researcher", "end"]
    assert result.text == "ok"


def test_made_for_a_run_it_is_made_for_the_lead_s_context() -> None:
    """A dynamic sub-agent gets the run's session and context, and keeps the model that it began with."""
    made: list[RunContext] = []

    def tools(context: RunContext) -> list[Any]:
        made.append(context)
        return [search]

    send(lead(child("ok", tools=tools)), context="eu")
    assert [(context.session_id, context.context) for context in made] == [("s", "eu")]


# --- depth -----------------------------------------------------------------------------------------------------------


def chain(*names: str, **options: Any) -> Agent:
    """Agents below one another, the first one on top."""
    agent = Agent(name=names[-1], max_depth=9)
    for name in reversed(names[1:-1]):
        agent = Agent(name=name, subagents=[agent], max_depth=9)
    return Agent(name=names[0], subagents=[agent], **options)


def test_too_many_levels_are_an_error_where_the_agent_is_made() -> None:
    """Three levels below an agent by default, more if it says so; the error names the agents."""
    chain("a", "b", "c", "d")
    with pytest.raises(ConfigurationError, match=r"a > b > c > d > e are 4 levels"):
        chain("a", "b", "c", "d", "e")
    chain("a", "b", "c", "d", "e", max_depth=4)


def test_agents_in_a_circle_are_an_error_where_they_are_made() -> None:
    """Two agents of one name below one another cannot be told apart, and may be one and the same."""
    with pytest.raises(ConfigurationError, match=r"a > b > a"):
        chain("a", "b", "a")


def test_a_circle_of_dynamic_agents_is_found_when_it_runs() -> None:
    """Tools that are made for a run may bring an agent back below itself: that is refused then."""
    below = Agent(name="researcher", provider=Scripted([ASK]), tools=lambda context: [below.as_tool()])
    with pytest.raises(ConfigurationError, match="t > researcher > researcher"):
        send(lead(below))


# --- limits ----------------------------------------------------------------------------------------------------------


def test_the_lead_s_budget_is_for_all_of_them() -> None:
    """Tokens that a sub-agent uses count for the lead, whose end is then near: nothing more is begun below it."""
    below = child(("search", {"text": "x"}), ("search", {"text": "y"}), "ok")
    result = send(lead(below, max_tokens=30))
    [ended] = results(result)
    assert (ended["finish_reason"], result.finish_reason) == ("budget-exceeded", FinishReason.BUDGET_EXCEEDED)
    assert len(requests(below)) == 1


def test_out_of_time_it_stops_where_it_is() -> None:
    """A sub-agent that has no time for another model call stops the run cleanly, and goes on in the next slice."""
    left = [100.0]

    @tool
    def slow() -> str:
        left[0] = 3.0
        return "ok"

    below = child(("slow", {}), "It is x.", tools=[slow])
    agent = lead(below)
    stopped = send(agent, bounds=Bounds(remaining=lambda: left[0]))
    assert stopped.finish_reason is FinishReason.DEADLINE
    [state] = stopped.checkpoint.suspended.values()
    assert (state.status, state.step, len(state.messages)) == (Status.IN_PROGRESS, 1, 3)
    assert run(agent.resume("s")).text == "Done."
    assert len(requests(below)) == 2


def test_while_one_is_out_of_time_nobody_is_asked() -> None:
    """What can go on goes on first, in the next slice: then the one that waits is asked about."""
    left = [100.0]

    @tool
    def slow() -> str:
        left[0] = 3.0
        return "ok"

    busy = child(("slow", {}), "ok", name="busy", tools=[slow])
    asks = child(("refund", {"amount": 1}), "ok")
    agent = fresh_agent(
        [[ASK, ("busy", {"task": "Work."})], "Done."], [], memory_store(clock=Clock()), subagents=[busy, asks]
    )
    assert send(agent, bounds=Bounds(remaining=lambda: left[0])).finish_reason is FinishReason.DEADLINE
    paused = run(agent.resume("s"))
    assert paused.finish_reason is FinishReason.AWAITING_APPROVAL
    assert [state.agent for state in paused.checkpoint.suspended.values()] == ["researcher"]
    assert results(resolve(agent, paused)) == ["ok", "ok"]


def test_an_abort_reaches_it() -> None:
    """The run stops before the sub-agent's next act, and the lead's call says that something may have happened."""
    signal = AbortSignal()

    @tool
    def stop() -> str:
        signal.abort()
        return "ok"

    below = child(("stop", {}), "never", tools=[stop])
    agent = lead(below)
    stopped = run(agent.send("Hello", session_id="s", signal=signal))
    assert stopped.finish_reason is FinishReason.ABORTED
    [closed] = results(stopped)
    assert closed["kind"] == "unknown-outcome"
    assert (len(requests(below)), stopped.checkpoint.suspended) == (1, {})


# --- approvals -------------------------------------------------------------------------------------------------------


def test_a_pause_below_pauses_the_run() -> None:
    """The approval names the agents, the run sleeps, and the decision goes to the call that waits for it."""
    below = child(("refund", {"amount": 5}), "Paid.")
    agent = lead(below)
    paused = send(agent)
    assert paused.finish_reason is FinishReason.AWAITING_APPROVAL
    approval = run(agent.approvals.get(paused.approval_id or ""))
    assert (approval.request.agent, approval.request.path) == ("t", ("t", "researcher"))
    assert (approval.request.tool_name, approval.request.within) == ("refund", ("call_0_0",))
    done = resolve(agent, paused, args={"amount": 7})
    assert (done.text, done.usage.model_calls) == ("Done.", 4)
    assert requests(below)[-1].messages[-1].content == "paid 7"


def test_edited_arguments_are_checked_against_the_tool_that_asks() -> None:
    """Where the lead has another tool of that name, the sub-agent's own is the one that counts."""

    @tool(name="refund", needs_approval=True)
    def other(text: str) -> str:
        return text

    agent = lead(child(("refund", {"amount": 5}), "Paid."), tools=[other])
    paused = send(agent)
    with pytest.raises(InvalidDecisionError):
        resolve(agent, paused, args={"text": "x"})
    assert resolve(agent, paused, args={"amount": 7}).text == "Done."


def test_a_rejected_call_below_never_runs() -> None:
    """The sub-agent is told so, with the note, and goes on."""
    below = child(("refund", {"amount": 5}), "Not paid.")
    agent = lead(below)
    done = resolve(agent, send(agent), approved=False, note="too much")
    assert requests(below)[-1].messages[-1].content["note"] == "too much"
    assert results(done) == ["Not paid."]


@pytest.mark.parametrize(("policy", "ends"), [("reject", "stop"), ("halt", "guardrail")])
def test_nobody_answers_below(policy: Literal["reject", "halt"], ends: str) -> None:
    """At the deadline the call below is rejected, or the whole run ends, as its tool says."""
    pay = tool(needs_approval=True, name="pay", approval_timeout=timedelta(hours=1), on_timeout=policy)(lambda: "paid")
    clock = Clock()
    agent = lead(child(("pay", {}), "ok", tools=[pay]), clock=clock)
    paused = send(agent)
    clock.advance(hours=2)
    done = run(resume_after_approval(agent, paused.approval_id or "", store=agent.store))  # type: ignore[arg-type]
    assert done.finish_reason == ends
    assert done.checkpoint.suspended == {}
    assert run(agent.approvals.get(paused.approval_id or "")).status is ApprovalStatus.EXPIRED


def test_two_that_pause_in_one_turn_are_asked_one_after_the_other() -> None:
    """In call order; the second is not asked again about what it was asked before, and each runs once."""
    paid: list[int] = []

    @tool(needs_approval=True)
    def pay(amount: int) -> str:
        paid.append(amount)
        return f"paid {amount}"

    def answer(request: Any) -> Any:
        return ("pay", {"amount": int(request.messages[0].content)}) if len(request.messages) == 1 else "ok"

    below = Agent(name="researcher", provider=Scripted(answer), tools=[pay])
    agent = lead(below, [("researcher", {"task": "1"}), ("researcher", {"task": "2"})], "Done.")
    first = send(agent)
    second = resolve(agent, first)
    assert (paid, second.finish_reason) == ([1], FinishReason.AWAITING_APPROVAL)
    assert resolve(agent, second).text == "Done."
    assert paid == [1, 2]
    asked = [run(agent.approvals.get(id or "")).request for id in (first.approval_id, second.approval_id)]
    assert [(one.arguments, one.within) for one in asked] == [
        ({"amount": 1}, ("call_0_0",)),
        ({"amount": 2}, ("call_0_1",)),
    ]


def test_a_task_may_need_an_approval_itself_which_is_asked_for_once() -> None:
    """Before the agent begins; not again when the run comes back from a pause below."""
    policy: list[Any] = []
    below = child(("refund", {"amount": 5}), "Paid.")
    task = below.as_tool(needs_approval=lambda arguments, ctx: not policy.append(arguments))
    agent = fresh_agent([ASK, "Done."], [task], memory_store(clock=Clock()))
    first = send(agent)
    assert requests(below) == []
    second = resolve(agent, first)
    assert run(agent.approvals.get(second.approval_id or "")).request.path == ("t", "researcher")
    assert resolve(agent, second).text == "Done."
    assert policy == [{"task": "Look it up."}]


@pytest.mark.parametrize("pauses", [1, 5, 12])
def test_any_number_of_pauses_at_any_depth(pauses: int) -> None:
    """A sub-agent of a sub-agent is asked about again and again, each time by a new process; each call runs once."""
    paid: list[int] = []
    store, ids = memory_store(clock=Clock()), numbered("id")

    def process() -> Agent:
        @tool(needs_approval=True)
        def pay(amount: int) -> str:
            paid.append(amount)
            return f"paid {amount}"

        def answer(request: Any) -> Any:
            done = len(request.messages) // 2
            return ("pay", {"amount": done}) if done < pauses else "All paid."

        clerk = Agent(name="clerk", provider=Scripted(answer), tools=[pay], max_steps=pauses + 1)
        middle = Agent(name="researcher", provider=Scripted([("clerk", {"task": "Pay."}), "ok"]), subagents=[clerk])
        return lead(middle, store=store, ids=ids)

    result = send(process())
    for _ in range(pauses):
        assert run(process().approvals.get(result.approval_id or "")).request.path == ("t", "researcher", "clerk")
        result = resolve(process(), result)
    assert (result.text, paid) == ("Done.", list(range(pauses)))


def test_without_a_session_the_whole_run_sleeps_in_the_approval() -> None:
    """The snapshot holds the sub-agent's state, too."""
    below = child(("refund", {"amount": 5}), "Paid.")
    agent = lead(below)
    paused = run(agent.send("Hello"))
    assert resolve(agent, paused).text == "Done."
    assert len(requests(below)) == 2


# --- another agent than before ---------------------------------------------------------------------------------------


def paused_below() -> tuple[Any, RunResult]:
    agent = lead(child(("refund", {"amount": 5}), "Paid."))
    return agent.store, send(agent)


@pytest.mark.parametrize("strict", ["lead", "child"])
def test_drift_is_compared_at_each_level(strict: str) -> None:
    """Where the lead or the sub-agent says so, a changed sub-agent is refused before the decision is applied."""
    store, paused = paused_below()
    policy: dict[str, Any] = {"on_agent_drift": "error"}
    changed = child(("refund", {"amount": 5}), "Paid.", instructions="New.", **(policy if strict == "child" else {}))
    agent = lead(changed, store=store, **(policy if strict == "lead" else {}))
    with pytest.raises(AgentDriftError, match="instructions"):
        resolve(agent, paused)
    assert store.checkpoints.load("s") == paused.checkpoint
    assert resolve(lead(child(("refund", {"amount": 5}), "Paid."), store=store), paused).text == "Done."


def test_a_sub_agent_that_is_gone_is_missed() -> None:
    """A run whose sub-agent is at work needs it, and a tool of that one that a call waits for."""
    store, paused = paused_below()
    researcher = tool(name="researcher")(lambda: "no agent")
    for agent in (
        fresh_agent(["Done."], [], store),
        fresh_agent(["Done."], [researcher], store),
        lead(child("Paid.", tools=[search]), store=store),
    ):
        with pytest.raises(ResumeToolMissingError):
            resolve(agent, paused)
    assert store.checkpoints.load("s") == paused.checkpoint


# --- what is kept, told and forked -----------------------------------------------------------------------------------


def test_the_last_turn_of_a_sub_agent_is_saved_with_its_result() -> None:
    """A task costs a save for each of its turns and results, and none for its end."""
    store = memory_store(clock=Clock())
    saves = CrashingCheckpoints(store.checkpoints)
    send(lead(child(("search", {"text": "x"}), "ok"), store=Stores(saves, store.approvals)))
    assert saves.saves == 5  # the lead's turn; a turn and a result below; the answer as the result; the lead's answer


def test_events_carry_the_path() -> None:
    """What a sub-agent does is told with its path, in one count with all the rest."""
    seen: list[Event] = []
    agent = lead(child(("search", {"text": "x"}), ("refund", {"amount": 1}), "ok"))
    run(agent.send("Hello", session_id="s", listener=seen.append))
    assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
    below = ("t", "researcher")
    assert [event.path for event in seen if isinstance(event, RunStart)] == [("t",), below]
    assert [event.path for event in seen if isinstance(event, ToolDone | ApprovalRequested)] == [below, below]


def test_a_fork_of_a_run_whose_sub_agent_waits_asks_anew() -> None:
    """It goes on where the sub-agent is, under an approval of its own; the source is as it was."""
    agent = lead(child(("refund", {"amount": 5}), "Paid."))
    paused = send(agent)
    forked = run(agent.fork("s", from_step=1))
    again = run(agent.resume(forked.session_id))
    assert again.approval_id not in (None, paused.approval_id)
    assert run(agent.approvals.get(again.approval_id)).request.within == ("call_0_0",)
    assert resolve(agent, again).text == resolve(agent, paused).text == "Done."


def test_a_fork_may_give_a_sub_agent_s_call_another_result() -> None:
    """The call that waits below gets it, and is not asked about any more."""
    below = child(("refund", {"amount": 5}), "Paid.")
    agent = lead(below)
    paused = send(agent)
    [state] = paused.checkpoint.suspended.values()
    [call] = state.messages[-1].tool_calls  # type: ignore[union-attr]
    forked = run(agent.fork("s", from_step=1, patch=Patch(tool_result=PatchedResult(call.id, "paid elsewhere"))))
    assert run(agent.resume(forked.session_id)).text == "Done."
    assert requests(below)[-1].messages[-1].content == "paid elsewhere"


def test_what_is_said_meanwhile_follows_the_task() -> None:
    """A message to a run whose sub-agent was at work when it stopped waits for the task's result."""
    down: list[Callable[[], Exception]] = [lambda: ProviderUnavailableError("m", "down")]

    def answer(request: Any) -> Any:
        if down:
            raise down.pop()()
        return "It is x."

    agent = lead(Agent(name="researcher", provider=Scripted(answer)))
    with pytest.raises(ProviderUnavailableError):
        send(agent)
    done = run(agent.send("And y?", session_id="s"))
    assert [message.role for message in done.messages] == ["user", "assistant", "tool", "user", "assistant"]


def test_siblings_that_work_at_once_lose_nothing() -> None:
    """Ten sub-agents and their saves interleave; each result and all of what they used is there at the end."""

    @tool
    async def wait(turns: int) -> int:
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        return turns

    def answer(request: Any) -> Any:
        task, done = int(request.messages[0].content), len(request.messages) // 2
        return [("wait", {"turns": task * k % 7}) for k in range(3)] if done == 0 else f"{task}"

    below = Agent(name="researcher", provider=Scripted(answer), tools=[wait])
    agent = lead(below, [("researcher", {"task": str(n)}) for n in range(10)], "Done.")
    result = send(agent)
    assert results(result) == [str(n) for n in range(10)]
    assert result.usage.model_calls == 2 + 10 * 2
