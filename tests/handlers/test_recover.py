"""Recovery: what is due and nobody runs is started; everything else is left alone."""

from datetime import timedelta
from typing import Any

import pytest

from durable import FinishReason, ProviderUnavailableError, Status
from handlers.recover import MAX_EXECUTIONS, PAGE, STOP_WITH_SECONDS_LEFT
from tests.handlers.conftest import PAY, Deployment
from tests.support.aws import refused

ASYNC = {"Prefer": "respond-async"}
NOTHING = {"started": 0, "settled": 0, "left": 0, "parked": 0, "failed": 0}


def accepted(cloud: Deployment, session: str = "s") -> None:
    """A run that was accepted and whose execution never came to be."""
    cloud.states.fail("start_execution", refused("ServiceUnavailable"))
    assert cloud.send("hi", session=session, headers=ASYNC).status == 503


def later(cloud: Deployment, **span: float) -> None:
    cloud.clock.advance(**(span or {"minutes": 10}))


def test_with_nothing_due_nothing_happens(cloud: Deployment) -> None:
    """A session that was never there, one that finished and one that is not due yet are not looked at."""
    assert cloud.recover() == NOTHING
    cloud.send("hi", session="done")
    accepted(cloud)
    assert cloud.recover() == NOTHING
    assert cloud.states.running == []


def test_what_was_accepted_is_started_once(cloud: Deployment) -> None:
    """A run whose Lambda died before it was handed over is started, also when recovery runs twice at the same time."""
    accepted(cloud)
    later(cloud, seconds=59)
    assert cloud.recover() == NOTHING
    later(cloud, seconds=2)
    assert cloud.recover() == {**NOTHING, "started": 1}
    later(cloud, seconds=61)
    assert cloud.recover() == {**NOTHING, "started": 1}
    assert len(cloud.states.running) == 1
    assert cloud.slice(execution=cloud.states.running[0])["outcome"] == "finished"
    later(cloud)
    assert cloud.recover() == NOTHING


def test_an_execution_that_died_is_replaced(cloud: Deployment) -> None:
    """A run whose execution has ended without finishing it gets another one."""
    accepted(cloud)
    later(cloud)
    cloud.recover()
    cloud.states.end(cloud.states.running[0], "FAILED")
    later(cloud)
    assert cloud.recover() == {**NOTHING, "started": 1}
    assert (len(cloud.states.executions), len(cloud.states.running)) == (2, 1)


def test_a_live_lease_is_left_alone(cloud: Deployment) -> None:
    """While somebody runs the session, up to the very end of the lease, recovery does not touch it."""
    accepted(cloud)
    later(cloud)
    cloud.hold(seconds=30)
    assert cloud.recover() == {**NOTHING, "left": 1}
    later(cloud, seconds=29)
    assert cloud.recover() == {**NOTHING, "left": 1}
    later(cloud, seconds=1)
    assert cloud.recover() == {**NOTHING, "started": 1}


def crash_in_request(cloud: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request whose Lambda dies during its model call."""

    class Killed(BaseException):
        pass

    def dies(request: Any) -> str:
        raise Killed

    cloud.script = dies
    cloud.cold_start()
    release = type(cloud.store.leases).release
    monkeypatch.setattr(type(cloud.store.leases), "release", lambda self, lease, **options: None)
    with pytest.raises(Killed):
        cloud.send("hi")
    monkeypatch.setattr(type(cloud.store.leases), "release", release)
    cloud.script = ["Hello."]
    cloud.cold_start()


def test_a_request_that_died_is_carried_on(cloud: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose Lambda was killed under its lease is started when the Lambda's time and a minute are over."""
    crash_in_request(cloud, monkeypatch)
    later(cloud, seconds=29 + 60)
    assert cloud.recover() == NOTHING
    later(cloud, seconds=1)
    assert cloud.recover() == {**NOTHING, "started": 1}
    assert cloud.slice()["outcome"] == "finished"


@pytest.mark.parametrize("reason", [FinishReason.PARKED, FinishReason.ABORTED])
def test_a_run_that_was_stopped_on_purpose_is_never_started(cloud: Deployment, reason: FinishReason) -> None:
    """A parked or aborted run is taken off the list, and what its user says next puts it back."""
    accepted(cloud)
    stored = cloud.stored()
    cloud.store.checkpoints.save(stored.but(finish_reason=reason), after=stored)
    later(cloud)
    assert cloud.recover() == {**NOTHING, "settled": 1}
    assert cloud.recover() == NOTHING
    assert cloud.states.running == []
    cloud.states.fail("start_execution", refused("ServiceUnavailable"))
    cloud.send("more", headers=ASYNC)
    later(cloud)
    assert cloud.recover() == {**NOTHING, "started": 1}


def test_a_finished_run_is_never_started(cloud: Deployment) -> None:
    """A mark that was left behind by a run that has finished is taken away."""
    cloud.send("hi")
    cloud.store.log.announce("session/s", run_id=cloud.stored().run_id, due_at=cloud.clock())
    later(cloud)
    assert cloud.recover() == {**NOTHING, "settled": 1}
    assert cloud.states.calls == []


def test_a_mark_for_a_run_that_never_came_to_be_goes(cloud: Deployment) -> None:
    """A Lambda that died before it saved what it wanted to accept leaves a mark and nothing to run."""
    cloud.store.log.announce("session/new", run_id="run0", due_at=cloud.clock())
    cloud.send("hi")
    cloud.store.log.announce("session/s", run_id="another", due_at=cloud.clock())
    later(cloud)
    assert cloud.recover() == {**NOTHING, "settled": 2}
    assert cloud.recover() == NOTHING
    assert cloud.states.calls == []
    assert cloud.get("/sessions").json["sessions"][0]["session_id"] == "s"


def test_a_mark_for_another_run_starts_nothing(cloud: Deployment) -> None:
    """A mark whose run is not the session's newest goes, also when the session has an unfinished run of its own."""
    accepted(cloud)
    cloud.store.log.announce("session/s", run_id="another", due_at=cloud.clock())
    later(cloud)
    assert cloud.recover() == {**NOTHING, "settled": 1}
    assert cloud.states.running == []


def test_a_paused_run_without_an_execution_gets_one(cloud: Deployment) -> None:
    """A Lambda that died between the pause and the hand-over: an execution is started that asks the human."""
    cloud.states.fail("start_execution", refused("ServiceUnavailable"))
    cloud.script = PAY
    assert cloud.send("pay").status == 503
    assert cloud.stored().status is Status.AWAITING_APPROVAL
    later(cloud)
    assert cloud.recover() == {**NOTHING, "started": 1}
    assert cloud.slice()["outcome"] == "awaiting-approval"


def asked(cloud: Deployment) -> str:
    id = cloud.pause()
    cloud.slice(execution=cloud.states.running[0])
    cloud.states.wait("task-token-1")
    cloud.ask(id)
    return id


def test_a_run_that_waits_for_a_human_is_not_disturbed(cloud: Deployment) -> None:
    """A run whose human has been asked, in an execution that is alive, is not woken before the deadline."""
    cloud.approval_timeout = timedelta(hours=1)
    id = asked(cloud)
    for _ in range(2):
        cloud.store.log.announce("session/s", run_id=cloud.stored().run_id, due_at=cloud.clock())
        later(cloud)
        assert cloud.recover() == {**NOTHING, "settled": 1}
    assert cloud.states.called("send_task_success") == []
    assert len(cloud.states.called("start_execution")) == 1
    later(cloud, hours=1)
    assert cloud.recover() == {**NOTHING, "started": 1}
    assert cloud.approval(id).task_token == "task-token-1"


def test_a_wait_whose_execution_died_is_started_again(cloud: Deployment) -> None:
    """When the execution that waited for the deadline is gone, recovery starts another one after it."""
    cloud.approval_timeout = timedelta(hours=1)
    asked(cloud)
    cloud.states.end(cloud.states.running[0], "ABORTED")
    later(cloud, hours=1, minutes=6)
    assert cloud.recover() == {**NOTHING, "started": 1}
    assert cloud.slice(execution=cloud.states.running[0])["outcome"] == "finished"
    assert cloud.paid == []


def test_a_decision_whose_wake_up_was_lost_is_woken(cloud: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Lambda that died between the vote and the wake-up: the waiting execution is woken."""
    id = asked(cloud)
    cloud.states.fail("send_task_success", refused("ServiceUnavailable"))
    assert cloud.request("POST", f"/approvals/{id}/decision", body={"approved": True}).status == 503
    later(cloud)
    assert cloud.recover() == {**NOTHING, "started": 1}
    assert len(cloud.states.waiting["task-token-1"]) == 1
    assert cloud.slice()["outcome"] == "finished"


def test_one_session_that_fails_does_not_hold_up_the_others(cloud: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is wrong with one session, an error of ours or not, the others are started, and it is tried again."""
    for session in ("a", "b", "c"):
        accepted(cloud, session)
    later(cloud)
    load = type(cloud.store.checkpoints).load
    errors: dict[str, Exception] = {"a": RuntimeError("open-sesame"), "b": ProviderUnavailableError("x", "y")}

    def broken(self: Any, session_id: str) -> Any:
        if session_id in errors:
            raise errors[session_id]
        return load(self, session_id)

    monkeypatch.setattr(type(cloud.store.checkpoints), "load", broken)
    assert cloud.recover() == {**NOTHING, "started": 1, "failed": 2}
    errors.clear()
    assert cloud.recover()["started"] == 2


def test_more_sessions_than_a_page_are_all_started(cloud: Deployment) -> None:
    """Recovery follows the list to its end."""
    total = PAGE * 2 + 1
    for number in range(total):
        accepted(cloud, f"s{number}")
    later(cloud)
    assert cloud.recover() == {**NOTHING, "started": total}
    assert len(cloud.states.running) == total


def test_recovery_stops_before_its_time_is_up(cloud: Deployment) -> None:
    """With too little time left no further page is looked at; the next run of recovery goes on."""
    accepted(cloud)
    later(cloud)
    assert cloud.recover(seconds=STOP_WITH_SECONDS_LEFT) == NOTHING
    assert cloud.recover(seconds=STOP_WITH_SECONDS_LEFT + 1)["started"] == 1


def test_executions_that_keep_failing_park_the_run(cloud: Deployment) -> None:
    """After three executions of one revision that did not end in success the run is parked, with its reason, once."""
    accepted(cloud)
    for number in range(MAX_EXECUTIONS):
        later(cloud, hours=2)
        assert cloud.recover() == {**NOTHING, "started": 1}, number
        cloud.states.end(cloud.states.running[0], ["FAILED", "TIMED_OUT", "ABORTED"][number])
    later(cloud, hours=2)
    assert cloud.recover() == {**NOTHING, "parked": 1}
    stored = cloud.stored()
    assert (stored.status, stored.finish_reason) == (Status.IN_PROGRESS, FinishReason.PARKED)
    assert stored.last_error is not None
    assert stored.last_error.code == "NO_PROGRESS"
    assert [kind for kind, _ in cloud.events.sent] == ["Run parked"]
    later(cloud, hours=2)
    assert cloud.recover() == NOTHING
    assert cloud.request("POST", "/sessions/s/resume").json["text"] == "Hello."


def test_the_pauses_between_executions_get_longer(cloud: Deployment) -> None:
    """Recovery looks at a run again after four minutes when one execution has failed, after sixteen when two have."""
    accepted(cloud)
    for minutes in (1, 4, 16):
        later(cloud, hours=1)
        assert cloud.recover()["started"] == 1
        assert cloud.head().due_at == cloud.clock() + timedelta(minutes=minutes)
        cloud.states.end(cloud.states.running[0], "FAILED")


def test_executions_that_ended_well_do_not_count(cloud: Deployment) -> None:
    """An execution that succeeded and left the run unfinished is no failure: its run is started again."""
    accepted(cloud)
    for _ in range(MAX_EXECUTIONS + 1):
        later(cloud)
        assert cloud.recover() == {**NOTHING, "started": 1}
        cloud.states.end(cloud.states.running[0], "SUCCEEDED")


def test_a_paused_run_that_nobody_can_be_told_of_still_takes_its_decision(cloud: Deployment) -> None:
    """A run that waits is not stopped when its executions keep failing: it says why, and a decision carries it on."""
    id = cloud.pause()
    for _ in range(MAX_EXECUTIONS):
        for execution in cloud.states.running:
            cloud.states.end(execution, "FAILED")
        later(cloud, hours=2)
        cloud.recover()
    stored = cloud.stored()
    assert stored.status is Status.AWAITING_APPROVAL
    assert stored.last_error is not None
    assert (stored.last_error.code, cloud.head().due_at) == ("NO_PROGRESS", None)
    assert cloud.request("POST", f"/approvals/{id}/decision", body={"approved": True}).status == 200
    assert cloud.slice()["outcome"] == "finished"
    assert cloud.paid == [5]


def test_a_run_that_moves_while_recovery_gives_up_is_left(cloud: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save by somebody else between the look and the parking wins: nothing is parked."""
    accepted(cloud)
    for _ in range(MAX_EXECUTIONS):
        later(cloud, hours=2)
        cloud.recover()
        cloud.states.end(cloud.states.running[0], "FAILED")
    later(cloud, hours=2)
    save = type(cloud.store.checkpoints).save

    def overtaken(self: Any, checkpoint: Any, *, after: Any) -> Any:
        monkeypatch.setattr(type(self), "save", save)
        save(self, after.but(finish_reason=FinishReason.DEADLINE), after=after)
        return save(self, checkpoint, after=after)

    monkeypatch.setattr(type(cloud.store.checkpoints), "save", overtaken)
    assert cloud.recover() == {**NOTHING, "left": 1}
    assert cloud.stored().finish_reason is FinishReason.DEADLINE
