"""What the executor does around a model call: pieces as events, one id for a call, a transcript that is in order, and
whose native parts are sent."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from durable import (
    Agent,
    AgentDrift,
    AgentDriftError,
    ArgumentsDelta,
    AssistantMessage,
    ConfigurationError,
    Delta,
    Hooks,
    ModelRequest,
    ModelTurn,
    NativeTurn,
    ProviderAuthenticationError,
    ProviderContextLengthError,
    ProviderError,
    ProviderRefusedError,
    ProviderSetupError,
    ProviderStreamError,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    ToolContext,
    tool,
)
from durable.events import Event
from durable.providers.scripted import Scripted
from tests.support.runs import memory_store, run


class Streaming:
    """A scripted model that tells each turn in pieces of two characters; the ids that it tells are the given ones."""

    origin = "mine"

    def __init__(self, answers: Sequence[Any], ids: Callable[[ToolCall], str | None] = lambda call: call.id) -> None:
        self._scripted = Scripted(answers)
        self._ids = ids
        self.name = "streaming"

    async def generate(self, request: ModelRequest) -> ModelTurn:
        return await self._scripted.generate(request)

    async def stream(self, request: ModelRequest, tell: Callable[[Delta], None]) -> ModelTurn:
        turn = await self.generate(request)
        tell(Delta("reasoning", "hm"))
        for at in range(0, len(turn.message.content), 2):
            tell(Delta("text", turn.message.content[at : at + 2]))
        for place, call in enumerate(turn.message.tool_calls):
            for at in range(0, len(call.arguments), 2):
                tell(Delta("arguments", call.arguments[at : at + 2], place, self._ids(call), call.name))
        return turn


@tool
async def look(ctx: ToolContext, what: str = "") -> str:
    """Look."""
    return ctx.tool_call_id


def calls(*ids: str, text: str = "") -> AssistantMessage:
    made = tuple(ToolCall(id=id, name="look", arguments='{"what": "é"}') for id in ids)
    return AssistantMessage(content=text, tool_calls=made)


def test_pieces_are_events_and_add_up_to_the_record() -> None:
    """Text, reasoning and arguments are told as they come, each piece once; whoever does not listen gets no stream."""
    events: list[Event] = []
    agent = Agent(tools=[look], provider=Streaming([calls("c1", text="Let me see."), "Done."]))
    result = run(agent.send("go", listener=events.append))
    assert [e.text for e in events if isinstance(e, TextDelta)] == ["Le", "t ", "me", " s", "ee", ".", "Do", "ne", "."]
    assert [e.text for e in events if isinstance(e, ReasoningDelta)] == ["hm", "hm"]
    pieces = [e for e in events if isinstance(e, ArgumentsDelta)]
    assert "".join(e.text for e in pieces) == '{"what": "é"}'
    assert {(e.tool_call_id, e.tool_name) for e in pieces} == {("c1", "look")}
    assert result.messages == run(agent.send("go")).messages
    assert "é" not in repr(pieces)


@pytest.mark.parametrize("told", [lambda call: call.id or None, lambda call: None], ids=["with its id", "without"])
def test_e20_a_call_has_one_id_from_its_first_piece_to_the_record(told: Any) -> None:
    """Where the provider's id is empty, repeated or late, the id that was told is the one on record, after a crash
    and a resume too; the provider's own is kept beside it."""
    events: list[Event] = []
    store = memory_store()
    answers = [calls("c1", "", "c1"), calls("c1"), "Done."]

    def die(call: Any, result: Any, context: Any) -> None:
        raise RuntimeError

    agent = Agent(tools=[look], provider=Streaming(answers, told), store=store)
    dying = replace(agent, hooks=Hooks(after_tool=die))
    with pytest.raises(RuntimeError):
        run(dying.send("go", session_id="s", listener=events.append))
    result = run(agent.send([], session_id="s", listener=events.append))
    told_ids = list(dict.fromkeys(e.tool_call_id for e in events if isinstance(e, ArgumentsDelta)))
    on_record = [call.id for m in result.messages if isinstance(m, AssistantMessage) for call in m.tool_calls]
    assert told_ids == on_record
    assert len(set(on_record)) == 4
    assert [m.content for m in result.messages if m.role == "tool"] == on_record
    kept = [call.provider_id for m in result.messages if isinstance(m, AssistantMessage) for call in m.tool_calls]
    given = ["c1", "", "c1", "c1"]
    assert kept == [id if id and id != name else None for id, name in zip(given, on_record, strict=True)]


def test_a_listener_that_raises_ends_the_run_with_its_own_error() -> None:
    """An error of whoever watches is never taken for the provider's, and the turn is not kept."""
    store = memory_store()

    def listen(event: Event) -> None:
        if isinstance(event, TextDelta):
            raise OSError("the terminal is gone")

    agent = Agent(provider=Streaming(["Hello."]), store=store)
    with pytest.raises(OSError, match="terminal"):
        run(agent.send("go", session_id="s", listener=listen))
    assert store.checkpoints.load("s") is None


def test_a_cut_stream_leaves_nothing_on_record() -> None:
    """Pieces that were shown are not part of the conversation; the run asks again and has one turn."""
    store = memory_store()

    class Cutting(Streaming):
        async def stream(self, request: ModelRequest, tell: Callable[[Delta], None]) -> ModelTurn:
            tell(Delta("text", "Hel"))
            raise ProviderStreamError("p", "cut")

    with pytest.raises(ProviderStreamError):
        run(Agent(provider=Cutting(["Hello."]), store=store).send("go", session_id="s", listener=lambda event: None))
    result = run(Agent(provider=Streaming(["Hello."]), store=store).send("go", session_id="s"))
    assert [message.content for message in result.messages] == ["go", "Hello."]


def test_a_transcript_out_of_order_is_not_sent() -> None:
    """A hook that breaks the pairing of calls and results is told so before the provider is asked."""

    def broken(request: ModelRequest) -> ModelRequest:
        return replace(request, messages=[*request.messages, calls("c1")])

    model = Scripted(["never"])
    with pytest.raises(ConfigurationError, match="1 calls have no result"):
        run(Agent(provider=model, hooks=Hooks(before_model=broken)).send("go"))
    assert model.requests == []


def test_schema_and_parallel_calls_are_asked_for() -> None:
    """The agent's output type and its wish about parallel calls are in each request."""
    model = Scripted(["5"])
    run(Agent(provider=model, output_type=int, parallel_tool_calls=False).send("go"))
    assert (model.requests[0].output_schema, model.requests[0].parallel_tool_calls) == ({"type": "integer"}, False)


def native_session(store: Any, agent: Agent) -> None:
    turn = calls("c1").model_copy(update={"native": NativeTurn(origin="other", fields={"x": 1})})
    provider = Streaming([turn])
    provider.origin = "other"

    @tool(name="look")
    async def dying(what: str = "") -> str:
        raise asyncio_error

    asyncio_error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run(replace(agent, provider=provider, tools=[dying]).send("go", session_id="s"))


@pytest.mark.parametrize("policy", ["warn", "error", "ignore"])
def test_parts_of_another_provider_are_left_out_and_kept(policy: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A resume with another provider tells how many turns lose their native parts; the record keeps them."""
    store = memory_store()
    agent = Agent(tools=[look], store=store, on_agent_drift=policy)
    native_session(store, agent)
    events: list[Event] = []
    now = replace(agent, provider=Streaming([calls("c1"), "Done."]))
    with caplog.at_level(logging.WARNING, "durable"):
        if policy == "error":
            with pytest.raises(AgentDriftError, match="provider-bound parts of 1 turns left out"):
                run(now.resume("s", listener=events.append))
            return
        result = run(now.resume("s", listener=events.append))
    assert result is not None
    assert [e.native_dropped for e in events if isinstance(e, AgentDrift)] == ([1] if policy == "warn" else [])
    assert ("left out" in caplog.text) is (policy == "warn")
    kept = [m.native for m in result.messages if isinstance(m, AssistantMessage) and m.native]
    assert kept == [NativeTurn(origin="other", fields={"x": 1})]
    events.clear()
    again = replace(now, provider=Streaming([calls("c1"), "Done.", "More."]))
    run(again.send("and?", session_id="s", listener=events.append))
    assert [e.native_dropped for e in events if isinstance(e, AgentDrift)] == ([1] if policy == "warn" else [])


@pytest.mark.parametrize(
    ("error", "cut"),
    [
        (ProviderContextLengthError("p", "too long"), True),
        (ProviderRefusedError("p", "no"), True),
        (ProviderSetupError("p", "no such model", status=404), False),
        (ProviderSetupError("p", "no balance", status=402), False),
        (ProviderAuthenticationError("p", "no key", status=401), False),
    ],
)
def test_only_what_the_transcript_meets_again_cuts_a_turn(error: ProviderError, cut: bool) -> None:
    """A message after a refusal replaces the refused turn; after a missing key or a wrong model it joins it."""
    store = memory_store()
    agent = Agent(tools=[look], provider=Scripted([calls("c1"), error]), store=store)
    with pytest.raises(type(error)):
        run(agent.send("first", session_id="s"))
    mended = replace(agent, provider=Scripted(lambda request: "Done."))
    result = run(mended.send("second", session_id="s"))
    said = [message.content for message in result.messages if message.role == "user"]
    assert said == (["second"] if cut else ["first", "second"])
