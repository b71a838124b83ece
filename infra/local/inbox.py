"""The mailbox of the people who decide approvals: a queue that is subscribed to the topic of approval requests."""

from __future__ import annotations

import json
import re
import time

from infra.local.cloud import LocalCloud

LINK = re.compile(r"/callbacks/(\S+)")


class Inbox:
    """Receives what is published to the topic from now on, and keeps what it has received in `messages`."""

    def __init__(self, cloud: LocalCloud, topic_arn: str) -> None:
        self._sqs = cloud.client("sqs")
        self._queue: str = self._sqs.create_queue(QueueName=f"inbox-{topic_arn.rsplit(':', 1)[1]}")["QueueUrl"]
        named = self._sqs.get_queue_attributes(QueueUrl=self._queue, AttributeNames=["QueueArn"])
        arn = named["Attributes"]["QueueArn"]
        allowed = {
            "Effect": "Allow",
            "Principal": {"Service": "sns.amazonaws.com"},
            "Action": "sqs:SendMessage",
            "Resource": arn,
            "Condition": {"ArnEquals": {"aws:SourceArn": topic_arn}},
        }
        policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
        self._sqs.set_queue_attributes(QueueUrl=self._queue, Attributes={"Policy": policy})
        cloud.client("sns").subscribe(TopicArn=topic_arn, Protocol="sqs", Endpoint=arn)
        self.messages: list[str] = []

    def next(self, *, about: str = "", seconds: float = 15) -> str:
        """Wait for a message that holds this text (an approval's id, say), take it out of `messages` and give it."""
        deadline = time.monotonic() + seconds
        while True:
            for message in self.messages:
                if about in message:
                    self.messages.remove(message)
                    return message
            if time.monotonic() > deadline:
                raise TimeoutError(f"No message to the approvers about {about!r} arrived within {seconds:.0f} seconds.")
            self._receive()

    def callback_token(self, *, about: str = "", seconds: float = 15) -> str:
        """The token in the link of the next message that holds this text."""
        message = self.next(about=about, seconds=seconds)
        found = LINK.search(message)
        if found is None:
            raise ValueError("the message to the approvers holds no callback link")
        return found[1]

    def _receive(self) -> None:
        received = self._sqs.receive_message(QueueUrl=self._queue, MaxNumberOfMessages=10, WaitTimeSeconds=1)
        for message in received.get("Messages", []):
            self.messages.append(json.loads(message["Body"])["Message"])
            self._sqs.delete_message(QueueUrl=self._queue, ReceiptHandle=message["ReceiptHandle"])
