"""What only DynamoDB can get wrong: keys, sizes, chunks, errors, lost responses on the wire, the sparse index."""

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    IncompleteReadError,
    NoCredentialsError,
    ParamValidationError,
    ReadTimeoutError,
)
from botocore.parsers import ResponseParserError

from durable.capacity import Capacity
from durable.errors import RecordFormatError, StaleReplicaError, StoreError, StoreRejectedError, StoreUnavailableError
from durable.ports import Head
from stores._bundle import new_id
from stores._dynamodb_calls import translate
from stores._dynamodb_items import MAX_ITEM, WRITE_UNIT, entry_items, size_of
from stores.contract.backend import START, Backend, MovedClock
from stores.contract.samples import checkpoint, entry, turn, with_messages
from stores.dynamodb import LISTING_INDEX, TABLE, TTL_ATTRIBUTE, dynamodb_store, make_client, open_table
from tests.contracts.backends import TABLE_NAME

NOISE = random.Random(7).randbytes(1_000_000)


class Wire:
    """A client between which and the server things happen: `before` and `after` each call, by its name."""

    def __init__(self, client: Any, **faults: Callable[[Callable[[], Any]], Any]) -> None:
        self._client = client
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        if name not in self._faults:
            return getattr(self._client, name)
        return lambda **arguments: self._faults[name](lambda: getattr(self._client, name)(**arguments))


def items_of(client: Any, backend: Backend, stream: str) -> dict[str, Any]:
    """Give what is in the table for a stream, by sort key."""
    answer = client.query(
        TableName=TABLE_NAME,
        KeyConditionExpression="pk = :pk",
        ExpressionAttributeValues={":pk": {"S": backend.prefix + stream}},
    )
    return {item["sk"]["S"]: item for item in answer["Items"]}


def error(code: str, status: int = 400) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}}, "Put")  # type: ignore[typeddict-item]


# --- without a server -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("foreign", "kind"),
    [
        (error("ProvisionedThroughputExceededException"), StoreUnavailableError),
        (error("ThrottlingException"), StoreUnavailableError),
        (error("RequestLimitExceeded"), StoreUnavailableError),
        (error("InternalServerError", 500), StoreUnavailableError),
        (error("SomethingNew", 503), StoreUnavailableError),
        (error("AccessDeniedException"), StoreRejectedError),
        (error("ResourceNotFoundException"), StoreRejectedError),
        (error("ValidationException"), StoreRejectedError),
        (error("ExpiredTokenException"), StoreRejectedError),
        (error("UnrecognizedClientException"), StoreRejectedError),
        (ReadTimeoutError(endpoint_url="u"), StoreUnavailableError),
        (ConnectTimeoutError(endpoint_url="u"), StoreUnavailableError),
        (EndpointConnectionError(endpoint_url="u"), StoreUnavailableError),
        (IncompleteReadError(actual_bytes=1, expected_bytes=2), StoreUnavailableError),
        (ResponseParserError("half an answer"), StoreUnavailableError),
        (NoCredentialsError(), StoreRejectedError),
        (ParamValidationError(report="Invalid type, value: the secret"), StoreRejectedError),
    ],
)
def test_every_foreign_error_has_one_of_ours(clock: MovedClock, foreign: Exception, kind: type[StoreError]) -> None:
    """An error of boto3 becomes one of ours, by its code or type, with the cause kept and no content shown."""

    def fail(call: Callable[[], Any]) -> Any:
        raise foreign

    log, _, _ = open_table(client=Wire(object(), put_item=fail), table="t", prefix="", clock=clock, ids=new_id)  # type: ignore[arg-type]
    with pytest.raises(kind) as ours:
        log.append("session/s", entry(0))
    assert ours.value.__cause__ is foreign
    assert type(translate("PutItem", foreign)) is kind
    assert "secret" not in str(ours.value)


def test_keys_are_those_of_the_design() -> None:
    """The keys of a session say what they hold: they are read by people and by later versions."""
    item, chunks = entry_items("p/session/a", entry(7, NOISE))
    assert (item["pk"], item["sk"]) == ({"S": "p/session/a"}, {"S": "history/000000000007"})
    assert [chunk["sk"]["S"] for chunk in chunks] == [f"chunk/000000000007/save-7/00000{n}" for n in range(3)]
    assert item["chunks"] == {"N": "3"}
    assert "body" not in item
    assert TTL_ATTRIBUTE == "expires_at"
    assert item["expires_at"] == {"N": str(int((START.replace(microsecond=0) + timedelta(days=2)).timestamp()))}
    assert all(chunk["expires_at"] == item["expires_at"] for chunk in chunks)


@pytest.mark.parametrize("size", [1, 700, 850, 1000, 5000, 390_000, 409_000, 410_000, 1_000_000])
@pytest.mark.parametrize("source", ["noise", "prose"])
def test_items_fit_and_are_compressed_where_that_saves_a_unit(source: str, size: int) -> None:
    """No item is larger than 400 KB, and a body is compressed only where that makes the item a write unit smaller."""
    body = NOISE[:size] if source == "noise" else (b"lorem ipsum dolor " * (size // 18 + 1))[:size]
    item, chunks = entry_items("session/s", entry(0, body))
    plain = size_of({**item, "body": {"B": body}} if "packed" not in item else item | {"body": {"B": body}})
    assert all(size_of(one) <= MAX_ITEM for one in [item, *chunks])
    assert ("packed" in item) == (source == "prose" and plain > WRITE_UNIT)


def test_a_client_gives_up_in_seconds() -> None:
    """The client has short time-outs and bounded retries, and takes the options of boto3."""
    client = make_client(attempts=3, region_name="eu-north-1", aws_access_key_id="a", aws_secret_access_key="b")
    config = client.meta.config
    assert (config.connect_timeout, config.read_timeout) == (2.0, 5.0)
    assert config.retries == {"mode": "standard", "total_max_attempts": 3}
    assert client.meta.region_name == "eu-north-1"
    assert dynamodb_store(table="t", client=client).consumed() == Capacity()


# --- with one ---------------------------------------------------------------------------------------------------------


def test_the_loser_of_a_race_removes_its_chunks(client: Any, backend: Backend) -> None:
    """Chunks of a save that lost are removed, those of the winner are left, and a drop removes them, too."""
    backend.log.append("session/s", entry(0, NOISE))
    backend.log.append("session/s", entry(0, NOISE[::-1], save_id="other"))
    chunks = [f"chunk/000000000000/save-0/00000{number}" for number in range(3)]
    assert list(items_of(client, backend, "session/s")) == [*chunks, "history/000000000000"]
    backend.log.append("session/s", entry(1))
    backend.log.drop("session/s", until=0)
    left = items_of(client, backend, "session/s")
    assert list(left) == ["history/000000000000", "history/000000000001"]
    assert set(left["history/000000000000"]) == {"pk", "sk", "kind", "save_id", "expires_at"}


def test_chunks_that_are_not_those_of_the_entry_are_refused(client: Any, backend: Backend) -> None:
    """A chunk that is missing may be on its way; one that is another is damage. Neither is read as the entry."""
    backend.log.append("session/s", entry(0, NOISE))
    chunk = items_of(client, backend, "session/s")["chunk/000000000000/save-0/000001"]
    client.put_item(TableName=TABLE_NAME, Item={**chunk, "body": {"B": b"other"}})
    with pytest.raises(RecordFormatError):
        list(backend.log.read("session/s"))
    client.delete_item(TableName=TABLE_NAME, Key={"pk": chunk["pk"], "sk": chunk["sk"]})
    with pytest.raises(StaleReplicaError):
        list(backend.log.read("session/s"))


def test_chunks_outside_an_entry_are_never_read(client: Any, backend: Backend) -> None:
    """What a writer left behind that ended between its chunks and its entry is in nobody's way."""

    def die(call: Callable[[], Any]) -> Any:
        raise ReadTimeoutError(endpoint_url="u")

    log, _, _ = open_table(
        client=Wire(client, put_item=die), table=TABLE_NAME, prefix=backend.prefix, clock=backend.clock, ids=new_id
    )
    with pytest.raises(StoreUnavailableError):
        log.append("session/s", entry(0, NOISE, save_id="dead"))
    assert list(backend.log.read("session/s")) == []
    alive = entry(0, NOISE[::-1])
    assert backend.log.append("session/s", alive)
    assert list(backend.log.read("session/s")) == [alive]


def test_a_response_lost_on_the_wire_is_no_conflict(client: Any, backend: Backend) -> None:
    """A client that sends a request again whose response was lost gets success: for a save, and once for a lease."""

    def twice(call: Callable[[], Any]) -> Any:
        call()
        return call()

    log, leases, _ = open_table(
        client=Wire(client, put_item=twice, update_item=twice),
        table=TABLE_NAME,
        prefix=backend.prefix,
        clock=backend.clock,
        ids=new_id,
    )
    assert log.append("session/s", entry(0))
    for expected in (1, 2):
        lease = leases.acquire("session/s", "one", until=START + timedelta(minutes=1), revision=0)
        assert lease is not None
        assert (lease.fence, lease.attempt) == (expected, expected)
    leases.release(lease)
    assert leases.acquire("session/s", "two", until=START, revision=0) == replace(
        lease, owner="two", until=START, fence=3, attempt=3
    )


def test_only_heads_are_in_the_index(client: Any, backend: Backend) -> None:
    """The listing index holds one small item for each head and nothing else, so that it costs next to nothing."""
    store = backend.open(ttl=timedelta(days=1))
    held = store.checkpoints.save(checkpoint("s", turn("c1")), after=None)
    held = store.checkpoints.save(held.but(messages=()), after=held)
    store.checkpoints.save(held.but(business_state="x" * 900_000), after=held)
    store.leases.acquire("session/s", "one", until=START, revision=0)
    keys = [item["sk"]["S"] for item in items_of(client, backend, "session/s").values()]
    assert keys == [
        "checkpoint",
        "history",
        "history/000000000000",
        "history/000000000001",
        "history/000000000002",
        "lease",
    ]
    listed = client.scan(TableName=TABLE_NAME, IndexName=LISTING_INDEX)["Items"]
    mine = [item for item in listed if item["pk"]["S"].startswith(backend.prefix)]
    assert [item["sk"]["S"] for item in mine] == ["checkpoint"]
    (name,) = [index["IndexName"] for index in TABLE["GlobalSecondaryIndexes"]]
    assert name == LISTING_INDEX


def test_times_to_live_are_epoch_seconds(client: Any, backend: Backend) -> None:
    """Every item that may go carries the TTL attribute in whole seconds, never early; what never ends has none."""
    store = backend.open(ttl=timedelta(days=1))
    held = store.checkpoints.save(checkpoint(), after=None)
    store.checkpoints.save(held.but(messages=()), after=held)
    end = int(START.timestamp()) + 2 * 86_400 + 1
    for item in items_of(client, backend, "session/s").values():
        assert item[TTL_ATTRIBUTE] == {"N": str(end)}
    backend.open(ttl=None).checkpoints.save(checkpoint("endless"), after=None)
    for item in items_of(client, backend, "session/endless").values():
        assert TTL_ATTRIBUTE not in item


def test_what_a_batch_leaves_over_is_asked_for_again(client: Any, backend: Backend) -> None:
    """Items and keys that a throttled batch did not process are sent again, and in the end the store is unavailable."""
    waits: list[float] = []
    left = 2

    def one_by_one(call: Callable[[], Any]) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            return call()
        return {"UnprocessedItems": {TABLE_NAME: [{"DeleteRequest": {"Key": {"pk": {"S": "x"}, "sk": {"S": "x"}}}}]}}

    def no_keys(call: Callable[[], Any]) -> Any:
        nonlocal left
        left -= 1
        keys = {TABLE_NAME: {"Keys": [{"pk": {"S": "x"}, "sk": {"S": "x"}}]}}
        return call() if left < 0 else {"Responses": {}, "UnprocessedKeys": keys}

    log, _, _ = open_table(
        client=Wire(client, batch_write_item=one_by_one, batch_get_item=no_keys),
        table=TABLE_NAME,
        prefix=backend.prefix,
        clock=backend.clock,
        ids=new_id,
    )
    log._calls._sleep = waits.append
    backend.log.append("session/s", entry(0))
    log.drop("session/s", until=0)
    assert len(waits) == 2
    assert max(waits) <= 2
    left = 100
    backend.log.append("session/s", entry(1))
    with pytest.raises(StoreUnavailableError):
        log.drop("session/s", until=1)
    with pytest.raises(StoreUnavailableError):
        log.head("session/s")


def test_a_prefix_keeps_stores_apart(client: Any, clock: MovedClock) -> None:
    """Two stores in one table with different prefixes see nothing of each other, in the listing neither."""
    first, second = (
        dynamodb_store(table=TABLE_NAME, client=client, prefix=f"{name}{new_id()}/", clock=clock) for name in "ab"
    )
    first.checkpoints.save(checkpoint(), after=None)
    assert second.checkpoints.load("s") is None
    assert list(second.log.heads("session").items) == []
    (head,) = first.log.heads("session").items
    assert (head.id, head.status) == ("s", "in-progress")


@pytest.mark.parametrize("units", [1, 10])
def test_sizes_are_those_that_are_billed(backend: Backend, units: int) -> None:
    """The size that decides about compression and chunks is, to the byte, the one that DynamoDB charges for."""
    item, _ = entry_items(backend.prefix + "session/s", entry(100, b""))
    room = units * WRITE_UNIT - size_of(item)
    for revision, (size, billed) in enumerate([(room, units), (room + 1, units + 1)], 100):
        log, _, meter = backend.connect()
        log.append("session/s", entry(revision, NOISE[:size]))
        assert meter.consumed() == Capacity(1, billed, 0, units * WRITE_UNIT + size - room)


def test_a_head_of_an_unknown_status_is_refused(backend: Backend) -> None:
    """A status that no listing would ask for is a mistake in the program."""
    with pytest.raises(Exception, match="cannot have the status"):
        backend.log.mark(Head(kind="session", id="s", status="sleeping", updated_at=START))


def test_nothing_said_is_in_an_error(client: Any, backend: Backend) -> None:
    """An error of the server about a save names the operation and the code, not what was to be saved."""
    log, _, _ = open_table(client=client, table="no-such-table", prefix="", clock=backend.clock, ids=new_id)
    store = backend.open(log=log)
    with pytest.raises(StoreRejectedError) as refused:
        store.checkpoints.save(with_messages(checkpoint(), turn("c1", "the secret")), after=None)
    assert "secret" not in str(refused.value)
    assert "ResourceNotFoundException" in str(refused.value)
    assert refused.value.operation == "Query"
