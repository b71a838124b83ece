"""What every benchmark here runs, as plain data; the standard library alone, since each peer has its own environment.

A user message of 200 B, then N model turns, each of 100 B of text and one tool call with 100 B of arguments whose
result is 1,000 B of text that zlib shrinks about threefold; last, an answer of 300 B.
"""

import json
import random
import string
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Turn:
    """A model turn with its one call, and what the call gives."""

    text: str
    call_id: str
    query: str
    result: str

    @property
    def arguments(self) -> str:
        return json.dumps({"query": self.query})


@dataclass(frozen=True)
class Workload:
    """One run. The model's answers are taken in order, so that finding the next one costs nothing."""

    user: str
    turns: tuple[Turn, ...]
    final: str

    @property
    def results(self) -> dict[str, str]:
        """What the tool gives, by its query."""
        return {turn.query: turn.result for turn in self.turns}


@cache
def words(size: int, seed: int) -> str:
    """Text of this size from a small vocabulary: it compresses like prose does."""
    random_words = random.Random(seed)
    vocabulary = [
        "".join(random_words.choices(string.ascii_lowercase, k=random_words.randint(3, 9))) for _ in range(60)
    ]
    return " ".join(random_words.choices(vocabulary, k=size // 3))[:size]


@cache
def workload(turns: int) -> Workload:
    """The workload of so many model turns; the answer comes after them."""
    made = tuple(Turn(words(100, n), f"call_{n}", f"{words(80, n)} {n}", words(1_000, n)) for n in range(turns))
    return Workload(words(200, 0), made, words(300, turns))
