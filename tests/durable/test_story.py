"""The trail of an approval as sentences: who did what, and what came of it."""

from datetime import timedelta
from typing import Any

import pytest

from durable import render_approval
from durable.approval_stream import Applied, Approval, Cancelled, Expired, Reminded, Requested, TokenAttached, Voted
from durable.story import WIDTH, story
from tests.support.runs import START

ASKED = Requested(
    at=START,
    session_id="s",
    run_id="r",
    agent="desk",
    call_id="c",
    tool_name="pay",
    arguments={"amount": 5},
    digest="d1",
    requested_by="bob",
)
TWO = ASKED.but(approvals=2, approvers=("ada", "cy", "dan"))


def token(*names: str | None) -> TokenAttached:
    return TokenAttached(
        at=START, task_token="secret-task", callbacks={f"hash{at}": name for at, name in enumerate(names)}
    )


def voted(by: str | None, **more: Any) -> Voted:
    return Voted(**{"at": START, "approved": True, "digest": "d1", "via": "api", "by": by, **more})


def told(*events: Any) -> list[str]:
    return list(story(Approval(id="a", revision=len(events) - 1, events=events)))


STORIES: dict[str, tuple[list[Any], list[str]]] = {
    "one vote": (
        [ASKED, token(None), voted("ada"), Applied(at=START)],
        ['bob asks for pay({"amount": 5})', "people are told", "ada approves: approved", "the run goes on"],
    ),
    "below": (
        [TWO.but(path=("desk", "cashier")), voted("ada", approved=False)],
        ['bob asks for pay({"amount": 5}) in desk > cashier; 2 of ada, cy, dan must approve', "ada rejects: rejected"],
    ),
    "several": (
        [TWO, token("cy", "ada", "dan"), voted("ada", note="ok"), voted("cy")],
        [
            'bob asks for pay({"amount": 5}); 2 of ada, cy, dan must approve',
            "ada, cy and dan are told",
            'ada approves: "ok" (1 of 2)',
            "cy approves (2 of 2): approved",
        ],
    ),
    "an edit": (
        [TWO, voted("ada"), voted("cy", args={"amount": 3}, digest="d2"), token("ada"), voted("ada", digest="d2")],
        [
            'bob asks for pay({"amount": 5}); 2 of ada, cy, dan must approve',
            "ada approves (1 of 2)",
            'cy approves with {"amount": 3}, the votes start anew (1 of 2)',
            "ada is told",
            "ada approves (2 of 2): approved",
        ],
    ),
    "a rejection": (
        [ASKED.but(approvals=2, requested_by=None), voted(None), voted("ada", approved=False, note="too dear")],
        [
            'somebody unknown asks for pay({"amount": 5}); 2 must approve',
            "somebody unknown approves (1 of 2)",
            'ada rejects: "too dear": rejected',
        ],
    ),
    "silence": (
        [ASKED, token("ada", "cy"), token("ada"), Reminded(at=START), ASKED, Expired(at=START), Applied(at=START)],
        [
            'bob asks for pay({"amount": 5})',
            "ada and cy are told",
            "ada is told",
            "that was a reminder",
            'bob asks again for pay({"amount": 5})',
            "nobody has decided in time: expired",
            "the run goes on",
        ],
    ),
    "an abort": (
        [ASKED, Cancelled(at=START, by="eve")],
        ['bob asks for pay({"amount": 5})', "eve stops the run: cancelled"],
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_every_event_is_a_sentence(name: str) -> None:
    """Each says who did what; a vote says how many there are, and what it has decided."""
    events, sentences = STORIES[name]
    assert told(*events) == sentences


def test_the_trail_is_a_line_for_each_event() -> None:
    """With the time in UTC, to the minute."""
    later = voted("ada").but(at=START + timedelta(hours=26, minutes=5))
    text = render_approval(Approval(id="a", revision=1, events=(ASKED, later)))
    assert text == '2030-01-01 00:00  bob asks for pay({"amount": 5})\n2030-01-02 02:05  ada approves: approved\n'


def test_what_is_long_is_cut_and_stays_on_its_line() -> None:
    """Arguments and notes of any size, with line ends, make one line each; no token is told."""
    long = "x" * 10_000
    lines = told(ASKED.but(arguments={"text": long}), token(None), voted("ada", note=f"a\n\nb {long}"))
    assert all(len(line) < 2 * WIDTH and "\n" not in line for line in lines)
    assert "10012 characters" in lines[0]
    assert not [line for line in lines if "secret" in line or "hash" in line]
