"""How an asynchronous run reaches a synchronous store."""

import asyncio
from threading import get_ident

import pytest

from durable.crossing import cross
from stores.memory import memory_store
from stores.sqlite import sqlite_store


class Seen:
    """A store of which only the thread matters that calls it."""

    def load(self) -> int:
        return get_ident()


class Quick(Seen):
    blocks = False


def test_a_store_that_may_block_is_called_in_a_worker_thread() -> None:
    """The event loop goes on while a store waits for its disk or network."""
    assert asyncio.run(cross(Seen().load)) != get_ident()


def test_a_store_that_does_not_block_is_called_in_place() -> None:
    """A hand-over to a thread costs several times what a save in memory does."""
    assert asyncio.run(cross(Quick().load)) == get_ident()


def test_others_have_their_turn_between_two_calls() -> None:
    """A run of saves in memory does not keep an abort from being noticed."""

    async def both() -> list[str]:
        turns: list[str] = []

        async def other() -> None:
            turns.append("other")

        task = asyncio.create_task(other())
        await cross(Quick().load)
        turns.append("store")
        await task
        return turns

    assert asyncio.run(both()) == ["other", "store"]


@pytest.mark.parametrize("part", ["checkpoints", "approvals"])
def test_which_stores_block(part: str, tmp_path) -> None:
    """Memory does not; SQLite, which waits for a disk and for other processes, does."""
    assert getattr(memory_store(), part).blocks is False
    assert getattr(sqlite_store(tmp_path / "runs.db"), part).blocks is True
