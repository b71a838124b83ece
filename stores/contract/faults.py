"""What every store must survive: crashes around each call, lost responses, replicas that lag, writers that hang."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from durable.errors import StaleReplicaError, StoreUnavailableError
from durable.messages import UserMessage
from durable.ports import Entry
from durable.records import Checkpoint, Status
from stores import LogStore
from stores.contract.backend import TTL, Backend
from stores.contract.injection import CountingLog, Crash, CrashingLog, LaggingReplica, LostRequest, LostResponse
from stores.contract.samples import checkpoint, entry, result, turn, with_messages


def prepared(store: LogStore, situation: str) -> Checkpoint | None:
    """Bring session "s" into a situation and give what a caller holds of it."""
    if situation == "new":
        return None
    held = store.checkpoints.save(checkpoint("s", turn("c1"), turn("c2")), after=None)
    match situation:
        case "cleared":
            store.checkpoints.delete("s", keep_history=True)
            return None
        case "deleted":
            store.checkpoints.delete("s")
            return None
        case _:
            return held


def save_after(situation: str, held: Checkpoint | None) -> Checkpoint:
    if held is None:
        return checkpoint("s", UserMessage(content="new"))
    if situation == "reset":
        return held.but(messages=held.messages[1:])
    if situation == "large":
        return held.but(results={"c1": result("c1", "large " * 200_000)})
    return with_messages(held, result("c1"), status=Status.FINISHED if situation == "finish" else held.status)


SITUATIONS = ["new", "cleared", "deleted", "ordinary", "reset", "large", "finish"]


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_crash_in_a_save_leaves_the_old_or_the_new(backend: Backend, situation: str, applied: bool) -> None:
    """Wherever a process ends in `save`, the next one loads what was there before or what was saved, and goes on."""
    log, call = CrashingLog(backend.log), 0
    for call in range(10):
        dying = backend.open(log=log, ttl=TTL)
        dying.checkpoints.delete("s")
        held = prepared(dying, situation)
        new = save_after(situation, held)
        log.arm(call, applied=applied)
        try:
            dying.checkpoints.save(new, after=held)
        except Crash:
            pass
        else:
            break
        finally:
            log.arm(None, applied=False)
        next_one = backend.open(ttl=TTL)
        loaded = next_one.checkpoints.load("s")
        assert loaded == held or (loaded is not None and loaded == new.but(revision=loaded.revision))
        on = with_messages(loaded, UserMessage(content="on")) if loaded else new
        again = next_one.checkpoints.save(on, after=loaded)
        assert backend.open(ttl=TTL).checkpoints.load("s") == again
    assert 1 <= call < 10


@pytest.mark.parametrize("keep_history", [False, True])
@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
def test_a_crash_in_a_delete_leaves_the_session_or_nothing(backend: Backend, keep_history: bool, applied: bool) -> None:
    """Wherever a process ends in `delete`, the session is there whole or is gone; deleting again finishes the job."""
    crashed = 0
    for call in range(10):
        store = backend.open(ttl=TTL)
        held = store.checkpoints.save(checkpoint(), after=None)
        held = store.checkpoints.save(with_messages(held, result("c1", "large " * 200_000)), after=held)
        dying = backend.open(log=CrashingLog(backend.log, after=call, applied=applied), ttl=TTL)
        try:
            dying.checkpoints.delete("s", keep_history=keep_history)
        except Crash:
            crashed += 1
            assert store.checkpoints.load("s") in (None, held)
        store.checkpoints.delete("s")
        assert store.checkpoints.load("s") is None
        assert store.checkpoints.history("s") == []
        assert {one.kind for one in backend.log.read("session/s")} == {"tombstone"}
    assert crashed >= 2


@pytest.mark.parametrize("call", ["append", "mark", "read", "head"])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_save_whose_response_was_lost_is_made(backend: Backend, situation: str, call: str) -> None:
    """When a call was applied and its answer lost, the save is made once: it succeeds, or can simply be tried again."""
    log = LostResponse(backend.log)
    losing = backend.open(log=log, ttl=TTL)
    held = prepared(losing, situation)
    count = len(list(backend.log.read("session/s")))
    new = save_after(situation, held)
    log.lose(call)
    try:
        saved = losing.checkpoints.save(new, after=held)
    except StoreUnavailableError:
        assert call == "read"
        saved = losing.checkpoints.save(new, after=held)
    assert backend.open(ttl=TTL).checkpoints.load("s") == saved
    assert len(list(backend.log.read("session/s"))) == count + 1


@pytest.mark.parametrize("times", [1, 2])
def test_a_save_that_was_throttled_is_made_or_can_be_made_again(backend: Backend, store: LogStore, times: int) -> None:
    """A request that the backend did not take is sent once more; then the error is retryable and nothing is written."""
    log = LostRequest(backend.log)
    throttled = backend.open(log=log, ttl=TTL)
    held = throttled.checkpoints.save(checkpoint(), after=None)
    new = with_messages(held, turn("c1"))
    log.lose("append", times=times)
    if times == 2:
        with pytest.raises(StoreUnavailableError) as unavailable:
            throttled.checkpoints.save(new, after=held)
        assert unavailable.value.retryable
        assert store.checkpoints.load("s") == held
    assert throttled.checkpoints.save(new, after=held).revision == 1
    assert len(list(backend.log.read("session/s"))) == 2


def test_a_delete_whose_response_was_lost_is_made(backend: Backend, store: LogStore) -> None:
    """A delete whose append was applied and its answer lost deletes."""
    store.checkpoints.save(checkpoint(), after=None)
    backend.open(log=LostResponse(backend.log, "append"), ttl=TTL).checkpoints.delete("s")
    assert store.checkpoints.load("s") is None


def test_a_store_that_stays_away_is_unavailable(backend: Backend, store: LogStore) -> None:
    """When the log does not answer at all, the save fails with a retryable error, and saving again is no conflict."""
    held = store.checkpoints.save(checkpoint(), after=None)
    away = backend.open(log=LostResponse(backend.log, "append", times=2), ttl=TTL)
    with pytest.raises(StoreUnavailableError) as unavailable:
        away.checkpoints.save(with_messages(held, turn("c1")), after=held)
    assert unavailable.value.retryable
    loaded = store.checkpoints.load("s")
    assert loaded is not None
    assert loaded.messages[-1] == turn("c1")


def test_a_head_that_could_not_be_marked_is_marked_by_the_next_save(backend: Backend, store: LogStore) -> None:
    """A mark that fails does not fail the save that it follows, and the next save, of any process, makes up for it."""
    for other in (False, True):
        log = LostRequest(backend.log)
        writer = backend.open(log=log, ttl=TTL)
        held = writer.checkpoints.save(checkpoint(f"s{other}"), after=None)
        log.lose("mark")
        held = writer.checkpoints.save(held.but(status=Status.FINISHED), after=held)
        assert shown_status(backend, f"s{other}") == "in-progress"
        if other:
            writer = store
            assert writer.checkpoints.load(f"s{other}") == held
        writer.checkpoints.save(held.but(step=1), after=held)
        assert shown_status(backend, f"s{other}") == "finished"


def shown_status(backend: Backend, session_id: str) -> str | None:
    head = backend.log.head(f"session/{session_id}")
    return head.status if head is not None else None


def test_a_lagging_replica_is_not_believed(backend: Backend, store: LogStore) -> None:
    """Fewer entries than the head promises, or a gap, are `StaleReplicaError`: the past is never resumed."""
    held = store.checkpoints.save(checkpoint(), after=None)
    for number in range(3):
        held = store.checkpoints.save(with_messages(held, turn(f"c{number}")), after=held)
    held = store.checkpoints.save(held.but(status=Status.FINISHED), after=held)
    hidden: list[Callable[[Entry], bool]] = [
        lambda one: one.revision == 4,
        lambda one: one.revision > 0,
        lambda one: True,
        lambda one: one.revision == 2,
        lambda one: one.revision == 0,
    ]
    for hides in hidden:
        behind = backend.open(log=LaggingReplica(backend.log, hides=hides), ttl=TTL)
        with pytest.raises(StaleReplicaError) as stale:
            behind.checkpoints.load("s")
        assert stale.value.retryable
        catching_up = backend.open(log=LaggingReplica(backend.log, hides=hides, reads=1), ttl=TTL)
        assert catching_up.checkpoints.load("s") == held
    behind = backend.open(log=LaggingReplica(backend.log, hides=lambda one: one.revision == 2), ttl=TTL)
    with pytest.raises(StaleReplicaError):
        behind.checkpoints.history("s")


def test_a_deleted_session_is_absent_on_a_lagging_replica(backend: Backend, store: LogStore) -> None:
    """A tombstone is believed whatever else is missing, and a promise that has run out is none."""
    held = store.checkpoints.save(checkpoint(), after=None)
    store.checkpoints.save(with_messages(held, turn("c1")), after=held)
    store.checkpoints.delete("s")
    behind = backend.open(log=LaggingReplica(backend.log, hides=lambda one: one.kind != "tombstone"), ttl=TTL)
    assert behind.checkpoints.load("s") is None
    empty = backend.open(log=LaggingReplica(backend.log, hides=lambda one: True), ttl=TTL)
    with pytest.raises(StaleReplicaError):
        empty.checkpoints.load("s")
    backend.clock.forward(2 * TTL + timedelta(seconds=1))
    assert empty.checkpoints.load("s") is None


def test_an_old_index_leads_to_the_newest_base(backend: Backend, store: LogStore) -> None:
    """A reader whose index still names an older base meets the reset in the stream and starts over from it."""
    held = store.checkpoints.save(checkpoint(), after=None)
    held = store.checkpoints.save(with_messages(held, turn("c1")), after=held)
    held = store.checkpoints.save(held.but(messages=held.messages[1:]), after=held)
    held = store.checkpoints.save(with_messages(held, result("c1")), after=held)
    head = backend.log.head("session/s")
    assert head is not None
    assert head.base == 2

    class OldIndex(CountingLog):
        def head(self, stream: str) -> object:  # type: ignore[override]
            return replace(head, base=0, revision=0)

    assert backend.open(log=OldIndex(backend.log), ttl=TTL).checkpoints.load("s") == held  # type: ignore[arg-type]
    backend.log.drop("session/s", until=1)
    assert backend.open(log=OldIndex(backend.log), ttl=TTL).checkpoints.load("s") == held  # type: ignore[arg-type]


def test_a_session_without_a_head_is_loaded(backend: Backend, store: LogStore) -> None:
    """A writer that ended between its first entry and the head has saved all the same."""
    dying = backend.open(log=CrashingLog(backend.log, after=2, applied=False), ttl=TTL)
    with pytest.raises(Crash):
        dying.checkpoints.save(checkpoint(), after=None)
    assert shown_status(backend, "s") is None
    loaded = store.checkpoints.load("s")
    assert loaded is not None
    store.checkpoints.save(with_messages(loaded, turn("c1")), after=loaded)
    assert shown_status(backend, "s") == "in-progress"


def test_an_announced_session_is_absent(backend: Backend, store: LogStore) -> None:
    """A due mark for a run of which nothing is saved makes no session."""
    backend.log.announce("session/s", run_id="r1", due_at=backend.clock())
    assert store.checkpoints.load("s") is None
    saved = store.checkpoints.save(checkpoint(), after=None)
    assert store.checkpoints.load("s") == saved
    assert backend.log.append("session/s", entry(5))
    with pytest.raises(StaleReplicaError):
        store.checkpoints.load("s")
