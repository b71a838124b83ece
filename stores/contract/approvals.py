"""What every approval store must do: a stream of events, one of which decides."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from threading import Barrier
from typing import Any

import pytest

from durable.approval_stream import (
    Applied,
    Approval,
    ApprovalStatus,
    Cancelled,
    Expired,
    Requested,
    TokenAttached,
    Voted,
)
from durable.errors import ConfigurationError, RecordFormatError
from durable.escalation import Level
from stores import LogStore
from stores.contract.backend import START, TTL, Backend
from stores.contract.injection import Crash, CrashingLog, LostResponse
from stores.contract.samples import AWKWARD_IDS

HOUR = timedelta(hours=1)
TICK = timedelta(microseconds=1)


def requested(**fields: Any) -> Requested:
    known: dict[str, Any] = {
        "at": START,
        "session_id": "s",
        "run_id": "r1",
        "agent": "payments",
        "call_id": "c1",
        "tool_name": "pay",
        "arguments": {"amount": 100, "to": ["a", None]},
        "digest": "d1",
        "deadline": START + HOUR,
    }
    return Requested(**known | fields)


def voted(approved: bool = True, **fields: Any) -> Voted:
    return Voted(**{"at": START, "approved": approved, "digest": "d1", "via": "api", "by": "alice"} | fields)


def test_a_request_is_read_back(backend: Backend, store: LogStore) -> None:
    """A requested approval is there for every process, pending; an unknown one is None."""
    approval = store.approvals.request("a1", requested())
    assert approval == Approval(id="a1", revision=0, events=(requested(),))
    assert backend.open(ttl=TTL).approvals.get("a1") == approval
    assert approval.status is ApprovalStatus.PENDING
    assert store.approvals.get("a2") is None


def test_events_are_kept_in_order(backend: Backend, store: LogStore) -> None:
    """Every event is appended after what its writer read, and all come back in order, field by field."""
    events = [
        requested(),
        TokenAttached(at=START, task_token="t", callbacks={"h1": "bob", "h2": None}),
        requested(deadline=START + 2 * HOUR),
        voted(args={"amount": 50}, callback="h1", note="less"),
        Applied(at=START),
    ]
    approval = store.approvals.request("a1", events[0])  # type: ignore[arg-type]
    for event in events[1:]:
        after = backend.open(ttl=TTL).approvals.get("a1")
        assert after == approval
        approval = store.approvals.append(event, after=after) or approval  # type: ignore[arg-type]
    assert approval.events == tuple(events)
    assert backend.open(ttl=TTL).approvals.get("a1") == approval
    assert approval.decision is not None
    assert approval.decision.args == {"amount": 50}


def test_a_repeated_request_renews_the_deadline(store: LogStore) -> None:
    """Asking again for an open approval appends the new request, and what was attached stays."""
    approval = store.approvals.request("a1", requested())
    token = TokenAttached(at=START, task_token="t", callbacks={"h": None})
    store.approvals.append(token, after=approval)
    again = store.approvals.request("a1", requested(deadline=START + 5 * HOUR))
    assert again.request.deadline == START + 5 * HOUR
    assert again.task_token == "t"
    assert store.approvals.get("a1") == again


@pytest.mark.parametrize("closing", [voted(), voted(False), Expired(at=START), Cancelled(at=START, by="bob")])
def test_a_decided_approval_stays_decided(store: LogStore, closing: Voted | Expired | Cancelled) -> None:
    """Asking again for a decided approval appends nothing and gives what was decided."""
    approval = store.approvals.request("a1", requested())
    decided = store.approvals.append(closing, after=approval)
    assert decided is not None
    assert store.approvals.request("a1", requested(deadline=START + 5 * HOUR)) == decided
    assert store.approvals.get("a1") == decided


def test_of_two_who_decide_one_is_first(store: LogStore) -> None:
    """An event after what is no longer the newest gives None and changes nothing."""
    approval = store.approvals.request("a1", requested())
    first = store.approvals.append(voted(False), after=approval)
    assert store.approvals.append(voted(True), after=approval) is None
    assert store.approvals.get("a1") == first


def test_of_many_who_decide_at_once_one_wins(backend: Backend, store: LogStore) -> None:
    """When several processes vote at the same time, one vote is recorded; requests at the same time all succeed."""
    stores = [backend.open(ttl=TTL) for _ in range(5)]
    barrier = Barrier(5)

    def ask(number: int) -> Approval:
        barrier.wait()
        return stores[number].approvals.request("a1", requested())

    def vote(number: int) -> Approval | None:
        barrier.wait()
        return stores[number].approvals.append(voted(by=f"voter {number}"), after=approval)

    with ThreadPoolExecutor(5) as pool:
        approval = max(pool.map(ask, range(5)), key=lambda one: one.revision)
        assert store.approvals.get("a1") == approval
        won = [one for one in pool.map(vote, range(5)) if one is not None]
    assert len(won) == 1
    assert store.approvals.get("a1") == won[0]


def test_awkward_ids_are_approvals_of_their_own(store: LogStore) -> None:
    """Ids that look alike or contain separators never share an event."""
    for number, identity in enumerate(AWKWARD_IDS):
        store.approvals.request(identity, requested(digest=str(number)))
    for number, identity in enumerate(AWKWARD_IDS):
        approval = store.approvals.get(identity)
        assert approval is not None
        assert (approval.revision, approval.request.digest) == (0, str(number))


def all_pages(store: LogStore, limit: int, status: ApprovalStatus | None) -> list[str]:
    ids: list[str] = []
    cursor: str | None = None
    while True:
        page = store.approvals.list(status=status, limit=limit, cursor=cursor)
        assert len(page.items) <= limit
        ids += [one.id for one in page.items]
        cursor = page.cursor
        if cursor is None:
            return sorted(ids)


@pytest.mark.parametrize("limit", [1, 3, 50])
def test_approvals_are_listed_by_what_they_are_now(store: LogStore, limit: int) -> None:
    """A list shows each approval once, under the status that its events give, in pages."""
    events = [None, voted(), voted(False), Expired(at=START), Cancelled(at=START)]
    for number in range(10):
        approval = store.approvals.request(f"a{number}", requested())
        if event := events[number % 5]:
            approval = store.approvals.append(event, after=approval)
            assert approval is not None
            store.approvals.append(Applied(at=START), after=approval)
    statuses = ["pending", "approved", "rejected", "expired", "cancelled"]
    for number, status in enumerate(statuses):
        assert all_pages(store, limit, ApprovalStatus(status)) == [f"a{number}", f"a{number + 5}"]
    assert all_pages(store, limit, None) == [f"a{number}" for number in range(10)]
    assert all_pages(store, limit, ApprovalStatus.ORPHANED) == []


@pytest.mark.parametrize("limit", [0, -1, True])
def test_a_list_has_a_limit_from_one_up(store: LogStore, limit: int) -> None:
    """A limit that no page can have is a mistake, which the error names."""
    with pytest.raises(ConfigurationError, match="limit"):
        store.approvals.list(limit=limit)


def test_a_vote_that_does_not_decide_leaves_it_pending(backend: Backend, store: LogStore) -> None:
    """It stays in the list of what waits until its last vote, and a repeated request keeps the votes."""
    request = requested(approvals=2, approvers=("alice", "bob"))
    approval = store.approvals.append(voted(), after=store.approvals.request("a1", request))
    assert approval is not None
    again = store.approvals.request("a1", request.but(deadline=START + 2 * HOUR))
    assert [vote.by for vote in again.ballot.approving] == ["alice"]
    waiting = backend.open(ttl=TTL).approvals.list(status=ApprovalStatus.PENDING).items
    assert [(one.id, one.ballot.missing) for one in waiting] == [("a1", 1)]
    assert store.approvals.append(voted(by="bob"), after=again) is not None
    assert store.approvals.list(status=ApprovalStatus.PENDING).items == []
    assert [one.id for one in store.approvals.list(status=ApprovalStatus.APPROVED).items] == ["a1"]


def test_a_head_that_lags_is_not_believed(backend: Backend, store: LogStore) -> None:
    """A decided approval whose head could not be marked is not listed as pending."""
    approval = store.approvals.request("a1", requested())
    dying = backend.open(log=CrashingLog(backend.log, after=1, applied=False), ttl=TTL)
    with pytest.raises(Crash):
        dying.approvals.append(voted(), after=approval)
    decided = store.approvals.get("a1")
    assert decided is not None
    assert decided.status is ApprovalStatus.APPROVED
    assert all_pages(store, 10, ApprovalStatus.PENDING) == []


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
def test_a_crash_in_a_request_leaves_it_asked_or_not(backend: Backend, applied: bool) -> None:
    """Wherever a process ends in `request`, asking again gives one pending approval that is listed."""
    for call in range(4):
        identity = f"a{call}"
        dying = backend.open(log=CrashingLog(backend.log, after=call, applied=applied), ttl=TTL)
        try:
            dying.approvals.request(identity, requested())
        except Crash:
            assert call < 4
        store = backend.open(ttl=TTL)
        known = store.approvals.get(identity)
        assert all_pages(store, 10, ApprovalStatus.PENDING).count(identity) == (known is not None)
        again = store.approvals.request(identity, requested())
        assert again.status is ApprovalStatus.PENDING
        assert identity in all_pages(store, 10, ApprovalStatus.PENDING)


def test_a_vote_whose_response_was_lost_is_recorded_once(backend: Backend, store: LogStore) -> None:
    """A vote that was applied and its answer lost counts as made, and so does one whose mark was lost."""
    for number, lost in enumerate(("append", "mark")):
        approval = store.approvals.request(f"a{number}", requested())
        decided = backend.open(log=LostResponse(backend.log, lost), ttl=TTL).approvals.append(voted(), after=approval)
        assert decided is not None
        assert store.approvals.get(f"a{number}") == decided


def test_an_approval_is_kept_for_its_time_after_the_deadline(backend: Backend, store: LogStore) -> None:
    """An approval is there until T after its deadline, however early its events were written, and then unknown."""
    approval = store.approvals.request("a1", requested())
    decided = store.approvals.append(voted(), after=approval)
    backend.clock.now = START + HOUR + TTL - TICK
    assert store.approvals.get("a1") == decided
    backend.clock.forward(TICK)
    assert store.approvals.get("a1") is None
    assert all_pages(store, 10, None) == []
    again = store.approvals.request("a1", requested(deadline=backend.clock() + HOUR))
    assert again.status is ApprovalStatus.PENDING
    assert store.approvals.get("a1") == again
    assert again.revision == 2


def test_an_approval_without_a_deadline_is_kept(backend: Backend, store: LogStore) -> None:
    """A run may wait for ever for an approval that has no deadline."""
    approval = store.approvals.request("a1", requested(deadline=None))
    backend.clock.now = datetime.max.replace(tzinfo=START.tzinfo)
    assert store.approvals.get("a1") == approval


def test_a_renewed_approval_needs_nothing_older(backend: Backend, store: LogStore) -> None:
    """A renewed request repeats what came before it, so the entries before it may expire."""
    approval = store.approvals.request("a1", requested())
    store.approvals.append(TokenAttached(at=START, task_token="t", callbacks={}), after=approval)
    renewed = store.approvals.request("a1", requested(deadline=START + 100 * TTL))
    decided = store.approvals.append(voted(), after=renewed)
    backend.log.drop("approval/a1", until=1)
    assert store.approvals.get("a1") == decided
    assert [(one.kind, one.base) for one in backend.log.read("approval/a1")] == [("reset", 2), ("delta", 2)]


def test_an_escalated_approval_is_kept_until_its_last_level_may_have_decided(backend: Backend, store: LogStore) -> None:
    """An approval is there until T after its levels' waits, which begin when each is told; it needs nothing older."""
    hour = HOUR.total_seconds()
    levels = (Level(to=("leads",), wait=hour), Level(to=("cfo",), wait=2 * hour))
    approval = store.approvals.request("a1", requested(levels=levels))
    backend.clock.now = START + 4 * HOUR + TTL - TICK
    assert store.approvals.get("a1") == approval
    late = backend.clock()
    escalated = store.approvals.append(approval.next_level(late), after=approval)
    assert escalated is not None
    backend.log.drop("approval/a1", until=0)
    backend.clock.now = late + 3 * HOUR + TTL - TICK
    assert store.approvals.get("a1") == escalated
    assert all_pages(store, 10, ApprovalStatus.PENDING) == ["a1"]
    backend.clock.forward(TICK)
    assert store.approvals.get("a1") is None


def test_arguments_must_be_json(store: LogStore) -> None:
    """Arguments that are not JSON are refused before anything is written."""
    with pytest.raises(RecordFormatError, match="requested"):
        store.approvals.request("a1", requested().but(arguments={"x": float("nan")}))
    assert store.approvals.get("a1") is None


@pytest.mark.parametrize("deadline", [None, START + HOUR])
def test_an_applied_approval_has_an_end(backend: Backend, store: LogStore, deadline: datetime | None) -> None:
    """An approval without a deadline is kept until T after its decision was applied, one with a deadline as before."""
    approval = store.approvals.request("a1", requested(deadline=deadline))
    decided = store.approvals.append(voted(), after=approval)
    assert decided is not None
    backend.clock.forward(HOUR)
    applied = store.approvals.append(Applied(at=backend.clock()), after=decided)
    backend.clock.forward(TTL - TICK)
    assert store.approvals.get("a1") == applied
    backend.clock.forward(TICK)
    assert store.approvals.get("a1") is None
    assert all(entry.expires_at is not None for entry in backend.log.read("approval/a1"))
    head = backend.log.head("approval/a1")
    assert head is not None
    assert head.expires_at is not None
