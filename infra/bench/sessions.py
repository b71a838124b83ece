"""A session that grows for 2,000 turns and is compacted: what a send and a load take, early and late."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from durable import Agent, Compaction
from durable.capacity import Capacity
from durable.ports import ModelRequest
from durable.providers.scripted import Scripted
from infra.bench.counts import TABLE_NAME, dynamodb
from infra.bench.workload import words
from stores.dynamodb import TABLE, dynamodb_store

TURNS: Final = 2_000
WINDOW: Final = 250
POLICY: Final = Compaction(after_tokens=20_000, keep=4, summarize=lambda old: words(1_000, 1))
"""About 80 turns of this size between two compactions."""


@dataclass(frozen=True)
class Window:
    """What the sends of some turns took together, and the dearest of a few loads among them."""

    turns: range
    sends: Capacity
    load: Capacity

    @property
    def requests(self) -> float:
        return self.sends.requests / len(self.turns)

    @property
    def bytes_written(self) -> float:
        return self.sends.bytes_written / len(self.turns)


def chat(store: Any, *, turns: int = TURNS, window: int = WINDOW, policy: Compaction = POLICY) -> Iterator[Window]:
    """Talk on and on, and give what each window of turns took."""
    agent = Agent(provider=Scripted(answer), store=store, compaction=policy)
    session = agent.session("chat")
    with asyncio.Runner() as runner:
        for first in range(0, turns, window):
            sends, loads = Capacity(), [Capacity()]
            for turn in range(first, first + window):
                before = store.consumed()
                runner.run(session.send(f"{turn} {words(300, turn)}"))
                sends += (sent := store.consumed()) - before
                if turn % (window // 10 or 1) == 0:
                    store.checkpoints.load("chat")
                    loads.append(store.consumed() - sent)
            dearest = max(loads, key=lambda load: (load.requests, load.read_units))
            yield Window(range(first, first + window), sends, dearest)


def answer(request: ModelRequest) -> str:
    return words(600, len(request.messages))


def show() -> None:
    with dynamodb() as (name, client):
        client.create_table(TableName=TABLE_NAME, **TABLE)
        store = dynamodb_store(table=TABLE_NAME, client=client)
        print(f"\nA session of {TURNS:,} turns with compaction, on {name}: each send, and the dearest load\n")
        print(
            f"  {'turns':>13}{'requests':>12}{'bytes':>12}{'write units':>14}{'load: requests':>18}{'read units':>13}"
        )
        for one in chat(store):
            span = f"{one.turns.start + 1:,}-{one.turns.stop:,}"
            units = one.sends.write_units / len(one.turns)
            print(
                f"  {span:>13}{one.requests:>12.2f}{one.bytes_written:>12,.0f}{units:>14.2f}"
                f"{one.load.requests:>18}{one.load.read_units:>13.1f}",
                flush=True,
            )
