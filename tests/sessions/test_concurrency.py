"""Concurrency: calls on one session id are serialized, and two sends never interleave history."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from durable import (
    AbortSignal,
    LeaseLock,
    ModelRequest,
    StaleCheckpointError,
    TurnPendingError,
    WaitAbortedError,
    locks,
)
from durable.errors import ConfigurationError, LeaseLostError, ProviderUnavailableError, StoreUnavailableError
from durable.locks import InProcessLock
from tests.support.runs import Clock, fresh_agent, memory_store, numbered, run
from tests.support.sessions import stored, texts


class Model:
    """A model that answers what it is told to, and knows how many it is asked by at once."""

    def __init__(self) -> None:
        self.now = self.most = 0

    async def __call__(self, request: ModelRequest) -> str:
        self.now += 1
        self.most = max(self.most, self.now)
        await anyio.lowlevel.checkpoint()
        self.now -= 1
        return f"re {request.messages[-1].content}"


def sends(chats: Any, count: int) -> Any:
    async def main() -> None:
        await asyncio.gather(*(chats[number % len(chats)].send(f"m{number}") for number in range(count)))

    return main()


def alternating(count: int) -> list[str]:
    return [text for number in range(count) for text in (f"m{number}", f"re m{number}")]


@pytest.mark.parametrize("durable", [True, False])
def test_the_second_waits_for_the_first_and_has_it_in_its_history(durable: bool) -> None:
    """Two sends at once, through two agents on one store: the second waits for the first to save, then goes on."""
    store, model = memory_store(), Model()
    agents = [fresh_agent(model, [], store if durable else None) for _ in range(2)]  # type: ignore[arg-type]
    run(sends([agent.session("s", store=store) for agent in agents], 20))
    assert texts(stored(store).messages) == alternating(20)  # in the order in which they came
    assert (stored(store).turns, model.most) == (20, 1)


def test_sessions_do_not_wait_for_each_other() -> None:
    """The lock is one session's: sends to two sessions run at the same time."""
    model = Model()
    agent = fresh_agent(model, [], memory_store())  # type: ignore[arg-type]
    run(sends([agent.session("a"), agent.session("b")], 2))
    assert model.most == 2


def test_the_default_lock_reaches_over_threads_and_event_loops() -> None:
    """The default lock is the process's: sends from several threads with loops of their own do not interleave."""
    store = memory_store()
    agent = fresh_agent(Model(), [], store)  # type: ignore[arg-type]
    threads = [threading.Thread(target=run, args=(sends([agent.session("s")], 10),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    said = texts(stored(store).messages)
    assert (stored(store).turns, len(said)) == (40, 80)
    assert all(answer == f"re {word}" for word, answer in zip(said[::2], said[1::2], strict=True))


def test_the_lock_is_the_stores_own() -> None:
    """Sessions of one id on two stores have nothing to do with each other."""
    model = Model()
    agents = [fresh_agent(model, [], memory_store()) for _ in range(2)]  # type: ignore[arg-type]
    run(sends([agent.session("s") for agent in agents], 2))
    assert model.most == 2


def test_a_failed_turn_lets_the_next_one_go() -> None:
    """A send that fails lets go of the session: the one behind it runs."""

    def model(request: ModelRequest) -> Any:
        bad = request.messages[-1].content == "m0"
        return ProviderUnavailableError("m", "down") if bad else f"re {request.messages[-1].content}"

    store = memory_store()
    chat = fresh_agent(model, [], None).session("s", store=store)  # type: ignore[arg-type]

    async def main() -> Any:
        return await asyncio.gather(*(chat.send(f"m{n}") for n in range(3)), return_exceptions=True)

    assert isinstance(run(main())[0], ProviderUnavailableError)
    assert texts(stored(store).messages) == ["m1", "re m1", "m2", "re m2"]


@pytest.mark.parametrize("lock", ["process", "leases"])
def test_an_abort_stops_a_send_that_waits(lock: str) -> None:
    """An aborted signal stops a send that waits for the lock: it leaves the queue, and nothing of it is stored."""
    store, gate = memory_store(), anyio.Event()

    async def model(request: ModelRequest) -> str:
        await gate.wait()
        return f"re {request.messages[-1].content}"

    agent = fresh_agent(model, [], store)  # type: ignore[arg-type]
    chat = agent.session("s", lock=LeaseLock(store.leases, poll=0.001) if lock == "leases" else None)

    async def main() -> None:
        stop = AbortSignal()
        first = asyncio.create_task(chat.send("m0"))
        await anyio.wait_all_tasks_blocked()
        second = asyncio.create_task(chat.send("never", signal=stop))
        cancelled = asyncio.create_task(chat.send("never"))
        third = asyncio.create_task(chat.send("m1"))
        await anyio.sleep(0.01)
        stop.abort()
        cancelled.cancel()
        with pytest.raises(WaitAbortedError):
            await second
        gate.set()
        await first
        await third
        with pytest.raises(WaitAbortedError):
            await chat.send("never", signal=stop)

    run(main())
    assert texts(stored(store).messages) == ["m0", "re m0", "m1", "re m1"]


def test_any_lock_may_be_given() -> None:
    """`lock=` takes anything with `acquire`, `check` and `release`; whatever happens, what is held is let go of."""
    did: list[str] = []

    class Redis:
        async def acquire(self, session_id: str) -> "Redis":
            did.append(f"acquire {session_id}")
            return self

        async def check(self) -> None:
            did.append("check")

        async def release(self) -> None:
            did.append("release")

    chat = fresh_agent(["one", LookupError()], [], memory_store()).session("s", lock=Redis())
    run(chat.send("hi"))
    assert (did[0], did[-1], did.count("release")) == ("acquire s", "release", 1)
    assert "check" in did
    for work in (lambda: chat.send("again"), chat.resume, lambda: chat.fork("t"), lambda: chat.truncate(0)):
        with pytest.raises((LookupError, TurnPendingError)):
            run(work())
    run(chat.clear())
    assert did.count("release") == did.count("acquire s") == 6


def test_without_a_lock_one_of_two_fails_and_writes_nothing() -> None:
    """`lock=False`: of two sends at once one wins, the other is `StaleCheckpointError` and leaves nothing behind."""
    store = memory_store()
    agents = [fresh_agent(Model(), [], store, ids=numbered(name)) for name in "ab"]  # type: ignore[arg-type]

    async def main() -> Any:
        chats = [agent.session("s", lock=False) for agent in agents]
        return await asyncio.gather(*(chat.send("hi") for chat in chats), return_exceptions=True)

    ends = run(main())
    assert sorted(type(end).__name__ for end in ends) == ["RunResult", "StaleCheckpointError"]
    assert isinstance(ends[0], StaleCheckpointError) or isinstance(ends[1], StaleCheckpointError)
    assert texts(stored(store).messages) == ["hi", "re hi"]


# --- the leases of a store as a lock ---------------------------------------------------------------------------------


def other_process(store: Any) -> Any:
    """The same leases as another process has them: not the same object, so nobody queues in this one."""

    class Leases:
        def __getattr__(self, name: str) -> Any:
            return getattr(store.leases, name)

    return Leases()


def test_leases_serialize_processes() -> None:
    """Leases hold a session against who does not share this process's queue: 20 sends alternate, none is lost."""
    store, model = memory_store(), Model()
    agent = fresh_agent(model, [], store)  # type: ignore[arg-type]
    locks = [LeaseLock(other_process(store), poll=0.0001) for _ in range(2)]
    run(sends([agent.session("s", lock=lock) for lock in locks], 20))
    said = texts(stored(store).messages)
    assert (stored(store).turns, model.most, len(set(said))) == (20, 1, 40)
    assert all(answer == f"re {word}" for word, answer in zip(said[::2], said[1::2], strict=True))


def test_a_lease_of_the_dead_ends_by_itself() -> None:
    """A holder that died holds the session until its time is up, and no longer; its deadline may be sooner."""
    clock = Clock()
    store = memory_store(clock=clock)

    async def passes(seconds: float) -> None:
        clock.advance(seconds=1)
        await anyio.lowlevel.checkpoint()

    async def never(seconds: float) -> None:
        await anyio.sleep_forever()

    for deadline, until in ((None, 30), (lambda: clock.now + timedelta(seconds=7), 7)):
        began = clock.now

        async def main() -> None:
            dead = LeaseLock(other_process(store), deadline=deadline, clock=clock, sleep=never)  # noqa: B023
            await dead.acquire("s")
            alive = LeaseLock(other_process(store), clock=clock, sleep=passes)
            await (await alive.acquire("s")).release()

        run(main())
        assert (clock.now - began).total_seconds() == until


def test_a_lease_is_renewed_while_its_holder_lives() -> None:
    """A turn may take longer than a lease: it is renewed before it ends, and a missed renewal is made up for."""
    clock = Clock()
    store = memory_store(clock=clock)
    slept: list[float] = []
    failing: list[int] = [1]
    leases = other_process(store)

    def acquire(*arguments: Any, **options: Any) -> Any:
        if slept and failing:
            failing.pop()
            raise StoreUnavailableError("acquire", "down")
        return store.leases.acquire(*arguments, **options)

    leases.acquire = acquire

    async def sleep(seconds: float) -> None:
        clock.advance(seconds=seconds)
        slept.append(seconds)
        if len(slept) > 9:
            await anyio.sleep_forever()
        await anyio.lowlevel.checkpoint()

    async def main() -> None:
        held = await LeaseLock(leases, clock=clock, sleep=sleep).acquire("s")
        while len(slept) <= 9:
            await held.check()
            await anyio.lowlevel.checkpoint()
        lease = store.leases.look("session/s")
        assert lease.until > clock.now
        await held.release()
        assert store.leases.look("session/s").owner is None

    run(main())
    assert slept[0] == 10


def test_a_holder_whose_lease_was_taken_over_stops() -> None:
    """Who slept through its lease and lost it to another is told at its next check, before it writes."""
    clock = Clock()
    store = memory_store(clock=clock)

    async def never(seconds: float) -> None:
        await anyio.sleep_forever()

    async def model(request: ModelRequest) -> Any:
        if len(request.messages) == 1:
            clock.advance(minutes=1)
            return ("missing", {})
        return "well"

    lock = LeaseLock(store.leases, clock=clock, sleep=never)
    agent = fresh_agent(model, [], store, clock=clock)  # type: ignore[arg-type]
    with pytest.raises(LeaseLostError):
        run(agent.session("s", lock=lock).send("hi"))
    assert stored(store).finish_reason is None
    assert run(agent.session("s").resume()).text == "well"


def test_a_lease_needs_time() -> None:
    """A lease of no length, or a poll without a pause, is refused where the lock is made."""
    for option in ({"hold_for": timedelta(0)}, {"poll": 0}):
        with pytest.raises(ConfigurationError):
            LeaseLock(memory_store().leases, **option)  # type: ignore[arg-type]


def test_a_queue_is_gone_when_nobody_holds_or_waits() -> None:
    """The lock remembers no session that nobody uses."""
    store = memory_store()
    agent = fresh_agent(Model(), [], store)  # type: ignore[arg-type]
    run(sends([agent.session("s")], 5))
    assert not [key for key in locks._queues if key[0] == id(store.checkpoints)]


def test_a_waiter_whose_event_loop_is_gone_is_passed_over() -> None:
    """A thread whose event loop was closed while it waited does not hold up those behind it."""
    lock = InProcessLock(shared := object())
    left: list[Any] = []

    def wait_and_die() -> None:
        loop = asyncio.new_event_loop()
        left.append(loop.create_task(lock.acquire("s")))
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    async def main() -> None:
        held = await lock.acquire("s")
        thread = threading.Thread(target=wait_and_die)
        thread.start()
        thread.join()
        behind = asyncio.create_task(lock.acquire("s"))
        await asyncio.sleep(0)
        await held.release()
        await (await behind).release()

    run(main())
    left[0]._log_destroy_pending = False
    assert not [key for key in locks._queues if key[0] == id(shared)]
