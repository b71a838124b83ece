"""Escalation in a deployment: who is told when, what a crash or a race in between leaves, and what people see."""

import base64
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from durable import Agent, ApprovalStatus, ConfigurationError, FinishReason, Status, escalate, level, tool
from handlers import _settings, _wiring
from tests.handlers.conftest import TOPIC, Deployment
from tests.handlers.test_approval_crashes import at_every_point, came_to_an_end, press_again
from tests.support.aws import refused

Clouds = Callable[[], Deployment]
LEADS, CFO = TOPIC.replace(":approvals", ":leads"), TOPIC.replace(":approvals", ":cfo")
HOUR = 3600


@pytest.fixture(autouse=True)
def channels(clouds: Clouds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESCALATION_TOPICS", f"{LEADS}, {CFO}")


def escalating(cloud: Deployment, **more: Any) -> str:
    """A run that waits an hour for its first people, two for the leads and four for the CFO; its approval."""
    levels = (level("leads", wait=timedelta(hours=2)), level("cfo", wait=timedelta(hours=4)))
    cloud.approval_timeout = timedelta(hours=1)
    cloud.approval_terms = {"on_timeout": escalate(*levels, then=more.pop("then", "reject")), **more}
    return cloud.pause()


def drive(cloud: Deployment, token: str = "token-1") -> Any:
    """What the state machine does until it sleeps or ends: a slice, and where that waits, the task that asks people."""
    cloud.states.waiting.clear()  # the wait before this slice has ended, or there is no slice
    left = cloud.slice(execution=cloud.states.running[-1])
    if left["outcome"] == "awaiting-approval":
        cloud.states.wait(token)
        cloud.ask(left["approval_id"], token)
    return left


def told(cloud: Deployment) -> list[str]:
    return [message["TopicArn"].rpartition(":")[2] for message in cloud.topics.messages]


def decide(cloud: Deployment, id: str, **body: Any) -> Any:
    return cloud.request("POST", f"/approvals/{id}/decision", body={"approved": True, **body})


# --- who is told, and until when -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("then", "ends"), [("reject", FinishReason.STOP), ("halt", FinishReason.GUARDRAIL)])
def test_each_level_is_told_in_its_turn(cloud: Deployment, then: str, ends: FinishReason) -> None:
    """The first people, then each level when the wait before it is over, and after the last one the end policy."""
    id = escalating(cloud, then=then)
    for hours, names in ((1, ["approvals"]), (2, ["approvals", "leads"]), (4, ["approvals", "leads", "cfo"])):
        left = drive(cloud)
        assert (left["outcome"], left["timeout_seconds"]) == ("awaiting-approval", hours * HOUR)
        assert told(cloud) == names
        cloud.clock.advance(hours=hours)
    assert drive(cloud)["outcome"] == "finished"
    assert cloud.stored().finish_reason is ends
    assert cloud.approval(id).status is ApprovalStatus.EXPIRED
    assert cloud.paid == []
    assert [event.event for event in cloud.approval(id).events if event.event != "token-attached"] == [
        "requested",
        "escalated",
        "escalated",
        "expired",
        "applied",
    ]


def test_a_level_reads_that_it_is_one(cloud: Deployment) -> None:
    """The message says that nobody has decided yet, which level is told, and until when it may decide."""
    escalating(cloud)
    drive(cloud)
    cloud.clock.advance(hours=1)
    drive(cloud)
    message = cloud.topics.messages[-1]
    assert message["Subject"] == "Escalated: approval wanted: pay"
    assert "Nobody has decided yet: you are level 1 of 2." in message["Message"]
    assert f"Decide before {cloud.clock() + timedelta(hours=2):%F %T} UTC." in message["Message"]


def test_the_first_link_is_still_good(cloud: Deployment) -> None:
    """Whoever was told first may still decide when others were told after them."""
    id = escalating(cloud)
    drive(cloud)
    token = cloud.callback()
    for _ in range(2):
        cloud.clock.advance(hours=2)
        drive(cloud)
    assert cloud.request("POST", f"/callbacks/{token}", body={"approved": True}, caller=None).status == 200
    assert drive(cloud)["outcome"] == "finished"
    assert cloud.paid == [5]
    assert cloud.approval(id).level == 2


def test_reminders_go_to_the_level_that_it_is_at(cloud: Deployment) -> None:
    """People are reminded while they may decide, and not those who were told before them."""
    escalating(cloud, remind_every=timedelta(minutes=40))
    for minutes in (40, 20, 40):
        drive(cloud)
        cloud.clock.advance(minutes=minutes)
    drive(cloud)
    assert told(cloud) == ["approvals", "approvals", "leads", "leads"]
    assert cloud.topics.messages[-1]["Subject"].startswith("Reminder: ")


def test_a_webhook_may_be_a_level(cloud: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A level may name several channels, topics and webhooks; each is told, the webhook with its level."""
    posted: list[tuple[str, bytes]] = []
    monkeypatch.setattr("handlers._notify.post", lambda url, body, **more: posted.append((url, body)))
    monkeypatch.setattr("handlers._notify.secret_named", lambda place: "whsec_" + base64.b64encode(b"k" * 32).decode())
    monkeypatch.setenv("WEBHOOK_SECRET", "hooks")
    monkeypatch.setenv("ESCALATION_WEBHOOKS", "pager=https://pager.example/hook?a=b")
    cloud.approval_timeout = timedelta(hours=1)
    cloud.approval_terms = {"on_timeout": escalate(level("leads", "pager", wait=timedelta(hours=1)))}
    cloud.pause()
    drive(cloud)
    cloud.clock.advance(hours=1)
    drive(cloud)
    assert told(cloud) == ["approvals", "leads"]
    [(url, body)] = posted
    assert url == "https://pager.example/hook?a=b"
    assert b'"type": "approval.escalated"' in body
    assert b'"level": 1, "levels": 1' in body


# --- what people see -------------------------------------------------------------------------------------------------


def test_the_levels_are_shown(cloud: Deployment) -> None:
    """The API, and the page behind the link, show where an escalation has come to, who was told and who is next."""
    id = escalating(cloud)
    drive(cloud)
    cloud.clock.advance(hours=1)
    drive(cloud)
    shown = cloud.get(f"/approvals/{id}").json
    assert (shown["level"], shown["on_timeout"]) == (1, "reject")
    assert shown["levels"] == [{"to": ["leads"], "wait": 2.0 * HOUR}, {"to": ["cfo"], "wait": 4.0 * HOUR}]
    assert shown["deadline"] == (cloud.clock() + timedelta(hours=2)).isoformat()
    [escalated] = [event for event in shown["trail"] if event["event"] == "escalated"]
    sentence = "nobody has decided in time: level 1 is next, leads"
    at = cloud.clock().isoformat()
    assert escalated == {"event": "escalated", "at": at, "level": 1, "to": ["leads"], "text": sentence}

    page = cloud.request("GET", f"/callbacks/{cloud.callback()}", headers={"Accept": "text/html"}, caller=None)
    assert f"<dt>Level 1</dt><dd>leads, told at {cloud.clock():%Y-%m-%d %H:%M} UTC</dd>" in page.text
    assert "<dt>Told next</dt><dd>cfo</dd>" in page.text


# --- what a deployment refuses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("below", [False, True])
def test_a_level_that_cannot_be_told_is_refused_at_start(cloud: Deployment, below: bool) -> None:
    """A tool, of a sub-agent too, that escalates to a channel which the deployment does not have is named, with those
    that there are."""

    @tool(needs_approval=True, approval_timeout=timedelta(1), on_timeout=escalate(level("boss", wait=timedelta(1))))
    def wipe() -> None: ...

    cloud.tools = [Agent(name="helper", tools=[wipe]).as_tool() if below else wipe]
    cloud.cold_start()
    with pytest.raises(ConfigurationError, match=r"'wipe' of agent .*level 1 .*\['boss'\].*\['cfo', 'leads'\]"):
        _wiring.app()


@pytest.mark.parametrize(
    ("environment", "wrong"),
    [
        ({"ESCALATION_TOPICS": "leads"}, "not right"),
        ({"ESCALATION_WEBHOOKS": "leads=http://pager.example", "WEBHOOK_SECRET": "s"}, "not right"),
        ({"ESCALATION_WEBHOOKS": "https://pager.example", "WEBHOOK_SECRET": "s"}, "not right"),
        ({"ESCALATION_WEBHOOKS": "leads=https://pager.example", "WEBHOOK_SECRET": "s"}, "have one name"),
        ({"ESCALATION_WEBHOOKS": "pager=https://pager.example"}, "needs WEBHOOK_SECRET"),
    ],
)
def test_channels_that_are_not_right_are_named(environment: dict[str, str], wrong: str) -> None:
    """Topics are ARNs, webhooks have a name, HTTPS and a secret to sign with, and no two channels have one name."""
    with pytest.raises(ConfigurationError, match=wrong):
        _settings.read({"TABLE_NAME": "t", "ESCALATION_TOPICS": LEADS, **environment})


def test_a_channel_that_has_gone_leaves_nobody_untold(cloud: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a redeployment took a level's channel away, the deployment's own people are told, and the failure counts."""
    escalating(cloud)
    drive(cloud)
    cloud.clock.advance(hours=1)
    monkeypatch.setenv("ESCALATION_TOPICS", CFO)
    cloud.approval_terms = {}
    cloud.cold_start()
    drive(cloud)
    assert told(cloud) == ["approvals", "approvals"]
    assert "the deployment has no such channel" in cloud.log.getvalue()


# --- crashes and races -----------------------------------------------------------------------------------------------


def test_escalating_dies(clouds: Clouds) -> None:
    """Wherever the slice that escalates, or the task that tells the level, dies: its people are told, perhaps twice,
    and the level is on the record once."""

    def try_at(at: int) -> bool:
        cloud = clouds()
        id = escalating(cloud)
        drive(cloud)
        cloud.clock.advance(hours=1)
        died = cloud.dies(lambda: drive(cloud, "token-2"), at=at)
        if died:
            drive(cloud, "token-2")
        assert set(told(cloud)) == {"approvals", "leads"}
        assert cloud.approval(id).level == 1
        assert told(cloud).count("leads") <= 2
        decide(cloud, id)
        drive(cloud)
        came_to_an_end(cloud, id)
        return died

    assert at_every_point(clouds, try_at) > 10


def test_an_execution_that_died_with_its_level_untold(clouds: Clouds) -> None:
    """Recovery starts another execution for a run whose level is on the record and whose people were not told, and for
    one whose wait is over; that one goes on at the right level."""

    def try_at(at: int) -> bool:
        cloud = clouds()
        id = escalating(cloud)
        drive(cloud)
        cloud.clock.advance(hours=1)
        died = cloud.dies(lambda: drive(cloud, "token-2"), at=at)
        if died:
            cloud.states.end(cloud.states.running[-1], "ABORTED")
            cloud.clock.advance(minutes=6)
            cloud.recover()
            if cloud.states.running:  # else it had told them, and sleeps
                drive(cloud, "token-3")
        assert set(told(cloud)) == {"approvals", "leads"}
        assert (cloud.approval(id).level, cloud.approval(id).told) == (1, True)
        return died

    assert at_every_point(clouds, try_at) > 10


def test_recovery_looks_again_until_the_level_was_told(cloud: Deployment) -> None:
    """While an execution is still trying to tell a level, recovery does not take the run off its list."""
    escalating(cloud)
    drive(cloud)
    cloud.clock.advance(hours=1)
    cloud.states.waiting.clear()
    cloud.slice(execution=cloud.states.running[-1])
    cloud.clock.advance(minutes=6)
    assert cloud.recover()["started"] == 1
    assert cloud.head().due_at <= cloud.clock() + timedelta(minutes=2)
    cloud.states.end(cloud.states.running[-1], "ABORTED")
    cloud.clock.advance(minutes=2)
    cloud.recover()
    drive(cloud, "token-2")
    assert told(cloud) == ["approvals", "leads"]


def escalate_now(cloud: Deployment, token: str = "token-2") -> Any:
    return drive(cloud, token)


def abort(cloud: Deployment) -> Any:
    return cloud.request("POST", "/sessions/s/abort", request_id="r2")


RACES: dict[str, tuple[Callable[[Deployment, str], Any], Callable[[Deployment, str], Any]]] = {
    "decide and escalate": (lambda cloud, id: decide(cloud, id), lambda cloud, id: escalate_now(cloud)),
    "escalate and decide": (lambda cloud, id: escalate_now(cloud), lambda cloud, id: decide(cloud, id)),
    "escalate and reject": (lambda cloud, id: escalate_now(cloud), lambda cloud, id: decide(cloud, id, approved=False)),
    "abort and escalate": (lambda cloud, id: abort(cloud), lambda cloud, id: escalate_now(cloud)),
    "escalate and abort": (lambda cloud, id: escalate_now(cloud), lambda cloud, id: abort(cloud)),
    "escalate twice": (lambda cloud, id: escalate_now(cloud), lambda cloud, id: escalate_now(cloud, "token-3")),
}


@pytest.mark.parametrize("race", RACES)
def test_two_at_once(clouds: Clouds, race: str) -> None:
    """A decision, an abort or another slice that comes in anywhere: one order or the other, and never both lost."""
    first, second = RACES[race]

    def try_at(at: int) -> bool:
        cloud = clouds()
        id = escalating(cloud)
        drive(cloud)
        cloud.clock.advance(hours=1)
        met = cloud.overtaken(lambda: first(cloud, id), at=at, by=lambda: second(cloud, id))
        approval = cloud.approval(id)
        assert [event.level for event in approval.events if event.event == "escalated"] in ([], [1])
        if "twice" in race:
            assert (approval.level, approval.status) == (1, ApprovalStatus.PENDING)
            assert "leads" in told(cloud)
        else:
            assert (approval.status is not ApprovalStatus.PENDING) == (met or not race.startswith("escalate"))
        press_again(cloud, id, approved=False)
        for _ in range(3):
            cloud.clock.advance(minutes=2)
            cloud.recover()
            if cloud.stored().status is Status.AWAITING_APPROVAL:
                drive(cloud, "token-4")
        came_to_an_end(cloud, id)
        return met

    assert at_every_point(clouds, try_at) > 5


def test_a_level_that_nobody_can_be_told_is_tried_again(cloud: Deployment) -> None:
    """When no channel of a level takes the message, the task fails, and the one that tries again tells the level."""
    escalating(cloud)
    drive(cloud)
    cloud.clock.advance(hours=1)
    cloud.topics.fail("publish", refused("InternalError"))
    with pytest.raises(Exception, match="STORE_UNAVAILABLE"):
        drive(cloud, "token-2")
    drive(cloud, "token-2")
    assert told(cloud) == ["approvals", "leads", "leads"]
