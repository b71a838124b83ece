"""Compaction: long sessions shorten themselves before a model call, and the session stores what that gives."""

import logging
from datetime import timedelta
from typing import Any

import anyio
import pytest

from durable import (
    AbortSignal,
    AssistantMessage,
    Compaction,
    ConfigurationError,
    Message,
    ModelRequest,
    NativeBlock,
    NativeTurn,
    Summary,
    ToolCall,
    Usage,
    UserMessage,
    summarize_with,
    tool,
)
from durable.compaction import INSTRUCTIONS, estimated_tokens
from durable.conversation import allowed_cuts
from durable.errors import ResultExpiredError
from durable.messages import FilePart, ImagePart, TextPart
from durable.providers.scripted import Scripted
from durable.transcript import first_fault
from tests.support.runs import Clock, fresh_agent, memory_store, run
from tests.support.sessions import crashes, dying, kinds, look, stored, texts


def by_count(most: int, *, keep: int = 1, **options: Any) -> Compaction:
    """A policy that counts messages, and a summary that says how many it stands for."""
    return Compaction(
        **{
            "after_tokens": most,
            "keep": keep,
            "count_tokens": len,
            "summarize": lambda old: f"{len(old)} old",
            **options,
        }
    )


def model(request: ModelRequest) -> Any:
    last = request.messages[-1]
    assert first_fault(request.messages) is None
    if last.role == "user" and str(last.content).startswith("look"):
        return [("look", {"what": "a"}), ("look", {"what": "b"})]
    return f"re {last.content}"


def agent_with(policy: Compaction | None, store: Any, script: Any = model, **options: Any) -> Any:
    return fresh_agent(script, [look], store, compaction=policy, **options)


def summary(count: int) -> str:
    return f"Summary of the conversation so far:\n\n{count} old"


@pytest.mark.parametrize("durable", [True, False])
def test_the_session_stores_the_compacted_conversation(durable: bool) -> None:
    """The session stores summary and marker, so the next turn starts from them; turns go on counting."""
    store = memory_store()
    for number in range(4):
        agent = agent_with(by_count(6), store if durable else None)
        run(agent.session("s", store=store).send(f"m{number}"))
    asked = texts(agent.provider.requests[0].messages)
    assert asked == [summary(4), "m2", "re m2", "m3"]
    record = run(agent.session("s", store=store).load())
    assert texts(record.messages) == [*asked, "re m3"]
    assert (record.messages[0].summary_of, record.turns, record.pending) == (2, 4, None)


def test_the_threshold_is_checked_before_the_first_call_of_a_turn() -> None:
    """The stored history is what grows: a turn's first model call is checked, at the threshold and one above it."""
    for most, compacted in ((3, False), (2, True)):
        agent = agent_with(by_count(most, keep=0), memory_store())
        chat = agent.session("s")
        run(chat.send("m0"))
        run(chat.send("m1"))
        assert texts(agent.provider.requests[1].messages) == (
            [summary(2), "m1"] if compacted else ["m0", "re m0", "m1"]
        )


def test_the_threshold_is_checked_before_every_call_of_a_turn() -> None:
    """A turn that grows with its tool results is checked before each call; what it has done itself stays whole."""
    agent = agent_with(by_count(4, keep=0), memory_store())
    chat = agent.session("s")
    run(chat.send("m0"))
    result = run(chat.send("look"))
    first, second = (request.messages for request in agent.provider.requests[1:])
    assert texts(first) == ["m0", "re m0", "look"]
    assert [m.role for m in second] == ["user", "user", "assistant", "tool", "tool"]
    assert (texts(second)[0], texts(second)[3:]) == (summary(2), ["A", "B"])
    assert result.tool_calls == 2
    assert stored(chat.store).committed == 6


@pytest.mark.parametrize("keep", [0, 1, 2, 3])
def test_the_newest_turns_stay_word_for_word(keep: int) -> None:
    """`keep` newest finished turns are left as they are, tool calls, results and provider blocks with them."""
    signed = NativeTurn(origin="x", blocks=(NativeBlock(kind="own", value={"signature": "s=="}),))
    calls = tuple(ToolCall(id=f"c{n}", name="look") for n in range(2))
    script = ["one", AssistantMessage(tool_calls=calls, native=signed), "two", "three", "four"]
    store = memory_store()
    for text in ("m1", "m2", "m3"):
        run(agent_with(None, store, script).session("s").send(text))
    before = stored(store).messages
    starts = [0, 2, 7]
    agent = agent_with(by_count(1, keep=keep), store, lambda request: "four")
    run(agent.session("s").send("m4"))
    kept = before[starts[3 - keep] if keep else len(before) :]
    expected = (*before, UserMessage(content="m4")) if keep == 3 else (*kept, UserMessage(content="m4"))
    assert agent.provider.requests[0].messages[0 if keep == 3 else 1 :] == expected


def test_a_summary_is_summarized_with_what_follows_it() -> None:
    """Compacted again, the old summary is part of what is summarized, and the marker counts its turns."""
    seen: list[list[Any]] = []

    def summarize(old: Any) -> str:
        seen.append(texts(old))
        return f"{len(old)} old"

    agent = agent_with(by_count(4, keep=0, summarize=summarize), memory_store())
    chat = agent.session("s")
    for number in range(5):
        run(chat.send(f"m{number}"))
    assert seen == [["m0", "re m0", "m1", "re m1"], [summary(4), "m2", "re m2", "m3", "re m3"]]
    history: Any = run(chat.history())
    assert texts(history) == [summary(5), "m4", "re m4"]
    assert (history[0].summary_of, run(chat.load()).turns) == (4, 5)


def test_a_summary_alone_is_not_summarized_again() -> None:
    """Where nothing but an earlier summary could be replaced, nothing is, however long it is."""
    asked: list[int] = []

    def summarize(old: Any) -> str:
        asked.append(len(old))
        return "s"

    chat = agent_with(by_count(1, keep=0, summarize=summarize), memory_store()).session("s")
    run(chat.send("m0"))
    run(chat.send("m1"))
    run(chat.truncate(1))
    run(chat.send("m2"))
    assert asked == [2]


@pytest.mark.parametrize("failure", [LookupError("no"), "", "  "])
@pytest.mark.parametrize("durable", [True, False])
def test_a_failing_summariser_leaves_the_conversation_as_it_was(
    failure: Any, durable: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A summariser that raises or says nothing: the conversation stays, the run goes on, and that is told once."""
    asked: list[int] = []

    async def summarize(old: Any) -> str:
        asked.append(len(old))
        if isinstance(failure, Exception):
            raise failure
        return failure

    store, events = memory_store(), list[Any]()
    agent = agent_with(by_count(1, keep=0, summarize=summarize), store if durable else None)
    chat = agent.session("s", store=store)
    run(chat.send("m0"))
    with caplog.at_level(logging.WARNING):
        result = run(chat.send("look", listener=events.append))
    assert result.finish_reason == "stop"
    assert texts(run(chat.history()))[:3] == ["m0", "re m0", "look"]
    assert (asked, kinds(events).count("compaction.failed")) == ([2], 1)
    assert "was not compacted" in caplog.text


def test_compaction_is_told_after_it_is_saved() -> None:
    """The event comes after the save and says how long the conversation was and is."""
    events: list[Any] = []
    chat = agent_with(by_count(2, keep=0), memory_store()).session("s")
    run(chat.send("m0"))
    run(chat.send("m1", listener=events.append))
    at = kinds(events).index("session.compacted")
    assert kinds(events)[at - 1] == "checkpoint.saved"
    assert (events[at].messages_before, events[at].messages_after) == (2, 1)


def test_the_swap_is_one_save() -> None:
    """Messages, marker and `committed` move in one save, which is all that the summary is stored with."""
    store = memory_store()
    agent = agent_with(by_count(2, keep=0), store)
    run(agent.session("s").send("m0"))
    before = stored(store)
    run(agent.session("s").send("m1"))
    found = [entry.checkpoint for entry in reversed(store.checkpoints.history("s"))][before.revision + 1 :]
    assert [(len(one.messages), one.committed, len(one.queued)) for one in found] == [(2, 2, 1), (1, 1, 1), (3, 3, 0)]


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_every_save_of_a_compacting_turn(at: int, after: bool) -> None:
    """Wherever the process dies, the session is before or after each save, never between, and goes on alike."""
    store = memory_store()
    policy = by_count(2, keep=0)
    run(agent_with(policy, store).session("s").send("m0"))
    dead = agent_with(policy, dying(store, at, after=after))
    if at < 3:
        crashes(dead.session("s").send("m1"))
    else:
        run(dead.session("s").send("m1"))
    record = run(agent_with(policy, store).session("s").load())
    assert texts(record.messages) in (["m0", "re m0"], [summary(2)], [summary(2), "m1", "re m1"])
    chat = agent_with(policy, store).session("s")
    if run(chat.resume()) is None and run(chat.load()).turns == 1:
        run(chat.send("m1"))
    assert texts(run(chat.history())) == [summary(2), "m1", "re m1"]


def test_an_abort_while_the_summary_is_written() -> None:
    """An abort does not wait for the summariser: the turn comes back aborted, and the conversation is as it was."""
    stop = AbortSignal()

    async def summarize(old: Any) -> str:
        stop.abort()
        await anyio.sleep_forever()
        return ""

    chat = agent_with(by_count(2, keep=0, summarize=summarize), memory_store()).session("s")
    run(chat.send("m0"))
    assert run(chat.send("m1", signal=stop)).finish_reason == "aborted"
    assert texts(run(chat.history())) == ["m0", "re m0"]


def test_recorded_answers_move_with_their_messages() -> None:
    """A request's recorded answer is found after a compaction, or is gone with its message; it is never another's."""
    chat = agent_with(by_count(4, keep=1), memory_store()).session("s")
    for number in range(3):
        run(chat.send(f"m{number}", key=f"k{number}"))
    assert texts(run(chat.history())) == [summary(2), "m1", "re m1", "m2", "re m2"]
    assert run(chat.send("m1", key="k1")).text == "re m1"
    assert run(chat.send("m2", key="k2")).text == "re m2"
    with pytest.raises(ResultExpiredError):
        run(chat.send("m0", key="k0"))


def test_a_compacted_session_is_forked_and_truncated_like_any() -> None:
    """The summary is a message: what is cut after it leaves a valid conversation, and the original stays."""
    chat = agent_with(by_count(4, keep=1), memory_store()).session("s")
    for text in ("m0", "look", "m2"):
        run(chat.send(text))
    before = run(chat.history())
    assert (allowed_cuts(before), len(before)) == ((0, 1, 2, 5, 6, 7, 8), 8)
    branch = run(chat.fork("t", message_count=2))
    assert run(branch.history()) == before[:2]
    run(chat.truncate(1))
    assert texts(run(chat.history())) == [summary(2)]
    assert run(chat.send("m3")).text == "re m3"


def test_a_model_writes_the_summary() -> None:
    """`summarize_with(model)` asks a model, told who said what as material; its tokens count as the run's."""
    cheap = Scripted(["They met."])
    store = memory_store()
    agent = agent_with(by_count(4, keep=0, summarize=summarize_with(cheap)), store)
    chat = agent.session("s")
    run(chat.send("look"))
    result = run(chat.send("m1"))
    request = cheap.requests[0]
    assert request.instructions == INSTRUCTIONS
    assert request.tools == ()
    shown = str(request.messages[0].content)
    assert shown.split("\n\n") == [
        "USER: look",
        'ASSISTANT: [calls look({"what": "a"})] [calls look({"what": "b"})]',
        'TOOL look: "A"',
        'TOOL look: "B"',
        "ASSISTANT: re B",
    ]
    assert texts(run(chat.history()))[0] == "Summary of the conversation so far:\n\nThey met."
    assert result.usage.model_calls == 2


def test_without_a_summariser_the_runs_own_model_writes_it() -> None:
    """A policy that names no summariser asks the model that the run has."""

    def both(request: ModelRequest) -> Any:
        return "They met." if request.instructions == INSTRUCTIONS else model(request)

    chat = agent_with(by_count(2, keep=0, summarize=None), memory_store(), both).session("s")
    run(chat.send("m0"))
    run(chat.send("m1"))
    assert texts(run(chat.history()))[0] == "Summary of the conversation so far:\n\nThey met."


def test_long_values_are_cut_for_the_summariser_and_images_described() -> None:
    """The summariser is shown long messages in part and images by their hash; an earlier summary it is shown whole."""
    cheap = Scripted(["s"])
    old: list[Message] = [
        UserMessage(content="x" * 9_000, summary_of=3),
        UserMessage(content=(TextPart(text="see"), ImagePart.from_bytes(b"png", "image/png"))),
        AssistantMessage(content="y" * 9_000),
    ]
    run(summarize_with(cheap)(old))  # type: ignore[arg-type]
    first, second, third = str(cheap.requests[0].messages[0].content).split("\n\n")
    assert first == "x" * 9_000
    assert second.startswith('USER: see {"type": "image", "media_type": "image/png", "bytes": 3')
    assert third == f"ASSISTANT: {'y' * 3989} […]"


def test_a_summary_may_tell_its_usage() -> None:
    """A function that gives a `Summary` says what it took, and that counts towards the run."""
    spent = Usage(model_calls=1, input_tokens=7, output_tokens=3)
    chat = agent_with(
        by_count(2, keep=0, summarize=lambda old: Summary("s", spent)), memory_store(), lambda request: "x"
    ).session("s")
    run(chat.send("m0"))
    before = run(chat.send("m1")).usage
    assert (before.model_calls, before.output_tokens) == (2, 8)


def test_tokens_are_estimated() -> None:
    """The built-in measure counts four characters a token, images flat, files by size, and every message a little."""
    assert estimated_tokens([UserMessage(content="x" * 400)]) == 104
    assert estimated_tokens([AssistantMessage(tool_calls=(ToolCall(id="c", name="look", arguments="{}"),))]) == 5
    image = ImagePart.from_bytes(b"p" * 999_999, "image/png")
    pdf = FilePart.from_bytes(b"p" * 999_999, "application/pdf")
    assert estimated_tokens([UserMessage(content=(TextPart(text="12345678"), image))]) == 1_606
    assert estimated_tokens([UserMessage(content=(pdf,))]) > 50_000


@pytest.mark.parametrize("option", [{"after_tokens": 0}, {"keep": -1}, {"after_tokens": True}, {"keep": 1.5}])
def test_a_policy_that_cannot_be_kept_is_refused(option: dict[str, Any]) -> None:
    """A threshold below 1, a negative number of turns and other types are refused by name."""
    with pytest.raises(ConfigurationError, match=next(iter(option))):
        Compaction(**{"after_tokens": 10, **option})


def test_a_providers_own_compaction_is_kept_byte_for_byte() -> None:
    """A compaction block of the provider's comes back on the turn, is stored with it and sent again as it came."""
    block = NativeBlock(kind="own", value={"type": "compaction", "content": "…", "encrypted": "b64=="})
    turn = AssistantMessage(content="ok", native=NativeTurn(origin="anthropic", blocks=(block,)))
    store = memory_store()
    for _ in range(2):
        agent = agent_with(None, store, [turn, "next"])
        run(agent.session("s").send("hi"))
    assert agent.provider.requests[0].messages[1] == turn


def test_a_compacted_session_outlives_its_base() -> None:
    """A session with a time to live is loaded, compacted and loaded again like any."""
    clock = Clock()
    store = memory_store(clock=clock, ttl=timedelta(days=1))
    for number in range(6):
        clock.advance(hours=20)
        run(agent_with(by_count(4, keep=0), store, clock=clock).session("s").send(f"m{number}"))
    assert stored(store).turns == 6


def test_tools_see_nothing_of_it() -> None:
    """A call that was made before a compaction of its own turn's history has its one result in place after it."""

    @tool
    def work() -> str:
        return "worked"

    store = memory_store()
    agent = fresh_agent(
        lambda request: "done" if request.messages[-1].role == "tool" else ("work", {}),  # type: ignore[arg-type]
        [work],
        store,
        compaction=by_count(5, keep=0),
    )
    chat = agent.session("s")
    run(chat.send("a"))
    run(chat.send("b"))
    assert [m.role for m in run(chat.history())] == ["user", "user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize("keep", [1, 2])
def test_a_client_that_sends_its_whole_history_is_recognised(keep: int) -> None:
    """A history that goes back behind the compaction is not taken for new messages: what follows it is what is new."""
    store = memory_store()
    for number in range(4):
        run(agent_with(by_count(6, keep=keep), store).session("s").send(f"m{number}"))
    history = [UserMessage(content="m0"), AssistantMessage(content="re m0")]
    for number in range(1, 4):
        history += [UserMessage(content=f"m{number}"), AssistantMessage(content=f"re m{number}")]  # type: ignore[list-item]
    before = run(agent_with(None, store).session("s").history())
    assert before[0].summary_of
    run(agent_with(None, store).send([*history, UserMessage(content="m4")], session_id="s"))
    assert texts(stored(store).messages) == [*texts(before), "m4", "re m4"]


def test_a_lagging_history_of_an_unfinished_turn_is_recognised() -> None:
    """An unfinished run takes a history that goes back behind the compaction for what it is, as it does with any."""
    store = memory_store()
    for text in ("m0", "m1", "m2"):
        run(agent_with(None, store).session("s").send(text))
    old: list[Message] = list(stored(store).messages)
    crashes(agent_with(by_count(1, keep=1), dying(store, 1)).session("s").send("m3"))
    assert texts(stored(store).messages) == [summary(4), "m2", "re m2"]
    run(agent_with(None, store).send([*old, UserMessage(content="m3")], session_id="s"))  # type: ignore[list-item]
    assert texts(stored(store).messages) == [summary(4), "m2", "re m2", "m3", "re m3"]
