"""What saves cost, counted on the wire: the promises of the README in numbers."""

from datetime import timedelta
from typing import Any

import pytest

from durable.capacity import Capacity
from durable.messages import AssistantMessage, UserMessage
from durable.records import Status
from stores.contract.backend import Backend
from stores.contract.samples import checkpoint, result, turn, with_messages
from tests.stores.workload import run, text

TTL = timedelta(days=30)


def test_an_ordinary_save_is_one_put(backend: Backend, requests: list[str]) -> None:
    """A save that fits an item and changes no status is one PutItem of one write unit, and nothing else."""
    store = backend.open(ttl=TTL)
    held = store.checkpoints.save(checkpoint(), after=None)
    for message in (turn("c1", text(100, 1)), result("c1", text(600, 2)), UserMessage(content="Thanks")):
        before, used = len(requests), store.consumed()
        held = store.checkpoints.save(with_messages(held, message), after=held)
        assert requests[before:] == ["PutItem"]
        assert (store.consumed() - used).write_units == 1


def test_what_the_other_calls_are(backend: Backend, requests: list[str]) -> None:
    """Each call makes the requests written here: permissions and prices follow from them."""
    store = backend.open(ttl=TTL)
    held: Any = None

    def made(action: Any) -> list[str]:
        nonlocal held
        del requests[:]
        held = action() or held
        return list(requests)

    checkpoints = store.checkpoints
    assert made(lambda: checkpoints.load("s")) == ["BatchGetItem", "Query"]
    assert made(lambda: checkpoints.save(checkpoint(), after=None)) == ["Query", "PutItem", "UpdateItem"]
    assert made(lambda: checkpoints.load("s")) == ["BatchGetItem", "Query"]
    finished = held.but(status=Status.FINISHED)
    assert made(lambda: checkpoints.save(finished, after=held)) == ["PutItem", "UpdateItem"]
    reset = held.but(messages=())
    assert made(lambda: checkpoints.save(reset, after=held)) == ["PutItem", "UpdateItem", "UpdateItem"]
    large = held.but(business_state=text(3_000_000, 1))
    assert made(lambda: checkpoints.save(large, after=held)) == ["BatchWriteItem", "PutItem"]
    assert made(lambda: checkpoints.load("s")) == ["BatchGetItem", "Query", "Query"]
    assert made(lambda: checkpoints.history("s") and None) == ["Query", "Query"]
    expected = ["Query", "Query", "PutItem", "UpdateItem", "UpdateItem", "Query", "BatchWriteItem", "Query"]
    assert made(lambda: checkpoints.delete("s")) == [*expected, "BatchWriteItem"]


# Requests and write units of a run, as measured on DynamoDB Local and rounded up a little.
CEILINGS = {10: (27, 30), 50: (110, 125), 200: (410, 450)}


@pytest.mark.parametrize("turns", CEILINGS)
def test_a_run_costs_what_was_promised(backend: Backend, turns: int) -> None:
    """A run of N turns takes at most 1.1 requests for each save, and about one write unit for each."""
    store = backend.open(ttl=TTL)
    last, saves = run(store.checkpoints, "s", turns)
    used = store.consumed()
    requests, write_units = CEILINGS[turns]
    print(f"\n{backend.name}: {turns} turns, {saves} saves: {used}")
    assert used.requests <= requests
    assert used.write_units <= write_units
    if turns >= 50:
        assert used.requests <= 1.1 * saves
    assert backend.open(ttl=TTL).checkpoints.load("s") == last


@pytest.mark.dynamodb_local
@pytest.mark.parametrize("server", ["dynamodb-local"], indirect=True)
def test_large_results_cost_what_was_promised(backend: Backend) -> None:
    """A hundred calls with results of 5 KB are saved with at most 215 requests and 560 write units."""
    store = backend.open(ttl=TTL)
    run(store.checkpoints, "s", 100, result_size=5000)
    used = store.consumed()
    print(f"\n{backend.name}: 100 turns with 5 KB results: {used}")
    assert used.requests <= 215
    assert used.write_units <= 560


def test_bytes_grow_with_the_transcript(backend: Backend) -> None:
    """Twice the turns write about twice the bytes, not four times."""

    def used(turns: int) -> Capacity:
        store = backend.open(ttl=TTL)
        run(store.checkpoints, f"s{turns}", turns)
        return store.consumed()

    half, whole = used(50), used(100)
    assert whole.bytes_written / half.bytes_written < 2.2
    assert whole.write_units / half.write_units < 2.2


def test_loading_200_turns_takes_three_requests_at_most(backend: Backend) -> None:
    """A session of 200 turns is loaded with its head and at most two pages of entries."""
    run(backend.open(ttl=TTL).checkpoints, "s", 200)
    store = backend.open(ttl=TTL)
    store.checkpoints.load("s")
    assert store.consumed().requests <= 3


@pytest.mark.dynamodb_local
@pytest.mark.parametrize("server", ["dynamodb-local"], indirect=True)
def test_a_session_of_2000_turns_loads_in_a_few_pages(backend: Backend) -> None:
    """With maintenance after each turn a load takes about one request for each megabyte, however long the session."""
    store = backend.open(ttl=TTL)
    held, most = store.checkpoints.save(checkpoint(), after=None), 0
    for number in range(2000):
        said, answer = UserMessage(content=text(200, number)), AssistantMessage(content=text(300, -number))
        finished = with_messages(held, said, answer, turns=number + 1, committed=2 * number + 3, status=Status.FINISHED)
        held = store.checkpoints.maintain("s", after=store.checkpoints.save(finished, after=held))
        if number % 100 == 99:
            reader = backend.open(ttl=TTL)
            assert reader.checkpoints.load("s") == held
            most = max(most, reader.consumed().requests)
    used = store.consumed()
    entries = len(list(backend.log.read("session/s")))
    print(f"\n{backend.name}: 2000 turns: {used}; a load takes at most {most} requests; {entries} entries are left")
    assert most <= 4
    assert used.requests <= 1.2 * 2000
