"""The local stores under several processes at once: one writer moves a session, and one holds its lease."""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from durable.errors import StaleCheckpointError
from durable.messages import UserMessage
from durable.ports import Head
from stores._bundle import utc_now
from stores.contract.backend import START
from stores.contract.samples import checkpoint, with_messages
from tests.stores.saver import open_store

PROCESSES = 4
SAVES = 25

Run = Callable[[Callable[[int], object]], list[object]]


@pytest.fixture(params=["files", "sqlite"])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


def count_up(name: str, path: Path, number: int) -> list[int]:
    """Save the session `SAVES` times after what it says now, and give the revisions that were acknowledged."""
    store = open_store(name, path)
    made: list[int] = []
    while len(made) < SAVES:
        held = store.checkpoints.load("s")
        said = UserMessage(content=f"process {number} save {len(made)}")
        new = checkpoint("s", said) if held is None else with_messages(held, said, step=held.step + 1)
        try:
            made.append(store.checkpoints.save(new, after=held).revision)
        except StaleCheckpointError:
            continue
    return made


def test_processes_that_save_one_session_never_overwrite(name: str, tmp_path: Path, pool: ProcessPoolExecutor) -> None:
    """When processes save one session at the same time, every save is made once and none is lost."""
    made = [revision for each in pool.map(partial(count_up, name, tmp_path), range(PROCESSES)) for revision in each]
    assert sorted(made) == list(range(PROCESSES * SAVES))
    loaded = open_store(name, tmp_path).checkpoints.load("s")
    assert loaded is not None
    expected = sorted(f"process {number} save {save}" for number in range(PROCESSES) for save in range(SAVES))
    assert sorted(str(message.content) for message in loaded.messages) == expected


def hold_and_count(name: str, path: Path, number: int) -> int:
    """Read a counter and write it one higher, 10 times, each time under the lease; give the highest fence seen."""
    store = open_store(name, path)
    fence = done = 0
    while done < 10:
        until = utc_now() + timedelta(minutes=1)
        lease = store.leases.acquire("session/s", f"owner {number}", until=until, revision=done)
        if lease is None:
            continue
        counter = path / "counter"
        counter.write_text(str(int(counter.read_text()) + 1))
        fence, done = lease.fence, done + 1
        store.leases.release(lease)
    return fence


def test_a_lease_keeps_other_processes_out(name: str, tmp_path: Path, pool: ProcessPoolExecutor) -> None:
    """What is done under the lease is done by one process at a time, and each holder's fence is its own."""
    (tmp_path / "counter").write_text("0")
    fences = list(pool.map(partial(hold_and_count, name, tmp_path), range(PROCESSES)))
    assert (tmp_path / "counter").read_text() == str(10 * PROCESSES)
    assert max(fences) == 10 * PROCESSES


def open_and_mark(name: str, path: Path, number: int) -> None:
    head = Head(kind="session", id=f"s{number}", status="in-progress", revision=0, updated_at=START)
    open_store(name, path).log.mark(head)


def test_a_new_store_may_be_opened_by_all_at_once(name: str, tmp_path: Path, pool: ProcessPoolExecutor) -> None:
    """Processes that open a store that does not exist yet all succeed, and all see what each has written."""
    for number in range(5):
        path = tmp_path / str(number)
        list(pool.map(partial(open_and_mark, name, path), range(PROCESSES)))
        heads = open_store(name, path).log.heads("session").items
        assert sorted(head.id for head in heads) == [f"s{number}" for number in range(PROCESSES)]


def test_a_fork_uses_the_store_on_its_own(name: str, tmp_path: Path) -> None:
    """A process that was forked with an open store saves with it, and its parent goes on undisturbed."""
    store = open_store(name, tmp_path)
    held = store.checkpoints.save(checkpoint(), after=None)
    child = os.fork()
    if child == 0:
        saved = store.checkpoints.save(held.but(step=1), after=held)
        os._exit(saved.revision)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    loaded = store.checkpoints.load("s")
    assert loaded is not None
    assert loaded.step == 1
    with pytest.raises(StaleCheckpointError):
        store.checkpoints.save(held.but(step=2), after=held)
    store.checkpoints.save(loaded.but(step=2), after=loaded)
