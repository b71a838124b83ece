"""The table of the DynamoDB store: its definition and its keys, pure.

    pk                           sk                                  what it holds
    <prefix><kind>/<id>          checkpoint                          the head
    <prefix><kind>/<id>          history                             the index: base, listed_from
    <prefix><kind>/<id>          history/<revision>                  one entry: the truth, the commit point
    <prefix><kind>/<id>          chunk/<revision>/<save id>/<n>      a part of an entry that is larger than an item
    <prefix><kind>/<id>          lease                               the lease record

Only heads are in the listing index. Its hash key belongs to the owner of the status, its range key to the owner of the
due mark: each writes its own attributes, and a query by either reads nothing else.
"""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from durable.errors import ConfigurationError
from stores._streams import ACCEPTED, DELETED, stamp

TTL_ATTRIBUTE: Final = "expires_at"
LISTING_INDEX: Final = "heads"
TABLE: Final[Mapping[str, Any]] = {
    "BillingMode": "PAY_PER_REQUEST",
    "AttributeDefinitions": [
        {"AttributeName": name, "AttributeType": "S"} for name in ("pk", "sk", "list_key", "list_sort")
    ],
    "KeySchema": [{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
    "GlobalSecondaryIndexes": [
        {
            "IndexName": LISTING_INDEX,
            "KeySchema": [
                {"AttributeName": "list_key", "KeyType": "HASH"},
                {"AttributeName": "list_sort", "KeyType": "RANGE"},
            ],
            "Projection": {"ProjectionType": "ALL"},
        }
    ],
}
"""What `create_table` takes, the name apart. TTL is switched on separately, for `TTL_ATTRIBUTE`."""

HEAD_SK: Final = "checkpoint"
INDEX_SK: Final = "history"
LEASE_SK: Final = "lease"

LAST_REVISION: Final = 10**12 - 1
DROPPED: Final = "dropped"
"""The kind of what is left of an entry that was dropped: its key, so that nobody writes the revision again."""

FINISHED: Final = "finished"
"""The status of the sessions that need not be listed: they are the many, and nobody has to act on them."""

LIST_SHARDS: Final = 4
STATUSES: Final[Mapping[str, Sequence[str]]] = {
    "session": (ACCEPTED, "in-progress", "awaiting-approval", FINISHED, DELETED),
    "approval": (ACCEPTED, "pending", "decided", DELETED),
}
"""The statuses a head of each kind may have: a listing without one asks for them all."""

NOT_DUE: Final = "idle"


def entry_sk(revision: int) -> str:
    """Give the sort key of an entry: entries sort by revision."""
    return f"history/{revision:012d}"


def chunk_sk(revision: int, save_id: str, number: int) -> str:
    return f"{chunks_of(revision, save_id)}{number:06d}"


def chunks_of(revision: int, save_id: str) -> str:
    """Give what the sort keys of one save's chunks begin with."""
    return f"chunk/{revision:012d}/{save_id}/"


def list_key(prefix: str, kind: str, status: str, shard: int) -> str:
    """Give one of the listing's partitions."""
    if status not in STATUSES.get(kind, ()):
        raise ConfigurationError(f"A head of kind {kind!r} cannot have the status {status!r}.")
    return f"{prefix}{kind}/{status}/{shard}"


def shard_of(identity: str) -> int:
    return hashlib.sha256(identity.encode()).digest()[0] % LIST_SHARDS


def due_sort(due_at: datetime) -> str:
    """Give the range key of a head that is due: those due earlier sort first, those not due after all of them."""
    return f"due/{stamp(due_at)}"
