"""One deployment of the template for all tests of this folder, with signatures and roles enforced."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import httpx
import pytest

from infra.local.cloud import Deployment, LocalCloud
from stores.dynamodb import dynamodb_store
from tests.support.ledger import Ledger

HERE = Path(__file__).parent
REQUEST_SECONDS = 10
SLICE_SECONDS = 10

T = TypeVar("T")


def at_once(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Make all of these calls at the same moment, each in a thread of its own; their results, in order."""
    ready = threading.Barrier(len(calls))

    def one(call: Callable[[], T]) -> T:
        ready.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(one, calls))


def until(holds: Callable[[], bool], seconds: float = 30) -> None:
    """Return as soon as it holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"it did not come to that within {seconds:g} seconds"
        time.sleep(0.1)


@dataclass
class World:
    """The deployment, the ledger of what really happened, and the mails that people got."""

    cloud: LocalCloud
    deployment: Deployment
    ledger: Ledger
    queue: str
    mails: list[str]

    def new_session(self) -> str:
        return f"s-{uuid4().hex[:12]}"

    def call(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return self.deployment.request(method, path, json=body, **options)

    def start(self, session: str, script: str, *more: Any, **options: Any) -> httpx.Response:
        said = " ".join(map(str, (script, session, *more)))
        return self.call("POST", f"/sessions/{session}/runs", {"input": said}, **options)

    def messages(self, session: str, role: str) -> list[Any]:
        """What the messages of one role say, oldest first."""
        shown = self.call("GET", f"/sessions/{session}/messages").json()["messages"]
        return [message["content"] for message in shown if message["role"] == role]

    def counts(self, session: str, *steps: str) -> list[int]:
        """How often each of these steps has really happened."""
        return [self.ledger.count(session, step) for step in steps]

    def until(self, session: str, status: str, seconds: float = 60) -> dict[str, Any]:
        """The session, as soon as it has this status."""
        deadline = time.monotonic() + seconds
        while True:
            shown = self.call("GET", f"/sessions/{session}").json()
            if shown.get("status") == status:
                return shown
            if time.monotonic() > deadline:
                raise AssertionError(f"{session} is not {status} after {seconds} seconds: {shown}")
            time.sleep(0.1)

    def next_approval(self, session: str, *, after: str, seconds: float = 60) -> list[str]:
        """The approval that the run waits for after this one, as soon as it does; none where it finishes instead."""
        deadline = time.monotonic() + seconds
        while True:
            shown = self.call("GET", f"/sessions/{session}").json()
            if shown["status"] == "finished":
                return []
            if shown["status"] == "awaiting-approval" and shown["approval_id"] != after:
                return [shown["approval_id"]]
            if time.monotonic() > deadline:
                raise AssertionError(f"{session} has not come to its next approval in {seconds} seconds: {shown}")
            time.sleep(0.1)

    def mail(self, approval_id: str, *, says: str = "", seconds: float = 30) -> str:
        """The newest that SNS sent about an approval and that says so."""
        queue, deadline = self.cloud.client("sqs"), time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = [mail for mail in self.mails if approval_id in mail and says in mail]
            if found:
                return found[-1]
            for message in queue.receive_message(QueueUrl=self.queue, WaitTimeSeconds=1).get("Messages", []):
                self.mails.append(json.loads(message["Body"])["Message"])
                queue.delete_message(QueueUrl=self.queue, ReceiptHandle=message["ReceiptHandle"])
        raise AssertionError(f"Nobody was told about {approval_id}.")

    def callback_path(self, approval_id: str, *, says: str = "") -> str:
        match = re.search(r"/callbacks/\S+", self.mail(approval_id, says=says))
        assert match is not None
        return match[0]

    def task_token(self, approval_id: str) -> str:
        """What an operator reads from the table."""
        store = dynamodb_store(table=self.deployment.outputs["TableName"], client=self.cloud.client("dynamodb"))
        approval = store.approvals.get(approval_id)
        assert approval is not None
        assert approval.task_token is not None
        return approval.task_token

    def execution(self, session: str) -> str:
        """The ARN of the execution that runs for this session."""
        return self.runs("RUNNING")[session]

    def runs(self, status: str) -> dict[str, str]:
        """The ARNs of all executions with this status, by their sessions."""
        describe = self.cloud.client("stepfunctions").describe_execution
        arns = [execution["executionArn"] for execution in self.executions(status)]
        return {json.loads(describe(executionArn=arn)["input"])["session_id"]: arn for arn in arns}

    def stop(self, session: str) -> None:
        """Stop the session's execution; a Lambda that works for it works on, as on AWS."""
        self.cloud.client("stepfunctions").stop_execution(executionArn=self.execution(session))

    @contextmanager
    def reconfigured(self, *functions: str, timeout: int | None = None, **variables: str) -> Iterator[None]:
        """Set these functions' time-out and environment variables, as an operator can, and set them back in the end."""
        client = self.cloud.client("lambda")
        before: list[dict[str, Any]] = []
        for function in functions:
            name = self.deployment.resources[function]
            found = client.get_function_configuration(FunctionName=name)
            before.append({"FunctionName": name, "Environment": found["Environment"], "Timeout": found["Timeout"]})
        for old in before:
            environment = {"Variables": {**old["Environment"]["Variables"], **variables}}
            new = {**old, "Environment": environment, "Timeout": timeout or old["Timeout"]}
            client.update_function_configuration(**new)
        try:
            yield
        finally:
            for old in before:
                client.update_function_configuration(**old)

    def executions(self, status: str) -> list[dict[str, Any]]:
        return self.cloud.client("stepfunctions").list_executions(
            stateMachineArn=self.deployment.outputs["StateMachineArn"], statusFilter=status
        )["executions"]


@dataclass(frozen=True)
class LeftBehind:
    """Runs that nobody drives any more, since before the first test: what becomes of them is looked at in the end."""

    killed: str  # the Lambda of its request died, and the client never came back
    stopped: str  # its execution was stopped, and its last slice has no time to finish
    aborted: str  # its execution was stopped, and then somebody aborted it


@pytest.fixture(scope="session", autouse=True)
def left_behind(request: pytest.FixtureRequest, world: World) -> LeftBehind | None:
    """They need minutes, so they begin with the first test; None where no test asks for them."""
    if not any("left_behind" in getattr(item, "fixturenames", ()) for item in request.session.items):
        return None
    left = LeftBehind(*(world.new_session() for _ in range(3)))
    with ThreadPoolExecutor() as pool:
        gate = world.ledger.hold(left.killed, "model-1")
        request_of_killed = pool.submit(world.start, left.killed, "steps")
        gate.wait()
        world.cloud.kill_function("RunsFunction")
        gate.open()
        request_of_killed.result()
    for session in (left.stopped, left.aborted):
        world.start(session, "walk", 10, 1, headers={"Prefer": "respond-async"})
        until(lambda: world.counts(session, "s0") == [1])  # noqa: B023 - called before the next one
        world.stop(session)
    world.call("POST", f"/sessions/{left.aborted}/abort")
    return left


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    with Ledger() as ledger, LocalCloud(auth=True, extra_env={"LEDGER_URL": ledger.url}, wait_scale=0.2) as cloud:
        topics = [cloud.client("sns").create_topic(Name=name)["TopicArn"] for name in ("e2e-leads", "e2e-cfo")]
        deployment = cloud.deploy(
            cloud.stage(agent=HERE / "agent.py"),
            {
                "Model": "scripted:agent:answers",
                "RequestSeconds": str(REQUEST_SECONDS),
                "SliceSeconds": str(SLICE_SECONDS),
                "MinModelSeconds": "1",
                "EscalationTopics": ",".join(topics),
            },
        )
        queues = cloud.client("sqs")
        queue = queues.create_queue(QueueName="mails")["QueueUrl"]
        arn = queues.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        topics.append(deployment.outputs["ApprovalTopicArn"])
        allowed = {
            "Effect": "Allow",
            "Principal": {"Service": "sns.amazonaws.com"},
            "Action": "sqs:SendMessage",
            "Resource": arn,
            "Condition": {"ArnEquals": {"aws:SourceArn": topics}},
        }
        policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
        queues.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": policy})
        for topic in topics:
            cloud.client("sns").subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)
        yield World(cloud, deployment, ledger, queue, [])
