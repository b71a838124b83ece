"""The page behind a callback link: what it shows, what its form decides, and what it never does."""

import json
import re
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode

import pytest

from durable.approvals import MAX_NOTE
from handlers import _review
from tests.handlers.conftest import PAY, Deployment
from tests.support.events import Answered

BROWSER = {"Accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"}
FORM = {**BROWSER, "Content-Type": "application/x-www-form-urlencoded"}
EVIL = "</textarea><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;\r\nSet-Cookie: a=b"


class Read(HTMLParser):
    """The tags with their attributes, the text, and what the fields of the form hold."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.fields: dict[str, str] = {}
        self._field: str | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        if tag == "textarea":
            self._field = given["name"]
            self.fields[self._field or ""] = ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self._field = None

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._field is not None:
            self.fields[self._field] += data


def waits(cloud: Deployment, script: Any = PAY) -> str:
    """An approval that people were told of; the path of its link."""
    cloud.script = script
    cloud.cold_start()
    id = cloud.send("pay").json["approval_id"]
    cloud.slice()
    cloud.states.wait("token-1")
    cloud.ask(id, "token-1")
    return f"/callbacks/{cloud.callback()}"


def look(cloud: Deployment, link: str) -> Answered:
    return cloud.request("GET", link, headers=BROWSER, caller=None)


def press(cloud: Deployment, link: str, button: str, **fields: str) -> Answered:
    body = urlencode({"decision": button, **fields})
    return cloud.request("POST", link, body=body, headers=FORM, caller=None)


def test_a_browser_gets_a_page_and_a_program_json(cloud: Deployment) -> None:
    """What a client accepts decides, and JSON is what it gets if it says nothing."""
    link = waits(cloud)
    assert look(cloud, link).headers["Content-Type"].startswith("text/html")
    assert cloud.request("GET", link, caller=None).json["status"] == "pending"


def test_the_page_says_what_will_run(cloud: Deployment) -> None:
    """Tool, arguments, agent, who asked, until when."""
    cloud.approval_timeout = None
    read = Read(look(cloud, waits(cloud)).text)
    for word in ("pay", "desk", '"amount": 5', "role/desk", "no deadline"):
        assert word in read.text
    assert [attributes.get("value") for tag, attributes in read.tags if tag == "button"] == ["approve", "reject"]


def test_the_page_needs_nothing_from_elsewhere(cloud: Deployment) -> None:
    """No script, no image, no link; a policy that would refuse them; nobody may frame it, keep it or be told of it."""
    link = waits(cloud)
    answered = look(cloud, link)
    read = Read(answered.text)
    assert {tag for tag, _ in read.tags} & {"script", "img", "link", "iframe", "object", "base"} == set()
    assert not [name for _, attributes in read.tags for name in attributes if name.startswith("on") or name == "style"]
    policy = answered.headers["Content-Security-Policy"]
    for rule in ("default-src 'none'", "form-action 'self'", "frame-ancestors 'none'", "base-uri 'none'"):
        assert rule in policy
    assert "unsafe" not in policy
    headers = {name: answered.headers[name] for name in ("Cache-Control", "Referrer-Policy", "X-Content-Type-Options")}
    assert list(headers.values()) == ["no-store", "no-referrer", "nosniff"]


def test_the_token_stands_in_no_markup(cloud: Deployment) -> None:
    """The form posts to the page's own address: a page that is saved or copied holds no link."""
    link = waits(cloud)
    assert link.rpartition("/")[2] not in look(cloud, link).text


@pytest.mark.parametrize("button", ["approve", "reject"])
def test_a_button_decides(cloud: Deployment, button: str) -> None:
    """The decision is recorded with its note, the execution is woken, and the page says what was decided."""
    link = waits(cloud)
    answered = press(cloud, link, button, note=" seen by me ")
    assert (answered.status, len(cloud.states.waiting["token-1"])) == (200, 1)
    decision = cloud.approval(link.split("/")[2].partition(".")[0]).decision
    assert decision is not None
    assert (decision.approved, decision.note, decision.via) == (button == "approve", "seen by me", "callback")
    read = Read(answered.text)
    assert f"{button.rstrip('e')}ed by" in read.text.lower()
    assert "form" not in {tag for tag, _ in read.tags}
    assert cloud.slice()["outcome"] == "finished"
    assert cloud.paid == ([5] if button == "approve" else [])


def test_arguments_are_edited_in_the_form(cloud: Deployment) -> None:
    """What is changed is what runs; both versions stay on the record."""
    link = waits(cloud)
    press(cloud, link, "approve", args='{"amount": 3}')
    cloud.slice()
    assert cloud.paid == [3]
    shown = cloud.request("GET", link, caller=None).json
    assert (shown["arguments"], shown["decision"]["args"]) == ({"amount": 5}, {"amount": 3})


def test_arguments_that_are_left_as_they_are_are_no_edit(cloud: Deployment) -> None:
    """A browser sends the field back whether it was touched or not."""
    link = waits(cloud)
    fields = Read(look(cloud, link).text).fields
    press(cloud, link, "approve", args=fields["args"].replace("\n", "\r\n"), note=fields["note"])
    assert cloud.request("GET", link, caller=None).json["decision"]["args"] is None


def test_a_rejection_ignores_the_arguments(cloud: Deployment) -> None:
    """The field is part of the form whatever button is pressed."""
    link = waits(cloud)
    assert press(cloud, link, "reject", args="not JSON {").status == 200
    assert cloud.request("GET", link, caller=None).json["status"] == "rejected"


@pytest.mark.parametrize("args", ["{", "[1]", "5", '{"amount": "much"}', '{"amount": NaN}', "[" * 10_000])
def test_what_is_wrong_is_said_and_what_was_typed_is_kept(cloud: Deployment, args: str) -> None:
    """Arguments that do not fit decide nothing: the page comes again with the fault and the fields as they were."""
    link = waits(cloud)
    answered = press(cloud, link, "approve", args=args, note="my note")
    assert answered.status in (400, 422)
    read = Read(answered.text)
    assert "Nothing was decided." in read.text
    assert (read.fields["args"], read.fields["note"]) == (args, "my note")
    assert cloud.request("GET", link, caller=None).json["status"] == "pending"


def test_a_note_that_is_too_long_decides_nothing(cloud: Deployment) -> None:
    """The page says so, and keeps it."""
    link = waits(cloud)
    answered = press(cloud, link, "approve", note="x" * (MAX_NOTE + 1))
    assert answered.status == 422
    assert cloud.request("GET", link, caller=None).json["status"] == "pending"


@pytest.mark.parametrize(
    "body", ["", "decision=maybe", "note=x", "decision=approve&decision=reject", "%%%", "a=1&" * 50]
)
def test_a_form_that_no_button_sends_is_refused(cloud: Deployment, body: str) -> None:
    """400, and nothing is decided."""
    link = waits(cloud)
    assert cloud.request("POST", link, body=body, headers=FORM, caller=None).status == 400
    assert cloud.request("GET", link, caller=None).json["status"] == "pending"


def test_the_second_one_is_told_kindly(cloud: Deployment) -> None:
    """A link that was used shows who decided what, and a form that comes late changes nothing."""
    link = waits(cloud)
    press(cloud, link, "approve")
    for answered in (look(cloud, link), press(cloud, link, "reject")):
        read = Read(answered.text)
        assert answered.status == 200
        assert "Approved by" in read.text
        assert "form" not in {tag for tag, _ in read.tags}
    cloud.slice()
    assert cloud.paid == [5]


@pytest.mark.parametrize(("how", "words"), [("late", "Nobody had decided"), ("abort", "The run was stopped")])
def test_a_link_that_came_too_late_says_so(cloud: Deployment, how: str, words: str) -> None:
    """Expired, or cancelled with its run: kind words, and no form."""
    from datetime import timedelta

    cloud.approval_timeout = timedelta(hours=1)
    link = waits(cloud)
    if how == "late":
        cloud.clock.advance(hours=1)
    else:
        cloud.request("POST", "/sessions/s/abort")
    read = Read(press(cloud, link, "approve").text)
    assert words in read.text
    assert "form" not in {tag for tag, _ in read.tags}
    cloud.slice()
    assert cloud.paid == []


@pytest.mark.parametrize("token", ["no-such-token", "apr_" + "0" * 32 + ".guessed", "%3Cscript%3E"])
def test_a_link_that_does_not_exist_is_a_page_too(cloud: Deployment, token: str) -> None:
    """404 in words for people, which repeat nothing of the link."""
    for answered in (look(cloud, f"/callbacks/{token}"), press(cloud, f"/callbacks/{token}", "approve")):
        assert answered.status == 404
        assert token not in answered.text
        assert "This link does not work" in answered.text


def test_what_models_and_users_say_is_text(cloud: Deployment) -> None:
    """Markup in arguments and notes is shown, never interpreted, on each of the pages."""
    link = waits(cloud, [("pay", {"amount": 5}), "Paid."])
    approval = cloud.approval(link.split("/")[2].partition(".")[0])
    evil = approval.request.but(tool_name=EVIL, arguments={EVIL: EVIL}, agent=EVIL, requested_by=EVIL, session_id=EVIL)
    filled = _review.Filled(approved=True, note=EVIL, args=EVIL, wrong=EVIL)
    pages = [
        _review.page(approval.but(events=(evil,)), status="pending", filled=filled),
        _review.page(approval.but(events=(evil,)), status="orphaned"),
        _review.notice(EVIL, EVIL, 404),
    ]
    for page in pages:
        read = Read(page.body or "")
        assert {tag for tag, _ in read.tags} & {"script", "img"} == set()
        assert "<script" not in re.sub(r"<style>.*?</style>", "", page.body or "", flags=re.S)
        assert all("\n" not in str(value) and "\r" not in str(value) for value in page.headers.values())
    assert Read(pages[0].body or "").fields == {"note": EVIL, "args": EVIL}


def test_arguments_of_any_size_have_a_page(cloud: Deployment) -> None:
    """Large ones are cut, and cannot be edited here; approving runs all of them."""
    link = waits(cloud)
    approval = cloud.approval(link.split("/")[2].partition(".")[0])
    large = approval.request.but(arguments={"text": "x" * 3_000_000})
    page = _review.page(approval.but(events=(large,)), status="pending")
    assert len(page.body or "") < 2 * _review.MAX_SHOWN
    assert list(Read(page.body or "").fields) == ["note"]


# --- several approvers -----------------------------------------------------------------------------------------------


def asked_of(cloud: Deployment, *approvers: str) -> dict[str, str]:
    """An approval that needs two of them: the paths of their links by approver."""
    cloud.approval_terms = {"approvals": 2, "approvers": approvers}
    waits(cloud)
    return {
        sent["MessageAttributes"]["approver"]["StringValue"]: re.findall(r"/callbacks/\S+", sent["Message"])[0]
        for sent in cloud.topics.messages
    }


def buttons(read: Read) -> list[str | None]:
    return [attributes.get("value") for tag, attributes in read.tags if tag == "button"]


def fields_of(answered: Answered) -> dict[str, str]:
    """The fields as a browser sends them back."""
    read = Read(answered.text)
    hidden = {
        str(attributes["name"]): str(attributes["value"])
        for tag, attributes in read.tags
        if tag == "input" and attributes.get("type") == "hidden"
    }
    return {**read.fields, **hidden}


def test_the_page_shows_the_votes(cloud: Deployment) -> None:
    """Who may decide, who has approved and with which note, how many are missing, and whose link this is."""
    links = asked_of(cloud, "ada", "bob", "cy")
    fresh = Read(look(cloud, links["ada"]).text).text
    for words in ("Approvals: 0 of 2", "Who may decide: ada, bob, cy", "This link is for"):
        assert words in fresh
    press(cloud, links["ada"], "approve", **{**fields_of(look(cloud, links["ada"])), "note": "seen <b>by me</b>"})
    other = Read(look(cloud, links["bob"]).text)
    assert "Approvals: 1 of 2" in other.text
    assert "seen <b>by me</b>" in other.text
    assert buttons(other) == ["approve", "reject"]


def test_who_has_approved_is_told_that_it_counts(cloud: Deployment) -> None:
    """The page says so after the button and when it is opened again, and offers only to reject after all."""
    links = asked_of(cloud, "ada", "bob", "cy")
    for answered in (press(cloud, links["ada"], "approve"), look(cloud, links["ada"])):
        read = Read(answered.text)
        assert "You have approved this" in read.text
        assert "one more approval is missing" in read.text
        assert buttons(read) == ["reject"]
    last = Read(press(cloud, links["bob"], "approve").text)
    assert "Approved by ada and bob" in last.text
    assert buttons(last) == []


def test_who_has_approved_may_reject_after_all(cloud: Deployment) -> None:
    """Until it is decided, a rejection by the same link rejects."""
    links = asked_of(cloud, "ada", "bob")
    press(cloud, links["ada"], "approve")
    assert "Rejected by ada" in Read(press(cloud, links["ada"], "reject").text).text
    cloud.slice()
    assert cloud.paid == []


def test_changed_arguments_are_shown_beside_the_models(cloud: Deployment) -> None:
    """Both versions, and who has changed them; the form approves what is shown."""
    links = asked_of(cloud, "ada", "bob")
    press(cloud, links["bob"], "approve", **{**fields_of(look(cloud, links["bob"])), "args": '{"amount": 3}'})
    shown = look(cloud, links["ada"])
    read = Read(shown.text)
    for words in ("Arguments, changed by bob", '"amount": 3', "What the model asked for", '"amount": 5'):
        assert words in read.text
    assert "Approved by bob and ada" in Read(press(cloud, links["ada"], "approve", **fields_of(shown)).text).text
    cloud.slice()
    assert cloud.paid == [3]


def test_a_form_for_arguments_that_were_changed_decides_nothing(cloud: Deployment) -> None:
    """The page comes again with the arguments as they are now; the note that was typed is kept."""
    links = asked_of(cloud, "ada", "bob")
    stale = {**fields_of(look(cloud, links["ada"])), "note": "looks right"}
    press(cloud, links["bob"], "approve", **{**fields_of(look(cloud, links["bob"])), "args": '{"amount": 3}'})
    for fields in (stale, {**stale, "args": '{"amount": 4}'}):
        answered = press(cloud, links["ada"], "approve", **fields)
        read = Read(answered.text)
        assert answered.status == 409
        assert "changed the arguments meanwhile" in read.text
        assert (read.fields["note"], json.loads(read.fields["args"])) == ("looks right", {"amount": 3})
    again = {**fields_of(answered), "note": "looks right"}
    assert "Approved by bob and ada" in Read(press(cloud, links["ada"], "approve", **again).text).text


def test_links_for_nobody_share_a_vote_and_the_page_says_so(cloud: Deployment) -> None:
    """The second one with such a link learns that somebody else has to approve under their name."""
    cloud.approval_terms = {"approvals": 2}
    link = waits(cloud)
    press(cloud, link, "approve")
    read = Read(look(cloud, link).text)
    assert "Somebody with a link for nobody by name has approved this" in read.text
    assert buttons(read) == ["reject"]


def test_a_link_of_somebody_who_may_no_longer_decide_says_so(cloud: Deployment) -> None:
    """The run has asked once more, and of others: the older link decides nothing, and what was typed stays."""
    links = asked_of(cloud, "ada", "bob")
    id = links["ada"].split("/")[2].partition(".")[0]
    cloud.store.approvals.request(id, cloud.approval(id).request.but(approvers=("bob", "cy")))
    answered = press(cloud, links["ada"], "approve", note="mine")
    read = Read(answered.text)
    assert (answered.status, read.fields["note"]) == (403, "mine")
    assert "it is not for 'ada' to decide. Nothing was decided." in read.text
    assert cloud.approval(id).ballot.approving == ()
