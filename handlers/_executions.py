"""Starting the Step Functions execution that drives a run: once, whoever asks and however often.

The name of an execution comes from the run, its revision and an attempt, and its input is the same to the byte, so two
who start the same one start one. A name stays taken for 90 days after the execution has ended: then the attempt rises.
"""

import hashlib
import json
from datetime import timedelta
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from durable.approval_stream import ApprovalStatus
from durable.errors import ConfigurationError, StoreError, StoreRejectedError, StoreUnavailableError
from durable.records import Checkpoint
from handlers._wiring import App

STEP_INPUT_VERSION = 1
"""The version of what travels through the state machine: only ids. Executions of old versions may wait for a year."""

MAX_ATTEMPTS = 20
_REFUSED = frozenset(
    {
        "AccessDeniedException",
        "AuthorizationError",
        "InvalidArn",
        "InvalidParameter",
        "NotFound",
        "StateMachineDoesNotExist",
        "UnrecognizedClientException",
        "ValidationException",
    }
)
"""Codes of Step Functions and SNS that the same call will get again, until somebody changes the deployment."""

UNSUCCESSFUL = frozenset({"FAILED", "TIMED_OUT", "ABORTED"})

HANDED_OVER = timedelta(seconds=60)
"""How long recovery leaves a run alone that was just handed to the state machine."""


class KeepsFailing(Exception):
    """As many executions as were allowed have started at this revision, and none of them ended in success."""

    def __init__(self, executions: int) -> None:
        self.executions = executions
        super().__init__(f"{executions} executions started at one revision and did not end in success")


def hand_over(app: App, *, session_id: str, run_id: str, revision: int, failures: int | None = None) -> str:
    """Make sure that an execution drives the run; give its ARN.

    The run is marked due first: if this process dies before the execution has started, recovery starts it. With
    `failures` it raises `KeepsFailing` once that many executions of this revision have ended without success.
    """
    stream = f"session/{session_id}"
    app.store.log.announce(stream, run_id=run_id, due_at=app.agent.clock() + HANDED_OVER)
    lease = app.store.leases.look(stream)
    if lease is not None and lease.execution is not None and drives(app, lease.execution, run_id):
        return lease.execution
    return _start(app, session_id=session_id, run_id=run_id, revision=revision, allowed=failures)


def drives(app: App, execution: str, run_id: str) -> bool:
    """Whether the execution is running and for this run: one for an earlier run of the session ends as superseded."""
    return _status(app, execution, run_id) == "RUNNING"


def _status(app: App, execution: str, run_id: str) -> str | None:
    """How the execution stands; None where there is none, or it is for another run."""
    try:
        described = app.states.describe_execution(executionArn=execution)
    except (ClientError, BotoCoreError) as error:
        if _code(error) in ("ExecutionDoesNotExist", "InvalidArn"):
            return None
        raise failure("DescribeExecution", error) from error
    return described["status"] if json.loads(described["input"])["run_id"] == run_id else None


def carry_on(app: App, checkpoint: Checkpoint, *, failures: int | None = None) -> None:
    """See to it that this unfinished run goes on: wake the execution that waits for its decision, or start one.

    What is not decided is woken only to ask anew, when somebody has edited the arguments or a level is untold.

    With `failures`, as `hand_over` does, it raises `KeepsFailing` instead of starting yet another one.
    """
    if checkpoint.approval_id is not None and (approval := app.store.approvals.get(checkpoint.approval_id)):
        wakes = approval.status is not ApprovalStatus.PENDING or not approval.told
        if wakes and approval.task_token is not None and wake(app, approval.task_token):
            return
    session_id = checkpoint.session_id or ""
    hand_over(app, session_id=session_id, run_id=checkpoint.run_id, revision=checkpoint.revision, failures=failures)


def wake(app: App, task_token: str) -> bool:
    """Tell the waiting execution to look at the approval's record. False: nobody waits with this token any more."""
    try:
        app.states.send_task_success(taskToken=task_token, output=json.dumps({"wake": True}))
    except (ClientError, BotoCoreError) as error:
        if _code(error) in ("TaskDoesNotExist", "TaskTimedOut", "InvalidToken"):
            return False
        raise failure("SendTaskSuccess", error) from error
    return True


def execution_name(run_id: str, revision: int, attempt: int) -> str:
    return "run-" + hashlib.sha256(json.dumps([run_id, revision, attempt]).encode()).hexdigest()[:40]


def execution_input(*, session_id: str, run_id: str) -> str:
    return json.dumps({"v": STEP_INPUT_VERSION, "session_id": session_id, "run_id": run_id})


def _start(app: App, *, session_id: str, run_id: str, revision: int, allowed: int | None) -> str:
    if not app.settings.state_machine_arn:
        raise ConfigurationError("STATE_MACHINE_ARN is not set: this function cannot hand runs over.")
    failed = 0
    for attempt in range(MAX_ATTEMPTS):
        name = execution_name(run_id, revision, attempt)
        try:
            started = app.states.start_execution(
                stateMachineArn=app.settings.state_machine_arn,
                name=name,
                input=execution_input(session_id=session_id, run_id=run_id),
            )
        except (ClientError, BotoCoreError) as error:
            if _code(error) != "ExecutionAlreadyExists":
                raise failure("StartExecution", error) from error
            taken = app.settings.state_machine_arn.replace(":stateMachine:", ":execution:") + f":{name}"
            status = _status(app, taken, run_id)
            if status == "RUNNING":
                return taken
            failed += status in UNSUCCESSFUL
            if allowed is not None and failed >= allowed:
                raise KeepsFailing(failed) from None
            if failed:  # the next one gets longer before anybody looks whether it has failed as well
                due_at = app.agent.clock() + HANDED_OVER * 4 ** min(failed, 3)
                app.store.log.announce(f"session/{session_id}", run_id=run_id, due_at=due_at)
        else:
            return started["executionArn"]
    raise StoreUnavailableError("StartExecution", f"{MAX_ATTEMPTS} executions of this revision have ended")


def failure(operation: str, error: ClientError | BotoCoreError) -> StoreError:
    """Give our error for one of boto3's, decided by its code: what the deployment has to change is not retryable."""
    code = _code(error)
    return StoreRejectedError(operation, code) if code in _REFUSED else StoreUnavailableError(operation, code)


def _code(error: ClientError | BotoCoreError) -> str:
    if isinstance(error, BotoCoreError):
        return type(error).__name__
    response: Any = error.response
    return str(response.get("Error", {}).get("Code", "Unknown"))
