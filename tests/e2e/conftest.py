"""One deployment of the template for all tests of this folder, with signatures and roles enforced."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from infra.local.cloud import Deployment, LocalCloud
from stores.dynamodb import dynamodb_store
from tests.support.ledger import Ledger

HERE = Path(__file__).parent
REQUEST_SECONDS = 10


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

    def start(self, session: str, script: str, **options: Any) -> httpx.Response:
        return self.call("POST", f"/sessions/{session}/runs", {"input": f"{script} {session}"}, **options)

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

    def mail(self, approval_id: str, seconds: float = 30) -> str:
        """What SNS sent about an approval."""
        queue, deadline = self.cloud.client("sqs"), time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = [mail for mail in self.mails if approval_id in mail]
            if found:
                return found[-1]
            for message in queue.receive_message(QueueUrl=self.queue, WaitTimeSeconds=1).get("Messages", []):
                self.mails.append(json.loads(message["Body"])["Message"])
                queue.delete_message(QueueUrl=self.queue, ReceiptHandle=message["ReceiptHandle"])
        raise AssertionError(f"Nobody was told about {approval_id}.")

    def callback_path(self, approval_id: str) -> str:
        match = re.search(r"/callbacks/\S+", self.mail(approval_id))
        assert match is not None
        return match[0]

    def task_token(self, approval_id: str) -> str:
        """What an operator reads from the table."""
        store = dynamodb_store(table=self.deployment.outputs["TableName"], client=self.cloud.client("dynamodb"))
        approval = store.approvals.get(approval_id)
        assert approval is not None
        assert approval.task_token is not None
        return approval.task_token

    def executions(self, status: str) -> list[dict[str, Any]]:
        return self.cloud.client("stepfunctions").list_executions(
            stateMachineArn=self.deployment.outputs["StateMachineArn"], statusFilter=status
        )["executions"]


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    with Ledger() as ledger, LocalCloud(auth=True, extra_env={"LEDGER_URL": ledger.url}, wait_scale=0.2) as cloud:
        deployment = cloud.deploy(
            cloud.stage(agent=HERE / "agent.py"),
            {
                "Model": "scripted:agent:answers",
                "RequestSeconds": str(REQUEST_SECONDS),
                "SliceSeconds": "60",
                "MinModelSeconds": "1",
            },
        )
        queues = cloud.client("sqs")
        queue = queues.create_queue(QueueName="mails")["QueueUrl"]
        arn = queues.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        topic = deployment.outputs["ApprovalTopicArn"]
        allowed = {
            "Effect": "Allow",
            "Principal": {"Service": "sns.amazonaws.com"},
            "Action": "sqs:SendMessage",
            "Resource": arn,
            "Condition": {"ArnEquals": {"aws:SourceArn": topic}},
        }
        policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
        queues.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": policy})
        cloud.client("sns").subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)
        yield World(cloud, deployment, ledger, queue, [])
