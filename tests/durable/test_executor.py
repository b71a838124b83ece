"""The loop with a store: what an input does to a session, what a run counts, how it stops when something is wrong."""

import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from durable import (
    Agent,
    AssistantMessage,
    Bounds,
    Checkpoint,
    ConfigurationError,
    DurableError,
    FinishReason,
    InvalidSessionIdError,
    ModelRequest,
    ModelTurn,
    PropagatingToolError,
    ProviderAuthenticationError,
    ProviderError,
    ProviderRateLimitError,
    ProviderRequestError,
    ProviderResponseError,
    ProviderUnavailableError,
    RequestConflictError,
    ResultExpiredError,
    ResumeToolMissingError,
    SessionAwaitingApprovalError,
    StaleCheckpointError,
    Status,
    StoreError,
    StoreRejectedError,
    StoreUnavailableError,
    SystemMessage,
    Tool,
    ToolCall,
    ToolContext,
    Usage,
    execute,
    executor,
    loop,
    resume_after_approval,
    tool,
)
from durable.admission import admitted, recorded_answer, redelivered
from durable.ports import CheckpointStore
from durable.records import MAX_ACCEPTED
from durable.transcript import first_fault
from tests.support.runs import (
    Clock,
    Crash,
    CrashingCheckpoints,
    Stores,
    fresh_agent,
    memory_store,
    numbered,
    run,
)
from tests.support.transcripts import says, user


@tool
def look(what: str = "it") -> str:
    return what.upper()


@tool(needs_approval=True)
def pay(amount: int = 5) -> dict[str, int]:
    return {"paid": amount}


def echo(name: str) -> str:
    return name


def stored(store: Any, session_id: str = "s") -> Checkpoint:
    checkpoint = store.checkpoints.load(session_id)
    assert checkpoint is not None
    return checkpoint


def texts(checkpoint: Checkpoint) -> list[Any]:
    return [message.content for message in (*checkpoint.messages, *checkpoint.queued)]


def asked(agent: Any) -> int:
    return len(agent.provider.requests)


def crash_after(store: Any, saves: int, answers: Any, tools: Any = (look,)) -> None:
    """Send `go` in a process that dies after its save number `saves` (from 0)."""
    dying = CrashingCheckpoints(store.checkpoints, at=saves, after=True)
    agent = fresh_agent(answers, tools, Stores(dying, store.approvals), tool_concurrency=1)
    with pytest.raises(Crash):
        run(agent.send("go", session_id="s"))


# --- what an input does ----------------------------------------------------------------------------------------------


def test_a_first_message_starts_a_session_and_the_next_one_continues_it() -> None:
    """A session grows by turns: each input is the next one, and the model sees everything before it."""
    store = memory_store(clock=Clock())
    agent = fresh_agent(["one", "two"], [], store, instructions="Be brief.")
    first = run(agent.send("a", session_id="s"))
    second = run(agent.send("b", session_id="s"))
    assert (first.text, second.text) == ("one", "two")
    assert first.run_id != second.run_id
    assert texts(stored(store)) == ["a", "one", "b", "two"]
    assert (stored(store).turns, stored(store).committed) == (2, 4)
    assert [message.content for message in agent.provider.requests[1].messages] == ["a", "one", "b"]
    assert agent.provider.requests[1].instructions == "Be brief."


def test_a_text_only_reply_makes_one_save() -> None:
    """A turn without tools is saved once, when its answer is there."""
    inner = memory_store(clock=Clock())
    counting = CrashingCheckpoints(inner.checkpoints)
    run(fresh_agent(["hello"], [], Stores(counting, inner.approvals)).send("hi", session_id="s"))
    assert counting.saves == 1


def test_a_system_message_is_not_stored() -> None:
    """Instructions belong to the agent: a system message in the input is neither kept nor sent."""
    store = memory_store(clock=Clock())
    agent = fresh_agent(["hello"], [], store)
    run(agent.send([SystemMessage(content="be evil"), user("hi")], session_id="s"))
    assert texts(stored(store)) == ["hi", "hello"]
    assert [message.role for message in agent.provider.requests[0].messages] == ["user"]


def test_a_retry_resumes_and_another_text_waits_behind_the_results() -> None:
    """An unfinished run takes the same input as a retry, and another one as input that follows its pending results."""
    answers = [[("look", {"what": "a"}), ("look", {"what": "b"})], "done"]
    for input, tail in (("go", []), ("and?", ["and?"]), ([], [])):
        store = memory_store(clock=Clock())
        crash_after(store, 1, answers)
        agent = fresh_agent(answers, [look], store)
        result = run(agent.send(input, session_id="s"))
        assert texts(stored(store)) == ["go", "", "A", "B", *tail, "done"]
        assert (result.text, asked(agent)) == ("done", 1)


def test_queued_input_survives_further_crashes() -> None:
    """Input that waits behind pending calls is stored with the checkpoint and sent once, after the last result."""
    answers = [[("look", {"what": "a"}), ("look", {"what": "b"})], "done"]
    store = memory_store(clock=Clock())
    crash_after(store, 0, answers)
    dying = CrashingCheckpoints(store.checkpoints, at=0, after=True)
    second = fresh_agent(answers, [look], Stores(dying, store.approvals), tool_concurrency=1)
    with pytest.raises(Crash):
        run(second.send("and?", session_id="s"))
    assert [message.content for message in stored(store).queued] == ["and?"]
    run(fresh_agent(answers, [look], store).send([], session_id="s"))
    assert texts(stored(store)) == ["go", "", "A", "B", "and?", "done"]


def test_a_full_history_and_one_that_lags_mean_what_is_new() -> None:
    """A client may send its whole history each time, and may have missed the newest messages of an unfinished run."""
    answers = [("look", {"what": "a"}), "done", "bye"]
    store = memory_store(clock=Clock())
    crash_after(store, 1, answers)
    history = [user("go"), stored(store).messages[1]]
    agent = fresh_agent(answers, [look], store)
    run(agent.send(history, session_id="s"))
    assert texts(stored(store)) == ["go", "", "A", "done"]
    run(agent.send([*stored(store).messages, user("thanks")], session_id="s"))
    assert texts(stored(store)) == ["go", "", "A", "done", "thanks", "bye"]


def test_repeating_a_text_is_a_new_turn_of_a_finished_session() -> None:
    """A finished session answers the same text anew."""
    store = memory_store(clock=Clock())
    agent = fresh_agent(["one", "two"], [], store)
    run(agent.send("hi", session_id="s"))
    assert run(agent.send("hi", session_id="s")).text == "two"


def test_a_history_may_be_brought_along() -> None:
    """A new session may start with a conversation from elsewhere; only its last user messages are the input."""
    store = memory_store(clock=Clock())
    result = run(fresh_agent(["ignored", "two"], [], store).send([user("a"), says("one"), user("b")], session_id="s"))
    assert (result.text, result.steps) == ("two", 1)
    assert texts(stored(store)) == ["a", "one", "b", "two"]


@pytest.mark.parametrize("input", ["", [], [SystemMessage(content="x")]])
def test_nothing_starts_no_session(input: Any) -> None:
    """Without a message there is nothing to run and nothing is stored; an empty text is a message."""
    store = memory_store(clock=Clock())
    agent = fresh_agent(["hello"], [], store)
    if input == "":
        assert run(agent.send(input, session_id="s")).text == "hello"
        return
    with pytest.raises(ConfigurationError, match="Nothing to run"):
        run(agent.send(input, session_id="s"))
    assert store.checkpoints.load("s") is None


@pytest.mark.parametrize("session_id", ["", "a\x00b", "a\nb", "x" * 257, "\ud800", "\x85", 5])
def test_a_session_id_that_cannot_be_one_is_refused(session_id: Any) -> None:
    """An id that is empty, too long, no valid Unicode or has control characters reaches neither model nor store."""
    store = memory_store(clock=Clock())
    agent = fresh_agent(["hello"], [], store)
    with pytest.raises(InvalidSessionIdError):
        run(agent.send("hi", session_id=session_id))
    assert (asked(agent), store.consumed().requests) == (0, 0)


def test_ids_that_look_alike_are_different_sessions() -> None:
    """Ids are compared exactly: separators, case, dots and blanks lead to sessions of their own."""
    store = memory_store(clock=Clock())
    ids = ["a", "A", "a/b", "a#b", "..", " ", "é", "e\u0301", "x" * 256]
    for session_id in ids:
        run(fresh_agent([session_id], [], store).send("hi", session_id=session_id))
    assert [stored(store, session_id).messages[-1].content for session_id in ids] == ids


def test_a_run_without_a_session_keeps_nothing() -> None:
    """Without a session id and a store a run works and leaves no trace; one without the other is a mistake."""
    store = memory_store(clock=Clock())
    agent = fresh_agent([("look", {}), "done"], [look], store)
    result = run(agent.send("go"))
    assert (result.text, result.session_id) == ("done", None)
    assert store.consumed().requests == 0
    with pytest.raises(ConfigurationError):
        run(execute(agent, "go", session_id="s"))
    with pytest.raises(ConfigurationError):
        run(execute(agent, "go", store=store))
    with pytest.raises(ConfigurationError):
        run(fresh_agent(["x"], [], None).send("go", session_id="s"))


def test_an_approval_needs_a_store() -> None:
    """A run that cannot sleep cannot wait for a human: it ends with an error that names the tool."""
    with pytest.raises(ConfigurationError, match="pay"):
        run(fresh_agent([("pay", {})], [pay], None).send("go"))


def test_an_agent_without_a_model_cannot_run() -> None:
    """An agent that nobody gave a model is a configuration error, and its session stays as it was."""
    store = memory_store(clock=Clock())
    with pytest.raises(ConfigurationError, match="provider"):
        run(Agent(store=store).send("go", session_id="s"))
    assert store.checkpoints.load("s") is None


# --- a run that is over, and one that waits --------------------------------------------------------------------------


def test_e11_resuming_a_finished_run_writes_nothing() -> None:
    """Whoever asks a finished run again gets its recorded result, without a write and without a model call."""
    store = memory_store(clock=Clock())
    done = run(fresh_agent([("look", {}), "done"], [look], store).send("go", session_id="s"))
    written = store.consumed().bytes_written
    agent = fresh_agent([], [], store)
    for again in (run(agent.send([], session_id="s")), run(agent.send(done.messages, session_id="s"))):
        assert (again.text, again.usage, again.steps, again.tool_calls) == ("done", done.usage, 2, 1)
        assert again.messages == done.messages
    assert run(agent.resume("s")) is None
    assert run(agent.resume("unknown")) is None
    assert (asked(agent), store.consumed().bytes_written) == (0, written)


def test_e11_resuming_an_applied_approval_writes_nothing() -> None:
    """Applying a decision once more gives the finished run's result and writes nothing."""
    store = memory_store(clock=Clock())
    agent = fresh_agent([("pay", {}), "paid"], [pay], store)
    paused = run(agent.send("go", session_id="s"))
    run(agent.approvals.resolve(paused.approval_id, approved=True))
    written = store.consumed().bytes_written
    again = run(resume_after_approval(agent, paused.approval_id, store=store))
    assert (again.text, asked(agent), store.consumed().bytes_written) == ("paid", 2, written)


def test_a_paused_session_takes_no_input() -> None:
    """While a decision is pending every input is refused: no model call, no tool, nothing written."""
    store = memory_store(clock=Clock())
    agent = fresh_agent([("pay", {}), "paid"], [pay], store)
    paused = run(agent.send("go", session_id="s"))
    before, written = stored(store), store.consumed().bytes_written
    for input in ("go", "more", [], before.messages):
        with pytest.raises(SessionAwaitingApprovalError) as refused:
            run(agent.send(input, session_id="s"))
        assert refused.value.approval_id == paused.approval_id
    with pytest.raises(SessionAwaitingApprovalError):
        run(agent.resume("s"))
    assert (asked(agent), store.consumed().bytes_written) == (1, written)
    assert stored(store) == before


# --- counts ----------------------------------------------------------------------------------------------------------


def turn(message: AssistantMessage, number: int) -> ModelTurn:
    return ModelTurn(message=message, usage=Usage(model_calls=1, input_tokens=number, output_tokens=1))


def test_usage_and_steps_count_from_the_start_of_the_run() -> None:
    """Usage adds up over the model calls of a run, a resume included, and starts anew with the next turn."""
    call = AssistantMessage(tool_calls=(ToolCall(id="c", name="look"),))
    answers = [turn(call, 10), turn(says("done"), 100), turn(says("bye"), 1_000)]
    store = memory_store(clock=Clock())
    crash_after(store, 0, answers)
    first = run(fresh_agent(answers, [look], store).send("go", session_id="s"))
    assert first.usage == Usage(model_calls=2, input_tokens=110, output_tokens=2)
    assert (first.steps, first.tool_calls) == (2, 1)
    second = run(fresh_agent(answers, [look], store).send("more", session_id="s"))
    assert second.usage == Usage(model_calls=1, input_tokens=1_000, output_tokens=1)
    assert (second.steps, second.tool_calls) == (1, 0)


def test_a_run_ends_at_its_step_limit_and_the_next_turn_has_a_fresh_one() -> None:
    """After `max_steps` model turns a run finishes with every call answered; the next turn starts at none."""
    answers = [("look", {"what": str(step)}) for step in range(4)] + ["done"]
    store = memory_store(clock=Clock())
    agent = fresh_agent(answers, [look], store, max_steps=2)
    first = run(agent.send("go", session_id="s"))
    assert (first.finish_reason, first.text, first.steps) == (FinishReason.MAX_STEPS, "", 2)
    assert stored(store).status is Status.FINISHED
    assert first_fault(stored(store).messages) is None
    second = run(agent.send("more", session_id="s"))
    assert (second.finish_reason, second.steps) == (FinishReason.MAX_STEPS, 2)
    assert run(agent.send("and?", session_id="s")).text == "done"


def test_a_resumed_run_has_what_is_left_of_its_steps() -> None:
    """The steps before a crash count: a resumed run does not get a new budget."""
    answers = [("look", {}), ("look", {}), ("look", {}), "done"]
    store = memory_store(clock=Clock())
    crash_after(store, 0, answers)
    agent = fresh_agent(answers, [look], store, max_steps=2)
    result = run(agent.send("go", session_id="s"))
    assert (result.finish_reason, result.steps, asked(agent)) == (FinishReason.MAX_STEPS, 2, 1)


def test_input_that_meets_the_step_limit_is_not_lost() -> None:
    """What a user says when the run has no step left joins the transcript, and the next turn answers it."""
    answers = [("look", {"what": "a"}), "done"]
    store = memory_store(clock=Clock())
    crash_after(store, 1, answers)
    agent = fresh_agent(answers, [look], store, max_steps=1)
    result = run(agent.send("and?", session_id="s"))
    assert result.finish_reason is FinishReason.MAX_STEPS
    assert stored(store).queued == ()
    assert texts(stored(store)) == ["go", "", "A", "and?"]
    assert run(agent.send("well?", session_id="s")).text == "done"
    assert texts(stored(store)) == ["go", "", "A", "and?", "well?", "done"]


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.CONTENT_FILTER])
def test_a_run_finishes_for_the_reason_that_the_model_gave(reason: FinishReason) -> None:
    """The reason why the model stopped is the run's."""
    answer = ModelTurn(message=says("cut"), finish_reason=reason)
    result = run(fresh_agent([answer], [], memory_store(clock=Clock())).send("go", session_id="s"))
    assert (result.finish_reason, result.text) == (reason, "cut")


# --- deadlines -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("left", "calls"), [(14.9, 0), (15.0, 1), (15.1, 1)])
def test_no_model_call_starts_with_too_little_time(left: float, calls: int) -> None:
    """With less than `min_model_seconds` left the model is not asked: the input is saved, and the reason."""
    store = memory_store(clock=Clock())
    agent = fresh_agent(["done"], [], store)
    result = run(execute(agent, "go", session_id="s", store=store, bounds=Bounds(remaining=lambda: left)))
    assert asked(agent) == calls
    if calls:
        assert result.text == "done"
        assert agent.provider.requests[0].timeout == left
        return
    assert (result.finish_reason, result.checkpoint.status) == (FinishReason.DEADLINE, Status.IN_PROGRESS)
    assert texts(stored(store)) == ["go"]
    assert run(fresh_agent(["done"], [], store).send([], session_id="s")).text == "done"


def test_a_model_call_that_the_deadline_cuts_off_was_never_made() -> None:
    """When the time is up during a model call, nothing of it is recorded and the next slice asks again."""

    async def never(request: ModelRequest) -> str:
        await anyio.sleep_forever()
        raise AssertionError

    store = memory_store(clock=Clock())
    bounds = Bounds(remaining=lambda: 0.01, min_model_seconds=0.0)
    result = run(execute(fresh_agent(never, [], store), "go", session_id="s", store=store, bounds=bounds))
    assert result.finish_reason is FinishReason.DEADLINE
    assert (texts(stored(store)), stored(store).step, stored(store).usage) == (["go"], 0, Usage())
    assert run(fresh_agent(["done"], [], store).resume("s")).text == "done"  # type: ignore[union-attr]


def test_a_deadline_among_tools_keeps_what_has_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the time is up during tools, no call is closed: settled results stay, the next slice runs the others."""
    monkeypatch.setattr(loop, "MIN_TOOL_SECONDS", 0.0)
    ran: list[str] = []
    hangs = [True]

    @tool
    async def work(name: str, ctx: ToolContext) -> str:
        ran.append(ctx.tool_call_id)
        if name == "slow" and hangs:
            await anyio.sleep_forever()
        return name

    answers = [[("work", {"name": "slow"}), ("work", {"name": "quick"})], "done"]
    store = memory_store(clock=Clock())
    left = iter([100.0, 0.05])
    bounds = Bounds(remaining=lambda: next(left, 0.05))
    result = run(execute(fresh_agent(answers, [work], store), "go", session_id="s", store=store, bounds=bounds))
    assert result.finish_reason is FinishReason.DEADLINE
    assert list(stored(store).results) == ["call_0_1"]
    hangs.clear()
    assert run(fresh_agent(answers, [work], store).send([], session_id="s")).text == "done"
    assert ran == ["call_0_0", "call_0_1", "call_0_0"]


def test_no_tool_starts_with_too_little_time() -> None:
    """With less than a second left the calls of a saved turn wait for the next slice."""
    ran: list[str] = []

    @tool
    def work() -> None:
        ran.append("work")

    store = memory_store(clock=Clock())
    left = iter([100.0, 100.0])
    bounds = Bounds(remaining=lambda: next(left, 0.9))
    agent = fresh_agent([("work", {}), "done"], [work], store)
    result = run(execute(agent, "go", session_id="s", store=store, bounds=bounds))
    assert (result.finish_reason, ran, stored(store).step) == (FinishReason.DEADLINE, [], 1)


def test_a_slice_that_gets_nowhere_leaves_the_revision_as_it_is() -> None:
    """Only the first of several slices without progress writes that the time was up, so that they can be counted."""
    store = memory_store(clock=Clock())
    bounds = Bounds(remaining=lambda: 1.0)
    revisions = []
    for _ in range(3):
        result = run(execute(fresh_agent(["done"], [], store), "go", session_id="s", store=store, bounds=bounds))
        assert result.finish_reason is FinishReason.DEADLINE
        revisions.append(stored(store).revision)
    assert len(set(revisions)) == 1
    run(execute(fresh_agent(["done"], [], store), "more", session_id="s", store=store, bounds=bounds))
    assert stored(store).revision == revisions[0] + 1
    assert texts(stored(store)) == ["go", "more"]


def test_hanging_threads_do_not_hold_up_the_save(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain tools that never return do not keep the run from saving that its time is up."""
    monkeypatch.setattr(loop, "MIN_TOOL_SECONDS", 0.0)
    release = threading.Event()

    @tool
    def hang() -> None:
        release.wait(20)

    store = memory_store(clock=Clock())
    left = iter([100.0, 100.0])
    bounds = Bounds(remaining=lambda: next(left, 0.1))
    agent = fresh_agent([[("hang", {})] * 50], [hang], store)
    try:
        result = run(execute(agent, "go", session_id="s", store=store, bounds=bounds))
    finally:
        release.set()
    assert result.finish_reason is FinishReason.DEADLINE
    assert stored(store).finish_reason is FinishReason.DEADLINE


# --- providers that fail ---------------------------------------------------------------------------------------------

FAILURES = [
    ProviderAuthenticationError("scripted", "Incorrect API key provided.", status=401),
    ProviderRequestError("scripted", "The context is too long.", status=400),
    ProviderResponseError("scripted", "The answer is not JSON."),
    ProviderRateLimitError("scripted", "Slow down.", status=429, retry_after=3),
    ProviderUnavailableError("scripted", "It is down.", status=500),
]


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: error.code)
def test_a_provider_error_leaves_the_session_usable(error: ProviderError) -> None:
    """After any provider error the finished turns are untouched, the checkpoint says why, and new input works."""
    store = memory_store(clock=Clock())
    run(fresh_agent(["one"], [], store).send("a", session_id="s"))
    with pytest.raises(type(error)) as raised:
        run(fresh_agent(["one", error], [], store).send("b", session_id="s"))
    assert raised.value is error
    after = stored(store)
    assert (after.status, after.committed, after.turns) == (Status.IN_PROGRESS, 2, 1)
    assert texts(after) == ["a", "one", "b"]
    assert after.last_error is not None
    assert (after.last_error.code, after.last_error.retryable) == (error.code, error.retryable)
    result = run(fresh_agent(["one", "two"], [], store).send("c", session_id="s"))
    poisoned = isinstance(error, ProviderRequestError)
    assert result.text == "two"
    assert texts(stored(store)) == ["a", "one", *([] if poisoned else ["b"]), "c", "two"]
    assert stored(store).last_error is None


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: error.code)
def test_a_provider_error_can_be_tried_again(error: ProviderError) -> None:
    """After any provider error the same input, and a resume, ask the model once more."""
    for input in ("b", []):
        store = memory_store(clock=Clock())
        run(fresh_agent(["one"], [], store).send("a", session_id="s"))
        with pytest.raises(type(error)):
            run(fresh_agent(["one", error], [], store).send("b", session_id="s"))
        assert run(fresh_agent(["one", "two"], [], store).send(input, session_id="s")).text == "two"
        assert texts(stored(store)) == ["a", "one", "b", "two"]


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: error.code)
def test_a_provider_error_after_tools_repeats_no_tool(error: ProviderError) -> None:
    """Results that were saved before a provider failed are used by the run that carries on."""
    ran: list[str] = []

    @tool
    def work() -> str:
        ran.append("work")
        return "worked"

    store = memory_store(clock=Clock())
    with pytest.raises(type(error)):
        run(fresh_agent([("work", {}), error], [work], store).send("go", session_id="s"))
    assert run(fresh_agent([("work", {}), "done"], [work], store).resume("s")).text == "done"  # type: ignore[union-attr]
    assert ran == ["work"]


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: error.code)
def test_a_session_whose_first_call_failed_does_not_exist(error: ProviderError) -> None:
    """A run that has saved nothing leaves nothing behind when its first model call fails."""
    store = memory_store(clock=Clock())
    with pytest.raises(type(error)):
        run(fresh_agent([error], [], store).send("go", session_id="s"))
    assert store.checkpoints.load("s") is None
    assert run(fresh_agent(["done"], [], store).send("again", session_id="s")).text == "done"
    assert texts(stored(store)) == ["again", "done"]


def test_a_session_that_is_poisoned_in_its_first_turn_starts_over() -> None:
    """A first turn that its provider refuses for good is replaced by the next message, calls and results included."""
    store = memory_store(clock=Clock())
    refused = FAILURES[1]
    with pytest.raises(ProviderRequestError):
        run(fresh_agent([("look", {}), refused], [look], store).send("go", session_id="s"))
    assert run(fresh_agent(["done"], [look], store).send("other", session_id="s")).text == "done"
    assert texts(stored(store)) == ["other", "done"]


def test_input_that_no_model_takes_does_not_stay_for_ever() -> None:
    """What came when no step was left and is refused in the next turn is cut off with that turn."""
    store = memory_store(clock=Clock())
    crash_after(store, 1, [("look", {}), "done"])

    def model(request: ModelRequest) -> Any:
        too_long = any(message.content == "too long" for message in request.messages)
        return FAILURES[1] if too_long else "done"

    agent = fresh_agent(model, [look], store, max_steps=1)
    assert run(agent.send("too long", session_id="s")).finish_reason is FinishReason.MAX_STEPS
    with pytest.raises(ProviderRequestError):
        run(agent.send("well?", session_id="s"))
    assert run(agent.send("well?", session_id="s")).text == "done"
    assert texts(stored(store)) == ["go", "", "IT", "well?", "done"]


def test_the_answer_to_a_request_is_not_what_came_after_it() -> None:
    """A run that ends at its step limit has no answer, whatever was said meanwhile."""
    store = memory_store(clock=Clock())
    crash_after(store, 1, [("look", {}), "done"])
    agent = fresh_agent(["done"], [look], store, max_steps=1)
    checkpoint = admitted(agent, stored(store), [user("and?")], session_id="s", request=("key", "digest"))
    saved = store.checkpoints.save(checkpoint, after=stored(store))
    run(executor.run_to_pause(agent, saved, saved=saved, store=store))
    assert recorded_answer(stored(store), stored(store).requests["key"]) == ""
    assert stored(store).messages[stored(store).requests["key"].answer].role == "tool"


# --- tools that end the run, tools that are gone ---------------------------------------------------------------------


def test_a_propagating_error_ends_the_run_and_its_siblings_are_kept() -> None:
    """The run ends with the tool's error; the siblings' results are saved, and a resume runs only that call again."""
    stops = [True]
    ran: list[str] = []

    @tool
    async def stop(ctx: ToolContext) -> str:
        ran.append(ctx.tool_call_id)
        if stops:
            raise PropagatingToolError("the account is locked")
        return "went on"

    answers = [[("look", {"what": "a"}), ("stop", {}), ("look", {"what": "b"})], "done"]
    store = memory_store(clock=Clock())
    with pytest.raises(PropagatingToolError):
        run(fresh_agent(answers, [look, stop], store).send("go", session_id="s"))
    assert stored(store).status is Status.IN_PROGRESS
    assert list(stored(store).results) == ["call_0_2"]
    stops.clear()
    run(fresh_agent(answers, [look, stop], store).resume("s"))
    assert texts(stored(store)) == ["go", "", "A", "went on", "B", "done"]
    assert ran == ["call_0_1", "call_0_1"]


def test_a_pending_call_whose_tool_is_gone_refuses_to_resume() -> None:
    """A run whose pending call names a tool that the agent had and has no more is refused, and stays as it was."""
    answers = [("look", {}), "done"]
    store = memory_store(clock=Clock())
    crash_after(store, 0, answers)
    before = stored(store)
    agent = fresh_agent(answers, [pay], store)
    for input in ("go", "more", []):
        with pytest.raises(ResumeToolMissingError, match="look"):
            run(agent.send(input, session_id="s"))
    assert stored(store) == before
    assert asked(agent) == 0
    assert run(fresh_agent(answers, [look], store).send([], session_id="s")).text == "done"


def test_a_call_of_a_tool_that_never_was_is_told_to_the_model() -> None:
    """A name that the model invented is a result also when the run crashed before it was told."""
    answers = [("nonsense", {}), "done"]
    store = memory_store(clock=Clock())
    crash_after(store, 0, answers)
    result = run(fresh_agent(answers, [look], store).resume("s"))
    assert result is not None
    content: Any = result.messages[2].content
    assert (content["kind"], result.text) == ("not-found", "done")


@pytest.mark.parametrize("ids", [("", ""), ("x", "x"), ("", "x", "", "x")])
def test_p5_every_call_has_one_result_whatever_its_id(ids: tuple[str, ...]) -> None:
    """Calls with empty or repeated ids are told apart, in one turn and over turns, and each has its own result."""
    again = AssistantMessage(
        tool_calls=tuple(ToolCall(id=id, name="look", arguments=f'{{"what": "{n}"}}') for n, id in enumerate(ids))
    )
    store = memory_store(clock=Clock())
    result = run(fresh_agent([again, again, "done"], [look], store).send("go", session_id="s"))
    assert first_fault(result.messages) is None
    named = [call.id for message in result.messages if message.role == "assistant" for call in message.tool_calls]
    assert len(set(named)) == 2 * len(ids)
    assert [m.content for m in result.messages if m.role == "tool"] == [str(n) for n in range(len(ids))] * 2


# --- stores that fail, and two writers -------------------------------------------------------------------------------


class FailingCheckpoints(CrashingCheckpoints):
    """A checkpoint store whose save number `at` fails with an error, before or after it was applied."""

    def __init__(self, inner: CheckpointStore, error: StoreError, **options: Any) -> None:
        super().__init__(inner, **options)
        self._error = error

    def save(self, checkpoint: Checkpoint, *, after: Checkpoint | None) -> Checkpoint:
        try:
            return super().save(checkpoint, after=after)
        except Crash:
            raise self._error from None


def three_calls(ran: list[str]) -> tuple[list[Any], Tool]:
    @tool
    def work(name: str) -> str:
        ran.append(name)
        return name

    return [[("work", {"name": name}) for name in "abc"], "done"], work


@pytest.mark.parametrize("at", range(5))
def test_e12_e15_a_store_that_refuses_stops_the_run(at: int) -> None:
    """The run raises the store's error, no further tool runs, and what had settled is tried once more."""
    ran: list[str] = []
    answers, work = three_calls(ran)
    store = memory_store(clock=Clock())
    failing = FailingCheckpoints(store.checkpoints, StoreRejectedError("PutItem", "AccessDenied"), at=at)
    agent = fresh_agent(answers, [work], Stores(failing, store.approvals), tool_concurrency=1)
    with pytest.raises(StoreRejectedError):
        run(agent.send("go", session_id="s"))
    assert ran == list("abc")[:at]
    settles = 1 <= at <= 3
    assert failing.saves == (at + 2 if settles else at + 1)
    result = run(fresh_agent(answers, [work], store, tool_concurrency=1).send("go", session_id="s"))
    assert [m.content for m in result.messages if m.role == "tool"] == list("abc")
    assert sorted(ran) == list("abc")


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(5))
def test_a_store_that_does_not_answer_is_asked_again(at: int, after: bool) -> None:
    """A transient failure is retried, with jitter; a save that was applied all the same counts, and nothing is lost."""
    ran: list[str] = []
    pauses: list[float] = []
    answers, work = three_calls(ran)
    store = memory_store(clock=Clock())
    failing = FailingCheckpoints(store.checkpoints, StoreUnavailableError("PutItem", "throttled"), at=at, after=after)

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    agent = fresh_agent(
        answers, [work], Stores(failing, store.approvals), tool_concurrency=1, sleep=sleep, random=lambda: 0.5
    )
    result = run(agent.send("go", session_id="s"))
    assert [m.content for m in result.messages if m.role == "tool"] == list("abc") == ran
    assert pauses == [0.05]
    assert store.checkpoints.load("s") == result.checkpoint


def test_a_store_that_never_answers_stops_the_run() -> None:
    """After a few tries the store's error is raised, and it is no result of a tool."""
    store = memory_store(clock=Clock())

    class Down(CrashingCheckpoints):
        def save(self, checkpoint: Checkpoint, *, after: Checkpoint | None) -> Checkpoint:
            self.saves += 1
            raise StoreUnavailableError("PutItem", "throttled")

    async def sleep(seconds: float) -> None:
        pass

    down = Down(store.checkpoints)
    agent = fresh_agent(["done"], [], Stores(down, store.approvals), sleep=sleep)
    with pytest.raises(StoreUnavailableError):
        run(agent.send("go", session_id="s"))
    assert down.saves == 4
    assert store.checkpoints.load("s") is None


def overtaken(act: Callable[[], object], answers: list[Any]) -> Callable[[ModelRequest], Any]:
    """A model during whose first call something else happens."""

    async def model(request: ModelRequest) -> Any:
        if act_once:
            await anyio.to_thread.run_sync(act_once.pop())
        return answers[sum(message.role == "assistant" for message in request.messages)]

    act_once = [act]
    return model


def test_of_two_writers_one_wins() -> None:
    """When two runs move one session, the slower one gets `StaleCheckpointError` and nothing of it is written."""
    store = memory_store(clock=Clock())
    ran: list[str] = []

    @tool
    def work() -> None:
        ran.append("work")

    winner = fresh_agent(["won"], [], store, ids=numbered("winner"))
    model = overtaken(lambda: run(winner.send("me first", session_id="s")), [("work", {}), "lost"])
    with pytest.raises(StaleCheckpointError):
        run(fresh_agent(model, [work], store, ids=numbered("loser")).send("go", session_id="s"))
    assert texts(stored(store)) == ["me first", "won"]
    assert (stored(store).run_id, ran) == ("winner1", [])


def test_a_writer_that_was_overtaken_among_tools_starts_no_further_one() -> None:
    """The run that finds its session moved by another one stops before its next tool."""
    store = memory_store(clock=Clock())
    answers = [[("work", {"name": "a"}), ("work", {"name": "b"})], "done"]
    ran: list[str] = []
    others: list[Any] = []

    @tool
    def work(name: str) -> str:
        ran.append(name)
        if others:
            run(others.pop().send([], session_id="s"))
        return name

    others.append(fresh_agent(answers, [tool(name="work")(echo)], store))
    with pytest.raises(StaleCheckpointError):
        run(fresh_agent(answers, [work], store, tool_concurrency=1).send("go", session_id="s"))
    assert ran == ["a"]
    assert stored(store).status is Status.FINISHED


def test_a_provider_error_of_an_overtaken_run_is_not_written() -> None:
    """The loser does not put its own error on the winner's checkpoint."""
    store = memory_store(clock=Clock())
    run(fresh_agent(["one"], [], store).send("a", session_id="s"))
    winner = fresh_agent(["one", "won"], [], store)
    model = overtaken(lambda: run(winner.send("b", session_id="s")), [None, FAILURES[4]])
    with pytest.raises(DurableError) as raised:
        run(fresh_agent(model, [], store).send("c", session_id="s"))
    assert isinstance(raised.value, StaleCheckpointError)
    assert texts(stored(store)) == ["a", "one", "b", "won"]
    assert stored(store).last_error is None


# --- requests that come twice ----------------------------------------------------------------------------------------


def test_the_newest_hundred_requests_are_remembered() -> None:
    """A session recognises the newest hundred requests that it accepted, by key, and with the same body only."""
    store = memory_store(clock=Clock())
    agent = fresh_agent(lambda request: "done", [], store)
    total = MAX_ACCEPTED + 5
    for number in range(total):
        before = store.checkpoints.load("s")
        request = (f"key-{number}", f"digest-{number}")
        checkpoint = admitted(agent, before, [user(str(number))], session_id="s", request=request)
        saved = store.checkpoints.save(checkpoint, after=before)
        run(executor.run_to_pause(agent, saved, saved=saved, store=store))
    last = stored(store)
    assert len(last.requests) == MAX_ACCEPTED
    for number in range(total):
        known = redelivered(last, f"key-{number}", f"digest-{number}")
        assert (known is not None) is (number >= total - MAX_ACCEPTED)
        if known is not None:
            assert known.finish_reason is FinishReason.STOP
            assert known.usage is not None
            assert recorded_answer(last, known) == "done"
    with pytest.raises(RequestConflictError):
        redelivered(last, f"key-{total - 1}", "another digest")
    assert redelivered(None, "key-0", "digest-0") is None


def test_an_answer_that_is_gone_is_never_made_again() -> None:
    """A request whose answer has left the transcript is told so."""
    store = memory_store(clock=Clock())
    agent = fresh_agent(["done"], [], store)
    checkpoint = admitted(agent, None, [user("go")], session_id="s", request=("key", "digest"))
    result = run(executor.run_to_pause(agent, checkpoint, saved=None, store=store))
    known = result.checkpoint.requests["key"]
    with pytest.raises(ResultExpiredError):
        recorded_answer(result.checkpoint.but(messages=()), known)
    with pytest.raises(ResultExpiredError):
        recorded_answer(result.checkpoint, known.but(answer=None))


@pytest.mark.parametrize("reason", [FinishReason.PARKED, FinishReason.ABORTED, FinishReason.DEADLINE])
def test_an_accepted_request_puts_a_stopped_run_back_to_work(reason: FinishReason) -> None:
    """A run that was stopped and accepts a request does not say any more that it was stopped."""
    agent = fresh_agent(["done"], [], memory_store(clock=Clock()))
    stopped = admitted(agent, None, [user("go")], session_id="s").but(finish_reason=reason, revision=0)
    for said in ([user("more")], []):
        accepted = admitted(agent, stopped, said, session_id="s", request=("key", "digest"))
        assert (accepted.finish_reason, accepted.run_id) == (None, stopped.run_id)
    assert admitted(agent, stopped, [], session_id="s") is stopped
