"""A process that chats: `python -m tests.stores.chatter WHERE NAME FIRST END` sends messages to one session.

WHERE is the path of a SQLite file, or the URL of a DynamoDB with the prefix of the session's keys as its fragment. It
prints `sent N` after each message that is answered. Each message has a key, so a process that is started again sends
what its predecessor may have sent, and it counts once.
"""

import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path

import boto3

from durable import Agent, LeaseLock
from durable.providers.scripted import Scripted
from stores._bundle import LogStore
from stores.dynamodb import dynamodb_store
from stores.sqlite import sqlite_store

TABLE_NAME = "durable"


def open_store(where: str) -> LogStore:
    if not where.startswith("http"):
        return sqlite_store(Path(where))
    url, _, prefix = where.partition("#")
    client = boto3.client("dynamodb", endpoint_url=url)
    return dynamodb_store(table=TABLE_NAME, client=client, prefix=prefix)


async def chat(where: str, name: str, first: int, end: int) -> None:
    store = open_store(where)
    agent = Agent(provider=Scripted(lambda request: f"re {request.messages[-1].content}"), store=store)  # type: ignore[union-attr]
    lock = LeaseLock(store.leases, hold_for=timedelta(seconds=1.5), poll=0.01)
    session = agent.session("s", lock=lock)
    for number in range(first, end):
        await session.send(f"{name} {number}", key=f"{name} {number}", own_turn=True)
        os.write(1, b"sent %d\n" % number)


if __name__ == "__main__":
    asyncio.run(chat(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
