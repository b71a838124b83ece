"""Strands Agents with a snapshot in DynamoDB after each message, on the workloads that are counted.

`python -m infra.bench.peers.strands_dynamodb ENDPOINT WORKLOAD VARIANT` prints one line of JSON: what a run took, and
what a load afterwards takes. The variant `compressed` has the storage's own compression on.
"""

import json
import logging
import os
import sys
import uuid
import warnings

os.environ |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_DEFAULT_REGION": "us-east-1"}

import boto3
from strands import Agent
from strands.agent.conversation_manager import NullConversationManager
from strands.session.snapshot_session_manager import SnapshotSessionManager
from strands_dynamodb_storage import DynamoDBStorage

from infra.bench import meter
from infra.bench.peers.strands import Look, Prepared
from infra.bench.workload import Workload, named


class Asked(Prepared):
    """The prepared model, and how often it was asked."""

    asked = 0

    async def stream(self, *args, **kwargs):
        self.asked += 1
        async for chunk in super().stream(*args, **kwargs):
            yield chunk


def agent(what: Workload, storage: DynamoDBStorage, model: Prepared, earlier: list[dict]) -> Agent:
    return Agent(
        model=model,
        tools=[Look(what.results)],
        messages=earlier,
        callback_handler=None,
        conversation_manager=NullConversationManager(),
        session_manager=SnapshotSessionManager("bench", storage=storage, save_latest_on="message"),
        agent_id="bench",
    )


def main() -> dict:
    endpoint, name, variant = sys.argv[1:4]
    logging.disable(logging.CRITICAL)
    warnings.filterwarnings("ignore")
    table, what = f"peer-{uuid.uuid4().hex}", named(name)
    os.environ["AWS_ENDPOINT_URL_DYNAMODB"] = endpoint
    client = boto3.client("dynamodb")
    client.create_table(
        TableName=table,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in ("pk", "sk")],
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
    )
    storage = DynamoDBStorage(table, client=client, compression="gzip" if variant == "compressed" else "none")
    earlier = [
        {"role": role, "content": [{"text": text}]}
        for said in what.earlier
        for role, text in zip(("user", "assistant"), said, strict=True)
    ]
    model = Asked(what)
    counted = meter.install()
    try:
        agent(what, storage, model, earlier)(what.user)
    except Exception as error:
        return {"fails_at": model.asked, "error": f"{type(error).__name__}: {error}"[:200], "ran": counted.take()}
    ran = counted.take()
    agent(what, storage, model, [])
    return {"ran": ran, "load": counted.take()}


if __name__ == "__main__":
    print(json.dumps(main()))
