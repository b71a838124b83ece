"""What keeps a long session short to load: bases, which nobody saved, and drops of what nobody needs."""

from datetime import timedelta

import pytest

from durable.errors import StaleCheckpointError
from durable.messages import AssistantMessage, UserMessage
from durable.ports import Entry, Log
from durable.records import Checkpoint, Status
from stores import LogStore
from stores.contract.backend import TTL, Backend
from stores.contract.injection import Crash, CrashingLog, LostResponse, Wrapped
from stores.contract.samples import checkpoint, with_messages

ENOUGH = 101
"""After so many saves of the same size a new base is due."""


def grown(store: LogStore, saves: int, *, after: Checkpoint | None = None) -> Checkpoint:
    """Save a session so many times, each with one more message."""
    for _ in range(saves):
        said = UserMessage(content="word " * 8)
        new = checkpoint("s", said) if after is None else with_messages(after, said, step=after.step + 1)
        after = store.checkpoints.save(new, after=after)
    assert after is not None
    return after


def physical(backend: Backend) -> list[Entry]:
    return list(backend.log.read("session/s"))


def test_a_long_session_gets_a_base(backend: Backend, store: LogStore) -> None:
    """The checkpoint is the same after maintenance but for its revision, and a load starts at the new base."""
    held = grown(store, ENOUGH)
    backend.clock.forward(timedelta(hours=1))
    maintained = store.checkpoints.maintain("s", after=held)
    assert maintained == held.but(revision=held.revision + 1)
    assert maintained.messages is held.messages
    other = backend.open(ttl=TTL)
    assert other.checkpoints.load("s") == maintained
    head = backend.log.head("session/s")
    assert head is not None
    assert (head.base, head.revision) == (maintained.revision, maintained.revision)
    assert physical(backend)[-1].kind == "base"
    on = grown(other, 3, after=maintained)
    assert store.checkpoints.load("s") == on
    assert {entry.base for entry in physical(backend)[-3:]} == {maintained.revision}


def test_a_base_is_no_save(store: LogStore) -> None:
    """The history lists the same saves before and after maintenance, counts no base, and goes on across it."""
    held = grown(store, ENOUGH)
    before = store.checkpoints.history("s")
    maintained = store.checkpoints.maintain("s", after=held)
    assert maintained is not held
    assert store.checkpoints.history("s") == before
    assert store.checkpoints.history("s", limit=1) == before[:1]
    grown(store, 2, after=maintained)
    after = store.checkpoints.history("s")
    assert len(after) == 50
    assert after[2:] == before[:48]
    assert [save.checkpoint.step for save in after] == list(range(ENOUGH + 1, ENOUGH - 49, -1))


def test_a_short_session_and_a_large_base_are_left_alone(backend: Backend, store: LogStore) -> None:
    """Nothing is written while there are few entries, or while together they are smaller than the base."""
    held = grown(store, 100)
    assert store.checkpoints.maintain("s", after=held) is held
    new = held.but(messages=(UserMessage(content="word " * 8 * 10 * ENOUGH),))
    held = grown(store, ENOUGH, after=store.checkpoints.save(new, after=held))
    assert store.checkpoints.maintain("s", after=held) is held
    count = len(physical(backend))
    assert store.checkpoints.maintain("s", after=held) is held
    assert backend.open(ttl=TTL).checkpoints.maintain("s", after=held) is held
    assert len(physical(backend)) == count


def test_what_saves_have_moved_the_base_past_goes(backend: Backend, store: LogStore) -> None:
    """Transcripts that saves make shorter again and again, as compactions do, need no base and leave nothing behind."""
    held = grown(store, 10)
    for number in range(30):
        short = held.but(messages=(UserMessage(content=f"summary {number}"),))
        held = grown(store, 10, after=store.checkpoints.save(short, after=held))
        assert store.checkpoints.maintain("s", after=held) is held
    assert len(physical(backend)) < 180
    assert backend.open(ttl=TTL).checkpoints.load("s") == held
    assert len(store.checkpoints.history("s")) == 50


@pytest.mark.parametrize("knows", ["wrote", "loaded", "was given"])
def test_any_process_may_maintain(backend: Backend, store: LogStore, knows: str) -> None:
    """Maintenance comes to the same whether the process wrote, loaded or was handed the checkpoint."""
    held = grown(store, ENOUGH)
    other = store if knows == "wrote" else backend.open(ttl=TTL)
    if knows == "loaded":
        assert other.checkpoints.load("s") == held
    maintained = other.checkpoints.maintain("s", after=held)
    assert maintained.revision == held.revision + 1
    assert store.checkpoints.load("s") == maintained


def test_a_session_stays_in_bounds(backend: Backend, store: LogStore) -> None:
    """With maintenance after every turn, entries since the base stay few or small, and old entries go."""
    held: Checkpoint | None = None
    for _ in range(9):
        held = store.checkpoints.maintain("s", after=grown(store, 60, after=held))
    assert held is not None
    assert backend.open(ttl=TTL).checkpoints.load("s") == held
    entries = physical(backend)
    bases = [entry for entry in entries if entry.kind != "delta"]
    newest = bases[-1]
    since = [entry for entry in entries if entry.revision > newest.revision]
    assert len(since) <= 160 or sum(len(entry.body) for entry in since) <= 2 * len(newest.body)
    assert entries[0] == bases[0]
    assert 0 < entries[0].revision < held.revision - 100
    assert len(entries) < 400
    assert len(store.checkpoints.history("s")) == 50


def test_without_a_history_only_the_base_is_kept(backend: Backend) -> None:
    """A store that lists nothing drops everything before the new base."""
    store = backend.open(ttl=TTL, history_limit=0)
    maintained = store.checkpoints.maintain("s", after=grown(store, ENOUGH))
    assert [entry.kind for entry in physical(backend)] == ["base"]
    assert store.checkpoints.load("s") == maintained


def test_who_was_overtaken_maintains_nothing(backend: Backend, store: LogStore) -> None:
    """A session that has moved since is not rewritten: the caller is told that it is behind."""
    held = grown(store, ENOUGH)
    moved = grown(backend.open(ttl=TTL), 1, after=held)
    with pytest.raises(StaleCheckpointError):
        store.checkpoints.maintain("s", after=held)
    assert store.checkpoints.load("s") == moved


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
def test_a_crash_in_maintenance_changes_nothing(backend: Backend, store: LogStore, applied: bool) -> None:
    """Wherever a process ends in maintenance, the session and its history are whole, and the next one finishes it."""
    held, call = grown(store, ENOUGH), 0
    for call in range(10):
        listed = store.checkpoints.history("s")
        log = CrashingLog(backend.log)
        dying = backend.open(log=log, ttl=TTL)
        assert dying.checkpoints.load("s") == held
        log.arm(call, applied=applied)
        try:
            dying.checkpoints.maintain("s", after=held)
        except Crash:
            loaded = backend.open(ttl=TTL).checkpoints.load("s")
            assert loaded is not None
            assert loaded == held.but(revision=loaded.revision)
            assert store.checkpoints.history("s") == listed
            cut = store.checkpoints.save(loaded.but(messages=loaded.messages[:1]), after=loaded)
            held = grown(store, ENOUGH, after=cut)
        else:
            break
    assert 4 <= call < 10
    assert physical(backend)[0].revision > 0
    assert backend.open(ttl=TTL).checkpoints.load("s") == held.but(revision=held.revision + 1)


@pytest.mark.parametrize("call", ["append", "mark", "drop"])
def test_lost_responses_do_no_harm(backend: Backend, call: str) -> None:
    """When a call was applied and its answer lost, maintenance is made once and the session goes on."""
    log = LostResponse(backend.log)
    store = backend.open(log=log, ttl=TTL)
    held = grown(store, ENOUGH)
    log.lose(call)
    maintained = store.checkpoints.maintain("s", after=held)
    assert maintained.revision == held.revision + 1
    on = grown(store, 1, after=maintained)
    assert backend.open(ttl=TTL).checkpoints.load("s") == on


def test_a_reader_with_an_old_index_starts_over(backend: Backend, store: LogStore) -> None:
    """A reader that read the index before maintenance, and the entries after it, loads what is there now."""
    quick = backend.open(ttl=TTL, history_limit=0)
    held = grown(quick, ENOUGH)

    class Overtaken(Wrapped):
        """Everything that maintenance does happens between the two reads of a load."""

        def __init__(self, log: Log) -> None:
            super().__init__(log)
            self.maintained: Checkpoint | None = None

        def head(self, stream: str) -> object:  # type: ignore[override]
            head = super().head(stream)
            self.maintained = self.maintained or quick.checkpoints.maintain("s", after=held)
            return head

    overtaken = Overtaken(backend.log)
    loaded = backend.open(log=overtaken, ttl=TTL).checkpoints.load("s")  # type: ignore[arg-type]
    assert loaded == overtaken.maintained
    assert [entry.kind for entry in physical(backend)] == ["base"]


def test_a_maintained_session_expires_like_any_other(backend: Backend, store: LogStore) -> None:
    """Maintenance keeps a session no longer than a save would, a paused one for ever, and listed saves their time."""
    held = grown(store, ENOUGH)
    backend.clock.forward(TTL - timedelta(hours=1))
    maintained = store.checkpoints.maintain("s", after=held)
    backend.clock.forward(timedelta(hours=1))
    assert store.checkpoints.load("s") == maintained
    assert store.checkpoints.history("s") == []
    backend.clock.forward(TTL)
    assert store.checkpoints.load("s") is None
    paused = grown(store, ENOUGH).but(status=Status.AWAITING_APPROVAL, approval_id="a")
    paused = store.checkpoints.save(paused, after=paused)
    for _ in range(ENOUGH):
        paused = store.checkpoints.save(with_messages(paused, AssistantMessage(content="no")), after=paused)
    maintained = store.checkpoints.maintain("s", after=paused)
    backend.clock.forward(10 * TTL)
    assert store.checkpoints.load("s") == maintained


def test_a_maintained_session_is_deleted_like_any_other(backend: Backend, store: LogStore) -> None:
    """A deletion takes bases with it, and a cleared session with a base stays cleared."""
    store.checkpoints.maintain("s", after=grown(store, ENOUGH))
    store.checkpoints.delete("s", keep_history=True)
    assert store.checkpoints.load("s") is None
    assert len(store.checkpoints.history("s")) == 50
    store.checkpoints.delete("s")
    assert [entry.kind for entry in physical(backend)] == ["tombstone"]
