"""`make bench`: what a run costs, counted on DynamoDB, and what the framework itself takes per model turn.

The counted workload: a user message of 200 B, then N model turns, each of 100 B of text and one tool call with 100 B of
arguments whose result is 1,000 B of text that zlib shrinks about threefold; last, an answer of 300 B.
"""

from __future__ import annotations

import asyncio
import random
import string
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from durable import Agent, tool
from durable.messages import AssistantMessage, ToolCall
from durable.ports import Capacity, ModelRequest
from durable.providers.scripted import Answer, Scripted
from infra.local import dynamodb_local
from infra.local.cloud import LocalCloud
from stores._bundle import LogStore
from stores.dynamodb import TABLE, dynamodb_store
from stores.memory import memory_store

VOCABULARY = ["".join(random.Random(seed).choices(string.ascii_lowercase, k=3 + seed % 7)) for seed in range(200)]
TURNS = (10, 50, 200)
TIMED_TURNS = (10, 50, 200, 1000)


@cache
def words(size: int, seed: int) -> str:
    """Text of this size from a small vocabulary: it compresses like prose does."""
    random_words = random.Random(seed)
    vocabulary = [
        "".join(random_words.choices(string.ascii_lowercase, k=random_words.randint(3, 9))) for _ in range(60)
    ]
    return " ".join(random_words.choices(vocabulary, k=size // 3))[:size]


@tool
def look(query: str) -> str:
    """Look something up."""
    return words(1_000, int(query.split()[-1]))


def model(turns: int) -> Scripted:
    def answer(request: ModelRequest) -> Answer:
        turn = sum(message.role == "assistant" for message in request.messages)
        if turn == turns:
            return words(300, turn)
        arguments = f'{{"query": "{words(80, turn)} {turn}"}}'
        call = ToolCall(id=f"call_{turn}", name="look", arguments=arguments)
        return AssistantMessage(content=words(100, turn), tool_calls=(call,))

    return Scripted(answer)


def one_run(store: LogStore, turns: int) -> tuple[Capacity, Capacity, float]:
    """What one run and one load afterwards took, and the seconds of the run."""
    agent = Agent(tools=[look], provider=model(turns), store=store, max_steps=turns + 1)
    before, started = store.consumed(), time.perf_counter()
    asyncio.run(agent.send(words(200, 0), session_id=f"bench-{turns}"))
    seconds, ran = time.perf_counter() - started, store.consumed()
    store.checkpoints.load(f"bench-{turns}")
    return ran - before, store.consumed() - ran, seconds


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


def count_on_dynamodb() -> None:
    with dynamodb() as (name, client):
        client.create_table(TableName="bench", **TABLE)
        print(f"\nStore calls of one run, on {name}\n")
        print("  turns  saves  requests  per save  write units  bytes written  load: requests  read units")
        for turns in TURNS:
            ran, load, _ = one_run(dynamodb_store(table="bench", client=client, prefix=f"{turns}/"), turns)
            saves = 2 * turns + 1
            print(
                f"  {turns:5}  {saves:5}  {ran.requests:8}  {ran.requests / saves:8.2f}  {ran.write_units:11.0f}"
                f"  {ran.bytes_written:13,}  {load.requests:14}  {load.read_units:10.1f}"
            )


def time_in_memory() -> None:
    print("\nThe framework's own time, every save on, in memory; model and tool answer at once\n")
    print("  turns  ms per turn")
    for turns in TIMED_TURNS:
        one_run(memory_store(), turns)  # makes the texts
        best = min(one_run(memory_store(), turns)[2] for _ in range(3))
        print(f"  {turns:5}  {1000 * best / turns:11.2f}")


def main() -> int:
    time_in_memory()
    count_on_dynamodb()
    return 0


if __name__ == "__main__":
    sys.exit(main())
