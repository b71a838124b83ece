"""Calls of DynamoDB's API on one table: counted, and with its errors in the words of this package."""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from botocore.exceptions import (
    BotoCoreError,
    ChecksumError,
    ClientError,
    HTTPClientError,
    IncompleteReadError,
    ParamValidationError,
)
from botocore.exceptions import ConnectionError as NoConnectionError
from botocore.parsers import ResponseParserError

from durable.capacity import Capacity
from durable.errors import StoreError, StoreRejectedError, StoreUnavailableError
from stores._dynamodb_items import Item, size_of, units_of
from stores._meter import Meter

BATCH: Final = 25
"""How many items one BatchWriteItem takes."""

_RETRYABLE: Final = frozenset(
    {
        "InternalServerError",
        "ProvisionedThroughputExceededException",
        "ReplicatedWriteConflictException",
        "RequestLimitExceeded",
        "RequestTimeout",
        "RequestTimeoutException",
        "ServiceUnavailable",
        "ThrottlingException",
        "TransactionInProgressException",
        "TransactionConflictException",
    }
)
_NO_ANSWER: Final = (HTTPClientError, NoConnectionError, IncompleteReadError, ChecksumError, ResponseParserError)
_WRITES: Final = frozenset({"put_item", "update_item", "delete_item", "batch_write_item"})
_UNPROCESSED_ATTEMPTS: Final = 8


class ConditionFailedError(Exception):
    """The condition of a write did not hold; `item` is what is there instead, None for nothing."""

    def __init__(self, item: Item | None) -> None:
        self.item = item
        super().__init__("condition not met")


def translate(operation: str, error: Exception) -> StoreError:
    """Give our error for one of boto3's, decided by its code and never by its text."""
    if isinstance(error, ClientError):
        code = error.response.get("Error", {}).get("Code", "Unknown")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        reason = f"{code}: {error.response.get('Error', {}).get('Message', '')}"
        if code in _RETRYABLE or status >= 500:
            return StoreUnavailableError(operation, reason)
        return StoreRejectedError(operation, reason)
    name = type(error).__name__
    if isinstance(error, _NO_ANSWER):
        return StoreUnavailableError(operation, name)
    # What a refused parameter was is no text for an error.
    return StoreRejectedError(operation, name if isinstance(error, ParamValidationError) else f"{name}: {error}")


class Calls:
    """One table behind one low-level client. Every call adds to the meter, the client's own retries included."""

    def __init__(self, client: Any, table: str, meter: Meter, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._client = client  # boto3 makes its methods at run time, so there is no type for it
        self._table = table
        self._meter = meter
        self._sleep = sleep

    def put(self, item: Item, **arguments: Any) -> None:
        self._call("put_item", written=size_of(item), TableName=self._table, Item=item, **arguments)

    def get(self, key: Item) -> Item | None:
        return self._call("get_item", TableName=self._table, Key=key, ConsistentRead=True).get("Item")

    def update(self, key: Item, **arguments: Any) -> Item:
        """Update an item and give the attributes that `ReturnValues` asks for."""
        written = size_of(key) + size_of(arguments.get("ExpressionAttributeValues", {}))
        answer = self._call("update_item", written=written, TableName=self._table, Key=key, **arguments)
        return answer.get("Attributes", {})

    def delete(self, key: Item, **arguments: Any) -> None:
        self._call("delete_item", TableName=self._table, Key=key, **arguments)

    def query(self, **arguments: Any) -> Iterator[Item]:
        """Give the items of a query as they are asked for: one request for each megabyte, or for each `Limit` items."""
        while True:
            answer = self.query_page(**arguments)
            yield from answer["Items"]
            if "LastEvaluatedKey" not in answer:
                return
            arguments["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

    def query_page(self, **arguments: Any) -> Mapping[str, Any]:
        return self._call("query", TableName=self._table, **arguments)

    def get_both(self, one: Item, other: Item) -> tuple[Item | None, Item | None]:
        """Read two items at once, strongly consistent."""
        found: list[Item] = []
        wanted: Mapping[str, Any] = {self._table: {"Keys": [one, other], "ConsistentRead": True}}
        for attempt in range(_UNPROCESSED_ATTEMPTS):
            answer = self._call("batch_get_item", RequestItems=wanted)
            found += answer["Responses"].get(self._table, ())
            if not (wanted := answer.get("UnprocessedKeys", {})):
                return _by_key(found, one), _by_key(found, other)
            self._back_off(attempt)
        raise StoreUnavailableError("BatchGetItem", "keys stay unprocessed")

    def write_many(self, *, put: Sequence[Item] = (), delete: Sequence[Item] = ()) -> None:
        """Put and delete any number of items, in order and without conditions."""
        requests = [{"PutRequest": {"Item": item}} for item in put]
        requests += [{"DeleteRequest": {"Key": key}} for key in delete]
        for start in range(0, len(requests), BATCH):
            self._write_batch(requests[start : start + BATCH])

    def _write_batch(self, requests: Sequence[Item]) -> None:
        for attempt in range(_UNPROCESSED_ATTEMPTS):
            written = sum(size_of(request["PutRequest"]["Item"]) for request in requests if "PutRequest" in request)
            answer = self._call("batch_write_item", written=written, RequestItems={self._table: requests})
            requests = answer.get("UnprocessedItems", {}).get(self._table, ())
            if not requests:
                return
            self._back_off(attempt)
        raise StoreUnavailableError("BatchWriteItem", "items stay unprocessed")

    def _back_off(self, attempt: int) -> None:
        # The client retries what fails as a whole; what a batch leaves over is ours to ask for again.
        self._sleep(random.uniform(0, min(2.0, 0.05 * 2**attempt)))

    def _call(self, method: str, *, written: int = 0, **arguments: Any) -> Mapping[str, Any]:
        operation = method.title().replace("_", "")
        try:
            answer = getattr(self._client, method)(ReturnConsumedCapacity="TOTAL", **arguments)
        except ClientError as error:
            retries = error.response.get("ResponseMetadata", {}).get("RetryAttempts", 0)
            self._meter.add(Capacity(requests=1 + retries, write_units=_refused_units(error, written)))
            if error.response.get("Error", {}).get("Code") == "ConditionalCheckFailedException":
                raise ConditionFailedError(error.response.get("Item")) from error
            raise translate(operation, error) from error
        except (BotoCoreError, ResponseParserError) as error:
            self._meter.add(Capacity(requests=1))
            raise translate(operation, error) from error
        units = _units_in(answer)
        self._meter.add(
            Capacity(
                requests=1 + answer.get("ResponseMetadata", {}).get("RetryAttempts", 0),
                write_units=units if method in _WRITES else 0.0,
                read_units=0.0 if method in _WRITES else units,
                bytes_written=written,
            )
        )
        return answer


def _by_key(items: Sequence[Item], key: Item) -> Item | None:
    return next((item for item in items if item["pk"] == key["pk"] and item["sk"] == key["sk"]), None)


def _refused_units(error: ClientError, written: int) -> float:
    """What a refused write costs, which no answer says: as much as a write of the larger one of both items.

    Where the item that is there was not asked for, what was to be written is all that is known.
    """
    if error.response.get("Error", {}).get("Code") != "ConditionalCheckFailedException":
        return 0.0
    return float(units_of(max(written, size_of(error.response.get("Item", {})), 1)))


def _units_in(answer: Mapping[str, Any]) -> float:
    consumed = answer.get("ConsumedCapacity", ())
    each = consumed if isinstance(consumed, list) else [consumed] if consumed else []
    return sum(one.get("CapacityUnits", 0.0) for one in each)
