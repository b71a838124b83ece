"""LangGraph's DynamoDB saver as a checkpoint store, as thin as it can be: what it accepts and gives is its own."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import boto3
import pytest
from langgraph.checkpoint.base.id import uuid6
from langgraph_checkpoint_aws import DynamoDBSaver

from durable.records import Checkpoint, check_session_id
from infra.local.dynamodb_local import DynamoDBLocal
from stores.contract import Crash, MovedClock
from stores.contract.plugin import clock, pytest_runtest_makereport, pytest_terminal_summary, store

__all__ = ["clock", "pytest_runtest_makereport", "pytest_terminal_summary", "store"]

ACCOUNT = {"region_name": "us-east-1", "aws_access_key_id": "local", "aws_secret_access_key": "local"}
KEYS = [("PK", "HASH"), ("SK", "RANGE")]


class DyingClient:
    """A client whose process ends at one of its calls."""

    def __init__(self, client: Any, call: int, *, applied: bool) -> None:
        self._client = client
        self._left = call
        self._applied = applied

    def __getattr__(self, name: str) -> Any:
        method: Callable[..., Any] = getattr(self._client, name)

        def calling(*arguments: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left >= 0:
                return method(*arguments, **options)
            if self._applied:
                method(*arguments, **options)
            raise Crash

        return calling


@dataclass
class Saved:
    """`load`, `save` and `delete` on the saver: each save is one of its checkpoints."""

    saver: DynamoDBSaver
    prefix: str
    clock: MovedClock

    def load(self, session_id: str) -> Checkpoint | None:
        there = self.saver.get_tuple(self._config(session_id))
        return None if there is None else Checkpoint.model_validate_json(there.checkpoint["channel_values"]["state"])

    def save(self, checkpoint: Checkpoint, *, after: Checkpoint | None) -> Checkpoint:
        now = self.clock()
        revision, created_at = (after.revision + 1, after.created_at) if after is not None else (0, now)
        saved = checkpoint.but(revision=revision, created_at=created_at, updated_at=now)
        values = {"state": saved.model_dump_json()}
        theirs: Any = {
            "v": 4,
            "id": str(uuid6(clock_seq=revision)),
            "ts": now.isoformat(),
            "channel_values": values,
            "channel_versions": {},
            "versions_seen": {},
        }
        self.saver.put(self._config(saved.session_id or ""), theirs, {"source": "loop", "step": saved.step}, {})
        return saved

    def delete(self, session_id: str) -> None:
        self.saver.delete_thread(self._thread(session_id))

    def _config(self, session_id: str) -> Any:
        return {"configurable": {"thread_id": self._thread(session_id), "checkpoint_ns": ""}}

    def _thread(self, session_id: str) -> str:
        return self.prefix + check_session_id(session_id)


@dataclass
class Peer:
    """The saver in a table of its own keys."""

    client: Any
    clock: MovedClock
    name: str = "langgraph-checkpoint-aws"
    prefix: str = field(default_factory=lambda: f"{uuid4().hex}-")

    def open(self, *, ttl: timedelta | None = None, client: Any = None) -> Any:
        seconds = int(ttl.total_seconds()) if ttl is not None else None
        # It makes its own client, from the session that it is given.
        session: Any = SimpleNamespace(client=lambda *_, **__: client or self.client)
        saver = DynamoDBSaver(table_name="peer", session=session, ttl_seconds=seconds)
        return SimpleNamespace(checkpoints=Saved(saver, self.prefix, self.clock))

    def open_dying(self, call: int, *, applied: bool, ttl: timedelta | None = None) -> Any:
        return self.open(ttl=ttl, client=DyingClient(self.client, call, applied=applied))

    def records(self, session_id: str) -> Sequence[str]:
        pk = f"CHECKPOINT_{self.prefix}{session_id}"
        values = {":pk": {"S": pk}}
        found = self.client.query(
            TableName="peer", KeyConditionExpression="PK = :pk", ExpressionAttributeValues=values, ConsistentRead=True
        )
        return [item["SK"]["S"] for item in found["Items"]]


@pytest.fixture(scope="session")
def client() -> Iterator[Any]:
    with DynamoDBLocal() as server:
        client = boto3.client("dynamodb", endpoint_url=server.endpoint_url, **ACCOUNT)
        client.create_table(
            TableName="peer",
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name, _ in KEYS],
            KeySchema=[{"AttributeName": name, "KeyType": kind} for name, kind in KEYS],
        )
        yield client


@pytest.fixture
def backend(client: Any, clock: MovedClock, monkeypatch: pytest.MonkeyPatch) -> Peer:
    monkeypatch.setattr(time, "time", lambda: clock().timestamp())
    return Peer(client, clock)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Leave the names of the failed tests for whoever started this."""
    reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    failed = [report.nodeid.partition("::")[2] for report in reporter.stats.get("failed", ())]
    (session.config.rootpath / ".local" / "contract-peer.json").write_text(json.dumps(failed))
