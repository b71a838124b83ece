"""What every history must do: the newest saves, newest first, whole and as copies."""

from datetime import timedelta

import pytest

from durable.errors import ConfigurationError, InvalidSessionIdError, StaleCheckpointError
from durable.messages import UserMessage
from durable.records import Checkpoint, Status
from stores import LogStore
from stores.contract.backend import TTL, Backend
from stores.contract.samples import checkpoint, result, turn, with_messages


def write(backend: Backend, store: LogStore, count: int, *, after: Checkpoint | None = None) -> list[Checkpoint]:
    """Save a session `count` times, a minute apart, and give what was saved."""
    saves: list[Checkpoint] = []
    for number in range(count):
        backend.clock.forward(timedelta(minutes=1))
        new = with_messages(after, turn(f"c{number}"), step=after.step + 1) if after else checkpoint()
        after = store.checkpoints.save(new, after=after)
        saves.append(after)
    return saves


def test_history_gives_every_save_newest_first(backend: Backend, store: LogStore) -> None:
    """Each save is listed with its revision, step, time and status, and the checkpoint as it was then."""
    saves = write(backend, store, 5)
    finished = store.checkpoints.save(saves[-1].but(status=Status.FINISHED), after=saves[-1])
    listed = backend.open(ttl=TTL).checkpoints.history("s")
    assert [save.checkpoint for save in listed] == [finished, *reversed(saves)]
    assert [save.revision for save in listed] == [5, 4, 3, 2, 1, 0]
    assert [save.step for save in listed] == [4, 4, 3, 2, 1, 0]
    assert [save.saved_at for save in listed] == [save.checkpoint.updated_at for save in listed]
    assert [save.status for save in listed] == ["finished", *["in-progress"] * 5]
    assert backend.open().checkpoints.history("unknown") == []


@pytest.mark.parametrize(("limit", "count"), [(None, 4), (0, 0), (1, 1), (3, 3), (4, 4), (50, 4)])
def test_history_is_bounded(backend: Backend, limit: int | None, count: int) -> None:
    """At most `limit` saves are given, none for 0, and never more than the store's `history_limit`."""
    store = backend.open(ttl=TTL, history_limit=4)
    saves = write(backend, store, 9)
    listed = store.checkpoints.history("s", limit=limit)
    assert [save.checkpoint for save in listed] == saves[::-1][:count]


def test_a_history_limit_of_zero_lists_nothing_and_loses_nothing(backend: Backend) -> None:
    """With `history_limit=0` no save is listed, and the checkpoint is there all the same."""
    store = backend.open(ttl=TTL, history_limit=0)
    saves = write(backend, store, 3)
    assert store.checkpoints.history("s", limit=5) == []
    assert store.checkpoints.load("s") == saves[-1]


@pytest.mark.parametrize("wrong", [-1, True, 1.5, "3"])
def test_a_limit_is_a_whole_number(backend: Backend, store: LogStore, wrong: int) -> None:
    """A limit that is negative or no whole number is a mistake, which the error names."""
    with pytest.raises(ConfigurationError, match="`limit`"):
        store.checkpoints.history("s", limit=wrong)
    with pytest.raises(ConfigurationError, match="`history_limit`"):
        backend.open(history_limit=wrong)


def test_history_crosses_resets(backend: Backend, store: LogStore) -> None:
    """Saves from before a compaction or a cut of the transcript are listed with the transcript of then."""
    saves = write(backend, store, 4)
    cut = store.checkpoints.save(saves[-1].but(messages=saves[-1].messages[:1]), after=saves[-1])
    later = write(backend, store, 3, after=cut)
    expected = [*saves, cut, *later][::-1]
    for limit in range(len(expected) + 1):
        listed = store.checkpoints.history("s", limit=limit)
        assert [save.checkpoint for save in listed] == expected[:limit]


def test_history_entries_are_copies(store: LogStore) -> None:
    """A state changed in one listed checkpoint is changed in no other and not in the store."""
    held = store.checkpoints.save(checkpoint("s", result("c"), business_state={"n": [1]}), after=None)
    store.checkpoints.save(held.but(step=1), after=held)
    newest, oldest = store.checkpoints.history("s")
    newest.checkpoint.business_state["n"].append(2)  # type: ignore[index, union-attr]
    assert oldest.checkpoint.business_state == {"n": [1]}
    assert [save.checkpoint.business_state for save in store.checkpoints.history("s")] == [{"n": [1]}, {"n": [1]}]


def test_history_may_outlive_its_checkpoint(backend: Backend, store: LogStore) -> None:
    """After `delete(keep_history=True)` nothing is loaded, and the saves stay listed beside those of a new start."""
    saves = write(backend, store, 3)
    for _ in range(2):
        store.checkpoints.delete("s", keep_history=True)
        assert store.checkpoints.load("s") is None
        assert [save.checkpoint for save in store.checkpoints.history("s")] == saves[::-1]
    again = store.checkpoints.save(checkpoint("s", UserMessage(content="again")), after=None)
    assert store.checkpoints.load("s") == again
    assert [save.checkpoint for save in store.checkpoints.history("s")] == [again, *saves[::-1]]
    store.checkpoints.delete("s", keep_history=True)
    store.checkpoints.delete("s")
    assert store.checkpoints.history("s") == []
    store.checkpoints.delete("s", keep_history=True)
    store.checkpoints.delete("unknown", keep_history=True)
    assert store.checkpoints.history("unknown") == []


def test_nothing_of_a_deleted_session_is_listed(store: LogStore) -> None:
    """After `delete` there is no history, a new session starts its own, and an overtaken save leaves none."""
    held = store.checkpoints.save(checkpoint(), after=None)
    store.checkpoints.delete("s")
    assert store.checkpoints.history("s") == []
    again = store.checkpoints.save(checkpoint("s", UserMessage(content="again")), after=None)
    with pytest.raises(StaleCheckpointError):
        store.checkpoints.save(with_messages(held, turn("late")), after=held)
    assert [save.checkpoint for save in store.checkpoints.history("s")] == [again]


@pytest.mark.parametrize("identity", ["", "x" * 257, "a\n"])
def test_bad_ids_have_no_history(store: LogStore, identity: str) -> None:
    """An id that no session can have is an error that says why."""
    with pytest.raises(InvalidSessionIdError):
        store.checkpoints.history(identity)
