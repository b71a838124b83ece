"""Functions and state machines from source, in a running local cloud."""

from __future__ import annotations

import io
import itertools
import json
import textwrap
import time
import zipfile
from typing import Any

from infra.local.cloud import LocalCloud

INVOKE = "arn:aws:states:::lambda:invoke"
REMEMBERS_TOKEN = """
    def handler(event, context):
        print("token", event["token"])
"""


def task(function: str, **fields: Any) -> dict[str, Any]:
    """A state that calls a function."""
    return {"Type": "Task", "Resource": INVOKE, "Parameters": {"FunctionName": function}, "End": True, **fields}


def callback(function: str, **fields: Any) -> dict[str, Any]:
    """A state that hands a function its task token, and waits for it to be used."""
    parameters = {"FunctionName": function, "Payload": {"token.$": "$$.Task.Token"}}
    return task(function, **{"Resource": f"{INVOKE}.waitForTaskToken", "Parameters": parameters, **fields})


class Workbench:
    """Functions and state machines from source, in a cloud whose waits are ten times shorter."""

    def __init__(self, cloud: LocalCloud) -> None:
        self.cloud = cloud
        self.lambdas, self.states = cloud.client("lambda"), cloud.client("stepfunctions")
        role = cloud.client("iam").create_role(RoleName="workbench", AssumeRolePolicyDocument="{}")
        self._role = role["Role"]["Arn"]
        self._numbers = itertools.count()

    def function(self, source: str, timeout: int = 10) -> str:
        """Create a Python function from the source of its module; its name."""
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("main.py", textwrap.dedent(source))
        name = f"function-{next(self._numbers)}"
        self.lambdas.create_function(
            FunctionName=name,
            Runtime="python3.13",
            Handler="main.handler",
            Role=self._role,
            Timeout=timeout,
            Code={"ZipFile": archive.getvalue()},
        )
        return name

    def invoke(self, name: str, event: Any = None) -> Any:
        """Call a function; what it returned, or the error that it failed with."""
        answer = self.lambdas.invoke(FunctionName=name, Payload=json.dumps(event))
        return json.loads(answer["Payload"].read())

    def machine(self, state: dict[str, Any], **other_states: dict[str, Any]) -> str:
        """Create a state machine that starts with this state; its ARN."""
        definition = {"StartAt": "Start", "States": {"Start": state, **other_states}}
        name = f"machine-{next(self._numbers)}"
        made = self.states.create_state_machine(name=name, definition=json.dumps(definition), roleArn=self._role)
        return made["stateMachineArn"]

    def start(self, machine: str, event: Any = None, **options: Any) -> str:
        """Start an execution; its ARN."""
        started = self.states.start_execution(stateMachineArn=machine, input=json.dumps(event or {}), **options)
        return started["executionArn"]

    def finish(self, execution: str, seconds: float = 15) -> dict[str, Any]:
        """Wait until an execution has ended; its description."""
        deadline = time.monotonic() + seconds
        while (found := self.states.describe_execution(executionArn=execution))["status"] == "RUNNING":
            assert time.monotonic() < deadline, "the execution did not end"
            time.sleep(0.05)
        return found

    def wait_for_log(self, function: str, text: str, count: int = 1, seconds: float = 15) -> list[str]:
        """Wait until a function has logged this text so often; the lines that hold it."""
        deadline = time.monotonic() + seconds
        while len(lines := [line for line in self.cloud.logs(function) if text in line]) < count:
            assert time.monotonic() < deadline, f"the function logged {text!r} {len(lines)} times"
            time.sleep(0.05)
        return lines
