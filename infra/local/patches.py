"""AWS behaviour that the emulator (ministack 1.5.33) lacks, restored one function at a time.

Each function below is one patch, named after what AWS does. All of them hang on the emulator's internals, so the
launcher applies them to the one version they were written for and refuses any other. The product never knows.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import threading
import zipfile
from contextvars import ContextVar
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ministack.core import iam_actions, lambda_runtime
from ministack.core.responses import error_response_json, get_account_id, get_region, json_response, new_uuid
from ministack.services import lambda_svc
from ministack.services import stepfunctions as sfn

# What AWS puts beside a Python function: boto3 and what it brings, and nothing else.
LAMBDA_RUNTIME_PACKAGES = ("boto3", "botocore", "s3transfer", "jmespath", "dateutil", "urllib3", "six.py")


def apply(runtime_dir: Path) -> None:
    """Apply every patch; `runtime_dir` is an empty folder that may be filled with the Lambda runtime's packages."""
    functions_see_only_their_own_packages(runtime_dir)
    a_package_is_unpacked_once(runtime_dir.with_name("unpacked"))
    a_python_exception_keeps_its_class_name()
    a_killed_function_is_an_exit_error()
    a_failed_import_shows_its_traceback()
    _know_the_running_task()
    starting_an_execution_again_is_idempotent()
    a_time_out_may_come_from_the_input()
    a_function_that_fails_fails_its_callback_task()
    a_task_token_is_used_once()
    a_task_token_is_authorised_on_its_state_machine()
    a_retry_has_its_own_task_token()
    a_stopped_execution_stays_stopped()
    a_retry_honours_jitter_and_maximum_delay()


# --- Lambda -------------------------------------------------------------------------------------------------------


def functions_see_only_their_own_packages(runtime_dir: Path) -> None:
    """A function imports the standard library, its package and layers, and boto3: a forgotten requirement fails."""
    site_packages = Path(lambda_runtime.__file__).parents[2]
    for name in LAMBDA_RUNTIME_PACKAGES:
        (runtime_dir / name).symlink_to(site_packages / name)
    prelude = (
        "import sys\n"
        "sys.path[:] = [p for p in sys.path if not p.rstrip('/').endswith(('site-packages', 'dist-packages'))]\n"
        f"sys.path.append({str(runtime_dir)!r})\n"
    )
    _edit_worker_script(lambda script: prelude + script)


def a_package_is_unpacked_once(folder: Path) -> None:
    """Environments see the same read-only files of a package or layer, which none of them waits for twice."""
    lock = threading.Lock()

    class UnpackedOnce(zipfile.ZipFile):
        def extractall(self, path: Any = None, members: Any = None, pwd: Any = None) -> None:
            contents = repr([(entry.filename, entry.CRC) for entry in self.infolist()])
            unpacked = folder / hashlib.sha256(contents.encode()).hexdigest()
            with lock:
                if not unpacked.exists():
                    super().extractall(unpacked.with_suffix(".part"))
                    unpacked.with_suffix(".part").rename(unpacked)
            for entry in unpacked.iterdir():
                (Path(path) / entry.name).symlink_to(entry)

    lambda_runtime.zipfile = SimpleNamespace(**{**vars(zipfile), "ZipFile": UnpackedOnce})


def a_python_exception_keeps_its_class_name() -> None:
    """`errorType` is the exception's class, as Retry, Catch and callers match it; the function stays warm."""
    _edit_worker_script(
        lambda script: _replace_once(
            script,
            '{"status": "error", "error": str(e), "trace": traceback.format_exc()}',
            '{"status": "ok", "trace": traceback.format_exc(), "raised": {"errorMessage": str(e), '
            '"errorType": type(e).__name__, "stackTrace": traceback.format_tb(e.__traceback__)}}',
        )
    )
    last = threading.local()  # the invocation that this thread runs
    invoke, execute = lambda_runtime.Worker.invoke, lambda_svc._execute_function_warm

    def worker_invoke(self: Any, event: Any, request_id: str, **options: Any) -> dict[str, Any]:
        response = invoke(self, event, request_id, **options)
        last.raised = response.pop("raised", None)
        if last.raised is not None:
            last.raised["requestId"] = request_id
            response |= {"status": "error", "error": last.raised["errorMessage"]}
        return response

    def execute_function_warm(func: dict[str, Any], event: Any, request_id: str) -> dict[str, Any]:
        last.raised = None
        result = execute(func, event, request_id)
        return result if last.raised is None else {**result, "body": last.raised}

    lambda_runtime.Worker.invoke = worker_invoke
    lambda_svc._execute_function_warm = execute_function_warm


def a_killed_function_is_an_exit_error() -> None:
    """A process that dies (SIGKILL, out of memory, `os._exit`) is `Runtime.ExitError`, which callers may retry."""
    execute = lambda_svc._execute_function_warm

    def execute_function_warm(func: dict[str, Any], event: Any, request_id: str) -> dict[str, Any]:
        result = execute(func, event, request_id)
        body = result.get("body")
        if result.get("error") and isinstance(body, dict) and body.get("errorType") == "Runtime.HandlerError":
            message = f"RequestId: {request_id} Error: Runtime exited with error: {body.get('errorMessage')}"
            result = {**result, "body": {"errorType": "Runtime.ExitError", "errorMessage": message}}
        return result

    lambda_svc._execute_function_warm = execute_function_warm


def a_failed_import_shows_its_traceback() -> None:
    """What a module raises while it is imported is reported whole, to the caller and in the function's log."""
    _edit_worker_script(
        lambda script: _replace_once(
            script, '{"status": "error", "error": str(e)}', '{"status": "error", "error": traceback.format_exc()}'
        )
    )
    execute = lambda_svc._execute_function_warm

    def execute_function_warm(func: dict[str, Any], event: Any, request_id: str) -> dict[str, Any]:
        result = execute(func, event, request_id)
        said = result["body"].get("errorMessage", "") if result.get("error") else ""
        return {**result, "log": said} if said.startswith("Worker init failed") else result

    lambda_svc._execute_function_warm = execute_function_warm


# --- Step Functions -----------------------------------------------------------------------------------------------

# The task state that runs in this thread: its execution and the context object its parameters read.
_task: ContextVar[SimpleNamespace | None] = ContextVar("task", default=None)
_spent_tokens: set[str] = set()
_token_owner: dict[str, dict[str, Any]] = {}  # the execution that waits for it
_token_machine: dict[str, str] = {}  # every token there ever was, and its state machine


def _know_the_running_task() -> None:
    """Let the patches below see which execution they are called for."""
    execute = sfn._execute_task

    def execute_task(state: dict[str, Any], raw_input: Any, execution: dict[str, Any], ctx: dict[str, Any]) -> Any:
        reset = _task.set(SimpleNamespace(execution=execution, ctx=ctx))
        try:
            return execute(state, raw_input, execution, ctx)
        finally:
            _task.reset(reset)

    sfn._execute_task = execute_task


def starting_an_execution_again_is_idempotent() -> None:
    """StartExecution with the name and the input of a running execution answers 200 with the same ARN."""
    start = sfn._start_execution

    def start_execution(data: dict[str, Any]) -> Any:
        machine = sfn._state_machines.get(sfn._resolve_state_machine_arn(data.get("stateMachineArn", "")))
        if machine and data.get("name"):
            arn = f"arn:aws:states:{get_region()}:{get_account_id()}:execution:{machine['name']}:{data['name']}"
            running = sfn._executions.get(arn)
            if running and running["status"] == "RUNNING" and running["input"] == data.get("input", "{}"):
                return json_response({"executionArn": arn, "startDate": running["startDate"]})
        return start(data)

    sfn._start_execution = start_execution


def a_time_out_may_come_from_the_input() -> None:
    """`TimeoutSecondsPath` selects a task's time-out from its input."""
    execute = sfn._execute_task

    def execute_task(state: dict[str, Any], raw_input: Any, execution: dict[str, Any], ctx: dict[str, Any]) -> Any:
        path = state.get("TimeoutSecondsPath")
        if path is not None:
            seconds = sfn._resolve_path_or_ctx(path, sfn._apply_input_path(state, raw_input, ctx), ctx)
            if not isinstance(seconds, int) or isinstance(seconds, bool) or seconds < 1:
                raise sfn._ExecutionError(
                    "States.Runtime", f"TimeoutSecondsPath {path} must select a positive integer, not {seconds!r}"
                )
            state = {**state, "TimeoutSeconds": seconds}
        return execute(state, raw_input, execution, ctx)

    sfn._execute_task = execute_task


def a_function_that_fails_fails_its_callback_task() -> None:
    """An error of the function that was given the task token fails the task, unless the token was used before."""
    call_with_token, call = sfn._invoke_with_callback, sfn._call_lambda
    awaited: ContextVar[str] = ContextVar("awaited")

    def invoke_with_callback(resource: str, payload: Any, token: str, state: dict[str, Any]) -> Any:
        reset = awaited.set(token)
        try:
            return call_with_token(resource, payload, token, state)
        finally:
            awaited.reset(reset)

    def call_lambda(function: str, event: Any) -> Any:
        try:
            return call(function, event)
        except sfn._ExecutionError as error:
            info = sfn._task_tokens.get(awaited.get(""))
            if info and not info["event"].is_set():
                info["error"] = {"Error": error.error, "Cause": error.cause}
                info["event"].set()
            raise

    sfn._invoke_with_callback, sfn._call_lambda = invoke_with_callback, call_lambda


def a_task_token_is_used_once() -> None:
    """A token that was used, or whose task or execution has ended, is `TaskTimedOut`; an unknown one `InvalidToken`."""
    call_with_token = sfn._invoke_with_callback

    def invoke_with_callback(resource: str, payload: Any, token: str, state: dict[str, Any]) -> Any:
        task = _task.get()
        if task is not None:
            _token_owner[token] = task.execution
            _token_machine[token] = task.execution["stateMachineArn"]
        try:
            return call_with_token(resource, payload, token, state)
        finally:
            _spent_tokens.add(token)
            _token_owner.pop(token, None)

    def once(send: Any) -> Any:
        def send_task_result(data: dict[str, Any]) -> Any:
            token = data.get("taskToken", "")
            info, owner = sfn._task_tokens.get(token), _token_owner.get(token)
            ended = owner is not None and owner["status"] != "RUNNING"
            if token in _spent_tokens or ended or (info and info["event"].is_set()):
                return error_response_json(
                    "TaskTimedOut", "Task Timed Out: 'Provided task does not exist anymore'", 400
                )
            if not info:
                return error_response_json("InvalidToken", "Invalid Token: 'Invalid token'", 400)
            if "output" in data and not _is_json(data["output"]):
                return error_response_json("InvalidOutput", "Invalid Output: 'The output is not JSON'", 400)
            _spent_tokens.add(token)
            return send(data)

        return send_task_result

    sfn._invoke_with_callback = invoke_with_callback
    sfn._send_task_success, sfn._send_task_failure = once(sfn._send_task_success), once(sfn._send_task_failure)


def a_task_token_is_authorised_on_its_state_machine() -> None:
    """A policy allows SendTaskSuccess and its like on the machine that the token is of; on any, for a made-up token."""
    resource_of = iam_actions.extract_resource_arn

    def extract_resource_arn(service: str, *request: Any) -> str:
        body = request[3]
        token = iam_actions._safe_json_field(body, "taskToken") if service == "states" else None
        if not token:
            return resource_of(service, *request)
        return _token_machine.get(token) or next(iter(sfn._state_machines), "*")

    iam_actions.extract_resource_arn = extract_resource_arn


def a_retry_has_its_own_task_token() -> None:
    """Each attempt of a task that waits for a callback reads a new token from the context object."""
    call_with_token = sfn._invoke_with_callback

    def invoke_with_callback(resource: str, payload: Any, token: str, state: dict[str, Any]) -> Any:
        try:
            return call_with_token(resource, payload, token, state)
        finally:
            task = _task.get()
            if task is not None and "Task" in task.ctx:
                task.ctx["Task"] = {"Token": new_uuid()}

    sfn._invoke_with_callback = invoke_with_callback


def a_stopped_execution_stays_stopped() -> None:
    """After StopExecution nothing is retried, caught, recorded or reported for that execution."""
    fail, record = sfn._fail_execution, sfn._add_event
    retrier, catcher = sfn._find_matching_retrier, sfn._find_matching_catcher

    def stopped() -> bool:
        task = _task.get()
        return task is not None and task.execution["status"] == "ABORTED"

    def add_event(execution: dict[str, Any], kind: str, details: Any = None) -> Any:
        if execution["status"] == "ABORTED" and kind != "ExecutionAborted":
            if kind == "TaskScheduled":
                raise sfn._ExecutionError("States.Aborted", "the execution was stopped")
            return {}
        return record(execution, kind, details)

    def fail_execution(execution: dict[str, Any], error: str, cause: str) -> None:
        if execution["status"] == "RUNNING":
            fail(execution, error, cause)

    def find_matching_retrier(*arguments: Any) -> Any:
        return (None, -1) if stopped() else retrier(*arguments)

    def find_matching_catcher(*arguments: Any) -> Any:
        return None if stopped() else catcher(*arguments)

    sfn._fail_execution, sfn._add_event = fail_execution, add_event
    sfn._find_matching_retrier, sfn._find_matching_catcher = find_matching_retrier, find_matching_catcher


def a_retry_honours_jitter_and_maximum_delay() -> None:
    """`MaxDelaySeconds` caps the delay before a retry, `JitterStrategy: FULL` draws it at random."""
    find = sfn._find_matching_retrier

    def find_matching_retrier(retriers: list[Any], error: str, counts: dict[int, int]) -> Any:
        retrier, index = find(retriers, error, counts)
        if retrier is None:
            return retrier, index
        delay = retrier.get("IntervalSeconds", 1) * retrier.get("BackoffRate", 2.0) ** counts.get(index, 0)
        delay = min(delay, retrier.get("MaxDelaySeconds", delay))
        if retrier.get("JitterStrategy") == "FULL":
            delay = random.uniform(0, delay)
        return {**retrier, "IntervalSeconds": delay, "BackoffRate": 1}, index

    sfn._find_matching_retrier = find_matching_retrier


# --- How ------------------------------------------------------------------------------------------------------------


def _edit_worker_script(edit: Any) -> None:
    """Change the program that the emulator runs in each Python function's process."""
    lambda_runtime._PYTHON_WORKER_SCRIPT = edit(lambda_runtime._PYTHON_WORKER_SCRIPT)


def _replace_once(text: str, old: str, new: str) -> str:
    if text.count(old) != 1:
        sys.exit(f"The emulator is not as expected: {text.count(old)} places read {old!r}.")
    return text.replace(old, new)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
