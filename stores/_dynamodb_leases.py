"""Leases in the same table: one item for each session, of which every call changes only its own attributes."""

from datetime import datetime, timedelta
from typing import Final

from durable.ports import Clock, IdFactory, Lease
from stores._dynamodb_calls import Calls, ConditionFailedError
from stores._dynamodb_items import Item, epoch, lease_of, number, text, update
from stores._dynamodb_table import LEASE_SK, TTL_ATTRIBUTE
from stores._streams import stamp

KEPT: Final = timedelta(days=400)
"""How long a record is kept after its last use: longer than an execution may wait, which is a year."""

FREE_OR_OWN: Final = "(attribute_not_exists(#owner) OR #until <= :now OR #owner = :owner)"
"""Nobody holds the lease, its time is over, or the holder itself asks again."""

FIRST_ATTEMPT: Final = "(attribute_not_exists(#revision) OR #revision <> :revision)"
"""The session has moved since the last acquire, or there was none: attempts start over."""

ANOTHER_ATTEMPT: Final = "#revision = :revision"
"""The session has not moved since the last acquire."""

NOT_THIS_CALL: Final = "(attribute_not_exists(#claim) OR #claim <> :claim)"
"""No earlier attempt of this very call was applied: a lost response must not count as another acquire."""

NEWEST_FENCE: Final = "#fence = :fence"
"""Nobody has acquired the lease since."""


class DynamoDBLeases:
    """`Leases` beside the log of the same table and prefix."""

    def __init__(self, calls: Calls, *, prefix: str, clock: Clock, ids: IdFactory) -> None:
        self._calls = calls
        self._prefix = prefix
        self._clock = clock
        self._ids = ids

    def acquire(self, stream: str, owner: str, *, until: datetime, revision: int) -> Lease | None:
        put = {
            "owner": text(owner),
            "until": text(stamp(until)),
            "revision": number(revision),
            "claim": text(self._ids()),
            TTL_ATTRIBUTE: epoch(until + KEPT),
        }
        now = {"now": text(stamp(self._clock()))}
        free = f"{FREE_OR_OWN} AND {NOT_THIS_CALL}"
        one = {"fence": number(1)}
        first = update(put={**put, "attempt": number(1)}, add=one, condition=f"{free} AND {FIRST_ATTEMPT}", values=now)
        again = update(
            put=put, add={**one, "attempt": number(1)}, condition=f"{free} AND {ANOTHER_ATTEMPT}", values=now
        )
        plain = update(put={**put, "attempt": number(1)}, add=one, condition=free, values=now)
        # 1. Ordinarily the session has moved: one request. 2. It has not: the second. 3. Held by another: neither.
        # The record may change between the two, from one case to the other, so the first is asked once more.
        # Who does not count needs no case.
        for arguments in (first, again, first) if revision >= 0 else (plain,):
            try:
                return lease_of(self._update(stream, arguments), stream)
            except ConditionFailedError as refused:
                there = refused.item or {}
                if there.get("claim") == put["claim"]:
                    return lease_of(there, stream)
                if there.get("owner") not in (None, put["owner"]) and there["until"]["S"] > now["now"]["S"]:
                    return None
        return None

    def look(self, stream: str) -> Lease | None:
        item = self._calls.get(self._key(stream))
        return lease_of(item, stream) if item is not None else None

    def note_execution(self, stream: str, execution: str) -> None:
        self._calls.update(self._key(stream), **update(put={"execution": text(execution)}, keep=self._kept()))

    def request_abort(self, stream: str, run_id: str) -> None:
        self._calls.update(self._key(stream), **update(put={"abort_run": text(run_id)}, keep=self._kept()))

    def release(self, lease: Lease, *, counts: bool = True) -> None:
        # The count is set, not lowered: a repeated request must not take two attempts back.
        taken_back = {} if counts else {"attempt": number(max(0, lease.attempt - 1))}
        ended = update(
            put={"until": text(stamp(self._clock())), **taken_back},
            remove=("owner",),
            condition=NEWEST_FENCE,
            values={"fence": number(lease.fence)},
        )
        try:
            self._calls.update(self._key(lease.stream), **ended)
        except ConditionFailedError:
            return  # somebody has taken it over

    def _update(self, stream: str, arguments: Item) -> Item:
        return self._calls.update(
            self._key(stream), ReturnValues="ALL_NEW", ReturnValuesOnConditionCheckFailure="ALL_OLD", **arguments
        )

    def _kept(self) -> Item:
        return {TTL_ATTRIBUTE: epoch(self._clock() + KEPT)}

    def _key(self, stream: str) -> Item:
        return {"pk": text(self._prefix + stream), "sk": text(LEASE_SK)}
