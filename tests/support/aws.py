"""Step Functions, SNS and EventBridge as far as the handlers use them: they record all calls, and fail when told to."""

import json
from typing import Any

from botocore.exceptions import ClientError


def refused(code: str, operation: str = "Operation") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "refused"}}, operation)


class Faults:
    """Errors that the next calls of an operation raise."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self._errors: dict[str, list[Exception]] = {}

    def fail(self, operation: str, *errors: Exception) -> None:
        self._errors.setdefault(operation, []).extend(errors)

    def called(self, operation: str) -> list[dict[str, Any]]:
        return [arguments for name, arguments in self.calls if name == operation]

    def _note(self, operation: str, arguments: dict[str, Any]) -> None:
        self.calls.append((operation, arguments))
        if errors := self._errors.get(operation):
            raise errors.pop(0)


class FakeStates(Faults):
    """Executions by ARN, and the task tokens that somebody waits with.

    As the service does, it starts an execution of a name that runs with the same input no second time and gives its
    ARN; every other use of a name that is taken is `ExecutionAlreadyExists`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.executions: dict[str, dict[str, str]] = {}
        self.waiting: dict[str, list[str]] = {}

    def start_execution(self, **arguments: Any) -> dict[str, str]:
        self._note("start_execution", arguments)
        machine, name = arguments["stateMachineArn"], arguments["name"]
        arn = machine.replace(":stateMachine:", ":execution:") + f":{name}"
        there = self.executions.get(arn)
        if there is not None and there != {"status": "RUNNING", "input": arguments["input"]}:
            raise refused("ExecutionAlreadyExists", "StartExecution")
        self.executions[arn] = {"status": "RUNNING", "input": arguments["input"]}
        return {"executionArn": arn}

    def describe_execution(self, **arguments: Any) -> dict[str, str]:
        self._note("describe_execution", arguments)
        if (execution := self.executions.get(arguments["executionArn"])) is None:
            raise refused("ExecutionDoesNotExist", "DescribeExecution")
        return execution

    def send_task_success(self, **arguments: Any) -> dict[str, str]:
        self._note("send_task_success", arguments)
        if (woken := self.waiting.get(arguments["taskToken"])) is None:
            raise refused("TaskDoesNotExist", "SendTaskSuccess")
        json.loads(arguments["output"])
        woken.append(arguments["output"])
        return {}

    # What a test does to them.

    def wait(self, task_token: str) -> list[str]:
        """Somebody waits with this token; give the outputs that it is woken with."""
        return self.waiting.setdefault(task_token, [])

    def end(self, arn: str, status: str = "SUCCEEDED") -> None:
        self.executions[arn]["status"] = status

    @property
    def running(self) -> list[str]:
        return [arn for arn, execution in self.executions.items() if execution["status"] == "RUNNING"]


class FakeTopics(Faults):
    """What was published."""

    def publish(self, **arguments: Any) -> dict[str, str]:
        self._note("publish", arguments)
        return {"MessageId": "1"}

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self.called("publish")


class FakeEvents(Faults):
    """What was sent to the bus. Entries that it does not take are in the answer, as with the service."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses: str | None = None

    def put_events(self, **arguments: Any) -> dict[str, Any]:
        self._note("put_events", arguments)
        entries = [{"ErrorCode": self.refuses} if self.refuses else {"EventId": "1"} for _ in arguments["Entries"]]
        return {"FailedEntryCount": len(entries) if self.refuses else 0, "Entries": entries}

    @property
    def sent(self) -> list[tuple[str, dict[str, Any]]]:
        """Detail types with their details."""
        entries = [entry for call in self.called("put_events") for entry in call["Entries"]]
        return [(entry["DetailType"], json.loads(entry["Detail"])) for entry in entries]
