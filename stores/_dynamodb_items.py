"""Entries, heads and leases as DynamoDB items and back: pure."""

import hashlib
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from durable.errors import RecordFormatError, StaleReplicaError
from durable.ports import Entry, Head, Lease
from stores._dynamodb_table import TTL_ATTRIBUTE, chunk_sk, entry_sk
from stores._streams import NEVER_HELD, stamp

Item: TypeAlias = dict[str, Any]
"""An item, or the key of one, as the low-level client gives and takes it."""

MAX_ITEM: Final = 400 * 1024
WRITE_UNIT: Final = 1024
CHUNK: Final = 380 * 1024


def text(value: str) -> Item:
    return {"S": value}


def number(value: int) -> Item:
    return {"N": str(value)}


def epoch(moment: datetime) -> Item:
    """Give a time as DynamoDB's TTL wants it: whole seconds, and never early."""
    return number(math.ceil(moment.timestamp()))


def times(fresh_until: datetime | None, expires_at: datetime | None) -> Item:
    """Give the attributes of a lifetime; what never ends is not there."""
    fresh = {"fresh_until": text(stamp(fresh_until))} if fresh_until is not None else {}
    return fresh | ({TTL_ATTRIBUTE: epoch(expires_at)} if expires_at is not None else {})


def size_of(item: Item) -> int:
    """Give the size that DynamoDB bills: names and values, numbers by their significant digits."""
    return sum(len(name.encode()) + _size(value) for name, value in item.items())


def _size(value: Item) -> int:
    ((kind, content),) = value.items()
    match kind:
        case "S":
            return len(content.encode())
        case "N":
            return 1 + (len(content.strip("-0")) + 1) // 2 + content.startswith("-")
        case "B":
            return len(content)
        case _:
            return 1


def entry_items(pk: str, entry: Entry) -> tuple[Item, list[Item]]:
    """Give the item of an entry, and the chunks to write before it: none where it fits.

    The body is compressed only where that saves a write unit.
    """
    item: Item = {
        "pk": text(pk),
        "sk": text(entry_sk(entry.revision)),
        "kind": text(entry.kind),
        "base": number(entry.base),
        "save_id": text(entry.save_id),
        "written_at": text(stamp(entry.written_at)),
        **times(entry.fresh_until, entry.expires_at),
    }
    body, packed = entry.body, _packed(entry.body, size_of(item))
    if packed is not None:
        body, item["packed"] = packed, {"BOOL": True}
    if size_of(item) + len(body) + len("body") <= MAX_ITEM:
        return item | {"body": {"B": body}}, []
    parts = [body[start : start + CHUNK] for start in range(0, len(body), CHUNK)]
    item |= {"chunks": number(len(parts)), "sha256": text(hashlib.sha256(body).hexdigest())}
    lifetime = times(None, entry.expires_at)
    return item, [
        {"pk": text(pk), "sk": text(chunk_sk(entry.revision, entry.save_id, at)), "body": {"B": part}, **lifetime}
        for at, part in enumerate(parts)
    ]


def entry_of(item: Item, stream: str, chunks: Sequence[Item] = ()) -> Entry:
    """Give the entry of an item; `chunks` are the ones of its save, in order, and are verified."""
    revision = int(item["sk"]["S"].rpartition("/")[2])
    what = f"{stream!r} revision {revision}"
    if "chunks" in item:
        if len(chunks) != int(item["chunks"]["N"]):  # they replicate one by one
            raise StaleReplicaError(stream, expected=revision, found=revision - 1)
        body = b"".join(chunk["body"]["B"] for chunk in chunks)
        if hashlib.sha256(body).hexdigest() != item["sha256"]["S"]:
            raise RecordFormatError(what, "has chunks that are not those it names: it is damaged")
    else:
        body = item["body"]["B"]
    try:
        body = zlib.decompress(body) if "packed" in item else body
    except zlib.error as error:
        raise RecordFormatError(what, "cannot be decompressed: it is damaged") from error
    return Entry(
        revision=revision,
        kind=item["kind"]["S"],
        base=int(item["base"]["N"]),
        save_id=item["save_id"]["S"],
        written_at=datetime.fromisoformat(item["written_at"]["S"]),
        body=body,
        fresh_until=moment_in(item, "fresh_until"),
        expires_at=_expiry_in(item),
    )


def _packed(body: bytes, rest: int) -> bytes | None:
    if units_of(rest + len(body)) == 1:
        return None
    packed = zlib.compress(body)
    return packed if units_of(rest + len(packed) + len("packed")) < units_of(rest + len(body)) else None


def units_of(size: int) -> int:
    """Give the write units of an item of so many bytes."""
    return -(-size // WRITE_UNIT)


def head_of(item: Item, stream: str, index: Item | None = None) -> Head:
    """Give the head of its item. Without the index, `base` is as of the last mark and `listed_from` is not known."""
    kind, _, identity = stream.partition("/")
    return Head(
        kind=kind,
        id=identity,
        status=item["status"]["S"],
        revision=int(item["revision"]["N"]) if "revision" in item else -1,
        base=int((index or item).get("base", number(0))["N"]),
        listed_from=int((index or {}).get("listed_from", number(0))["N"]),
        due_at=moment_in(item, "due_at"),
        due_run=item["due_run"]["S"] if "due_run" in item else None,
        updated_at=datetime.fromisoformat(item["updated_at"]["S"]),
        fresh_until=moment_in(item, "fresh_until"),
        expires_at=_expiry_in(item),
    )


def lease_of(item: Item, stream: str) -> Lease:
    """Give the lease of its item, which may hold only what somebody noted before it was ever acquired."""
    return Lease(
        stream=stream,
        owner=item["owner"]["S"] if "owner" in item else None,
        until=moment_in(item, "until") or NEVER_HELD,
        fence=int(item.get("fence", number(0))["N"]),
        attempt=int(item.get("attempt", number(0))["N"]),
        revision=int(item.get("revision", number(-1))["N"]),
        execution=item["execution"]["S"] if "execution" in item else None,
        abort_run=item["abort_run"]["S"] if "abort_run" in item else None,
    )


def moment_in(item: Item, name: str) -> datetime | None:
    return datetime.fromisoformat(item[name]["S"]) if name in item else None


def _expiry_in(item: Item) -> datetime | None:
    return datetime.fromtimestamp(int(item[TTL_ATTRIBUTE]["N"]), UTC) if TTL_ATTRIBUTE in item else None


def update(
    *,
    put: Mapping[str, Item] | None = None,
    keep: Mapping[str, Item] | None = None,
    add: Mapping[str, Item] | None = None,
    remove: Sequence[str] = (),
    condition: str | None = None,
    values: Mapping[str, Item] | None = None,
) -> Item:
    """Give the arguments of an UpdateItem that touches only the attributes named; `keep` sets those that are not there.

    A condition names attributes as `#name` and values as `:name`: those it needs beyond the ones set are in `values`.
    """
    put, keep, add = put or {}, keep or {}, add or {}
    sets = [f"#{name} = :{name}" for name in put] + [f"#{name} = if_not_exists(#{name}, :{name})" for name in keep]
    clauses = {
        "SET": sets,
        "ADD": [f"#{name} :{name}" for name in add],
        "REMOVE": [f"#{name}" for name in remove],
    }
    named = {*put, *keep, *add, *remove, *_names_in(condition or "")}
    arguments: Item = {
        "UpdateExpression": " ".join(f"{verb} {', '.join(parts)}" for verb, parts in clauses.items() if parts),
        "ExpressionAttributeNames": {f"#{name}": name for name in named},
    }
    if every := {f":{name}": value for name, value in {**put, **keep, **add, **(values or {})}.items()}:
        arguments["ExpressionAttributeValues"] = every
    if condition is not None:
        arguments["ConditionExpression"] = condition
    return arguments


def _names_in(condition: str) -> Iterator[str]:
    words = condition.replace("(", " ").replace(")", " ").replace(",", " ").split()
    return (word[1:] for word in words if word.startswith("#"))
