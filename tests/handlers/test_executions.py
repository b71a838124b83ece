"""Handing a run over: one execution drives it, whoever asks and however often."""

import json
from typing import Any

import pytest
from botocore.exceptions import ConnectTimeoutError

from durable import ConfigurationError, StoreRejectedError, StoreUnavailableError
from handlers import _wiring
from handlers._executions import (
    MAX_ATTEMPTS,
    STEP_INPUT_VERSION,
    drives,
    execution_input,
    execution_name,
    hand_over,
    wake,
)
from tests.handlers.conftest import MACHINE, Deployment
from tests.support.aws import refused

EXECUTION = MACHINE.replace(":stateMachine:", ":execution:")


def start(cloud: Deployment, *, run_id: str = "r1", revision: int = 3) -> str:
    return hand_over(_wiring.app(), session_id="s", run_id=run_id, revision=revision)


def test_a_name_comes_from_run_revision_and_attempt() -> None:
    """The same three give the same name, any other gives another, and the service takes every name."""
    names = {execution_name(run, revision, attempt) for run in ("a", "b") for revision in (0, 1) for attempt in (0, 1)}
    assert len(names) == 8
    assert execution_name("a", 0, 0) == execution_name("a", 0, 0)
    assert all(len(name) <= 80 and name.replace("-", "").isalnum() for name in names)


def test_only_ids_travel() -> None:
    """The input has a version, the session's id and the run's, the same to the byte each time."""
    text = execution_input(session_id="a/é", run_id="r")
    assert json.loads(text) == {"v": STEP_INPUT_VERSION, "session_id": "a/é", "run_id": "r"}
    assert text == execution_input(session_id="a/é", run_id="r")


def test_two_who_hand_over_the_same_run_start_one_execution(cloud: Deployment) -> None:
    """A second hand-over of the same revision finds the execution that runs."""
    assert start(cloud) == start(cloud) == f"{EXECUTION}:{execution_name('r1', 3, 0)}"
    assert len(cloud.states.executions) == 1


def test_a_name_that_is_taken_by_a_running_execution_is_enough(cloud: Deployment) -> None:
    """`ExecutionAlreadyExists` for an execution that runs means that it is started."""
    arn = start(cloud)
    cloud.states.fail("start_execution", refused("ExecutionAlreadyExists"))
    assert start(cloud) == arn
    assert len(cloud.states.executions) == 1


@pytest.mark.parametrize("status", ["SUCCEEDED", "FAILED", "TIMED_OUT", "ABORTED"])
def test_a_name_that_is_taken_by_one_that_has_ended_is_not(cloud: Deployment, status: str) -> None:
    """A name stays taken after its execution has ended: the next attempt has another one."""
    arns = []
    for attempt in range(3):
        arns.append(start(cloud))
        assert arns[-1].endswith(execution_name("r1", 3, attempt))
        cloud.states.end(arns[-1], status)
    assert len(set(arns)) == 3


def test_an_end_of_attempts_is_an_error(cloud: Deployment) -> None:
    """When every name of a revision is taken, the hand-over says so and may be tried again."""
    for _ in range(MAX_ATTEMPTS):
        cloud.states.end(start(cloud), "FAILED")
    with pytest.raises(StoreUnavailableError, match="StartExecution"):
        start(cloud)
    assert start(cloud, revision=4)


def test_the_execution_that_drives_the_run_is_kept(cloud: Deployment) -> None:
    """Whatever the revision, a run that an execution drives gets no second one."""
    arn = start(cloud)
    cloud.store.leases.note_execution("session/s", arn)
    assert start(cloud, revision=9) == arn
    assert len(cloud.states.executions) == 1
    cloud.states.end(arn)
    assert start(cloud, revision=9) != arn


def test_an_execution_of_an_earlier_run_does_not_count(cloud: Deployment) -> None:
    """An execution that runs for an earlier run of the session ends as superseded: the new run gets its own."""
    arn = start(cloud, run_id="r1")
    cloud.store.leases.note_execution("session/s", arn)
    assert start(cloud, run_id="r2") != arn
    assert len(cloud.states.running) == 2


def test_an_execution_that_is_gone_does_not_count(cloud: Deployment) -> None:
    """An ARN that the service does not know any more drives nothing."""
    for arn in ("arn:gone", f"{EXECUTION}:gone"):
        cloud.store.leases.note_execution("session/s", arn)
        assert not drives(_wiring.app(), arn, "r1")
    cloud.states.fail("describe_execution", refused("InvalidArn"))
    assert start(cloud) in cloud.states.running


def test_a_run_is_due_before_its_execution_starts(cloud: Deployment) -> None:
    """When the execution cannot be started, the mark is there for recovery."""
    cloud.states.fail("start_execution", refused("ThrottlingException"))
    with pytest.raises(StoreUnavailableError):
        start(cloud)
    head = cloud.head()
    assert (head.due_run, (head.due_at - cloud.clock()).total_seconds()) == ("r1", 60)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (refused("ThrottlingException"), StoreUnavailableError),
        (refused("InternalFailure"), StoreUnavailableError),
        (ConnectTimeoutError(endpoint_url="https://states.example"), StoreUnavailableError),
        (refused("AccessDeniedException"), StoreRejectedError),
        (refused("StateMachineDoesNotExist"), StoreRejectedError),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)[:60]),
)
def test_every_error_of_the_service_is_translated(cloud: Deployment, error: Exception, expected: type[Any]) -> None:
    """No error of boto3 leaves the boundary: it is retryable, or names what the deployment has to change."""
    app = _wiring.app()
    cloud.states.fail("start_execution", error)
    with pytest.raises(expected, match="StartExecution") as raised:
        start(cloud)
    assert raised.value.__cause__ is error
    cloud.states.fail("send_task_success", error)
    with pytest.raises(expected, match="SendTaskSuccess"):
        wake(app, "token")
    cloud.states.fail("describe_execution", error)
    with pytest.raises(expected, match="DescribeExecution"):
        drives(app, f"{EXECUTION}:x", "r1")


@pytest.mark.parametrize("code", ["TaskDoesNotExist", "TaskTimedOut", "InvalidToken"])
def test_a_wake_up_that_nobody_waits_for_is_told(cloud: Deployment, code: str) -> None:
    """A task token that is used up, timed out or unknown wakes nobody, and that is no error."""
    cloud.states.wait("token")
    cloud.states.fail("send_task_success", refused(code))
    assert wake(_wiring.app(), "token") is False
    assert wake(_wiring.app(), "token") is True


def test_a_function_without_the_machine_cannot_hand_over(cloud: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that does not know the state machine says which setting is missing."""
    monkeypatch.delenv("STATE_MACHINE_ARN")
    cloud.cold_start()
    with pytest.raises(ConfigurationError, match="STATE_MACHINE_ARN"):
        start(cloud)
