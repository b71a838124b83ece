"""What a run takes of DynamoDB, counted: ours, that of whole checkpoints under keys, and that of other frameworks."""

import asyncio
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final
from uuid import uuid4

from durable import Agent, AssistantMessage, UserMessage
from durable.capacity import Capacity
from durable.errors import StoreRejectedError
from infra.bench import overhead
from infra.bench.kv import KVCheckpoints
from infra.bench.ours import Prepared, look_in
from infra.bench.workload import LARGE, named
from infra.local import dynamodb_local
from infra.local.cloud import LocalCloud
from stores.dynamodb import TABLE, dynamodb_store
from stores.memory import memory_store

TABLE_NAME: Final = "bench"
COLUMNS: Final = ("10", "50", "200", "500", LARGE)
PEERS: Final = (
    ("LangGraph, AWS's saver", "infra.bench.peers.langgraph_dynamodb", "plain", "langgraph-checkpoint-aws"),
    ("the same, compressed", "infra.bench.peers.langgraph_dynamodb", "compressed", "langgraph-checkpoint-aws"),
    ("the same, delta channel", "infra.bench.peers.langgraph_dynamodb", "delta", "langgraph-checkpoint-aws"),
    ("Strands, snapshots, gzip", "infra.bench.peers.strands_dynamodb", "compressed", "strands-dynamodb"),
)
PATIENCE: Final = 600.0


@dataclass(frozen=True)
class Counts:
    """What a run took and what a load afterwards takes; `failed_at` is the model turn at which it could not go on."""

    ran: Capacity
    load: Capacity | None
    failed_at: int | None = None


Contender = Callable[[str], Counts]


def show(*, peers: bool) -> None:
    with dynamodb() as (name, client):
        client.create_table(TableName=TABLE_NAME, **TABLE)
        contenders: dict[str, Contender] = {
            "this, every save": lambda column: ours(client, column),
            "whole checkpoints under keys": lambda column: whole_checkpoints(client, column),
        }
        contenders |= dict(others(client.meta.endpoint_url, install=peers))
        found = {who: {column: contend(column) for column in COLUMNS} for who, contend in contenders.items()}
        print(f"\nStore calls of one run of N turns, on {name}: requests / write units\n")
        print_table(found, lambda one: f"{one.ran.requests:,} / {one.ran.write_units:,.0f}")
        print("\nLoading it afterwards: requests / read units\n")
        print_table(found, lambda one: f"{one.load.requests:,} / {one.load.read_units:,.1f}" if one.load else "-")
        large = found["this, every save"][LARGE].ran
        print(
            f"\n{LARGE}: 100 calls with 5 KB results at the end of 209,000 tokens; "
            f"this writes {large.bytes_written:,} B in all."
        )


def print_table(found: Mapping[str, Mapping[str, Counts]], words: Callable[[Counts], str]) -> None:
    print(f"  {'':28}" + "".join(f"{column:>18}" for column in COLUMNS))
    for who, row in found.items():
        cells = [words(one) if one.failed_at is None else f"fails at turn {one.failed_at}" for one in row.values()]
        print(f"  {who:28}" + "".join(f"{cell:>18}" for cell in cells), flush=True)


def ours(client: Any, column: str, *, table: str = TABLE_NAME) -> Counts:
    """This framework with its DynamoDB store."""
    return run(dynamodb_store(table=table, client=client, prefix=f"{uuid4().hex}/"), column)


def whole_checkpoints(client: Any, column: str, *, table: str = TABLE_NAME) -> Counts:
    """This framework over the design that saves whole checkpoints."""
    checkpoints = KVCheckpoints(client, table, prefix=f"{uuid4().hex}/")
    return run(
        SimpleNamespace(checkpoints=checkpoints, approvals=memory_store().approvals, consumed=checkpoints.consumed),
        column,
    )


def run(store: Any, column: str, *, session_id: str = "bench") -> Counts:
    """Run the agent once and load its session once."""
    what = named(column)
    model = Prepared(what)
    agent = Agent(tools=[look_in(what.results)], provider=model, store=store, max_steps=len(what.turns) + 1)
    earlier = [
        one for said in what.earlier for one in (UserMessage(content=said[0]), AssistantMessage(content=said[1]))
    ]
    before = store.consumed()
    try:
        asyncio.run(agent.send([*earlier, UserMessage(content=what.user)], session_id=session_id))
    except StoreRejectedError:
        return Counts(store.consumed() - before, None, model.asked)
    ran = store.consumed()
    store.checkpoints.load(session_id)
    return Counts(ran - before, store.consumed() - ran)


def others(endpoint: str, *, install: bool) -> Iterator[tuple[str, Contender]]:
    """The peers that are installed, or can be."""
    for name, runner, variant, home in PEERS:
        python = overhead.HOMES / home / "bin" / "python"
        if install and (reason := overhead.install(home)):
            print(f"{name} is not measured. {reason}")
        elif python.exists():
            yield (
                name,
                lambda column, command=(str(python), "-m", runner, endpoint), variant=variant: peer(
                    [*command, column, variant]
                ),
            )


def peer(command: Sequence[str]) -> Counts:
    """What a peer's runner says, in a process of its own."""
    done = subprocess.run(command, cwd=overhead.ROOT, capture_output=True, text=True, timeout=PATIENCE, check=True)
    said = json.loads(done.stdout.splitlines()[-1])
    load = Capacity(**said["load"]) if "load" in said else None
    return Counts(Capacity(**said["ran"]), load, said.get("fails_at"))


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
