"""What saves cost, counted on the wire: the promises of the README in numbers."""

from datetime import timedelta
from typing import Any

import pytest

from durable.errors import StaleCheckpointError
from durable.messages import AssistantMessage, UserMessage
from durable.records import Status
from infra.bench import counts as bench
from infra.bench.workload import LARGE, words
from stores.contract.backend import Backend
from stores.contract.samples import checkpoint, result, turn, with_messages
from tests.contracts.backends import TABLE_NAME

TTL = timedelta(days=30)


def test_an_ordinary_save_is_one_put(backend: Backend, requests: list[str]) -> None:
    """A save that fits an item and changes no status is one PutItem of one write unit, and nothing else."""
    store = backend.open(ttl=TTL)
    held = store.checkpoints.save(checkpoint(), after=None)
    for message in (turn("c1", words(100, 1)), result("c1", words(600, 2)), UserMessage(content="Thanks")):
        before, used = len(requests), store.consumed()
        held = store.checkpoints.save(with_messages(held, message), after=held)
        assert requests[before:] == ["PutItem"]
        assert (store.consumed() - used).write_units == 1


def test_a_refused_save_is_counted(backend: Backend, requests: list[str]) -> None:
    """A save that comes too late costs as much as the larger of the two entries, and no answer says so: it counts."""
    store, other = backend.open(ttl=TTL), backend.open(ttl=TTL)
    held = store.checkpoints.save(checkpoint(), after=None)
    loaded = other.checkpoints.load("s")
    store.checkpoints.save(with_messages(held, result("c1", [words(1_000, n) for n in range(20)])), after=held)
    before = other.consumed()
    del requests[:]
    with pytest.raises(StaleCheckpointError):
        other.checkpoints.save(with_messages(held, turn("c2", "late")), after=loaded)
    refused = other.consumed() - before
    assert requests == ["PutItem"]
    assert refused.requests == 1
    assert refused.write_units > 2


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
    assert made(lambda: checkpoints.save(checkpoint(), after=None)) == ["PutItem", "UpdateItem"]
    new = checkpoint("not looked for")
    assert made(lambda: checkpoints.save(new, after=None) and None) == ["Query", "PutItem", "UpdateItem"]
    assert made(lambda: checkpoints.load("s")) == ["BatchGetItem", "Query"]
    finished = held.but(status=Status.FINISHED)
    assert made(lambda: checkpoints.save(finished, after=held)) == ["PutItem", "UpdateItem"]
    reset = held.but(messages=())
    assert made(lambda: checkpoints.save(reset, after=held)) == ["PutItem", "UpdateItem", "UpdateItem"]
    large = held.but(business_state=words(3_000_000, 1))
    assert made(lambda: checkpoints.save(large, after=held)) == ["BatchWriteItem", "PutItem"]
    assert made(lambda: checkpoints.load("s")) == ["BatchGetItem", "Query", "Query"]
    assert made(lambda: checkpoints.history("s") and None) == ["Query", "Query"]
    expected = ["Query", "Query", "PutItem", "UpdateItem", "UpdateItem", "Query", "BatchWriteItem", "Query"]
    assert made(lambda: checkpoints.delete("s")) == [*expected, "BatchWriteItem"]


# Requests and write units of one `execute()` of so many model turns, at most; the large one is `large_workload`.
CEILINGS = {"10": (27, 30), "50": (110, 125), "200": (410, 450), "500": (1_020, 1_100), LARGE: (215, 560)}

LOCAL = pytest.mark.parametrize(
    "server", [pytest.param("dynamodb-local", marks=pytest.mark.dynamodb_local)], indirect=True
)


@LOCAL
@pytest.mark.parametrize("column", CEILINGS)
def test_a_run_costs_what_was_promised(client: Any, column: str) -> None:
    """A run of N turns takes about one request and one write unit for each save, and loads with three requests."""
    counts = bench.ours(client, column, table=TABLE_NAME)
    requests, write_units = CEILINGS[column]
    assert counts.failed_at is None
    assert counts.ran.requests <= requests
    assert counts.ran.write_units <= write_units
    assert counts.load is not None
    assert counts.load.requests <= 3


@LOCAL
def test_a_thousand_steps_cost_as_much_each_as_a_hundred(client: Any) -> None:
    """Write units per step at 1,000 steps are at most 1.3 times those at 100."""
    hundred, thousand = (bench.ours(client, steps, table=TABLE_NAME).ran.write_units for steps in ("100", "1000"))
    assert thousand / 1000 <= 1.3 * hundred / 100


@LOCAL
def test_whole_checkpoints_cost_many_times_that(client: Any) -> None:
    """The design that saves whole checkpoints is measured by the same run: four requests a save, and 400 KB its end."""
    whole, large = (bench.whole_checkpoints(client, column, table=TABLE_NAME) for column in ("10", LARGE))
    saves = 2 * 10 + 1
    assert whole.ran.requests == 4 * saves + 1
    assert whole.ran.write_units > 10 * CEILINGS["10"][1]
    assert large.failed_at is not None
    assert large.failed_at < 100


def test_bytes_grow_with_the_transcript(backend: Backend) -> None:
    """Twice the turns write about twice the bytes, not four times."""

    half, whole = (bench.run(backend.open(ttl=TTL), turns, session_id=turns).ran for turns in ("50", "100"))
    assert whole.bytes_written / half.bytes_written < 2.2
    assert whole.write_units / half.write_units < 2.2


@pytest.mark.dynamodb_local
@pytest.mark.parametrize("server", ["dynamodb-local"], indirect=True)
def test_a_session_of_2000_turns_loads_in_a_few_pages(backend: Backend) -> None:
    """With maintenance after each turn a load takes about one request for each megabyte, however long the session."""
    store = backend.open(ttl=TTL)
    held, most = store.checkpoints.save(checkpoint(), after=None), 0
    for number in range(2000):
        said, answer = UserMessage(content=words(200, number)), AssistantMessage(content=words(300, -number))
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
