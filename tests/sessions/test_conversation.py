"""Conversation sessions: a multi-turn conversation with one agent, kept in a store."""

from typing import Any

import pytest

from durable import (
    Agent,
    AssistantMessage,
    ConfigurationError,
    InvalidSessionIdError,
    ModelRequest,
    NativeBlock,
    NativeTurn,
    RequestConflictError,
    ResultExpiredError,
    ToolCall,
    ToolContext,
    tool,
)
from durable.providers.scripted import Scripted
from tests.support.runs import fresh_agent, memory_store, run
from tests.support.sessions import asked, look, texts


def test_each_send_goes_on_from_the_stored_history() -> None:
    """Each send loads the stored history, runs the agent on it, appends the turn and saves it."""
    store = memory_store()
    for number, (said, answer) in enumerate([("I am Sara.", "Hello, Sara."), ("Who am I?", "Sara.")]):
        agent = fresh_agent(["Hello, Sara.", "Sara."], [], store)
        result = run(agent.session("user-42").send(said))
        assert result.text == answer
        assert len(agent.provider.requests[0].messages) == 2 * number + 1  # type: ignore[union-attr]
    assert texts(run(agent.session("user-42").history())) == ["I am Sara.", "Hello, Sara.", "Who am I?", "Sara."]


@pytest.mark.parametrize("durable", [True, False])
def test_the_turn_is_stored_as_the_provider_needs_it_back(durable: bool) -> None:
    """Tool calls, results, provider blocks and the final reply are stored and sent again exactly as they came."""
    thinking = NativeTurn(
        origin="anthropic", blocks=(NativeBlock(kind="own", value={"type": "thinking", "signature": "s=="}),)
    )
    turns = [
        AssistantMessage(tool_calls=(call("c1", "a"), call("c2", "b")), native=thinking),
        AssistantMessage(content="Both.", native=thinking),
        AssistantMessage(content="Again."),
    ]
    store = memory_store()
    agent = fresh_agent(turns, [look], store if durable else None)
    chat = agent.session("s", store=store)
    run(chat.send("go"))
    first = run(chat.history())
    run(chat.send("more"))
    sent = agent.provider.requests[-1].messages  # type: ignore[union-attr]
    assert [m.role for m in first] == ["user", "assistant", "tool", "tool", "assistant"]
    assert (first[1], first[4]) == (turns[0], turns[1])
    assert [m.content for m in first[2:4]] == ["A", "B"]
    assert sent[:5] == tuple(first)


def call(id: str, what: str) -> Any:
    return ToolCall(id=id, name="look", arguments=f'{{"what": "{what}"}}')


def test_send_takes_the_agents_options() -> None:
    """`send` gives the agent's result and takes its options: context, listener and signal among them."""
    seen: list[Any] = []

    @tool
    def who(ctx: ToolContext) -> str:
        seen.append((ctx.run_context, ctx.session_id))
        return "you"

    heard: list[str] = []
    agent = fresh_agent([("who", {}), "You."], [who], memory_store())
    result = run(agent.session("s").send("Who?", context="ada", listener=lambda event: heard.append(event.type)))
    assert result.text == "You."
    assert seen == [("ada", "s")]
    assert heard[0] == "run.start"
    assert heard[-1] == "run.done"


def test_a_key_names_one_request_for_ever() -> None:
    """A request that is sent again under its key gives the outcome that it had; with other words it is refused."""
    agent = fresh_agent(["one", "two"], [], memory_store())
    chat = agent.session("s")
    first = run(chat.send("hi", key="k"))
    run(chat.send("more"))
    again = run(chat.send("hi", key="k"))
    assert (again.text, again.run_id, again.usage) == ("one", first.run_id, first.usage)
    assert asked(agent) == 2
    with pytest.raises(RequestConflictError):
        run(chat.send("other", key="k"))
    run(chat.truncate(0))
    run(chat.send("anew"))
    with pytest.raises(ResultExpiredError):  # another message stands where the answer was
        run(chat.send("hi", key="k"))


def test_nothing_to_say_gives_the_recorded_result() -> None:
    """A send without input asks nothing of the model: the newest turn's result comes back."""
    agent = fresh_agent(["one"], [], memory_store())
    chat = agent.session("s")
    run(chat.send("hi"))
    assert run(chat.send([])).text == "one"
    assert asked(agent) == 1


def test_a_session_needs_a_store_and_an_id() -> None:
    """Without a store, with two different ones, or with a bad id, the session is refused where it is made."""
    bare = Agent(provider=Scripted(["x"]))
    with pytest.raises(ConfigurationError, match="no store"):
        bare.session("s")
    with pytest.raises(ConfigurationError, match="leave `store` out"):
        Agent(provider=Scripted(["x"]), store=memory_store()).session("s", store=memory_store())
    with pytest.raises(InvalidSessionIdError):
        bare.session("", store=memory_store())


def test_a_changed_prompt_applies_to_the_next_turn() -> None:
    """`messages` never holds the system prompt: the agent adds it on every run, so a changed one applies next time."""
    store = memory_store()
    for prompt in ("Be brief.", "Be thorough."):
        agent = fresh_agent(["one", "two"], [], store, instructions=prompt)
        run(agent.session("s").send("hi"))
        request: ModelRequest = agent.provider.requests[0]  # type: ignore[union-attr]
        assert request.instructions == prompt
    assert {m.role for m in run(agent.session("s").history())} == {"user", "assistant"}
