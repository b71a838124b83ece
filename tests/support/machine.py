"""The state machine in this process: as much of the Amazon States Language as infra/run.asl.json uses."""

import hashlib
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

DEFINITION: dict[str, Any] = json.loads((Path(__file__).parents[2] / "infra" / "run.asl.json").read_text())


class Execution:
    """One execution. `go` runs until it ends or waits: for time, or for an answer to its task token."""

    def __init__(
        self,
        input: str,
        invoke: Callable[[dict[str, Any]], Any],
        *,
        id: str = "arn:execution",
        started_at: datetime | None = None,
    ) -> None:
        self.id = id
        self.started_at = started_at or datetime.now(UTC)
        self.started: list[dict[str, Any]] = []
        self.payloads: list[dict[str, Any]] = []
        self.at: str = DEFINITION["StartAt"]
        self.status = "RUNNING"
        self.task_token: str | None = None
        self._invoke = invoke
        self._data: Any = json.loads(input)
        self._tokens = 0

    def go(self) -> str:
        """Give the name of the state in which the execution stays."""
        while True:
            state = DEFINITION["States"][self.at]
            match state["Type"]:
                case "Pass":
                    self._data = self._fill(state["Parameters"])
                case "Task":
                    waits = state["Resource"].endswith(".waitForTaskToken")
                    if waits:
                        self._tokens += 1
                        self.task_token = f"task-token-{self.id}-{self._tokens}"
                    if state["Resource"].endswith("states:startExecution"):
                        self.started.append(self._fill(state["Parameters"]))
                        self.at = state["Next"]
                        continue
                    payload = self._fill(state["Parameters"])["Payload"]
                    self.payloads.append(payload)
                    result = json.loads(json.dumps(self._invoke(payload)))
                    if waits:
                        return self.at
                    selected = self._fill(state["ResultSelector"], {"Payload": result})
                    self._put(state["ResultPath"], selected)
                case "Choice":
                    self.at = self._choose(state)
                    continue
                case "Wait":
                    return self.at
                case ended:
                    self.status = {"Succeed": "SUCCEEDED", "Fail": "FAILED"}[ended]
                    return self.at
            self.at = state["Next"]

    def timeout(self) -> int:
        """How long the task that waits for its token may wait, in seconds."""
        return self._value(DEFINITION["States"][self.at]["TimeoutSecondsPath"])

    def answer(self, output: Any) -> str:
        """Complete the waiting task, and go on."""
        state = DEFINITION["States"][self.at]
        self.task_token = None
        self._put(state["ResultPath"], output)
        self.at = state["Next"]
        return self.go()

    def time_out(self) -> str:
        """Let the waiting task time out, and go on."""
        catches = DEFINITION["States"][self.at]["Catch"]
        [caught] = [catch for catch in catches if "States.Timeout" in catch["ErrorEquals"]]
        self.task_token = None
        self._put(caught["ResultPath"], {"Error": "States.Timeout"})
        self.at = caught["Next"]
        return self.go()

    def wait_over(self) -> str:
        """Let the time pass that the execution waits for, and go on."""
        self.at = DEFINITION["States"][self.at]["Next"]
        return self.go()

    def _choose(self, state: dict[str, Any]) -> str:
        chosen = [rule for rule in state["Choices"] if self._value(rule["Variable"]) == rule["StringEquals"]]
        return chosen[0]["Next"] if chosen else state["Default"]

    def _fill(self, template: Any, data: Any = None) -> Any:
        if not isinstance(template, dict):
            return template
        return {
            name.removesuffix(".$"): self._value(value, data) if name.endswith(".$") else self._fill(value, data)
            for name, value in template.items()
        }

    def _value(self, path: str, data: Any = None) -> Any:
        if (called := re.fullmatch(r"States\.(\w+)\((.*), (.*)\)", path)) is not None:
            return self._call(called[1], self._value(called[2], data), called[3])
        value = data if data is not None else self._data
        if path.startswith("$$."):
            execution = {"Id": self.id, "StartTime": self.started_at.isoformat()}
            machine = {"Id": "arn:machine"}
            state = {"EnteredTime": self.started_at.isoformat()}
            task = {"Token": self.task_token}
            value = {"Execution": execution, "StateMachine": machine, "State": state, "Task": task}
            path = path[1:]
        for name in path.split(".")[1:]:
            value = value[name]
        return value

    def _call(self, function: str, first: Any, second: str) -> Any:
        match function, second:
            case "MathAdd", number:
                return first + int(number)
            case "Hash", "'SHA-256'":
                return hashlib.sha256(first.encode()).hexdigest()
            case _:
                raise NotImplementedError(function)

    def _put(self, path: str, value: Any) -> None:
        self._data = {**self._data, path.removeprefix("$."): value}
