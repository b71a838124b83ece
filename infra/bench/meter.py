"""Counts what any boto3 program asks of DynamoDB; needs botocore alone, so it works in a peer's environment, too."""

from dataclasses import asdict, dataclass
from typing import Any

from botocore.client import BaseClient

_WRITES = {"PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem", "TransactWriteItems"}
_READS = {"GetItem", "Query", "Scan", "BatchGetItem", "TransactGetItems"}


@dataclass
class Counted:
    requests: int = 0
    write_units: float = 0.0
    read_units: float = 0.0

    def take(self) -> dict[str, float]:
        """Give the numbers so far, and start again."""
        numbers = asdict(self)
        self.requests, self.write_units, self.read_units = 0, 0.0, 0.0
        return numbers


def install() -> Counted:
    """Count every call that a client of this process makes from now on."""
    client: Any = BaseClient  # the method through which every call goes is not public, and has no type
    counted, call = Counted(), client._make_api_call

    def counting(self: Any, operation: str, arguments: Any) -> Any:
        if operation not in _WRITES | _READS:
            return call(self, operation, arguments)
        counted.requests += 1
        answer = call(self, operation, {**arguments, "ReturnConsumedCapacity": "TOTAL"})
        counted.requests += answer["ResponseMetadata"].get("RetryAttempts", 0)
        consumed = answer.get("ConsumedCapacity", ())
        units = sum(
            one["CapacityUnits"] for one in (consumed if isinstance(consumed, list) else [consumed] if consumed else [])
        )
        if operation in _WRITES:
            counted.write_units += units
        else:
            counted.read_units += units
        return answer

    client._make_api_call = counting
    return counted
