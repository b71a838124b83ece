"""Questions in a deployment: answered by API, link and page, told to people, and whatever dies or comes in between.

At the end of each crash and race the run is finished, its question is closed and applied, and its result is the one
answer that was recorded, or the default.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest

from durable import ApprovalStatus, Status, ask_human, escalate, level
from durable.transcript import first_fault
from handlers import _review
from tests.handlers.conftest import TOPIC, Deployment
from tests.handlers.test_approval_crashes import at_every_point
from tests.handlers.test_review import BROWSER, EVIL, FORM, Read
from tests.support.events import Answered

Clouds = Callable[[], Deployment]
WHICH: dict[str, Any] = {"question": "Which colour?", "options": ["red", "deep blue"], "free_text": False}
OPEN: dict[str, Any] = {"question": "Why?", "options": ["because"]}


def asks(cloud: Deployment, arguments: Any = WHICH, **terms: Any) -> str:
    """A run that waits for an answer, with people told; the question's id."""
    cloud.tools = [ask_human(**terms)]
    cloud.script = [("ask_human", arguments), "Thanks."]
    cloud.cold_start()
    id = cloud.send("go").json["approval_id"]
    drive(cloud)
    return id


def drive(cloud: Deployment, token: str = "token-1") -> Any:
    cloud.states.waiting.clear()
    left = cloud.slice(execution=cloud.states.running[-1])
    if left["outcome"] == "awaiting-approval":
        cloud.states.wait(token)
        cloud.ask(left["approval_id"], token)
    return left


def say(cloud: Deployment, id: str, **body: Any) -> Answered:
    return cloud.request("POST", f"/approvals/{id}/decision", body=body)


def press(cloud: Deployment, link: str, **fields: str) -> Answered:
    return cloud.request("POST", link, body=urlencode(fields), headers=FORM, caller=None)


def link(cloud: Deployment) -> str:
    return f"/callbacks/{cloud.callback()}"


def look(cloud: Deployment) -> Read:
    return Read(cloud.request("GET", link(cloud), headers=BROWSER, caller=None).text)


def result(cloud: Deployment) -> Any:
    [content] = [message.content for message in cloud.stored().messages if message.role == "tool"]
    return content


# --- by the API ------------------------------------------------------------------------------------------------------


def test_an_answer_is_recorded_and_carried_on(cloud: Deployment) -> None:
    """The answer is a decision with its principal: it wakes the execution, and is what the call gives."""
    id = asks(cloud)
    shown = cloud.get(f"/approvals/{id}").json
    assert (shown["kind"], shown["arguments"], shown["default"]) == ("question", WHICH, None)
    answered = say(cloud, id, answer="deep blue", note="as the sea")
    assert (answered.status, answered.json["status"]) == (200, "approved")
    assert answered.json["decision"]["answer"] == "deep blue"
    assert len(cloud.states.waiting["token-1"]) == 1
    assert drive(cloud)["outcome"] == "finished"
    assert result(cloud) == {
        "answer": "deep blue",
        "answered_by": "arn:aws:iam::123456789012:role/desk",
        "note": "as the sea",
    }


def test_a_link_answers(cloud: Deployment) -> None:
    """A program answers by the callback link as by the API."""
    id = asks(cloud)
    answered = cloud.request("POST", link(cloud), body={"answer": "red"}, caller=None)
    assert (answered.status, answered.json["id"]) == (200, id)
    drive(cloud)
    assert result(cloud) == {"answer": "red", "answered_by": "holder of a callback token"}


@pytest.mark.parametrize("body", [{"answer": "green"}, {"approved": True}, {"answer": "red", "approved": False}])
def test_what_is_not_offered_is_refused(cloud: Deployment, body: dict[str, Any]) -> None:
    """422 with the options, the question stays open, and neither answer nor options stand in the log."""
    id = asks(cloud)
    answered = say(cloud, id, **body)
    assert (answered.status, answered.json["code"], answered.is_problem) == (422, "DECISION_INVALID", True)
    assert answered.json["options"] == ["red", "deep blue"]
    assert cloud.approval(id).status is ApprovalStatus.PENDING
    assert "green" not in cloud.log.getvalue()
    assert "deep blue" not in cloud.log.getvalue()


def test_an_answer_to_an_approval_is_refused(cloud: Deployment) -> None:
    """What is no question takes no answer, and has no options to give."""
    id = cloud.pause()
    answered = say(cloud, id, answer="yes")
    assert (answered.status, answered.json["code"]) == (422, "DECISION_INVALID")
    assert "options" not in answered.json


@pytest.mark.parametrize("body", [{}, {"note": "hm"}, {"answer": 1}, {"answer": None}])
def test_a_body_that_says_nothing_is_refused(cloud: Deployment, body: dict[str, Any]) -> None:
    """Neither an answer nor a decision: 400."""
    assert say(cloud, asks(cloud), **body).status == 400


def test_declining_is_told_to_the_model(cloud: Deployment) -> None:
    """`approved: false` declines, with the note."""
    id = asks(cloud)
    assert say(cloud, id, approved=False, note="none of my business").json["status"] == "rejected"
    drive(cloud)
    assert (result(cloud)["kind"], result(cloud)["note"]) == ("rejected", "none of my business")


def test_completing_the_task_answers_nothing(cloud: Deployment) -> None:
    """A task that somebody completes with a yes gives no answer: people are asked on; with a no it is declined."""
    id = asks(cloud)
    answer = {"approval_id": id, "output": {"approved": True}}
    left = cloud.slice(execution=cloud.states.running[-1], answer=answer)
    assert (left["outcome"], cloud.approval(id).status) == ("awaiting-approval", ApprovalStatus.PENDING)
    answer["output"] = {"approved": False}
    assert cloud.slice(execution=cloud.states.running[-1], answer=answer)["outcome"] == "finished"
    assert result(cloud)["kind"] == "rejected"


# --- who is told -----------------------------------------------------------------------------------------------------


def test_the_message_asks(cloud: Deployment) -> None:
    """The message has the question, on one line whatever the model says, its options, and the link."""
    asks(cloud, {"question": "Why?\nLook and decide: https://evil.example", "options": ["because"]})
    message = cloud.topics.messages[-1]
    assert message["Subject"] == "Answer wanted: ask_human"
    lines = message["Message"].splitlines()
    assert '"Why?\\nLook and decide: https://evil.example"' in lines
    assert "- because" in lines
    assert "Other answers are taken." in lines
    assert [line for line in lines if line.startswith("Look and")] == [
        f"Look and answer: https://desk.example/v1{link(cloud)}"
    ]


# --- the page --------------------------------------------------------------------------------------------------------


def test_options_are_buttons(cloud: Deployment) -> None:
    """The page shows the question, a button for each option and one to decline, and an area only for free text."""
    asks(cloud)
    read = look(cloud)
    buttons = [(given.get("name"), given.get("value")) for tag, given in read.tags if tag == "button"]
    assert buttons == [("answer", "red"), ("answer", "deep blue"), ("decision", "reject")]
    assert "Which colour?" in read.text
    assert set(read.fields) == {"note"}


def test_free_text_has_an_area(cloud: Deployment) -> None:
    """Free text is typed into an area, in which the enter key presses no button; no other field would send the form."""
    asks(cloud, OPEN)
    read = look(cloud)
    assert set(read.fields) == {"note", "text"}
    assert not [given for tag, given in read.tags if tag == "input"]
    assert [given["for"] for tag, given in read.tags if tag == "label"] == ["text", "note"]


@pytest.mark.parametrize(
    ("fields", "gives"),
    [
        ({"answer": "because", "text": "typed before", "note": " so "}, "because"),
        ({"decision": "answer", "text": " in two\r\nlines "}, "in two\nlines"),
    ],
)
def test_a_button_answers(cloud: Deployment, fields: dict[str, str], gives: str) -> None:
    """The option that is pressed, or what was typed, is the answer, and the page says so."""
    asks(cloud, OPEN)
    answered = press(cloud, link(cloud), **fields)
    assert answered.status == 200
    assert "Answered by holder of a callback token" in Read(answered.text).text
    drive(cloud)
    assert result(cloud)["answer"] == gives
    assert "Question of desk: answered" in look(cloud).text


def test_the_page_declines(cloud: Deployment) -> None:
    """The last button declines, with the note."""
    asks(cloud)
    answered = press(cloud, link(cloud), decision="reject", note="ask Bob")
    assert "Declined by holder of a callback token" in Read(answered.text).text
    drive(cloud)
    assert result(cloud)["note"] == "ask Bob"


def test_a_blank_answer_keeps_what_was_typed(cloud: Deployment) -> None:
    """What is wrong is said, the note is kept, and nothing was decided."""
    id = asks(cloud, OPEN)
    answered = press(cloud, link(cloud), decision="answer", text="  ", note="kept")
    read = Read(answered.text)
    assert answered.status == 422
    assert "an answer has 1 to" in read.text
    assert read.fields["note"].strip() == "kept"
    assert cloud.approval(id).status is ApprovalStatus.PENDING


@pytest.mark.parametrize(
    "body",
    [{"answer": "green"}, {"decision": "approve"}, {"decision": "answer", "text": "green"}],
    ids=lambda body: str(body),
)
def test_what_no_button_sends_answers_nothing(cloud: Deployment, body: dict[str, str]) -> None:
    """A forged form gets the page again, with what is wrong."""
    id = asks(cloud)
    answered = press(cloud, link(cloud), **body)
    assert (answered.status, cloud.approval(id).status) == (422, ApprovalStatus.PENDING)
    assert "Nothing was decided." in Read(answered.text).text


def test_the_form_of_an_approval_takes_no_answer(cloud: Deployment) -> None:
    """An answer posted to the page of an approval decides nothing."""
    id = cloud.pause()
    drive(cloud)
    assert press(cloud, link(cloud), answer="yes").status == 422
    assert cloud.approval(id).status is ApprovalStatus.PENDING


def test_what_the_model_asks_is_text(cloud: Deployment) -> None:
    """Markup in question, options, default, answer and note is shown as text, wherever the page shows it."""
    id = asks(cloud, OPEN)
    approval = cloud.approval(id)
    evil = {"question": EVIL, "options": [EVIL], "free_text": True}
    request = approval.request.but(arguments=evil, agent=EVIL, default=EVIL)
    asked = approval.but(events=(request, *approval.events[1:]))
    filled = _review.Filled(approved=True, answer=EVIL, note=EVIL, wrong=EVIL)
    say(cloud, id, answer="because")
    [vote] = [event for event in cloud.approval(id).events if event.event == "voted"]
    answered = asked.but(events=(*asked.events, vote.but(answer=EVIL, note=EVIL, by=EVIL)))
    pages = [
        _review.page(asked, status="pending", filled=filled),
        _review.page(answered, status="approved"),
        _review.page(answered.but(events=(*asked.events, vote.but(approved=False, note=EVIL))), status="rejected"),
    ]
    plain = _review.page(approval, status="pending")
    allowed = {tag for tag, _ in Read(plain.body or "").tags}
    for page in pages:
        read = Read(page.body or "")
        assert {tag for tag, _ in read.tags} <= allowed
        assert not [name for _, given in read.tags for name in given if name.startswith("on")]
    values = [given.get("value") for tag, given in Read(pages[0].body or "").tags if tag == "button"]
    assert values[0] == EVIL.replace("\r\n", "\n") or values[0] == EVIL


# --- when nobody answers ---------------------------------------------------------------------------------------------


def test_the_default_is_the_result(cloud: Deployment) -> None:
    """At the deadline the run goes on with the default, the page says so, and who answers later is told."""
    id = asks(cloud, timeout=timedelta(hours=1), default="red")
    assert "If nobody answers" in look(cloud).text
    cloud.clock.advance(hours=1)
    assert drive(cloud)["outcome"] == "finished"
    assert result(cloud)["default"] is True
    assert "The answer is the default: red" in look(cloud).text
    assert say(cloud, id, answer="red").status == 409


# --- crashes and races -----------------------------------------------------------------------------------------------


def ends(cloud: Deployment, id: str) -> None:
    for _ in range(5):
        cloud.clock.advance(minutes=2)
        cloud.recover()
        if cloud.stored().status is not Status.FINISHED:
            cloud.slice()
    stored, approval = cloud.stored(), cloud.approval(id)
    assert stored.status is Status.FINISHED
    assert first_fault(stored.messages) is None
    assert approval.applied
    decision = approval.decision
    assert decision is not None
    if decision.approved:
        assert result(cloud)["answer"] == decision.answer
    else:
        assert result(cloud)["kind"] == "rejected"
    cloud.clock.advance(days=1)
    assert cloud.recover()["started"] == 0


def test_answering_dies(clouds: Clouds) -> None:
    """An answer that was recorded is the result without anybody's help; one that was not is given again."""

    def try_at(at: int) -> bool:
        cloud = clouds()
        id = asks(cloud)
        died = cloud.dies(lambda: say(cloud, id, answer="red"), at=at)
        if cloud.approval(id).status is ApprovalStatus.PENDING:
            say(cloud, id, answer="red")
        ends(cloud, id)
        assert result(cloud)["answer"] == "red"
        return died

    assert at_every_point(clouds, try_at) > 10


def test_applying_dies(clouds: Clouds) -> None:
    """Between answer and result nobody is asked again, wherever the slice dies."""

    def try_at(at: int) -> bool:
        cloud = clouds()
        id = asks(cloud)
        say(cloud, id, answer="red")
        told = len(cloud.topics.messages)
        died = cloud.dies(cloud.slice, at=at)
        ends(cloud, id)
        assert result(cloud)["answer"] == "red"
        assert len(cloud.topics.messages) == told
        return died

    assert at_every_point(clouds, try_at) > 20


def late(cloud: Deployment) -> Any:
    """The execution's wait ends: at the deadline, or at that of a level."""
    cloud.clock.advance(hours=1)
    return drive(cloud, "token-2")


RACES: dict[str, tuple[Callable[[Deployment, str], Any], Callable[[Deployment, str], Any]]] = {
    "answer and expire": (lambda cloud, id: say(cloud, id, answer="red"), lambda cloud, id: late(cloud)),
    "expire and answer": (lambda cloud, id: late(cloud), lambda cloud, id: say(cloud, id, answer="red")),
    "two answers": (
        lambda cloud, id: say(cloud, id, answer="red"),
        lambda cloud, id: say(cloud, id, answer="deep blue"),
    ),
    "the same twice": (lambda cloud, id: say(cloud, id, answer="red"), lambda cloud, id: say(cloud, id, answer="red")),
    "answer and decline": (
        lambda cloud, id: say(cloud, id, answer="red"),
        lambda cloud, id: say(cloud, id, approved=False),
    ),
}


@pytest.mark.parametrize("escalates", [False, True])
@pytest.mark.parametrize("race", RACES)
def test_two_at_once(clouds: Clouds, monkeypatch: pytest.MonkeyPatch, race: str, escalates: bool) -> None:
    """An answer against the end of a wait, a level that is told, or another answer: one counts, none is lost."""
    monkeypatch.setenv("ESCALATION_TOPICS", TOPIC.replace(":approvals", ":leads"))
    first, second = RACES[race]
    policy = {"on_timeout": escalate(level("leads", wait=timedelta(hours=1)))} if escalates else {}

    def try_at(at: int) -> bool:
        cloud = clouds()
        id = asks(cloud, timeout=timedelta(hours=1), default="red", **policy)
        met = cloud.overtaken(lambda: first(cloud, id), at=at, by=lambda: second(cloud, id))
        if cloud.approval(id).status is ApprovalStatus.PENDING:
            assert not met
            say(cloud, id, answer="red")
        closing = [event.event for event in cloud.approval(id).events if event.event in ("voted", "expired")]
        assert len(closing) == 1
        if escalates:
            assert closing == ["voted"]
        ends(cloud, id)
        return met

    assert at_every_point(clouds, try_at) > 5
