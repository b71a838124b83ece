"""The store of a deployment: one DynamoDB table, one conditional write for each save.

What the functions of a deployment need is permission for `dynamodb:` PutItem, UpdateItem, Query and BatchGetItem, for
GetItem (leases), BatchWriteItem (entries larger than an item, and `delete`) and DeleteItem (`settle`); `heads` needs
Query on the listing index.
"""

from datetime import timedelta
from typing import Any

import boto3
from botocore.config import Config

from durable.ports import Clock, IdFactory
from stores._bundle import LogStore, log_store, new_id, utc_now
from stores._dynamodb_calls import Calls
from stores._dynamodb_leases import DynamoDBLeases
from stores._dynamodb_log import DynamoDBLog
from stores._dynamodb_table import LISTING_INDEX, TABLE, TTL_ATTRIBUTE
from stores._meter import Meter
from stores.checkpoints import DEFAULT_HISTORY_LIMIT

__all__ = ["LISTING_INDEX", "TABLE", "TTL_ATTRIBUTE", "dynamodb_store", "make_client", "open_table"]


def make_client(
    *,
    attempts: int = 5,
    connect_timeout: float = 2.0,
    read_timeout: float = 5.0,
    session: boto3.Session | None = None,
    **options: Any,
) -> Any:
    """Give a low-level client that gives up in seconds, not minutes, and retries with jitter.

    `attempts` counts the first one. `options` go to `boto3.client`: `endpoint_url`, `region_name` and the like.
    """
    config = Config(
        connect_timeout=connect_timeout,
        read_timeout=read_timeout,
        retries={"mode": "standard", "total_max_attempts": attempts},
    )
    return (session or boto3.Session()).client("dynamodb", config=config, **options)


def dynamodb_store(
    *,
    table: str,
    client: Any | None = None,
    prefix: str = "",
    ttl: timedelta | None = None,
    history_limit: int = DEFAULT_HISTORY_LIMIT,
    list_finished: bool = True,
    clock: Clock = utc_now,
    ids: IdFactory = new_id,
) -> LogStore:
    """Give the store in a table as `TABLE` defines it. Nothing is called yet.

    `prefix` comes before every key, so that one table can hold several stores. Without `list_finished` finished
    sessions are not listed, which saves writes to the index with each turn; everything else about them is the same.
    """
    client = client if client is not None else make_client()
    log, leases, meter = open_table(
        table=table, client=client, prefix=prefix, list_finished=list_finished, clock=clock, ids=ids
    )
    return log_store(log, leases, meter, clock=clock, ids=ids, ttl=ttl, history_limit=history_limit)


def open_table(
    *, table: str, client: Any, prefix: str, clock: Clock, ids: IdFactory, list_finished: bool = True
) -> tuple[DynamoDBLog, DynamoDBLeases, Meter]:
    """Give the log and the leases in a table, and what counts the calls of both."""
    meter = Meter()
    calls = Calls(client, table, meter)
    log = DynamoDBLog(calls, prefix=prefix, clock=clock, list_finished=list_finished)
    return log, DynamoDBLeases(calls, prefix=prefix, clock=clock, ids=ids), meter
