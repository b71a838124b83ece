"""A session of thousands of turns with compaction: load and send stay flat in requests and bytes.

`make bench ARGS=sessions` counts 2,000 turns on DynamoDB; here it is fewer, in memory.
"""

from typing import Any

import pytest

from durable import Compaction
from infra.bench.sessions import chat
from stores.memory import memory_store
from tests.support.sessions import stored

OFTEN = Compaction(after_tokens=3_000, keep=2, summarize=lambda old: "They talked." * 20)
SELDOM = Compaction(after_tokens=20_000, keep=4, summarize=lambda old: "They talked." * 20)


class Reads:
    """A log that counts the bytes it gives."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self.bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def read(self, *arguments: Any, **options: Any) -> Any:
        entries = list(self._log.read(*arguments, **options))
        self.bytes += sum(len(entry.body) for entry in entries)
        return entries


@pytest.mark.parametrize("policy", [OFTEN, SELDOM], ids=["often", "seldom"])
def test_it_stays_flat(policy: Compaction) -> None:
    """Late turns take as many requests and bytes as early ones, loads as well, and what is kept does not pile up."""
    store: Any = memory_store()
    store.checkpoints._log = reads = Reads(store.log)
    read, kept, windows = [0], list[int](), list[Any]()
    for window in chat(store, turns=600, window=200, policy=policy):
        windows.append(window)
        read.append(reads.bytes)
        kept.append(sum(1 for _ in store.log.read("session/chat")))
    first, *_, last = windows
    assert last.requests <= first.requests * 1.05
    assert last.bytes_written <= first.bytes_written * 1.2
    assert last.load.requests == first.load.requests == 2
    assert read[3] - read[2] <= (read[2] - read[1]) * 1.2
    assert max(kept) < 400
    assert stored(store, "chat").turns == 600


def test_a_session_that_is_not_compacted_is_not_flat() -> None:
    """The measure measures: without a policy that ever applies, the bytes of a load grow with the conversation."""
    store: Any = memory_store()
    store.checkpoints._log = reads = Reads(store.log)
    seen = [reads.bytes for _ in chat(store, turns=300, window=100, policy=Compaction(after_tokens=10**9))]
    assert seen[2] - seen[1] > (seen[1] - seen[0]) * 1.3
