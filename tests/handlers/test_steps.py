"""The tasks of the state machine: how a slice is left, how a human is asked, and what an answer counts for."""

import json
from datetime import timedelta
from typing import Any

import pytest

from durable import (
    ApprovalStatus,
    ConfigurationError,
    FinishReason,
    PropagatingToolError,
    ProviderAuthenticationError,
    ProviderUnavailableError,
    Status,
    StoreRejectedError,
    StoreUnavailableError,
    tool,
)
from durable.approval_stream import Cancelled, TokenAttached, Voted
from durable.crossing import SAVE_ATTEMPTS
from handlers import _observe, _wiring, steps
from handlers._ids import token_hash
from handlers._notify import MAX_PREVIEW, MAX_SUBJECT, message, subject
from handlers.steps import LONGEST_WAIT, MAX_ACQUIRES, TryAgain, parse
from tests.handlers.conftest import PAY, TOPIC, Deployment
from tests.support.aws import refused
from tests.support.events import Context
from tests.support.machine import Execution
from tests.support.runs import START

ASYNC = {"Prefer": "respond-async"}
DOWN = ProviderUnavailableError("scripted", "It is down.", status=500)


def accepted(cloud: Deployment, script: Any = ("Hello.",)) -> str:
    """A run that was accepted and handed over; give its id."""
    cloud.script = script
    cloud.cold_start()
    return cloud.send("hi", headers=ASYNC).json["run_id"]


def waits(cloud: Deployment) -> str:
    """A run that waits in an execution; give the approval's id."""
    id = cloud.pause()
    assert cloud.slice()["outcome"] == "awaiting-approval"
    cloud.states.wait("task-token-1")
    cloud.ask(id)
    return id


def answer(id: str, output: Any) -> dict[str, Any]:
    return {"approval_id": id, "output": output}


# --- how a slice is left ---------------------------------------------------------------------------------------------


def test_a_slice_finishes_the_run(cloud: Deployment) -> None:
    """A slice runs what was accepted to its end; the run is not due any more and the session is free."""
    accepted(cloud)
    left = cloud.slice(execution="arn:mine")
    assert left == {"outcome": "finished", "approval_id": None, "timeout_seconds": 0, "until": None}
    assert cloud.stored().messages[-1].content == "Hello."
    assert (cloud.lease().owner, cloud.lease().execution, cloud.head().due_at) == (None, "arn:mine", None)


def test_a_slice_of_a_finished_run_does_nothing(cloud: Deployment) -> None:
    """A slice that comes after the end says so: no model call, and the checkpoint stays as it is."""
    accepted(cloud)
    cloud.slice()
    revision, asked = cloud.stored().revision, cloud.asked
    assert cloud.slice()["outcome"] == "finished"
    assert (cloud.stored().revision, cloud.asked) == (revision, asked)


def test_a_slice_of_an_earlier_run_is_superseded(cloud: Deployment) -> None:
    """A slice whose run is not the session's any more touches nothing: not the lease, not the mark, not the session."""
    cloud.send("hi")
    accepted(cloud)
    before, lease, head = cloud.stored(), cloud.lease(), cloud.head()
    for session, run_id in (("s", "run1"), ("s", "nonsense"), ("unknown", "run1")):
        assert cloud.slice(session, run_id=run_id, execution="arn:old")["outcome"] == "superseded"
    assert (cloud.stored(), cloud.lease(), cloud.head()) == (before, lease, head)


def test_a_slice_that_finds_a_question_says_how_long_to_wait(cloud: Deployment) -> None:
    """A paused run waits for its deadline, or a long time where it has none; the approval's id travels along."""
    id = cloud.pause()
    left = cloud.slice()
    assert (left["outcome"], left["approval_id"]) == ("awaiting-approval", id)
    assert left["timeout_seconds"] == LONGEST_WAIT.total_seconds()
    assert cloud.lease().owner is None


@pytest.mark.parametrize(
    ("ahead", "seconds"),
    [
        (timedelta(hours=1), 3600),
        (timedelta(seconds=0.4), 1),
        (timedelta(seconds=1.2), 2),
        (timedelta(days=90), 2592000),
    ],
)
def test_a_wait_is_rounded_up_and_bounded(cloud: Deployment, ahead: timedelta, seconds: int) -> None:
    """Waits are whole seconds, at least one, never less than what is left, and at most thirty days."""
    cloud.approval_timeout = timedelta(days=100)
    cloud.pause()
    cloud.clock.now = START + timedelta(days=100) - ahead
    assert cloud.slice()["timeout_seconds"] == seconds


def test_a_slice_pauses_a_run(cloud: Deployment) -> None:
    """A slice that comes to a gated call leaves the run waiting and names the approval."""
    accepted(cloud, PAY)
    left = cloud.slice()
    assert (left["outcome"], left["approval_id"]) == ("awaiting-approval", cloud.stored().approval_id)
    assert cloud.paid == []


def test_a_session_that_somebody_else_runs_is_busy(cloud: Deployment) -> None:
    """A slice that finds a live lease waits until a second after its end, and takes the session then."""
    accepted(cloud)
    cloud.hold(seconds=30.5)
    left = cloud.slice()
    assert (left["outcome"], left["until"]) == ("busy", "2030-01-01T00:00:31Z")
    assert cloud.asked == 0
    cloud.clock.advance(seconds=31)
    assert cloud.slice()["outcome"] == "finished"


def test_a_retry_of_the_same_execution_takes_its_lease_over(cloud: Deployment) -> None:
    """A slice that died leaves its lease behind; the retry of its execution does not wait for it."""
    accepted(cloud)
    cloud.hold(seconds=900, owner="arn:mine")
    fence = cloud.lease().fence
    assert cloud.slice(execution="arn:other")["outcome"] == "busy"
    assert cloud.slice(execution="arn:mine")["outcome"] == "finished"
    assert cloud.lease().fence > fence


def test_a_slice_without_time_hands_on(cloud: Deployment) -> None:
    """A slice that runs out of time leaves the run for the next one, with everything saved."""
    accepted(cloud, [("look", {"what": "a"}), "done"])
    assert cloud.slice(seconds=10.0)["outcome"] == "deadline"
    assert (cloud.stored().status, cloud.stored().finish_reason) == (Status.IN_PROGRESS, FinishReason.DEADLINE)
    assert cloud.head().due_at is not None
    assert cloud.slice()["outcome"] == "finished"


def test_slices_that_get_nowhere_park_the_run(cloud: Deployment) -> None:
    """After three slices from one revision without progress the next one parks the run, and says why."""
    accepted(cloud)
    outcomes = [cloud.slice(seconds=10.0)["outcome"] for _ in range(MAX_ACQUIRES + 2)]
    assert outcomes == ["deadline"] * (MAX_ACQUIRES + 1) + ["parked"]
    stored = cloud.stored()
    assert (stored.status, stored.finish_reason) == (Status.IN_PROGRESS, FinishReason.PARKED)
    assert stored.last_error is not None
    assert stored.last_error.code == "NO_PROGRESS"
    assert (cloud.head().due_at, cloud.lease().owner, cloud.asked) == (None, None, 0)


def test_slices_that_die_park_the_run(cloud: Deployment) -> None:
    """A run whose slices die before they save is started three times from one revision, then parked and let alone."""
    accepted(cloud)
    for _ in range(MAX_ACQUIRES):
        until = cloud.clock() + timedelta(seconds=900)
        assert cloud.store.leases.acquire("session/s", "arn:1", until=until, revision=cloud.stored().revision)
    assert cloud.slice()["outcome"] == "parked"
    cloud.clock.advance(hours=1)
    assert cloud.recover()["started"] == 0


def test_a_parked_run_can_be_put_back_to_work(cloud: Deployment) -> None:
    """The next message to a parked session carries its run on, and its count of slices starts over."""
    accepted(cloud)
    for _ in range(MAX_ACQUIRES + 2):
        cloud.slice(seconds=10.0)
    answered = cloud.send("well?")
    assert (answered.status, answered.json["text"]) == (200, "Hello.")
    assert [m.content for m in cloud.stored().messages] == ["hi", "well?", "Hello."]


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ([ProviderAuthenticationError("scripted", "No key.", status=401)], "PROVIDER_AUTHENTICATION"),
        (lambda request: PropagatingToolError("enough"), "TOOL_PROPAGATED"),
    ],
)
def test_an_error_that_stays_stops_the_run(cloud: Deployment, script: Any, code: str) -> None:
    """An error that a retry would meet again ends the execution, not the session: it is not due and can be used."""
    accepted(cloud, script)
    assert cloud.slice()["outcome"] == "stopped"
    assert (cloud.stored().status, cloud.head().due_at, cloud.lease().owner) == (Status.IN_PROGRESS, None, None)
    assert code in cloud.log.getvalue()
    cloud.script = ["Hello."]
    cloud.cold_start()
    assert cloud.send("hi").json["text"] == "Hello."


def test_an_error_that_passes_is_left_to_the_state_machine(cloud: Deployment) -> None:
    """A retryable error is raised, so that the state machine tries again; the run stays due and is not parked."""
    accepted(cloud, [DOWN])
    for _ in range(MAX_ACQUIRES + 3):
        with pytest.raises(TryAgain):
            cloud.slice()
        assert cloud.lease().owner is None
    assert cloud.head().due_at is not None
    cloud.script = ["Hello."]
    cloud.cold_start()
    assert cloud.slice()["outcome"] == "finished"


def test_a_store_that_fails_is_left_to_the_state_machine(cloud: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that does not answer raises, and the slice after it carries on."""
    accepted(cloud)
    save = type(cloud.store.checkpoints).save
    errors = [StoreUnavailableError("PutItem", "throttled") for _ in range(SAVE_ATTEMPTS)]

    def throttled(self: Any, checkpoint: Any, *, after: Any) -> Any:
        if errors:
            raise errors.pop()
        return save(self, checkpoint, after=after)

    monkeypatch.setattr(type(cloud.store.checkpoints), "save", throttled)
    with pytest.raises(TryAgain):
        cloud.slice()
    assert cloud.slice()["outcome"] == "finished"


def test_a_slice_that_was_overtaken_looks_again(cloud: Deployment) -> None:
    """When somebody else moved the session during the slice, the slice leaves and comes back in a moment."""
    accepted(cloud)

    def overtaken(request: Any) -> str:
        stored = cloud.stored()
        cloud.store.checkpoints.save(stored, after=stored)
        return "lost"

    cloud.script = overtaken
    cloud.cold_start()
    left = cloud.slice()
    assert (left["outcome"], left["until"]) == ("busy", "2030-01-01T00:00:02Z")
    assert [m.content for m in cloud.stored().messages] == []


# --- asking a human --------------------------------------------------------------------------------------------------


def test_asking_puts_the_token_on_the_record_and_tells_people(cloud: Deployment) -> None:
    """The task token and the hash of a callback token are on the record before the message that carries the link."""
    id = cloud.pause()
    assert cloud.ask(id, "task-token-1") == {"asked": True}
    [attached] = [event for event in cloud.approval(id).events if isinstance(event, TokenAttached)]
    assert attached.task_token == "task-token-1"
    assert attached.callbacks == {token_hash(cloud.callback()): None}
    [told] = cloud.topics.messages
    assert (told["TopicArn"], told["Subject"]) == (TOPIC, "Approval wanted: pay")
    for said in ("'desk'", "'pay'", '"amount": 5', "Session: s", id, "role/desk", "no deadline"):
        assert said in told["Message"]
    assert f"https://desk.example/v1/callbacks/{id}." in told["Message"]
    assert "task-token-1" not in told["Message"]


def test_a_message_names_the_deadline(cloud: Deployment) -> None:
    """People are told until when they can decide."""
    cloud.approval_timeout = timedelta(hours=1)
    cloud.ask(cloud.pause())
    assert "Decide before 2030-01-01 01:00:00 UTC." in cloud.topics.messages[0]["Message"]


@pytest.mark.parametrize("name", ["pay", "p\n\r\tay", "支払う", "x" * 200, "\u2028", "👍🏽"])
def test_a_subject_is_what_the_service_takes(cloud: Deployment, name: str) -> None:
    """Whatever a tool is called, the subject is at most 100 printable ASCII characters on one line."""
    id = cloud.pause()
    approval = cloud.approval(id)
    request = approval.request.but(tool_name=name)
    made = subject(approval.but(events=(request,)))
    assert len(made) <= MAX_SUBJECT
    assert made.isascii()
    assert made.isprintable()


def test_a_message_shows_the_beginning_of_long_arguments(cloud: Deployment) -> None:
    """Arguments of any size make a message that the service takes, and nothing in them can break out of its line."""
    id = cloud.pause()
    approval = cloud.approval(id)
    request = approval.request.but(arguments={"text": "x\r\nSession: forged\u2028" + "y" * 300_000})
    made = message(_wiring.app(), approval.but(events=(request,)), "token")
    assert len(made.encode()) < MAX_PREVIEW + 2_000
    assert "\nSession: forged" not in made
    assert "cut" in made


def test_without_a_topic_nobody_is_told(cloud: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deployment without a topic lists its approvals and sends nothing."""
    monkeypatch.delenv("TOPIC_ARN")
    id = cloud.pause()
    assert cloud.ask(id) == {"asked": True}
    assert cloud.topics.calls == []
    assert cloud.approval(id).task_token == "task-token-1"


def test_a_decision_that_came_first_wakes_its_own_wait(cloud: Deployment) -> None:
    """When the approval is decided already the task completes itself, and nobody is asked."""
    id = cloud.pause()
    cloud.request("POST", f"/approvals/{id}/decision", body={"approved": True})
    woken = cloud.states.wait("task-token-1")
    assert cloud.ask(id, "task-token-1") == {"asked": False}
    assert woken == [json.dumps({"wake": True})]
    assert cloud.topics.messages == []
    assert cloud.approval(id).task_token is None


@pytest.mark.parametrize("how", ["expired", "cancelled"])
def test_what_is_closed_is_not_asked_about(cloud: Deployment, how: str) -> None:
    """An approval past its deadline, or cancelled, wakes the wait at once."""
    cloud.approval_timeout = timedelta(hours=1)
    id = cloud.pause()
    if how == "expired":
        cloud.clock.advance(hours=1)
    else:
        cloud.store.approvals.append(Cancelled(at=START), after=cloud.approval(id))
    woken = cloud.states.wait("task-token-1")
    assert cloud.ask(id, "task-token-1") == {"asked": False}
    assert len(woken) == 1
    assert cloud.approval(id).status.value == how


@pytest.mark.parametrize("decided", [True, False])
def test_a_token_that_loses_its_place_looks_again(
    cloud: Deployment, monkeypatch: pytest.MonkeyPatch, decided: bool
) -> None:
    """When somebody wrote to the record meanwhile, the task reads again: a decision wakes it, else it asks."""
    id = cloud.pause()
    approvals = type(cloud.store.approvals)
    append = approvals.append
    other = TokenAttached(at=START, task_token="theirs", callbacks={})
    vote = Voted(at=START, approved=True, digest=cloud.approval(id).request.digest, by="ada", via="api")
    first: list[Any] = [vote if decided else other]

    def raced(self: Any, event: Any, *, after: Any) -> Any:
        if first and isinstance(event, TokenAttached):
            append(self, first.pop(), after=after)
        return append(self, event, after=after)

    monkeypatch.setattr(approvals, "append", raced)
    woken = cloud.states.wait("task-token-1")
    assert cloud.ask(id, "task-token-1") == {"asked": not decided}
    assert len(woken) == (1 if decided else 0)
    assert len(cloud.topics.messages) == (0 if decided else 1)
    assert cloud.approval(id).task_token == (None if decided else "task-token-1")


def test_a_question_that_was_asked_is_recoverys_again_after_its_deadline(cloud: Deployment) -> None:
    """Once people are told, the run is due five minutes after the deadline, or never where there is none."""
    cloud.ask(cloud.pause())
    assert cloud.head().due_at is None
    cloud.approval_timeout = timedelta(hours=1)
    cloud.ask(cloud.pause("t"), session="t")
    assert cloud.head("t").due_at == START + timedelta(hours=1, minutes=5)


@pytest.mark.parametrize(("code", "error"), [("Throttled", TryAgain), ("AuthorizationError", StoreRejectedError)])
def test_a_question_that_nobody_got_is_asked_again(cloud: Deployment, code: str, error: type[Exception]) -> None:
    """When people cannot be told the task fails, the run stays due, and the next try mints another token."""
    id = cloud.pause()
    cloud.topics.fail("publish", refused(code))
    with pytest.raises(error, match=code):
        cloud.ask(id, "task-token-1")
    assert cloud.head().due_at is not None
    assert cloud.ask(id, "task-token-2") == {"asked": True}
    assert cloud.approval(id).task_token == "task-token-2"


# --- answers that come back ------------------------------------------------------------------------------------------


def test_a_wake_up_is_no_vote(cloud: Deployment) -> None:
    """The output that our own wake-up leaves behind decides nothing: the record does."""
    id = waits(cloud)
    assert cloud.slice(answer=answer(id, {"wake": True}))["outcome"] == "awaiting-approval"
    assert cloud.approval(id).status is ApprovalStatus.PENDING
    cloud.request("POST", f"/approvals/{id}/decision", body={"approved": False})
    assert cloud.slice(answer=answer(id, {"wake": True}))["outcome"] == "finished"
    assert cloud.paid == []


@pytest.mark.parametrize("approved", [True, False])
def test_completing_the_task_directly_is_one_vote(cloud: Deployment, approved: bool) -> None:
    """`{"approved": true|false}` as the task's output is a vote, recorded as what it was, and counts once."""
    id = waits(cloud)
    assert cloud.slice(answer=answer(id, {"approved": approved}))["outcome"] == "finished"
    assert cloud.paid == ([5] if approved else [])
    decision = cloud.approval(id).decision
    assert decision is not None
    assert (decision.approved, decision.by, decision.via) == (approved, "states:SendTaskSuccess", "task-token")
    assert cloud.slice(answer=answer(id, {"approved": not approved}))["outcome"] == "finished"
    assert len([event for event in cloud.approval(id).events if isinstance(event, Voted)]) == 1


NONSENSE: list[Any] = [
    None,
    True,
    "approved",
    [],
    [True],
    {},
    {"approved": "true"},
    {"approved": 1},
    {"approved": None},
    {"approved": True, "by": "me"},
    {"Approved": True},
    {"wake": True, "approved": True},
    {"Error": "States.Timeout"},
]


@pytest.mark.parametrize("output", NONSENSE, ids=json.dumps)
def test_nonsense_is_no_vote(cloud: Deployment, output: Any) -> None:
    """Any other output leads back to the question, and the record stays as it was."""
    id = waits(cloud)
    before = cloud.approval(id)
    left = cloud.slice(answer=answer(id, output))
    assert (left["outcome"], left["approval_id"]) == ("awaiting-approval", id)
    assert cloud.approval(id) == before


def test_an_answer_to_another_question_is_ignored(cloud: Deployment) -> None:
    """An answer that came back for another approval than the one that is pending decides nothing."""
    id = waits(cloud)
    left = cloud.slice(answer=answer("apr_" + "0" * 32, {"approved": True}))
    assert (left["outcome"], left["approval_id"]) == ("awaiting-approval", id)
    assert (cloud.approval(id).status, cloud.paid) == (ApprovalStatus.PENDING, [])


def test_an_answer_that_comes_too_late_is_a_time_out(cloud: Deployment) -> None:
    """At the deadline the task's output is no vote any more: the run goes on as after a time-out, and says so."""
    cloud.approval_timeout = timedelta(hours=1)
    id = waits(cloud)
    cloud.clock.advance(hours=1)
    assert cloud.slice(answer=answer(id, {"approved": True}))["outcome"] == "finished"
    decision = cloud.approval(id).decision
    assert decision is not None
    assert (decision.approved, decision.via, cloud.paid) == (False, "timeout", [])


def test_an_answer_after_a_decision_changes_nothing(cloud: Deployment) -> None:
    """The first decision stands when the task is completed directly as well."""
    id = waits(cloud)
    cloud.request("POST", f"/approvals/{id}/decision", body={"approved": False})
    assert cloud.slice(answer=answer(id, {"approved": True}))["outcome"] == "finished"
    assert (cloud.paid, cloud.approval(id).status) == ([], ApprovalStatus.REJECTED)


# --- deadlines and reminders -----------------------------------------------------------------------------------------


def test_a_time_out_may_end_the_run(cloud: Deployment) -> None:
    """With `on_timeout="halt"` the run finishes as `guardrail` at the deadline: no call of the turn runs."""
    cloud.approval_timeout, cloud.approval_terms = timedelta(hours=1), {"on_timeout": "halt"}
    id = waits(cloud)
    cloud.clock.advance(hours=1)
    assert cloud.slice()["outcome"] == "finished"
    assert cloud.stored().finish_reason is FinishReason.GUARDRAIL
    assert cloud.stored().messages[-1].content["kind"] == "not-run"
    assert (cloud.approval(id).status, cloud.approval(id).applied, cloud.paid) == ("expired", True, [])
    assert cloud.send("what now?").status == 200


def test_people_are_reminded_until_the_deadline(cloud: Deployment) -> None:
    """Each wait ends at the next reminder, the last one at the deadline; each reminder is on the record."""
    cloud.approval_timeout, cloud.approval_terms = timedelta(hours=3), {"remind_every": timedelta(hours=1)}
    id = cloud.pause()
    for number, kind in enumerate(["Approval wanted", "Reminder: ", "Reminder: "], start=1):
        assert cloud.slice()["timeout_seconds"] == 3600
        cloud.ask(id, f"token-{number}")
        assert cloud.topics.messages[-1]["Subject"].startswith(kind)
        cloud.clock.advance(hours=1)
    assert cloud.slice()["outcome"] == "finished"
    trail = [event.event for event in cloud.approval(id).events]
    assert trail.count("reminded") == 2
    assert trail[-2:] == ["expired", "applied"]
    assert len(cloud.topics.messages) == 3


def test_each_message_has_a_link_of_its_own(cloud: Deployment) -> None:
    """A reminder brings a new callback token, and the earlier one still opens the approval."""
    cloud.approval_terms = {"remind_every": timedelta(hours=1)}
    id = cloud.pause()
    cloud.ask(id, "token-1")
    first = cloud.callback()
    cloud.clock.advance(hours=1)
    cloud.ask(id, "token-2")
    second = cloud.callback()
    assert first != second
    for token in (first, second):
        assert cloud.get(f"/callbacks/{token}").json["id"] == id


def test_a_reminder_that_is_not_due_is_none(cloud: Deployment) -> None:
    """An execution that asks again before its time, such as one that was restarted, tells people and reminds nobody."""
    cloud.approval_terms = {"remind_every": timedelta(hours=1)}
    id = cloud.pause()
    cloud.ask(id, "token-1")
    cloud.clock.advance(minutes=59)
    cloud.ask(id, "token-2")
    assert "reminded" not in [event.event for event in cloud.approval(id).events]


@pytest.mark.parametrize(
    "fault", [{"on_timeout": "escalate"}, {"on_timeout": "halt"}, {"remind_every": timedelta(0)}], ids=str
)
def test_terms_that_make_no_sense_are_refused(fault: dict[str, Any]) -> None:
    """A policy that does not exist, one without a deadline, reminders without a pause between them."""
    with pytest.raises(ConfigurationError, match=next(iter(fault))):
        tool(needs_approval=True, **fault)(lambda: None)


@pytest.mark.parametrize(
    ("rounds", "days", "outcome"), [(999, 299, None), (1_000, 0, "elsewhere"), (1, 300, "elsewhere")]
)
def test_a_wait_goes_on_in_a_fresh_execution(cloud: Deployment, rounds: int, days: int, outcome: str | None) -> None:
    """An execution near 25,000 events or a year of life hands on to a new one, and the approval stays what it was."""
    id = waits(cloud)
    started_at = (cloud.clock() - timedelta(days=days)).isoformat()
    left = steps.handler({**cloud.slice_task(), "rounds": rounds, "started_at": started_at}, Context(seconds=900))
    assert left["outcome"] == (outcome or "awaiting-approval")
    assert cloud.approval(id).status is ApprovalStatus.PENDING


def test_what_is_over_does_not_go_on_elsewhere(cloud: Deployment) -> None:
    """A run that has ended ends its execution, however old that is."""
    accepted(cloud)
    left = steps.handler({**cloud.slice_task(), "rounds": 10_000}, Context(seconds=900))
    assert left["outcome"] == "finished"


def test_the_machine_starts_the_fresh_execution(cloud: Deployment) -> None:
    """With the same input, under a name that follows from its own: the same one, if it is started twice."""
    cloud.pause()
    machine = execution(cloud)
    machine.started_at = cloud.clock() - timedelta(days=301)
    assert machine.go() == "Done"
    [started] = machine.started
    assert started["Input"] == json.loads(cloud.run_input())
    assert len(started["Name"]) == 64


def test_an_approved_run_whose_slice_dies_is_carried_on(cloud: Deployment) -> None:
    """A slice that finds the decision applied already, and the run unfinished, carries it on."""
    id = waits(cloud)
    cloud.request("POST", f"/approvals/{id}/decision", body={"approved": True})
    cloud.script = [PAY[0], DOWN]
    cloud.cold_start()
    with pytest.raises(TryAgain):
        cloud.slice()
    cloud.script = PAY
    cloud.cold_start()
    assert cloud.slice()["outcome"] == "finished"
    assert cloud.paid == [5]


# --- inputs ----------------------------------------------------------------------------------------------------------

TASK = {"task": "run-slice", "v": 1, "session_id": "s", "run_id": "r", "execution": "arn:1", "answer": {}}


@pytest.mark.parametrize(
    "change",
    [
        {"task": "dance"},
        {"task": None},
        {"v": 2},
        {"v": "one"},
        {"session_id": None},
        {"run_id": 5},
        {"execution": None},
        {"answer": "yes"},
        {"answer": {"output": True}},
        {"task": "ask-human"},
    ],
    ids=json.dumps,
)
def test_an_input_that_is_not_right_is_refused(cloud: Deployment, change: dict[str, Any]) -> None:
    """An unknown task, a newer version and missing or wrong fields are configuration errors that name what is wrong."""
    with pytest.raises(ConfigurationError) as raised:
        steps.handler({**TASK, **change}, Context())
    assert "step input" in str(raised.value)
    with pytest.raises(ConfigurationError):
        steps.handler({}, Context())


def test_what_an_input_has_more_is_ignored() -> None:
    """A field that this version does not know is left alone."""
    assert parse({**TASK, "colour": "red"}) == parse(TASK)


# --- the whole machine -----------------------------------------------------------------------------------------------


def execution(cloud: Deployment, session: str = "s") -> Execution:
    """The execution that the handlers started for the session."""
    [arn] = cloud.states.running
    return Execution(
        cloud.states.executions[arn]["input"],
        lambda payload: steps.handler(payload, Context(seconds=900)),
        id=arn,
        started_at=cloud.clock(),
    )


def test_the_machine_carries_a_run_through_an_approval(cloud: Deployment) -> None:
    """From the pause over the question and the decision to the end, with the definition that is deployed."""
    id = cloud.pause()
    machine = execution(cloud)
    assert machine.go() == "AskHuman"
    assert machine.timeout() == LONGEST_WAIT.total_seconds()
    assert machine.task_token is not None
    woken = cloud.states.wait(machine.task_token)
    cloud.request("POST", f"/callbacks/{cloud.callback()}", body={"approved": True}, caller=None)
    assert machine.answer(json.loads(woken[0])) == "Done"
    assert (machine.status, cloud.paid, cloud.stored().status) == ("SUCCEEDED", [5], Status.FINISHED)
    assert cloud.approval(id).applied
    assert all(len(json.dumps(payload)) < 2_000 for payload in machine.payloads)


def test_the_machine_asks_again_after_nonsense_and_takes_a_direct_answer(cloud: Deployment) -> None:
    """Nonsense leads back to the question with a new token; a proper output finishes the run."""
    cloud.pause()
    machine = execution(cloud)
    machine.go()
    first = machine.task_token
    assert machine.answer({"approved": "yes"}) == "AskHuman"
    assert machine.task_token != first
    assert len(cloud.topics.messages) == 2
    assert machine.answer({"approved": True}) == "Done"
    assert cloud.paid == [5]


def test_the_machine_rejects_at_the_deadline(cloud: Deployment) -> None:
    """When the wait times out at the deadline, the call is rejected and the run goes on."""
    cloud.approval_timeout = timedelta(hours=1)
    cloud.pause()
    machine = execution(cloud)
    machine.go()
    cloud.clock.advance(seconds=machine.timeout())
    assert machine.time_out() == "Done"
    assert (cloud.paid, cloud.stored().messages[-1].content) == ([], "Paid.")


def test_an_answer_is_forgotten_before_the_next_question(cloud: Deployment) -> None:
    """A direct answer to the first of two questions says nothing about the second."""
    cloud.script = [[("pay", {"amount": 1}), ("pay", {"amount": 2})], "Paid."]
    cloud.send("pay")
    machine = execution(cloud)
    machine.go()
    assert machine.answer({"approved": True}) == "AskHuman"
    assert cloud.paid == [1]
    assert machine.answer({"wake": True}) == "AskHuman"
    assert machine.answer({"approved": False}) == "Done"
    assert cloud.paid == [1]


def test_the_machine_waits_for_a_lease(cloud: Deployment) -> None:
    """An execution that finds the session taken waits and comes back."""
    accepted(cloud)
    cloud.hold(seconds=30)
    machine = execution(cloud)
    assert machine.go() == "WaitForLease"
    cloud.clock.advance(seconds=31)
    assert machine.wait_over() == "Done"


def test_metrics_are_written_once_per_invocation(cloud: Deployment, capsys: pytest.CaptureFixture[str]) -> None:
    """Each invocation leaves one metrics line with what it counted and what the store took."""
    accepted(cloud)
    capsys.readouterr()
    cloud.slice()
    [line] = capsys.readouterr().out.splitlines()
    numbers = json.loads(line)
    assert numbers["RunsFinished"] == [1.0]
    assert numbers["StoreRequests"][0] > 0
    assert numbers["_aws"]["CloudWatchMetrics"][0]["Namespace"] == _observe.NAMESPACE


# --- outages ---------------------------------------------------------------------------------------------------------


def outage(cloud: Deployment, *, hours: float) -> Any:
    """A slice that is tried again this long after its state was entered."""
    entered = cloud.clock().isoformat()
    cloud.clock.advance(hours=hours)
    return steps.handler({**cloud.slice_task(), "entered_at": entered}, Context(seconds=900.0))


def test_an_outage_is_waited_out_for_hours_then_the_run_is_parked(cloud: Deployment) -> None:
    """Up to `OutageHours` a provider that is down is tried again; then the run is parked with the provider's error."""
    accepted(cloud, [DOWN])
    with pytest.raises(TryAgain, match="PROVIDER_UNAVAILABLE"):
        outage(cloud, hours=5.999)
    assert outage(cloud, hours=6)["outcome"] == "parked"
    stored = cloud.stored()
    assert stored.last_error is not None
    assert (stored.finish_reason, stored.last_error.code) == (FinishReason.PARKED, "PROVIDER_UNAVAILABLE")
    assert (cloud.head().due_at, cloud.events.sent[-1][0]) == (None, "Run parked")
    cloud.script = ["Hello."]
    cloud.cold_start()
    assert cloud.request("POST", "/sessions/s/resume").json["text"] == "Hello."


def test_an_outage_of_the_store_takes_its_attempts_back(cloud: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices that end because the store cannot save do not count towards parking, however many there are."""
    accepted(cloud)
    save = type(cloud.store.checkpoints).save

    def throttled(self: Any, checkpoint: Any, *, after: Any) -> Any:
        raise StoreUnavailableError("PutItem", "throttled")

    monkeypatch.setattr(type(cloud.store.checkpoints), "save", throttled)
    for _ in range(MAX_ACQUIRES + 2):
        with pytest.raises(TryAgain):
            cloud.slice()
        assert (cloud.lease().owner, cloud.lease().attempt) == (None, 0)
    with pytest.raises(TryAgain):  # there is nowhere to write that it is parked
        outage(cloud, hours=7)
    monkeypatch.setattr(type(cloud.store.checkpoints), "save", save)
    assert cloud.slice()["outcome"] == "finished"


def test_a_slice_that_was_overtaken_takes_its_attempt_back(cloud: Deployment) -> None:
    """A slice that lost the session to somebody else is no attempt that got nowhere."""
    accepted(cloud)

    def overtaken(request: Any) -> str:
        stored = cloud.stored()
        cloud.store.checkpoints.save(stored, after=stored)
        return "lost"

    cloud.script = overtaken
    cloud.cold_start()
    assert (cloud.slice()["outcome"], cloud.lease().attempt) == ("busy", 0)


def park(cloud: Deployment, **task: Any) -> str:
    ids = {"session_id": "s", "run_id": cloud.stored().run_id}
    return steps.handler({"task": "park-run", "v": 1, **ids, "error": "Lambda.Unknown", **task}, Context())["outcome"]


def test_a_task_that_keeps_failing_parks_the_run(cloud: Deployment) -> None:
    """What the state machine gives up on is parked once, by the name of the error; another run's end is nobody's."""
    accepted(cloud)
    assert park(cloud, run_id="another") == "superseded"
    assert park(cloud) == "parked"
    stored = cloud.stored()
    assert stored.last_error is not None
    assert (stored.finish_reason, stored.last_error.code) == (FinishReason.PARKED, "TASK_FAILED")
    assert "Lambda.Unknown" in stored.last_error.message
    assert park(cloud) == "stopped"
    cloud.send("again")
    assert park(cloud) == "finished"


# --- events and metrics ----------------------------------------------------------------------------------------------


def test_other_systems_are_told_how_a_run_was_left(cloud: Deployment) -> None:
    """A run that pauses and one that finishes send an event with ids and numbers, and nothing that was said."""
    id = cloud.pause()
    cloud.request("POST", f"/approvals/{id}/decision", body={"approved": True})
    assert cloud.slice()["outcome"] == "finished"
    (paused, first), (finished, second) = cloud.events.sent
    assert (paused, finished) == ("Run paused", "Run finished")
    assert (first["approval_id"], first["session_id"], first["status"]) == (id, "s", "awaiting-approval")
    assert (second["run_id"], second["status"]) == (first["run_id"], "finished")
    assert second["usage"]["model_calls"] == 2
    assert set(first) == {
        *("session_id", "run_id", "revision", "status", "finish_reason", "approval_id", "step", "usage", "last_error"),
    }
    assert cloud.events.calls[0][1]["Entries"][0]["EventBusName"] == "default"


def test_a_slice_that_only_hands_over_tells_nobody(cloud: Deployment) -> None:
    """A run that goes on in the next slice is not news."""
    accepted(cloud)
    assert cloud.slice(seconds=10.0)["outcome"] == "deadline"
    assert cloud.events.sent == []


@pytest.mark.parametrize("refuses", [True, False])
def test_an_event_that_is_lost_changes_nothing(
    cloud: Deployment, capsys: pytest.CaptureFixture[str], refuses: bool
) -> None:
    """A bus that is down, or does not take the entry, is counted and logged, and the run is answered as ever."""
    if refuses:
        cloud.events.refuses = "AccessDenied"
    else:
        cloud.events.fail("put_events", refused("InternalFailure"))
    assert cloud.send("hi").json["text"] == "Hello."
    assert "event not sent" in cloud.log.getvalue()
    assert '"EventsFailed":[1.0]' in capsys.readouterr().out


def test_what_a_run_does_is_counted(cloud: Deployment, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps, tokens, pauses, resumes and ends are counted once each, over all invocations of the run."""
    id = cloud.pause()
    cloud.request("POST", f"/approvals/{id}/decision", body={"approved": True})
    cloud.slice()
    totals: dict[str, float] = {}
    for line in capsys.readouterr().out.splitlines():
        for name, value in json.loads(line).items():
            if isinstance(value, list):
                totals[name] = totals.get(name, 0) + sum(value)
    counted = {name: totals.get(name) for name in ("RunsAccepted", "RunsPaused", "RunsResumed", "RunsFinished")}
    assert counted == dict.fromkeys(counted, 1.0)
    usage = cloud.stored().usage
    assert (totals["StepsDone"], totals["HandedOver"]) == (cloud.stored().step, 1)
    assert (totals["InputTokens"], totals["OutputTokens"]) == (usage.input_tokens, usage.output_tokens)
