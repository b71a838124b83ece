"""Runs that tests crash: an agent whose tools count, and a store that dies at a given save."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from durable import Agent, Checkpoint, RunResult, Tool, tool
from durable.ports import ApprovalStore, CheckpointStore
from durable.providers.scripted import Answer, Scripted
from stores.memory import memory_store

START = datetime(2030, 1, 1, tzinfo=UTC)


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self, now: datetime = START) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def advance(self, **spans: float) -> None:
        self.now += timedelta(**spans)


def numbered(prefix: str = "id") -> Callable[[], str]:
    """Ids that a test can foresee."""
    numbers = count(1)
    return lambda: f"{prefix}{next(numbers)}"


class Crash(BaseException):
    """The process is gone. No code of the product may catch this."""


class CrashingCheckpoints:
    """A checkpoint store whose process dies before or after its save number `at` (from 0)."""

    def __init__(self, inner: CheckpointStore, *, at: int | None = None, after: bool = False) -> None:
        self._inner = inner
        self._at = at
        self._after = after
        self.saves = 0
        self.recorded: set[str] = set()

    def load(self, session_id: str) -> Checkpoint | None:
        return self._inner.load(session_id)

    def delete(self, session_id: str) -> None:
        self._inner.delete(session_id)

    def save(self, checkpoint: Checkpoint, *, after: Checkpoint | None) -> Checkpoint:
        number, self.saves = self.saves, self.saves + 1
        if number == self._at and not self._after:
            raise Crash
        saved = self._inner.save(checkpoint, after=after)
        self.recorded |= settled_ids(saved)
        if number == self._at:
            raise Crash
        return saved


class Stores:
    """A store put together by hand."""

    def __init__(self, checkpoints: CheckpointStore, approvals: ApprovalStore) -> None:
        self.checkpoints = checkpoints
        self.approvals = approvals


def settled_ids(checkpoint: Checkpoint) -> set[str]:
    """The ids of the calls whose result the checkpoint holds."""
    return {message.tool_call_id for message in checkpoint.messages if message.role == "tool"} | set(checkpoint.results)


class Ledger:
    """Counts what really happened: tool runs by call id, model turns by their position."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()
        self.asked: Counter[int] = Counter()


def run(work: Any) -> Any:
    return asyncio.run(work)


def fresh_agent(
    answers: Sequence[Answer], tools: Sequence[Tool | Callable[..., object]], store: Any, **options: Any
) -> Agent:
    """An agent as a new process would build it: new objects, same store."""
    options = {"clock": Clock(), "ids": numbered("run"), **options}
    return Agent(name="t", tools=tools, provider=Scripted(answers), store=store, **options)


def result_text(result: RunResult) -> list[tuple[str, Any]]:
    """A transcript that two runs can be compared by."""
    return [(message.role, message.content) for message in result.messages]


__all__ = [
    "START",
    "Clock",
    "Crash",
    "CrashingCheckpoints",
    "Ledger",
    "Stores",
    "fresh_agent",
    "memory_store",
    "numbered",
    "result_text",
    "run",
    "settled_ids",
    "tool",
]
