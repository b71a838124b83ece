"""What every benchmark here runs, as plain data; the standard library alone, since each peer has its own environment.

A user message of 200 B, then N model turns, each of 100 B of text and one tool call with 100 B of arguments whose
result is 1,000 B of text that zlib shrinks about threefold; last, an answer of 300 B. The large one is a conversation
of 209,000 tokens (4 B each) at whose end 100 calls have results of 5 KB.
"""

import json
import random
import string
from dataclasses import dataclass, replace
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
    """One run. The model's answers are taken in order, so that finding the next one costs nothing.

    `earlier` is the conversation that it begins with: what the user and the assistant said, in turn.
    """

    user: str
    turns: tuple[Turn, ...]
    final: str
    earlier: tuple[tuple[str, str], ...] = ()

    @property
    def results(self) -> dict[str, str]:
        """What the tool gives, by its query."""
        return {turn.query: turn.result for turn in self.turns}

    @property
    def size(self) -> int:
        """Bytes of all that is said."""
        said = sum(len(question) + len(answer) for question, answer in self.earlier)
        done = sum(len(turn.text) + len(turn.arguments) + len(turn.result) for turn in self.turns)
        return said + done + len(self.user) + len(self.final)


@cache
def words(size: int, seed: int) -> str:
    """Text of this size from a small vocabulary: it compresses like prose does."""
    random_words = random.Random(seed)
    vocabulary = [
        "".join(random_words.choices(string.ascii_lowercase, k=random_words.randint(3, 9))) for _ in range(60)
    ]
    return " ".join(random_words.choices(vocabulary, k=size // 3))[:size]


@cache
def workload(turns: int, *, result: int = 1_000) -> Workload:
    """The workload of so many model turns; the answer comes after them."""
    made = tuple(Turn(words(100, n), f"call_{n}", f"{words(80, n)} {n}", words(result, n)) for n in range(turns))
    return Workload(words(200, 0), made, words(300, turns))


@cache
def large_workload() -> Workload:
    """209,000 tokens when it ends: an earlier conversation, then 100 calls with results of 5 KB."""
    calls = workload(100, result=5_120)
    before = range((209_000 * 4 - calls.size) // 3_000 + 1)
    return replace(calls, earlier=tuple((words(500, 1_000 + n), words(2_500, 2_000 + n)) for n in before))


LARGE = "large"


def named(name: str) -> Workload:
    """The workload of a column: a number of turns, or the large one."""
    return large_workload() if name == LARGE else workload(int(name))
