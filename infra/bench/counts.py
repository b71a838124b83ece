"""What a run takes of DynamoDB: requests, capacity and bytes."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from durable import Agent
from durable.capacity import Capacity
from infra.bench.ours import Prepared, look_in
from infra.bench.workload import workload
from infra.local import dynamodb_local
from infra.local.cloud import LocalCloud
from stores._bundle import LogStore
from stores.dynamodb import TABLE, dynamodb_store

TURNS = (10, 50, 200)


def show() -> None:
    with dynamodb() as (name, client):
        client.create_table(TableName="bench", **TABLE)
        print(f"\nStore calls of one run, on {name}\n")
        print("  turns  saves  requests  per save  write units  bytes written  load: requests  read units")
        for turns in TURNS:
            ran, load = one_run(dynamodb_store(table="bench", client=client, prefix=f"{turns}/"), turns)
            saves = 2 * turns + 1
            print(
                f"  {turns:5}  {saves:5}  {ran.requests:8}  {ran.requests / saves:8.2f}  {ran.write_units:11.0f}"
                f"  {ran.bytes_written:13,}  {load.requests:14}  {load.read_units:10.1f}"
            )


def one_run(store: LogStore, turns: int) -> tuple[Capacity, Capacity]:
    """What one run and one load afterwards took."""
    what = workload(turns)
    agent = Agent(tools=[look_in(what.results)], provider=Prepared(what), store=store, max_steps=turns + 1)
    before = store.consumed()
    asyncio.run(agent.send(what.user, session_id=f"bench-{turns}"))
    ran = store.consumed()
    store.checkpoints.load(f"bench-{turns}")
    return ran - before, store.consumed() - ran


@contextmanager
def dynamodb() -> Iterator[tuple[str, Any]]:
    """DynamoDB Local, which counts reads as AWS does; where it cannot run, the emulator, which does not."""
    reason = dynamodb_local.install()
    if reason is None:
        with dynamodb_local.DynamoDBLocal() as local:
            yield "DynamoDB Local", local.client()
    else:
        print(f"DynamoDB Local cannot run here ({reason}); read units below are the emulator's and only rough.")
        with LocalCloud() as cloud:
            yield "the emulator", cloud.client("dynamodb")
