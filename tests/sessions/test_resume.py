"""Resume after a crash: a durable agent's interrupted turn goes on, any other's is replaced."""

from typing import Any

import pytest

from durable import ApprovalDecision, ConfigurationError, ModelRequest, SessionAwaitingApprovalError, decide
from tests.support.runs import Crash, fresh_agent, memory_store, run
from tests.support.sessions import asked, crashes, dying, look, pay, recorder, results, texts


def test_resume_continues_from_the_last_checkpoint_and_saves_the_turn() -> None:
    """With a durable agent `resume` goes on from the last checkpoint: no saved turn and no result is made again."""
    store, ran = memory_store(), list[str]()
    answers = [("work", {"name": "a"}), ("work", {"name": "b"}), "done"]
    dead = fresh_agent(answers, [recorder(ran)], dying(store, 3))  # accepted, turn, result, turn
    crashes(dead.session("s").send("go"))
    agent = fresh_agent(answers, [recorder(ran)], store)
    chat = agent.session("s")
    result = run(chat.resume())
    assert result.text == "done"
    assert ran == ["a", "b"]
    assert asked(agent) == 1
    record = run(chat.load())
    assert (record.pending, record.turns) == (None, 1)
    assert results(record.messages) == ["a", "b"]


def test_resume_gives_none_when_nothing_is_pending() -> None:
    """Where nothing is pending there is nothing to resume, and the model is not asked."""
    agent = fresh_agent(["one"], [], memory_store())
    chat = agent.session("s")
    assert run(chat.resume()) is None
    run(chat.send("hi"))
    assert run(chat.resume()) is None
    assert asked(agent) == 1


def test_a_turn_that_was_only_accepted_is_resumed() -> None:
    """A crash right after the mark, before the run's first checkpoint, loses nothing: the turn runs from its start."""
    store = memory_store()
    crashes(fresh_agent(["one"], [], dying(store, 0)).session("s").send("hi"))
    chat = fresh_agent(["one"], [], store).session("s")
    assert run(chat.resume()).text == "one"
    assert texts(run(chat.history())) == ["hi", "one"]


def test_a_crash_right_before_the_commit_asks_once_more() -> None:
    """The save that finishes the turn is the commit: before it the turn is pending, after it nothing is."""
    for after in (False, True):
        store = memory_store()
        crashes(fresh_agent(["one"], [], dying(store, 1, after=after)).session("s").send("hi"))
        agent = fresh_agent(["one"], [], store)
        resumed = run(agent.session("s").resume())
        assert (resumed is None, asked(agent)) == (after, not after)
        assert texts(run(agent.session("s").history())) == ["hi", "one"]


def test_without_durable_resume_says_so() -> None:
    """Without a store of the agent's own `resume` fails with its "no store" error and writes nothing."""
    store = memory_store()
    chat = crashed_in_memory(store)
    before = run(chat.load())
    with pytest.raises(ConfigurationError, match="has no store"):
        run(chat.resume())
    assert run(chat.load()) == before


def test_without_durable_the_next_send_replaces_the_mark() -> None:
    """Without durable the next send replaces the mark: the interrupted turn is not stored, not even the same words."""
    store = memory_store()
    chat = crashed_in_memory(store)
    old = run(chat.load()).pending
    agent = fresh_agent(["one", "two"], [look], None)
    result = run(agent.session("s", store=store).send("again"))
    assert old.run_id != result.run_id
    assert texts(run(chat.history())) == ["hi", "one", "again", "two"]
    assert run(chat.load()).turns == 2


def crashed_in_memory(store: Any) -> Any:
    """A session without durable whose process died in its second turn, after a tool."""
    run(fresh_agent(["one"], [], None, ids=lambda: "first").session("s", store=store).send("hi"))

    def model(request: ModelRequest) -> Any:
        if request.messages[-1].role == "tool":
            raise Crash
        return ("look", {})

    agent = fresh_agent(model, [look], None, ids=lambda: "dead")  # type: ignore[arg-type]
    crashes(agent.session("s", store=store).send("again"))
    return agent.session("s", store=store)


def test_a_send_on_a_pending_turn_goes_on_from_it() -> None:
    """A durable agent's `send` on a pending turn resumes it; other words follow behind the results that were open."""
    for said, expected in (("go", ["go"]), ("and more", ["go", "and more"])):
        store, ran = memory_store(), list[str]()
        crashes(fresh_agent([("work", {}), "done"], [recorder(ran)], dying(store, 1)).session("s").send("go"))
        chat = fresh_agent([("work", {}), "done"], [recorder(ran)], store).session("s")
        run(chat.send(said))
        history = run(chat.history())
        assert [m.content for m in history if m.role == "user"] == expected
        assert (ran, results(history)) == (["it"], ["it"])


def test_a_turn_that_waits_for_a_human_is_not_bypassed() -> None:
    """Neither send, resume, fork nor truncate passes a pending decision; decided, `resume` carries the turn on."""
    store = memory_store()
    agent = fresh_agent([("pay", {}), "paid"], [pay], store)
    chat = agent.session("s")
    paused = run(chat.send("pay"))
    for work in (lambda: chat.send("hurry"), chat.resume, lambda: chat.fork("t"), lambda: chat.truncate(0)):
        with pytest.raises(SessionAwaitingApprovalError):
            run(work())
    bare = fresh_agent([], [], None).session("s", store=store)
    with pytest.raises(SessionAwaitingApprovalError):
        run(bare.send("replace it"))
    decision = ApprovalDecision(id=paused.approval_id, approved=True, by="ada")
    decide(decision, approvals=store.approvals, checkpoints=store.checkpoints, tools={}, now=agent.clock())
    assert run(chat.resume()).text == "paid"


def test_an_agent_without_a_store_cannot_wait_for_a_human() -> None:
    """A gated tool needs a durable agent: another one's turn fails and leaves the session as it was."""
    store = memory_store()
    chat = fresh_agent([("pay", {}), "paid"], [pay], None).session("s", store=store)
    with pytest.raises(ConfigurationError, match="approval"):
        run(chat.send("pay"))
    assert run(chat.load()).pending is None


def test_an_interrupted_turn_is_visible_to_the_next_model_call() -> None:
    """The model sees the resumed turn behind the finished ones, in a transcript that is in order."""
    store = memory_store()
    run(fresh_agent(["one"], [look], store).session("s").send("hi"))
    crashes(fresh_agent(["one", ("look", {}), "two"], [look], dying(store, 1)).session("s").send("look"))
    agent = fresh_agent(["one", ("look", {}), "two"], [look], store)
    run(agent.session("s").resume())
    request: ModelRequest = agent.provider.requests[0]  # type: ignore[union-attr]
    assert [m.role for m in request.messages] == ["user", "assistant", "user", "assistant", "tool"]


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("saves", [0, 1, 2])
def test_own_turn_finishes_the_pending_one_first(key: str | None, saves: int) -> None:
    """With `own_turn` an interrupted turn is carried to its end, and what is said is the next turn, not part of it."""
    store, ran = memory_store(), list[str]()

    def model(request: ModelRequest) -> Any:
        last = request.messages[-1]
        return ("work", {}) if last.content == "go" else f"re {last.content}"

    crashes(fresh_agent(model, [recorder(ran)], dying(store, saves)).session("s").send("go"))  # type: ignore[arg-type]
    chat = fresh_agent(model, [recorder(ran)], store).session("s")  # type: ignore[arg-type]
    result = run(chat.send("and more", own_turn=True, key=key))
    assert (result.text, ran) == ("re and more", ["it"])
    assert texts(run(chat.history())) == ["go", "", "it", "re it", "and more", "re and more"]
    assert run(chat.load()).turns == 2


def test_own_turn_waits_for_nobody() -> None:
    """A turn that waits for a human is not finished by `own_turn` either; what is said is refused."""
    agent = fresh_agent([("pay", {}), "paid"], [pay], memory_store())
    run(agent.session("s").send("pay"))
    with pytest.raises(SessionAwaitingApprovalError):
        run(agent.session("s").send("more", own_turn=True))


def test_own_turn_of_the_same_words() -> None:
    """The words of the interrupted turn without a key are its retry; under a key of their own a new turn."""
    for key, turns in ((None, 1), ("other", 2)):
        store = memory_store()
        crashes(fresh_agent(["one"], [], dying(store, 0)).session("s").send("hi"))
        chat = fresh_agent(["one", "two"], [], store).session("s")
        run(chat.send("hi", own_turn=True, key=key))
        assert run(chat.load()).turns == turns
