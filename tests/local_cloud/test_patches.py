"""What AWS does and the emulator does not, as restored by `infra/local/patches.py`: one test for each patch.

1. A function sees the standard library, boto3 and its own package.
2. An exception keeps its class name, for callers, Retry and Catch, and the function stays warm.
3. A killed function is Runtime.ExitError.
4. A module that cannot be imported shows its traceback.
5. StartExecution is idempotent while the execution runs.
6. TimeoutSecondsPath is honoured.
7. A function that fails before it used its task token fails the task.
8. A task token is used once, also while the function that got it runs. (On which machine it may be used:
   `test_cloud.py`, in a cloud that checks permissions.)
9. Each attempt has a task token of its own.
10. A stopped execution stays stopped.
11. MaxDelaySeconds and JitterStrategy are honoured.
"""

from __future__ import annotations

import json
import threading
import time
from itertools import pairwise
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.local_cloud.workbench import REMEMBERS_TOKEN, Workbench, callback, task

pytestmark = pytest.mark.local_cloud

RAISES = """
    class StaleCheckpointError(Exception): pass

    def handler(event, context):
        raise StaleCheckpointError("revision 7")
"""


def code_of(error: pytest.ExceptionInfo[ClientError]) -> str:
    return error.value.response["Error"]["Code"]


def test_a_function_sees_only_its_own_packages(bench: Workbench) -> None:
    """boto3 is there, as on AWS, and a package that only the emulator needs is not."""
    function = bench.function("""
        import importlib

        def handler(event, context):
            found = {}
            for name in ("boto3", "yaml", "pydantic", "ministack"):
                try:
                    importlib.import_module(name)
                    found[name] = True
                except ImportError:
                    found[name] = False
            return found
    """)
    assert bench.invoke(function) == {"boto3": True, "yaml": False, "pydantic": False, "ministack": False}


def test_an_exception_keeps_its_class_name(bench: Workbench) -> None:
    """The caller of a function that raised sees the exception's class, message and stack."""
    error = bench.invoke(bench.function(RAISES))
    assert (error["errorType"], error["errorMessage"]) == ("StaleCheckpointError", "revision 7")
    assert "raise StaleCheckpointError" in error["stackTrace"][-1]


def test_a_class_name_is_retried_and_caught(bench: Workbench) -> None:
    """Retry and Catch select by the exception's class."""
    function = bench.function(RAISES)
    state = task(
        function,
        Retry=[{"ErrorEquals": ["StaleCheckpointError"], "IntervalSeconds": 1, "MaxAttempts": 2}],
        Catch=[{"ErrorEquals": ["StaleCheckpointError"], "Next": "Caught"}],
    )
    found = bench.finish(bench.start(bench.machine(state, Caught={"Type": "Succeed"})))
    assert found["status"] == "SUCCEEDED"
    assert json.loads(found["output"])["Error"] == "StaleCheckpointError"
    assert len(bench.wait_for_log(function, "Traceback", 3)) == 3


def test_a_function_that_raised_stays_warm(bench: Workbench) -> None:
    """The invocation after an exception runs in the same process."""
    function = bench.function("""
        count = 0

        def handler(event, context):
            global count
            count += 1
            if event == "fail":
                raise ValueError("no")
            return count
    """)
    assert [bench.invoke(function, event) for event in ("a", "fail", "b")][::2] == [1, 3]


def test_a_killed_function_is_an_exit_error(bench: Workbench) -> None:
    """A process that is killed at work ends its invocation with Runtime.ExitError, and the next one works."""
    function = bench.function("""
        import time

        def handler(event, context):
            time.sleep(event)
            return "slept"
    """)
    answers: list[Any] = []
    sleeping = threading.Thread(target=lambda: answers.append(bench.invoke(function, 60)))
    sleeping.start()
    while not any(worker["busy"] for worker in bench.cloud.workers(function)):
        time.sleep(0.05)
    time.sleep(0.5)  # so that the handler, and not the import of the module, is what gets killed
    assert bench.cloud.kill_function(function) == 1
    sleeping.join(5)
    assert answers[0]["errorType"] == "Runtime.ExitError"
    assert bench.invoke(function, 0) == "slept"


def test_a_failed_import_shows_its_traceback(bench: Workbench) -> None:
    """The error of a module that cannot be imported names the line at fault, and so does the log."""
    function = bench.function("import missing_requirement")
    error = bench.invoke(function)
    assert "main.py" in error["errorMessage"]
    assert "missing_requirement" in error["errorMessage"]
    bench.wait_for_log(function, "No module named 'missing_requirement'")


def test_starting_an_execution_again_is_idempotent(bench: Workbench) -> None:
    """The same name and input give the running execution; another input, or a closed execution, an error."""
    machine = bench.machine({"Type": "Wait", "Seconds": 10, "End": True})
    execution = bench.start(machine, {"a": 1}, name="once")
    assert bench.start(machine, {"a": 1}, name="once") == execution
    with pytest.raises(ClientError) as other_input:
        bench.start(machine, {"a": 2}, name="once")
    bench.finish(execution)
    with pytest.raises(ClientError) as closed:
        bench.start(machine, {"a": 1}, name="once")
    assert (code_of(other_input), code_of(closed)) == ("ExecutionAlreadyExists", "ExecutionAlreadyExists")


def test_a_time_out_may_come_from_the_input(bench: Workbench) -> None:
    """A task that waits for a callback times out after as many seconds as the path selects."""
    state = callback(bench.function(REMEMBERS_TOKEN), TimeoutSecondsPath="$.patience")
    machine = bench.machine(state)
    found = bench.finish(bench.start(machine, {"patience": 1}), seconds=5)
    assert (found["status"], found["error"]) == ("FAILED", "States.Timeout")
    assert bench.finish(bench.start(machine, {"patience": "long"}))["error"] == "States.Runtime"


def test_a_function_that_fails_fails_its_callback_task(bench: Workbench) -> None:
    """An exception of the function that was given the task token reaches Retry and Catch at once."""
    function = bench.function(RAISES)
    state = callback(
        function,
        Retry=[{"ErrorEquals": ["StaleCheckpointError"], "IntervalSeconds": 1, "MaxAttempts": 1}],
        Catch=[{"ErrorEquals": ["States.ALL"], "Next": "Caught"}],
    )
    found = bench.finish(bench.start(bench.machine(state, Caught={"Type": "Succeed"})), seconds=10)
    assert json.loads(found["output"])["Error"] == "StaleCheckpointError"
    assert len(bench.wait_for_log(function, "Traceback", 2)) == 2


def test_a_task_token_is_used_once(bench: Workbench) -> None:
    """The first result counts, also when the function sends it itself; a second one is TaskTimedOut."""
    function = bench.function("""
        import boto3

        def handler(event, context):
            states = boto3.client("stepfunctions")
            states.send_task_success(taskToken=event["token"], output='"first"')
            try:
                states.send_task_success(taskToken=event["token"], output='"second"')
            except states.exceptions.TaskTimedOut:
                print("token", event["token"])
            raise RuntimeError("too late to matter")
    """)
    found = bench.finish(bench.start(bench.machine(callback(function))))
    assert json.loads(found["output"]) == "first"
    (line,) = bench.wait_for_log(function, "token ")
    with pytest.raises(bench.states.exceptions.TaskTimedOut):
        bench.states.send_task_failure(taskToken=line.split()[1])


def test_a_task_token_is_checked(bench: Workbench) -> None:
    """A token that never was is InvalidToken, and a result that is not JSON is InvalidOutput and uses nothing up."""
    with pytest.raises(bench.states.exceptions.InvalidToken):
        bench.states.send_task_success(taskToken="made-up", output="{}")
    function = bench.function(REMEMBERS_TOKEN)
    execution = bench.start(bench.machine(callback(function)))
    token = bench.wait_for_log(function, "token ")[0].split()[1]
    with pytest.raises(bench.states.exceptions.InvalidOutput):
        bench.states.send_task_success(taskToken=token, output="{")
    bench.states.send_task_success(taskToken=token, output="1")
    assert bench.finish(execution)["output"] == "1"


def test_each_attempt_has_its_own_task_token(bench: Workbench) -> None:
    """A retried callback task hands out a new token, and only that one completes it."""
    function = bench.function(REMEMBERS_TOKEN)
    retry = [{"ErrorEquals": ["States.Timeout"], "IntervalSeconds": 1, "MaxAttempts": 1}]
    execution = bench.start(bench.machine(callback(function, TimeoutSeconds=1, Retry=retry)))
    first, second = (line.split()[1] for line in bench.wait_for_log(function, "token ", 2))
    with pytest.raises(bench.states.exceptions.TaskTimedOut):
        bench.states.send_task_success(taskToken=first, output="1")
    bench.states.send_task_success(taskToken=second, output="2")
    assert bench.finish(execution)["output"] == "2"


def test_a_stopped_execution_stays_stopped(bench: Workbench) -> None:
    """Its token is dead, its task is not tried again, and neither its status nor its history changes."""
    function = bench.function(REMEMBERS_TOKEN)
    retry = [{"ErrorEquals": ["States.ALL"], "IntervalSeconds": 1, "MaxAttempts": 5}]
    execution = bench.start(bench.machine(callback(function, TimeoutSeconds=1, Retry=retry)))
    token = bench.wait_for_log(function, "token ")[0].split()[1]
    bench.states.stop_execution(executionArn=execution)
    with pytest.raises(bench.states.exceptions.TaskTimedOut):
        bench.states.send_task_success(taskToken=token, output="1")
    time.sleep(1.5)  # the time-out and the retry that it would lead to
    events = bench.states.get_execution_history(executionArn=execution)["events"]
    assert events[-1]["type"] == "ExecutionAborted"
    assert bench.finish(execution)["status"] == "ABORTED"
    assert len(bench.wait_for_log(function, "token ")) == 1


def test_a_retry_waits_no_longer_than_the_maximum_delay(bench: Workbench) -> None:
    """MaxDelaySeconds caps what IntervalSeconds and BackoffRate amount to."""
    function = bench.function(RAISES)
    retry = {"ErrorEquals": ["States.ALL"], "IntervalSeconds": 100, "MaxDelaySeconds": 1, "MaxAttempts": 2}
    started = time.monotonic()
    bench.finish(bench.start(bench.machine(task(function, Retry=[retry]))))
    assert time.monotonic() - started < 5  # 30 seconds otherwise, in this cloud


def test_a_retry_with_jitter_waits_at_random(bench: Workbench) -> None:
    """With JitterStrategy FULL the delay before a retry is anything up to the interval."""
    retry = {"ErrorEquals": ["States.ALL"], "IntervalSeconds": 3, "BackoffRate": 1, "MaxAttempts": 8}
    state = task(bench.function(RAISES), Retry=[{**retry, "JitterStrategy": "FULL"}])
    execution = bench.start(bench.machine(state))
    bench.finish(execution)
    events = bench.states.get_execution_history(executionArn=execution)["events"]
    starts = [event["timestamp"] for event in events if event["type"] == "TaskScheduled"]
    delays = [(after - before).total_seconds() for before, after in pairwise(starts)]
    assert len(delays) == 8
    assert min(delays) < 0.25  # the interval is 0.3 seconds in this cloud; all eight above this is one in two million
