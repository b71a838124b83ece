"""Stores: any store works, and sessions and bare runs sleep side by side in one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stores.files import files_store
from stores.memory import memory_store
from stores.sqlite import sqlite_store
from tests.support.runs import Stores, fresh_agent, run
from tests.support.sessions import texts

Open = Callable[[], Any]


class ThreeMethods:
    """A store of one's own: what it is given, by session id."""

    single_writer = True

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}

    def load(self, session_id: str) -> Any:
        return self._kept.get(session_id)

    def save(self, checkpoint: Any, *, after: Any) -> Any:
        saved = checkpoint.but(revision=after.revision + 1 if after else 0)
        self._kept[checkpoint.session_id] = saved
        return saved

    def delete(self, session_id: str) -> None:
        self._kept.pop(session_id, None)


@pytest.fixture(params=["memory", "files", "sqlite", "own"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    kept = {"memory": memory_store(), "own": Stores(ThreeMethods(), memory_store().approvals)}
    return {
        "memory": lambda: kept["memory"],
        "own": lambda: kept["own"],
        "files": lambda: files_store(tmp_path / "sessions"),
        "sqlite": lambda: sqlite_store(tmp_path / "sessions.db"),
    }[request.param]


@pytest.mark.parametrize("durable", [True, False])
def test_any_store_works(opened: Open, durable: bool) -> None:
    """Every operation of a session works over any store, each in a process that has just opened it."""

    def chat(id: str = "user/42") -> Any:
        store = opened()
        answers = ["one", "two", "three"]
        return fresh_agent(answers, [], store if durable else None).session(id, store=store)

    run(chat().send("hi"))
    run(chat().send("again"))
    assert texts(run(chat().history())) == ["hi", "one", "again", "two"]
    run(chat().fork("other", message_count=3))
    run(chat("other").truncate(2))
    run(chat("other").send("and"))
    assert texts(run(chat("other").history())) == ["hi", "one", "and", "two"]
    assert run(chat("other").load()).forked_from.id == "user/42"
    run(chat().clear())
    assert run(chat().load()) is None
    assert run(chat("other").load()).turns == 2


def test_sessions_and_runs_side_by_side(opened: Open) -> None:
    """One store holds sessions and bare runs; a run with a session's id is that session, and goes on in it."""
    agent = fresh_agent(["one", "two", "three"], [], opened())
    run(agent.session("a").send("hi"))
    run(agent.send("go", session_id="b"))
    run(agent.send("more", session_id="a"))
    assert texts(run(agent.session("a").history())) == ["hi", "one", "more", "two"]
    assert texts(run(agent.session("b").history())) == ["go", "one"]
