"""The log in one DynamoDB table: an append is one conditional PutItem."""

import base64
import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import islice, product, takewhile
from typing import Any, Final

from durable.errors import ConfigurationError
from durable.ports import Clock, Entry, Head, Page
from stores._dynamodb_calls import Calls, ConditionFailedError
from stores._dynamodb_items import Item, entry_items, entry_of, epoch, head_of, moment_in, number, text, times, update
from stores._dynamodb_table import (
    DROPPED,
    FINISHED,
    HEAD_SK,
    INDEX_SK,
    LAST_REVISION,
    LIST_SHARDS,
    LISTING_INDEX,
    NOT_DUE,
    STATUSES,
    TTL_ATTRIBUTE,
    chunks_of,
    due_sort,
    entry_sk,
    list_key,
    shard_of,
)
from stores._streams import ACCEPTED, DELETED, TAKEN_FOR, earlier, stamp

FREE: Final = "attribute_not_exists(pk) OR (#kind = :dropped AND #expires_at <= :now)"
"""Nobody has written this revision: the compare of compare-and-append. Or what was there was dropped so long ago that
the mark which it left should be gone: DynamoDB removes late and in no order, the tombstone before it perhaps."""

THERE: Final = "attribute_exists(#pk)"
"""The chunk is still there: an update must not make a new item of nothing but a time."""

SAME_KIND: Final = "#kind = :kind"
"""The entry is still there: nobody has dropped it meanwhile, and DynamoDB has not removed it."""

NOT_LOWER: Final = "attribute_not_exists(#revision) OR #revision <= :revision OR #fresh_until <= :updated_at"
"""The head is announced only, older, or no longer fresh: a writer that was overtaken meanwhile changes nothing."""

NOT_LOWER_BASE: Final = "attribute_not_exists(#base) OR #base <= :base OR #fresh_until <= :updated_at"
"""The same for the index, which an overtaken writer could reach after the head."""

STILL_DUE: Final = "#due_at = :due_at AND #due_run = :due_run"
"""The due mark is the one that the caller read: nobody has announced another run since."""

ONLY_ANNOUNCED: Final = f"{STILL_DUE} AND attribute_not_exists(#revision)"
"""And nothing of the run was ever saved: the head consists of the mark."""


_TIMED: Final = ("kind", "save_id", "chunks", "fresh_until", TTL_ATTRIBUTE)
_A_FEW: Final = 10


class DynamoDBLog:
    """A `Log` in a table as `TABLE` defines it. `prefix` keeps several deployments apart in one table.

    Without `list_finished` the head of a finished session leaves the listing index, which is then not written for it.
    """

    def __init__(self, calls: Calls, *, prefix: str, clock: Clock, list_finished: bool = True) -> None:
        self._calls = calls
        self._prefix = prefix
        self._clock = clock
        self._list_finished = list_finished

    # Entries

    def append(self, stream: str, entry: Entry) -> bool:
        item, chunks = entry_items(self._prefix + stream, entry)
        if chunks:
            self._calls.write_many(put=chunks)
        try:
            self._calls.put(
                item,
                ConditionExpression=FREE,
                ExpressionAttributeNames={"#kind": "kind", "#expires_at": TTL_ATTRIBUTE},
                ExpressionAttributeValues={":dropped": text(DROPPED), ":now": epoch(self._clock())},
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        except ConditionFailedError as refused:
            if refused.item is not None and refused.item["save_id"] == item["save_id"]:
                return True  # an earlier attempt was applied and its response lost
            self._calls.write_many(delete=[_key_of(chunk) for chunk in chunks])
            return False
        return True

    def read(
        self, stream: str, *, after: int = -1, newest_first: bool = False, limit: int | None = None
    ) -> Iterable[Entry]:
        items = self._query(
            stream,
            "#sk BETWEEN :first AND :last",
            {":first": text(entry_sk(max(after, -1) + 1)), ":last": text(entry_sk(LAST_REVISION))},
            ScanIndexForward=not newest_first,
            **({"Limit": limit} if limit is not None else {}),
        )
        entries = (item for item in items if item["kind"]["S"] != DROPPED)
        for item in islice(entries, limit):
            yield entry_of(item, stream, self._chunks(stream, item))

    def drop(self, stream: str, *, until: int | None = None) -> None:
        last = LAST_REVISION if until is None else until
        entries = self._query(
            stream,
            "#sk BETWEEN :first AND :last",
            {":first": text(entry_sk(0)), ":last": text(entry_sk(last))},
            ProjectionExpression="#pk, #sk, #kind",
            ExpressionAttributeNames={"#kind": "kind"},
        )
        chunks = self._query(
            stream,
            "#sk BETWEEN :first AND :last",
            {":first": text("chunk/"), ":last": text(chunks_of(last + 1, ""))},
            ProjectionExpression="#pk, #sk",
        )
        # Oldest first, and an entry before its chunks: what an interrupted drop leaves is a readable end.
        if until is None:
            heads = [self._key(stream, sk) for sk in (HEAD_SK, INDEX_SK)]
            self._calls.write_many(delete=[_key_of(item) for item in entries] + heads)
        elif until >= 0:
            taken = {"kind": text(DROPPED), "save_id": text(""), TTL_ATTRIBUTE: epoch(self._clock() + TAKEN_FOR)}
            gone = [item for item in entries if item["kind"]["S"] not in (DROPPED, "tombstone")]
            self._calls.write_many(put=[{**_key_of(item), **taken} for item in gone])
        self._calls.write_many(delete=[_key_of(item) for item in chunks])

    def expire(self, stream: str, *, until: int, fresh_until: datetime, expires_at: datetime) -> None:
        newest_first = self._query(
            stream,
            "#sk BETWEEN :first AND :last",
            {":first": text(entry_sk(0)), ":last": text(entry_sk(until))},
            ProjectionExpression="#pk, #sk, #kind, #save_id, #chunks, #fresh_until, #expires_at",
            ExpressionAttributeNames={f"#{name}": name for name in _TIMED},
            ScanIndexForward=False,
            Limit=_A_FEW,
        )
        end = epoch(expires_at)
        # No entry ends before one that came earlier, so those before the first that ends in time do, too.
        longer = [
            item
            for item in takewhile(lambda item: _lasts_longer(item, end), newest_first)
            if item["kind"]["S"] != DROPPED
        ]
        for item in reversed(longer):
            fresh = earlier(moment_in(item, "fresh_until"), fresh_until)
            self._set_end(item, put={"fresh_until": text(stamp(fresh)), TTL_ATTRIBUTE: end})
            for chunk in self._chunks(stream, item):
                self._set_end(chunk, put={TTL_ATTRIBUTE: end})

    def _set_end(self, item: Item, *, put: Item) -> None:
        condition, values = (SAME_KIND, {"kind": item["kind"]}) if "kind" in item else (THERE, {})
        try:
            self._calls.update(_key_of(item), **update(put=put, condition=condition, values=values))
        except ConditionFailedError:
            return  # dropped meanwhile

    def _chunks(self, stream: str, item: Item) -> Sequence[Item]:
        if "chunks" not in item:
            return ()
        revision = int(item["sk"]["S"].rpartition("/")[2])
        own = chunks_of(revision, item["save_id"]["S"])
        return list(self._query(stream, "begins_with(#sk, :own)", {":own": text(own)}))

    def _query(self, stream: str, condition: str, values: Item, **arguments: Any) -> Iterable[Item]:
        names = {"#pk": "pk", "#sk": "sk"} | arguments.pop("ExpressionAttributeNames", {})
        return self._calls.query(
            KeyConditionExpression=f"#pk = :pk AND {condition}",
            ExpressionAttributeNames=names,
            ExpressionAttributeValues={":pk": text(self._prefix + stream), **values},
            ConsistentRead=True,
            **arguments,
        )

    # The head

    def head(self, stream: str) -> Head | None:
        item, index = self._calls.get_both(self._key(stream, HEAD_SK), self._key(stream, INDEX_SK))
        return head_of(item, stream, index) if item is not None else None

    def mark(self, head: Head) -> None:
        lifetime = times(head.fresh_until, head.expires_at)
        timeless = [name for name in ("fresh_until", TTL_ATTRIBUTE) if name not in lifetime]
        listed = {"list_key": self._list_key(head.kind, head.id, head.status)}
        if head.status == FINISHED and not self._list_finished:
            listed = {}
        base = number(head.base)
        try:
            before = self._calls.update(
                self._key(head.stream, HEAD_SK),
                ReturnValues="UPDATED_OLD",
                **update(
                    put={
                        "status": text(head.status),
                        "revision": number(head.revision),
                        "base": base,  # a copy, which tells whether the index has to move
                        "updated_at": text(stamp(head.updated_at)),
                        **listed,
                        **lifetime,
                    },
                    keep={"list_sort": text(NOT_DUE)},
                    remove=timeless if listed else [*timeless, "list_key"],
                    condition=NOT_LOWER,
                ),
            )
            if before.get("base", number(0)) == base:
                return
            self._calls.update(
                self._key(head.stream, INDEX_SK),
                **update(
                    put={"base": base, "listed_from": number(head.listed_from), **lifetime},
                    remove=timeless,
                    condition=NOT_LOWER_BASE,
                    values={"updated_at": text(stamp(head.updated_at))},
                ),
            )
        except ConditionFailedError:
            return  # overtaken by a newer head

    def announce(self, stream: str, *, run_id: str, due_at: datetime) -> None:
        kind, _, identity = stream.partition("/")
        self._calls.update(
            self._key(stream, HEAD_SK),
            **update(
                put={"due_at": text(stamp(due_at)), "due_run": text(run_id), "list_sort": text(due_sort(due_at))},
                keep={
                    "status": text(ACCEPTED),
                    "list_key": self._list_key(kind, identity, ACCEPTED),
                    "updated_at": text(stamp(self._clock())),
                },
            ),
        )

    def settle(self, head: Head) -> None:
        if head.due_at is None or head.due_run is None:
            return
        key = self._key(head.stream, HEAD_SK)
        seen = {"due_at": text(stamp(head.due_at)), "due_run": text(head.due_run)}
        if head.status == ACCEPTED and self._was_removed(key, seen):
            return
        settled = update(put={"list_sort": text(NOT_DUE)}, remove=tuple(seen), condition=STILL_DUE, values=seen)
        try:
            self._calls.update(key, **settled)
        except ConditionFailedError:
            return  # announced anew, or settled by somebody else

    def _was_removed(self, key: Item, seen: Item) -> bool:
        """Remove a head that only announces the run that was seen; False when something was saved since."""
        try:
            self._calls.delete(
                key,
                ConditionExpression=ONLY_ANNOUNCED,
                ExpressionAttributeNames={f"#{name}": name for name in (*seen, "revision")},
                ExpressionAttributeValues={f":{name}": value for name, value in seen.items()},
            )
        except ConditionFailedError:
            return False
        return True

    # The listing

    def heads(
        self,
        kind: str,
        *,
        status: str | None = None,
        due_before: datetime | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[Head]:
        partitions = self._partitions(kind, status, due=due_before is not None)
        at, start = _read_cursor(cursor, len(partitions))
        found: list[Head] = []
        while at < len(partitions):
            page = self._calls.query_page(
                IndexName=LISTING_INDEX,
                Limit=limit - len(found),
                **_listing_condition(partitions[at], due_before),
                **({"ExclusiveStartKey": {**start, "list_key": text(partitions[at])}} if start else {}),
            )
            found += [head_of(item, item["pk"]["S"].removeprefix(self._prefix)) for item in page["Items"]]
            start = page.get("LastEvaluatedKey")
            if start is None:
                at += 1
            if len(found) >= limit:
                return Page(found, _write_cursor(at, start) if at < len(partitions) else None)
        return Page(found)

    def _partitions(self, kind: str, status: str | None, *, due: bool) -> Sequence[str]:
        # A head of any status may be due, one also that was listed by a deployment which listed more.
        hidden = () if due else (DELETED,) if self._list_finished else (DELETED, FINISHED)
        every = [one for one in STATUSES.get(kind, ()) if one not in hidden]
        statuses = every if status is None else [status]
        return [list_key(self._prefix, kind, one, shard) for one, shard in product(statuses, range(LIST_SHARDS))]

    def _list_key(self, kind: str, identity: str, status: str) -> Item:
        return text(list_key(self._prefix, kind, status, shard_of(identity)))

    def _key(self, stream: str, sk: str) -> Item:
        return {"pk": text(self._prefix + stream), "sk": text(sk)}


def _lasts_longer(item: Item, end: Item) -> bool:
    return TTL_ATTRIBUTE not in item or int(item[TTL_ATTRIBUTE]["N"]) > int(end["N"]) or item["kind"]["S"] == DROPPED


def _key_of(item: Item) -> Item:
    return {"pk": item["pk"], "sk": item["sk"]}


def _listing_condition(partition: str, due_before: datetime | None) -> Item:
    names, values = {"#list_key": "list_key"}, {":list_key": text(partition)}
    condition = "#list_key = :list_key"
    if due_before is not None:
        names["#list_sort"], values[":before"] = "list_sort", text(due_sort(due_before))
        condition += " AND #list_sort < :before"
    return {
        "KeyConditionExpression": condition,
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": values,
    }


def _write_cursor(partition: int, start: Item | None) -> str:
    where = [partition, *([start["pk"]["S"], start["list_sort"]["S"]] if start else [])]
    return base64.urlsafe_b64encode(json.dumps(where).encode()).decode()


def _read_cursor(cursor: str | None, partitions: int) -> tuple[int, Item | None]:
    if cursor is None:
        return 0, None
    try:
        match json.loads(base64.urlsafe_b64decode(cursor)):
            case [int(at)] if 0 <= at < partitions:
                return at, None
            case [int(at), str(pk), str(list_sort)] if 0 <= at < partitions:
                return at, {"pk": text(pk), "sk": text(HEAD_SK), "list_sort": text(list_sort)}
    except ValueError:
        pass
    raise ConfigurationError("`cursor` must be one that the same listing has given.")
