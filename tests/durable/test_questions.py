"""Questions that a model asks a human: what may be asked and answered, and what comes of an answer, or of none."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from durable import (
    Agent,
    ApprovalStatus,
    ConfigurationError,
    FinishReason,
    InvalidDecisionError,
    Question,
    RunResult,
    SessionAwaitingApprovalError,
    ask_human,
    escalate,
    level,
    tool,
)
from durable.approvals import ApprovalDecision, decide
from durable.errors import NotAnApproverError
from durable.providers.scripted import Scripted
from durable.questions import MAX_ANSWER, QuestionArguments
from durable.resume import resume_after_approval
from durable.story import render_approval
from tests.support.runs import Clock, memory_store, numbered

HOUR = timedelta(hours=1)
COLOURS: dict[str, Any] = {"question": "Which colour?", "options": ["red", "blue"], "free_text": False}


class Desk:
    """An agent that asks, its store, and what its other tools did."""

    def __init__(self, *turns: Any, **terms: Any) -> None:
        self.clock, self.done = Clock(), list[str]()
        self.store = memory_store(clock=self.clock)

        @tool
        def note(what: str) -> str:
            self.done.append(what)
            return what

        @tool(needs_approval=True)
        def pay() -> str:
            return "paid"

        self.model = Scripted(list(turns) or [("ask_human", COLOURS), "Thanks."])
        self.agent = Agent(
            provider=self.model,
            tools=[ask_human(**terms), note, pay],
            store=self.store,
            clock=self.clock,
            ids=numbered("run"),
        )

    def pause(self, session: str | None = "s") -> str:
        paused = asyncio.run(self.agent.send("go", session_id=session))
        assert paused.finish_reason == "awaiting-approval"
        return paused.approval_id or ""

    def answer(self, id: str, answer: str, **more: Any) -> RunResult:
        return asyncio.run(self.agent.approvals.answer(id, answer, **{"by": "ada", **more}))

    def decline(self, id: str, **more: Any) -> RunResult:
        return asyncio.run(self.agent.approvals.resolve(id, approved=False, **{"by": "ada", **more}))

    def resume(self, id: str) -> RunResult:
        return asyncio.run(resume_after_approval(self.agent, id, store=self.store))


def results(result: RunResult) -> list[Any]:
    return [message.content for message in result.checkpoint.messages if message.role == "tool"]


# --- what may be asked -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({}, "question"),
        ({"question": " \n"}, "blank"),
        ({"question": "x" * 4_001}, "4000"),
        ({"question": "?", "free_text": False}, "give options, or take free text"),
        ({"question": "?", "options": ["a", "a"]}, "the same"),
        ({"question": "?", "options": [""]}, "at least 1"),
        ({"question": "?", "options": [" a"]}, "one line"),
        ({"question": "?", "options": ["a\nb"]}, "one line"),
        ({"question": "?", "options": ["x" * 201]}, "200"),
        ({"question": "?", "options": [str(number) for number in range(21)]}, "20"),
    ],
    ids=str,
)
def test_a_question_that_nobody_can_answer_is_refused(arguments: Any, wrong: str) -> None:
    """The model is told what is wrong with its question, and nobody is asked."""
    desk = Desk(("ask_human", arguments), "Sorry.")
    [content] = results(asyncio.run(desk.agent.send("go", session_id="s")))
    assert content["kind"] == "validation"
    assert wrong in content["message"]
    assert desk.store.approvals.list().items == []


def test_the_default_must_be_among_the_options() -> None:
    """A question that does not offer the answer which counts when nobody gives one is refused; free text offers all."""
    desk = Desk(("ask_human", COLOURS), "Sorry.", timeout=HOUR, default="green")
    [content] = results(asyncio.run(desk.agent.send("go", session_id="s")))
    assert "the options must include 'green'" in content["message"]
    Desk(("ask_human", {**COLOURS, "free_text": True}), timeout=HOUR, default="green").pause()


@pytest.mark.parametrize(
    ("terms", "wrong"),
    [
        ({"default": "x"}, "give timeout"),
        ({"default": " ", "timeout": HOUR}, "1 to"),
        ({"default": "x", "timeout": HOUR, "on_timeout": "halt"}, "not both"),
        ({"default": "x", "timeout": HOUR, "on_timeout": escalate(level("a", wait=HOUR), then="halt")}, "not both"),
        ({"on_timeout": "halt"}, "approval_timeout"),
        ({"timeout": -HOUR}, "must be positive"),
        ({"approvers": ["ada", "ada"]}, "twice"),
    ],
    ids=str,
)
def test_terms_that_make_no_sense_are_refused(terms: Any, wrong: str) -> None:
    """A default without a deadline or with a halt, and what any tool refuses."""
    with pytest.raises(ConfigurationError, match=wrong):
        ask_human(**terms)


def test_the_tool_is_shown_like_any_other() -> None:
    """The model sees name, description and the schema of a question; the agent lists it by its name."""
    made = ask_human(name="ask_boss", description="Ask the boss.")
    assert isinstance(made, Question)
    assert (made.spec.name, made.spec.description) == ("ask_boss", "Ask the boss.")
    assert set(json.loads(json.dumps(made.spec.parameters))["properties"]) == {"question", "options", "free_text"}
    assert set(QuestionArguments.model_fields) == {"question", "options", "free_text"}


# --- answers ---------------------------------------------------------------------------------------------------------


def test_the_answer_is_the_result() -> None:
    """The call's result is the answer, with who gave it and the note; the record says that it was a question."""
    desk = Desk()
    id = desk.pause()
    asked = desk.store.approvals.get(id)
    assert asked is not None
    assert (asked.request.kind, asked.request.arguments) == ("question", COLOURS)
    result = desk.answer(id, "blue", note="as the sky")
    assert results(result) == [{"answer": "blue", "answered_by": "ada", "note": "as the sky"}]
    assert result.text == "Thanks."


def test_free_text_is_taken_where_it_is_allowed() -> None:
    """Any words are an answer then, kept as they are."""
    desk = Desk(("ask_human", {"question": "Why?", "options": ["because"]}), "I see.")
    assert results(desk.answer(desk.pause(), "For <b>fun</b>\nreally"))[0]["answer"] == "For <b>fun</b>\nreally"


@pytest.mark.parametrize("answer", ["green", "", "Red", "red "])
def test_an_answer_that_is_not_offered_is_refused(answer: str) -> None:
    """What is none of the options is refused with those that there are; the question stays open."""
    desk = Desk()
    id = desk.pause()
    with pytest.raises(InvalidDecisionError) as refused:
        desk.answer(id, answer)
    assert refused.value.options == ["red", "blue"]
    assert answer == "" or answer not in str(refused.value).split()
    assert results(desk.answer(id, "red"))[0]["answer"] == "red"


@pytest.mark.parametrize("answer", ["", " \n", "x" * (MAX_ANSWER + 1)])
def test_free_text_has_its_limits(answer: str) -> None:
    """Nothing, blanks and what is too long are no answer."""
    desk = Desk(("ask_human", {"question": "Why?"}), "I see.")
    id = desk.pause()
    with pytest.raises(InvalidDecisionError, match="1 to"):
        desk.answer(id, answer)


def test_an_answer_and_an_approval_are_told_apart() -> None:
    """An answer to what is no question, a yes to a question, arguments for one, and a no with an answer are refused."""
    desk = Desk(("pay", {}), ("ask_human", COLOURS), "Thanks.")
    id = desk.pause()
    with pytest.raises(InvalidDecisionError, match="it is no question"):
        desk.answer(id, "red")
    id = asyncio.run(desk.agent.approvals.resolve(id, approved=True, by="ada")).approval_id or ""
    for said, wrong in (
        ({"approved": True}, "give an answer, or decline"),
        ({"approved": True, "args": COLOURS}, "not arguments"),
        ({"approved": False, "answer": "red"}, "gives no answer"),
    ):
        with pytest.raises(InvalidDecisionError, match=wrong):
            decide(
                ApprovalDecision(id=id, by="ada", **said),
                approvals=desk.store.approvals,
                checkpoints=desk.store.checkpoints,
                tools={},
                now=desk.clock(),
            )
    desk.answer(id, "red")


@pytest.mark.parametrize(("note", "message"), [("ask Bob", "ask Bob"), (None, "The question was declined.")])
def test_somebody_may_decline(note: str | None, message: str) -> None:
    """Declining is told to the model as a rejection, with the note."""
    desk = Desk()
    [content] = results(desk.decline(desk.pause(), note=note))
    assert (content["kind"], content["message"]) == ("rejected", message)


def test_a_second_answer_gets_the_first() -> None:
    """An answer that comes twice changes nothing, and is told whether it is the same."""
    desk = Desk()
    id = desk.pause()
    said: list[Any] = []
    for answer in ("blue", "blue", "red"):
        said.append(
            decide(
                ApprovalDecision(id=id, approved=True, answer=answer, by="ada"),
                approvals=desk.store.approvals,
                checkpoints=desk.store.checkpoints,
                tools={},
                now=desk.clock(),
            )
        )
    assert [(one.already, one.same) for one in said] == [(False, True), (True, True), (True, False)]
    assert results(desk.resume(id))[0]["answer"] == "blue"


def test_named_people_alone_may_answer() -> None:
    """Where approvers are named, nobody else answers."""
    desk = Desk(approvers=["grace"])
    id = desk.pause()
    with pytest.raises(NotAnApproverError):
        desk.answer(id, "red")
    assert results(desk.answer(id, "red", by="grace"))[0]["answered_by"] == "grace"


def test_who_has_asked_may_answer() -> None:
    """An answer approves nothing: separate approvers do not keep anybody from it, by whatever way they come."""
    desk = Desk()
    asyncio.run(desk.agent.send("go", session_id="s", requested_by="bob"))
    id = desk.store.checkpoints.load("s").approval_id or ""  # type: ignore[union-attr]
    said = ApprovalDecision(id=id, approved=True, answer="red", by="bob")
    store = desk.store
    decided = decide(
        said, approvals=store.approvals, checkpoints=store.checkpoints, tools={}, now=desk.clock(), separate=True
    )
    assert decided.approval.status is ApprovalStatus.APPROVED


# --- when nobody answers ---------------------------------------------------------------------------------------------


def test_the_default_counts_at_the_deadline() -> None:
    """The result is the default and says that nobody answered; a tick before the deadline it is still open."""
    desk = Desk(timeout=HOUR, default="red")
    id = desk.pause()
    desk.clock.now += HOUR - timedelta(microseconds=1)
    with pytest.raises(SessionAwaitingApprovalError):
        desk.resume(id)
    desk.clock.now += timedelta(microseconds=1)
    result = desk.resume(id)
    assert results(result) == [
        {"answer": "red", "answered_by": None, "default": True, "note": "Nobody answered in time."}
    ]
    approval = desk.store.approvals.get(id)
    assert approval is not None
    assert (approval.status, approval.halts) == (ApprovalStatus.EXPIRED, False)
    assert 'nobody has answered in time: "red" is the default' in render_approval(approval)


@pytest.mark.parametrize(("policy", "reason"), [("reject", FinishReason.STOP), ("halt", FinishReason.GUARDRAIL)])
def test_without_a_default_the_policy_counts(policy: Any, reason: FinishReason) -> None:
    """As for an approval, the call is rejected or the run ends."""
    desk = Desk(timeout=HOUR, on_timeout=policy)
    id = desk.pause()
    desk.clock.now += HOUR
    assert desk.resume(id).finish_reason is reason


def test_a_question_escalates() -> None:
    """Others are told first, and the default counts after the last level."""
    desk = Desk(timeout=HOUR, default="red", on_timeout=escalate(level("leads", wait=HOUR)))
    id = desk.pause()
    desk.clock.now += HOUR
    with pytest.raises(SessionAwaitingApprovalError):
        desk.resume(id)
    desk.clock.now += HOUR
    assert results(desk.resume(id))[0]["default"] is True


# --- where it stands in a run ----------------------------------------------------------------------------------------


def test_in_the_middle_of_a_batch() -> None:
    """What is before the question has run, what is behind it runs after the answer, and results are in call order."""
    desk = Desk([("note", {"what": "a"}), ("ask_human", COLOURS), ("note", {"what": "b"})], "Thanks.")
    id = desk.pause()
    assert desk.done == ["a"]
    result = desk.answer(id, "blue")
    assert desk.done == ["a", "b"]
    assert [content if isinstance(content, str) else content["answer"] for content in results(result)] == [
        "a",
        "blue",
        "b",
    ]


def test_a_fork_asks_anew() -> None:
    """A fork of a run that was answered asks again, with a question of its own."""
    desk = Desk()
    id = desk.pause()
    paused = desk.store.checkpoints.load("s")
    assert paused is not None
    desk.answer(id, "blue")
    asyncio.run(desk.agent.fork("s", revision=paused.revision, new_session_id="f"))
    again = asyncio.run(desk.agent.resume("f"))
    assert again is not None
    assert again.approval_id not in (None, id)
    assert results(desk.answer(again.approval_id or "", "red"))[0]["answer"] == "red"


def test_in_a_session_and_without_one() -> None:
    """A question pauses a conversation like an approval, and a run without a session is kept in its record."""
    desk = Desk()
    assert results(desk.answer(desk.pause(None), "blue"))[0]["answer"] == "blue"
    desk = Desk()
    paused = asyncio.run(desk.agent.session("chat").send("go"))
    assert results(desk.answer(paused.approval_id or "", "blue"))[0]["answer"] == "blue"


def test_a_sub_agent_asks() -> None:
    """A question of a sub-agent pauses the whole run, and the answer goes to the one that asked."""
    desk = Desk()
    helper = Agent(name="helper", provider=Scripted([("ask_human", COLOURS), "It is blue."]), tools=[ask_human()])
    lead = Agent(
        name="lead",
        provider=Scripted([("helper", {"task": "find out"}), "Done."]),
        subagents=[helper],
        store=desk.store,
        clock=desk.clock,
        ids=numbered("run"),
    )
    desk.agent = lead
    id = desk.pause()
    approval = desk.store.approvals.get(id)
    assert approval is not None
    assert approval.request.asking == ("lead", "helper")
    assert results(desk.answer(id, "blue")) == ["It is blue."]


def test_the_story_of_a_question() -> None:
    """The trail says who asked what, and who answered."""
    desk = Desk()
    id = desk.pause()
    desk.answer(id, "blue", note="as the sky")
    approval = desk.store.approvals.get(id)
    assert approval is not None
    lines = [line[18:] for line in render_approval(approval).splitlines()]
    assert lines[0].startswith('agent asks: {"question": "Which colour?"')
    assert lines[1:] == ['ada answers "blue": "as the sky"', "the run goes on"]
