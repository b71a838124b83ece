"""Faults of other systems' sessions that were reported in public, and the tests that show the right behaviour here.

A test that is named `test_c2_…` belongs to row `c2` of this table.
"""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from durable import (
    Compaction,
    LeaseLock,
    ModelRequest,
    RunResult,
    SessionExistsError,
    StaleCheckpointError,
    StoreUnavailableError,
    ToolContext,
    tool,
)
from durable.transcript import first_fault
from stores._bundle import LogStore
from stores.sqlite import sqlite_store
from tests.durable.test_reports import PROTOCOLS, pairs
from tests.support.runs import Clock, fresh_agent, memory_store, numbered, run
from tests.support.sessions import FailingCheckpoints, Stores, crashes, dying, look, results, stored, texts

ROWS = {
    "c1": "langgraph#8796: two writers both succeed, and a commit can no longer be reached",
    "c2": "adk-python#4751: two runs reload and continue, interleaved for ever",
    "c4": "adk-python#1049: a second message while the first is answered crashes",
    "c5": "strands PR #1453: parallel invocations corrupt the state",
    "c6": "openai-agents PR #4212: what is added to a session is added in part",
    "c11": "powertools#2023: concurrency control per key",
    "p6": "langchain-aws#739: the repair of orphan calls hits those that are about to be answered",
}


def test_every_row_has_a_test() -> None:
    """Each row of the table has at least one test, and each test a row."""
    named = {found[1] for found in re.finditer(r"^def test_([cp]\d+)_", Path(__file__).read_text(), re.M)}
    assert named == set(ROWS)


def echo(request: ModelRequest) -> str:
    return f"re {request.messages[-1].content}"


def session(store: Any, lock: Any = None, model: Any = echo, **options: Any) -> Any:
    return fresh_agent(model, [look], store, **options).session("s", lock=lock)


def test_c1_of_two_writers_from_one_point_one_wins(tmp_path: Path) -> None:
    """Two savers with the same parent: the second is refused, writes nothing, and no commit is out of reach."""
    for store in (memory_store(), sqlite_store(tmp_path / "store.db")):
        run(session(store).send("hi"))
        parent = stored(store)
        won = store.checkpoints.save(parent.but(turns=7), after=parent)
        with pytest.raises(StaleCheckpointError):
            store.checkpoints.save(parent.but(turns=8), after=parent)
        assert stored(store) == won
        assert [entry.revision for entry in store.checkpoints.history("s")] == list(range(won.revision, -1, -1))


def test_c2_the_loser_of_two_does_not_continue() -> None:
    """Without a lock, of two sends from one point the loser fails at its first save and never reloads to go on."""
    store, asked = memory_store(), list[str]()

    async def model(request: ModelRequest) -> str:
        asked.append(str(request.messages[-1].content))
        await anyio.lowlevel.checkpoint()
        return echo(request)

    async def main() -> Any:
        chats = [session(store, False, model, ids=numbered(name)) for name in "ab"]
        return await asyncio.gather(*(c.send(f"m{n}") for n, c in enumerate(chats)), return_exceptions=True)

    ends = run(main())
    [won] = [end for end in ends if isinstance(end, RunResult)]
    assert [type(end) for end in ends if end is not won] == [StaleCheckpointError]
    assert len(asked) == 1
    assert texts(stored(store).messages) == texts(won.messages)


def locks(store: LogStore) -> list[Any]:
    return [None, LeaseLock(store.leases, poll=0.0001)]


@pytest.mark.parametrize("kind", [0, 1], ids=["process", "leases"])
def test_c4_a_second_message_waits_its_turn(kind: int) -> None:
    """Two sends within moments: neither fails, and the second is answered with the first in its history."""
    store = memory_store()

    async def main() -> Any:
        chat = session(store, locks(store)[kind])
        return await asyncio.gather(chat.send("m0"), chat.send("m1"))

    first, second = run(main())
    assert (first.text, second.text, second.steps) == ("re m0", "re m1", 1)
    assert texts(second.messages) == ["m0", "re m0", "m1", "re m1"]


def test_c5_parallel_invocations_do_not_corrupt_the_session() -> None:
    """Sends, forks, truncations and reads at once, with tools between: every record that anyone sees is in order."""
    store, seen = memory_store(), list[Any]()

    def model(request: ModelRequest) -> Any:
        last = request.messages[-1]
        return [("look", {"what": "a"}), ("look", {"what": "b"})] if last.role == "user" else "done"

    async def main() -> None:
        chat = session(store, model=model)
        await chat.send("m")
        work: list[Any] = [chat.send("m") for _ in range(8)]
        work += [chat.fork(f"f{n}") for n in range(4)] + [chat.truncate(5) for _ in range(3)]

        async def look_on() -> None:
            for _ in range(40):
                seen.append(await chat.load())
                await anyio.lowlevel.checkpoint()

        await asyncio.gather(*work, look_on())
        seen.extend([await session_of(chat, f"f{n}").load() for n in range(4)])

    run(main())
    assert all(first_fault(record.messages) is None and len(record.messages) % 5 == 0 for record in seen)
    assert all(record.turns == len(record.messages) / 5 for record in seen)


def session_of(chat: Any, id: str) -> Any:
    return chat.agent.session(id)


ADDS: dict[str, Callable[[Any], Any]] = {
    "send": lambda chat: chat.send("more"),
    "fork": lambda chat: chat.fork("t", message_count=2),
    "truncate": lambda chat: chat.truncate(2),
}


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("name", ADDS)
@pytest.mark.parametrize("applied", [False, True])
def test_c6_all_or_nothing(name: str, durable: bool, applied: bool) -> None:
    """A store that fails at any save, before it is applied or after: a whole turn is there, or none of it is."""
    for at in range(3):
        store = memory_store()
        for text in ("hi", "again"):
            run(session(store).send(text))
        before = texts(stored(store).messages)
        failing = FailingCheckpoints(
            store.checkpoints, lambda: StoreUnavailableError("save", "down"), range(at, 99), after=applied
        )
        agent = fresh_agent(echo, [], None, sleep=no_sleep)  # type: ignore[arg-type]
        if durable:
            agent = fresh_agent(echo, [], Stores(failing, store.approvals), sleep=no_sleep)  # type: ignore[arg-type]
        chat = agent.session("s", store=agent.store or Stores(failing, store.approvals))
        try:
            run(ADDS[name](chat))
        except (StoreUnavailableError, SessionExistsError):
            pass
        shown = texts(run(session(store).history()))
        assert shown in (before, [*before, "more", "re more"], before[:2])
        copy = store.checkpoints.load("t")
        assert copy is None or texts(copy.messages) == before[:2]


async def no_sleep(seconds: float) -> None:
    await anyio.lowlevel.checkpoint()


def test_c11_concurrency_is_controlled_per_key() -> None:
    """A session's id is the key: one call at a time for each, any number for all, by whatever lock is given."""
    store, now, most = memory_store(), dict[str, int](), list[tuple[int, int]]()

    @tool
    async def work(ctx: ToolContext) -> str:
        id = ctx.session_id or ""
        now[id] = now.get(id, 0) + 1
        most.append((max(now.values()), sum(now.values())))
        await anyio.lowlevel.checkpoint()
        now[id] -= 1
        return "worked"

    def model(request: ModelRequest) -> Any:
        return ("work", {}) if request.messages[-1].role == "user" else "done"

    async def main() -> None:
        agent = fresh_agent(model, [work], store)  # type: ignore[arg-type]
        await asyncio.gather(*(agent.session(f"s{n % 3}").send("go") for n in range(12)))

    run(main())
    assert max(one for one, _ in most) == 1
    assert max(all_of_them for _, all_of_them in most) == 3


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("at", range(4))
def test_p6_a_session_killed_in_a_tool_is_accepted_by_every_provider(at: int, protocol: Any) -> None:
    """Killed at any save of a turn with two calls, and sent to again: each call has its result right behind it."""
    store = memory_store(clock=Clock())
    answers = [[("look", {"what": "a"}), ("look", {"what": "b"})], "done", "and done"]
    crashes(fresh_agent(answers, [look], dying(store, at)).session("s").send("go"))
    agent = fresh_agent(answers, [look], store)
    run(agent.session("s").send("and more"))
    request = agent.provider.requests[-1]  # type: ignore[union-attr]
    calls = ("assistant", ["call_0_0", "call_0_1"])
    sent = pairs(protocol, request)
    asked = sent.index(calls)
    assert {who for who, _ in sent[:asked]} == {"user"}
    assert sent[asked + 1 : asked + 3] == [("tool", "call_0_0"), ("tool", "call_0_1")]
    assert results(stored(store).messages) == ["A", "B"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_p6_a_compacted_session_is_accepted_by_every_provider(protocol: Any) -> None:
    """A summary and the message behind it are sent as one where a provider wants its roles to alternate."""
    policy = Compaction(after_tokens=1, keep=0, summarize=lambda old: "They talked.")
    agent = fresh_agent(echo, [], memory_store(), compaction=policy)  # type: ignore[arg-type]
    chat = agent.session("s")
    run(chat.send("hi"))
    run(chat.send("more"))
    body = protocol.body(agent.provider.requests[-1])  # type: ignore[union-attr]
    roles = [message["role"] for message in body.get("input") or body["messages"]]
    assert roles in (["user"], ["user", "user"])
    assert "They talked." in str(body)
    if type(protocol).__name__ == "Bedrock":
        assert roles == ["user"]
