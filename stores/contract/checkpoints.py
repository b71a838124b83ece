"""What every checkpoint store must do: what was saved is what is loaded, and only one writer moves a session."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from threading import Barrier

import pytest
from pydantic import JsonValue

from durable.capacity import Capacity
from durable.errors import InvalidSessionIdError, StaleCheckpointError
from durable.messages import AssistantMessage, FilePart, ImagePart, TextPart, UserMessage
from durable.records import AcceptedRequest, Checkpoint, Decision, FinishReason, ForkedFrom, LastError, Status, Usage
from stores.contract.backend import START, TTL, Opened, Subject
from stores.contract.samples import AWKWARD_IDS, JSON_KINDS, NATIVE_TURN, checkpoint, result, turn, with_messages

CHILD = checkpoint(
    None,
    UserMessage(content="Look it up."),
    turn("c7"),
    run_id="",
    agent="child",
    step=1,
    results={"c8": result("c8")},
    suspended={"c7": checkpoint(None, UserMessage(content="Deeper."), agent="grandchild", run_id="")},
)

FULL = checkpoint(
    "s",
    UserMessage(content="Ünïcødé 🦔 \u2028 \x00"),
    turn("c1", "Let me look."),
    result("c1", {"nested": [1, 2.5, None, {"": '\\" \n'}]}),
    status=Status.AWAITING_APPROVAL,
    finish_reason=FinishReason.AWAITING_APPROVAL,
    step=3,
    results={"c2": result("c2", 0), "c3": result("c3").model_copy(update={"is_error": True})},
    started=("c4", "c5"),
    queued=(UserMessage(content="And tomorrow?"),),
    usage=Usage(model_calls=3, input_tokens=1000, cached_input_tokens=10, output_tokens=50),
    business_state={"cart": [], "total": 0.1, "flag": False},
    instructions="Be brief.",
    approval_id="ap1",
    decisions={"c0": Decision(approval_id="ap0", approved=True, args={"a": None}, decided_at=START)},
    fingerprint={"version": 1, "model": "m", "tools": {"weather": "00ff"}},
    run_config={"max_steps": 5},
    suspended={"c6": CHILD},
    turns=2,
    committed=3,
    requests={f"k{n}": AcceptedRequest(digest="d", run_id="r", finish_reason=FinishReason.STOP) for n in range(100)},
    requested_by="arn:aws:iam::1:role/app",
    pauses=1,
    worked_seconds=1.5,
    output_retries=1,
    began_at=START,
    was_cut=True,
    consumed=Capacity(requests=12, write_units=9.5, read_units=4.0, bytes_written=8_000),
    forked_from=ForkedFrom(session_id="p", revision=4, step=2),
    last_error=LastError(code="PROVIDER", message="no", retryable=True, at=START),
)
"""A checkpoint with every field set."""


def test_a_first_save_is_loaded_whole(backend: Subject, store: Opened) -> None:
    """Every field of a checkpoint comes back, in another process, and the order of keys with it."""
    saved = store.checkpoints.save(FULL, after=None)
    loaded = backend.open(ttl=TTL).checkpoints.load("s")
    assert loaded is not None
    assert loaded == saved
    assert loaded == FULL.but(revision=0)
    assert list(loaded.requests) == list(FULL.requests)
    assert set(Checkpoint.model_fields) == FULL.model_fields_set | {"v", "revision"}


def test_changes_are_loaded_as_saved(backend: Subject, store: Opened) -> None:
    """A chain of saves, each after the one before, is loaded as the last of them, at every point of the chain."""
    first = checkpoint("s", UserMessage(content="Hello"))
    steps = [
        lambda c: with_messages(c, turn("c1"), step=1, usage=Usage(model_calls=1)),
        lambda c: c.but(results={"c1": result("c1")}, started=("c9",)),
        lambda c: with_messages(c.but(results={}), c.results["c1"]),
        lambda c: c.but(queued=(UserMessage(content="one"), UserMessage(content="two"))),
        lambda c: with_messages(c.but(queued=c.queued[1:]), c.queued[0]),
        lambda c: c.but(decisions=FULL.decisions, suspended=FULL.suspended, requests=FULL.requests),
        lambda c: c.but(suspended={"c6": with_messages(CHILD, result("c7"), suspended={}, step=2)}),
        lambda c: c.but(suspended={}, requests=dict(list(FULL.requests.items())[1:]) | {"new": FULL.requests["k0"]}),
        lambda c: with_messages(c, AssistantMessage(content="Bye"), status=Status.FINISHED, business_state=None),
        lambda c: c.but(messages=c.messages[-1:], committed=1),
        lambda c: FULL.but(created_at=c.created_at),
    ]
    held = store.checkpoints.save(first, after=None)
    for number, step in enumerate(steps, 1):
        backend.clock.forward(timedelta(seconds=1))
        held = store.checkpoints.save(step(held), after=held)
        assert (held.revision, held.updated_at) == (number, backend.clock.now)
        loaded = backend.open(ttl=TTL).checkpoints.load("s")
        assert loaded is not None
        assert loaded == held
        assert list(loaded.requests) == list(held.requests)
        assert held.created_at == START


def test_a_loaded_checkpoint_is_saved_on(backend: Subject, store: Opened) -> None:
    """A process that loaded the checkpoint saves after it like the one that wrote it."""
    saved = store.checkpoints.save(checkpoint(), after=None)
    for number in range(1, 4):
        other = backend.open(ttl=TTL)
        loaded = other.checkpoints.load("s")
        assert loaded is not None
        saved = other.checkpoints.save(with_messages(loaded, UserMessage(content=f"m{number}")), after=loaded)
        assert saved.revision == number
    assert [message.content for message in saved.messages[1:]] == ["m1", "m2", "m3"]
    assert store.checkpoints.load("s") == saved


def test_a_checkpoint_from_elsewhere_is_saved_on(backend: Subject, store: Opened) -> None:
    """A process that neither wrote nor loaded the checkpoint that it holds can save after it."""
    held = store.checkpoints.save(checkpoint(), after=None)
    held = store.checkpoints.save(with_messages(held, turn("c1")), after=held)
    copy = Checkpoint.model_validate_json(held.model_dump_json())
    saved = backend.open(ttl=TTL).checkpoints.save(with_messages(copy, result("c1")), after=copy)
    assert store.checkpoints.load("s") == saved


def test_what_is_loaded_is_a_copy(store: Opened) -> None:
    """A value changed in place by its owner, before or after, changes nothing that is stored."""
    state: JsonValue = {"list": [1]}
    store.checkpoints.save(checkpoint("s", result("c", {"a": [1]}), business_state=state), after=None)
    state["list"].append(2)  # type: ignore[union-attr]
    for _ in range(2):
        loaded = store.checkpoints.load("s")
        assert loaded is not None
        assert loaded.business_state == {"list": [1]}
        assert loaded.messages[0].content == {"a": [1]}
        loaded.business_state["list"].append(3)  # type: ignore[index, union-attr]
        loaded.messages[0].content["a"].append(3)  # type: ignore[index, union-attr]


def test_parts_and_what_only_a_provider_reads_come_back_to_the_byte(store: Opened) -> None:
    """Images and files keep their bytes; a provider's own blocks keep their order, every field and every digit."""
    said = UserMessage(content=(TextPart(text="See: "), ImagePart.from_bytes(bytes(range(256)), "image/png")))
    shown = result("c1", {"pages": 2}).model_copy(update={"parts": (FilePart(url="https://x/é.pdf", name="é.pdf"),)})
    held = store.checkpoints.save(checkpoint("s", said), after=None)
    held = store.checkpoints.save(with_messages(held, NATIVE_TURN), after=held)
    held = store.checkpoints.save(held.but(results={"c1": shown}), after=held)
    held = store.checkpoints.save(with_messages(held, shown, results={}), after=held)
    held = store.checkpoints.save(held.but(queued=(said,)), after=held)
    loaded = store.checkpoints.load("s")
    assert loaded is not None
    assert loaded == held
    assert [m.model_dump_json() for m in loaded.messages] == [m.model_dump_json() for m in (said, NATIVE_TURN, shown)]


def test_kinds_of_json_are_kept_apart(store: Opened) -> None:
    """`""`, `0`, `False`, `[]` and `None` stay what they are, in results, messages and state."""
    held = store.checkpoints.save(checkpoint(), after=None)
    for number, value in enumerate(JSON_KINDS):
        held = store.checkpoints.save(held.but(results={f"c{number}": result(f"c{number}", value)}), after=held)
        moved = with_messages(held, result(f"c{number}", JSON_KINDS[number - 1]), results={}, business_state=value)
        held = store.checkpoints.save(moved, after=held)
        loaded = store.checkpoints.load("s")
        assert loaded is not None
        assert repr(loaded.business_state) == repr(value)
        assert repr(loaded.messages[-1].content) == repr(JSON_KINDS[number - 1])


@pytest.mark.parametrize("size", [600_000, 2_000_000])
def test_size_is_no_limit(backend: Subject, store: Opened, size: int) -> None:
    """A tool result of 600 KB and a transcript of 2 MB are saved, moved and loaded like small ones."""
    text = "".join(chr(0x61 + number * 7919 % 26) + str(number) for number in range(size // 6))[:size]
    held = store.checkpoints.save(checkpoint("s", turn("c1")), after=None)
    held = store.checkpoints.save(held.but(results={"c1": result("c1", text)}), after=held)
    held = store.checkpoints.save(with_messages(held, held.results["c1"], results={}), after=held)
    assert backend.open(ttl=TTL).checkpoints.load("s") == held
    held = store.checkpoints.save(held.but(messages=held.messages[1:]), after=held)
    assert backend.open(ttl=TTL).checkpoints.load("s") == held
    store.checkpoints.delete("s")
    assert store.checkpoints.load("s") is None


def test_awkward_ids_are_sessions_of_their_own(store: Opened) -> None:
    """Ids that look alike or contain separators are different sessions, also when one is deleted."""
    saved = {one: store.checkpoints.save(checkpoint(one, UserMessage(content=one)), after=None) for one in AWKWARD_IDS}
    store.checkpoints.delete("a")
    for identity in AWKWARD_IDS:
        assert store.checkpoints.load(identity) == (None if identity == "a" else saved[identity])


@pytest.mark.parametrize("identity", ["", "x" * 257, "a\n", "\x00", "\ud800"])
def test_bad_ids_are_refused(store: Opened, identity: str) -> None:
    """An id that no session can have is an error that says why, for every call."""
    for call in (store.checkpoints.load, store.checkpoints.delete):
        with pytest.raises(InvalidSessionIdError):
            call(identity)
    with pytest.raises(InvalidSessionIdError):
        store.checkpoints.save(checkpoint(identity), after=None)


def test_a_session_is_begun_once(store: Opened) -> None:
    """Saving a new session over one that is there is stale, and what is there stays."""
    there = store.checkpoints.save(checkpoint(), after=None)
    with pytest.raises(StaleCheckpointError):
        store.checkpoints.save(checkpoint("s", UserMessage(content="mine")), after=None)
    assert store.checkpoints.load("s") == there


def test_a_writer_that_was_overtaken_writes_nothing(backend: Subject, store: Opened) -> None:
    """Of two writers after the same checkpoint the second is always stale, and nothing of it is kept."""
    held = store.checkpoints.save(checkpoint(), after=None)
    winner = store.checkpoints.save(with_messages(held, UserMessage(content="first")), after=held)
    for other in (store, backend.open(ttl=TTL)):
        for late in (with_messages(held, UserMessage(content="second")), held.but(messages=(), status=Status.FINISHED)):
            with pytest.raises(StaleCheckpointError):
                other.checkpoints.save(late, after=held)
    assert store.checkpoints.load("s") == winner


@pytest.mark.parametrize("new", [True, False])
def test_of_many_savers_one_wins(backend: Subject, store: Opened, new: bool) -> None:
    """When several processes save after the same checkpoint at the same time, one wins and the others are stale."""
    after = None if new else store.checkpoints.save(checkpoint(), after=None)
    stores = [backend.open(ttl=TTL) for _ in range(6)]
    barrier = Barrier(6)

    def write(number: int) -> Checkpoint | None:
        mine = checkpoint("s", *(after or checkpoint()).messages, UserMessage(content=f"writer {number}"))
        barrier.wait()
        try:
            return stores[number].checkpoints.save(mine, after=after)
        except StaleCheckpointError:
            return None

    with ThreadPoolExecutor(6) as pool:
        won = [saved for saved in pool.map(write, range(6)) if saved is not None]
    assert len(won) == 1
    assert store.checkpoints.load("s") == won[0]


def test_two_writers_with_large_results(backend: Subject, store: Opened) -> None:
    """Two saves that are both larger than a record never mix."""
    held = store.checkpoints.save(checkpoint("s", turn("c1")), after=None)
    winner = store.checkpoints.save(held.but(results={"c1": result("c1", "win" * 300_000)}), after=held)
    with pytest.raises(StaleCheckpointError):
        store.checkpoints.save(held.but(results={"c1": result("c1", "lose" * 300_000)}), after=held)
    assert backend.open(ttl=TTL).checkpoints.load("s") == winner


def test_a_deleted_session_is_absent_and_can_begin_anew(store: Opened) -> None:
    """After `delete` there is no checkpoint; a new session under the id starts afresh."""
    store.checkpoints.delete("s")
    store.checkpoints.save(checkpoint(), after=None)
    for _ in range(2):
        store.checkpoints.delete("s")
        assert store.checkpoints.load("s") is None
    again = store.checkpoints.save(checkpoint("s", UserMessage(content="again")), after=None)
    assert store.checkpoints.load("s") == again


def test_a_session_that_came_and_went_is_not_overwritten(backend: Subject, store: Opened) -> None:
    """Who found nothing and saves when a session was made and deleted meanwhile is refused or goes on after it."""
    assert store.checkpoints.load("s") is None
    other = backend.open(ttl=TTL)
    last = other.checkpoints.save(checkpoint(), after=None)
    other.checkpoints.delete("s")
    with suppress(StaleCheckpointError):
        store.checkpoints.save(checkpoint(), after=None)
        assert other.checkpoints.load("s") is not None
        return
    assert other.checkpoints.load("s") is None
    assert store.checkpoints.load("s") is None
    again = store.checkpoints.save(checkpoint(), after=None)
    assert again.revision > last.revision
    assert other.checkpoints.load("s") == again


@pytest.mark.parametrize("behind", [0, 1, 4])
def test_a_delete_stops_the_writer_that_is_under_way(backend: Subject, store: Opened, behind: int) -> None:
    """A run that was under way when its session was deleted, and begun anew, cannot save, however far it is behind."""
    mine = held = store.checkpoints.save(checkpoint(), after=None)
    for number in range(behind):
        held = store.checkpoints.save(with_messages(held, turn(f"c{number}")), after=held)
    runner = backend.open(ttl=TTL)

    def assert_stopped() -> None:
        with pytest.raises(StaleCheckpointError):
            runner.checkpoints.save(with_messages(mine, result("c1")), after=mine)

    store.checkpoints.delete("s")
    assert_stopped()
    again = store.checkpoints.save(checkpoint("s", UserMessage(content="again")), after=None)
    assert_stopped()
    assert store.checkpoints.load("s") == again
    store.checkpoints.delete("s")
    assert_stopped()
    assert store.checkpoints.load("s") is None
