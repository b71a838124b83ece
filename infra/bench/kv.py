"""The design that keeps whole checkpoints under keys, literally: what every save costs in it.

    <session>             the newest checkpoint
    <session>#history     the index: the ids of the entries, oldest first
    <session>#history/<id>    one entry: the whole checkpoint again

A save writes the checkpoint, then the entry, then the index, then deletes the entries that fell out of it. Values are
JSON in items of one table. It is here to be measured: nothing tells two writers apart, and a transcript larger than an
item cannot be saved.
"""

import json
from typing import Any, Final

from durable.capacity import Capacity
from durable.records import Checkpoint
from stores._dynamodb_calls import Calls
from stores._dynamodb_items import Item, text
from stores._meter import Meter

HISTORY_LIMIT: Final = 50


class KVCheckpoints:
    """A checkpoint store of three methods, for one writer."""

    single_writer = True

    def __init__(self, client: Any, table: str, *, prefix: str) -> None:
        self._meter = Meter()
        self._calls = Calls(client, table, self._meter)
        self._prefix = prefix

    def consumed(self) -> Capacity:
        return self._meter.consumed()

    def load(self, session_id: str) -> Checkpoint | None:
        value = self._get(session_id)
        return None if value is None else Checkpoint.model_validate_json(value)

    def save(self, checkpoint: Checkpoint, *, after: Checkpoint | None) -> Checkpoint:
        session_id = checkpoint.session_id or ""
        saved = checkpoint.but(revision=0 if after is None else after.revision + 1)
        value = saved.model_dump_json(exclude_defaults=True)
        entry = f"{session_id}#history/{saved.revision:012d}"
        self._put(session_id, value)
        self._put(entry, value)
        index = [*json.loads(self._get(f"{session_id}#history") or "[]"), entry]
        self._put(f"{session_id}#history", json.dumps(index[-HISTORY_LIMIT:]))
        for dropped in index[:-HISTORY_LIMIT]:
            self._calls.delete(self._key(dropped))
        return saved

    def delete(self, session_id: str) -> None:
        for entry in json.loads(self._get(f"{session_id}#history") or "[]"):
            self._calls.delete(self._key(entry))
        self._calls.delete(self._key(f"{session_id}#history"))
        self._calls.delete(self._key(session_id))

    def _put(self, key: str, value: str) -> None:
        self._calls.put({**self._key(key), "value": text(value)})

    def _get(self, key: str) -> str | None:
        item = self._calls.get(self._key(key))
        return None if item is None else item["value"]["S"]

    def _key(self, key: str) -> Item:
        return {"pk": text(self._prefix + key), "sk": text("value")}
