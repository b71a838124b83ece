"""What a store over a log refuses to keep or to read: it is told at once, by name, and changes nothing."""

import pytest
from pydantic import JsonValue

from durable.errors import ConfigurationError, RecordFormatError
from stores import LogStore
from stores.contract.backend import START, Backend
from stores.contract.samples import checkpoint, entry, result


def test_messages_are_shared_with_what_was_saved(store: LogStore) -> None:
    """The checkpoint that a save gives back has the message objects of the one given."""
    given = checkpoint()
    saved = store.checkpoints.save(given, after=None)
    assert saved.messages is given.messages


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("business_state", float("nan")),
        ("business_state", {"deep": [{"er": float("inf")}]}),
        ("business_state", {1: "a"}),
        ("business_state", {"when": START}),
        ("business_state", "\ud800"),
        ("run_config", {"b": b"bytes"}),
        ("fingerprint", {"s": {1, 2}}),
        ("suspended", {"c": object()}),
        ("usage", 3),
        ("messages", (1,)),
        ("results", {"c": "text"}),
        ("decisions", {"c": {}}),
        ("instructions", b"x"),
    ],
)
def test_what_is_not_json_is_refused_before_anything_is_written(store: LogStore, field: str, value: object) -> None:
    """A value that is not JSON is an error that names the field, not the value, and the session stays as it was."""
    with pytest.raises(RecordFormatError) as refused:
        store.checkpoints.save(checkpoint("new").but(**{field: value}), after=None)
    held = store.checkpoints.save(checkpoint(), after=None)
    with pytest.raises(RecordFormatError):
        store.checkpoints.save(held.but(**{field: value}), after=held)
    assert value == "\ud800" or field in str(refused.value)
    assert store.checkpoints.load("new") is None
    assert store.checkpoints.load("s") == held


def test_what_is_too_deep_to_be_read_back_is_refused(store: LogStore) -> None:
    """A value nested deeper than a reader can follow is refused when it is saved, and the deepest allowed one loads."""
    deep: JsonValue = None
    for _ in range(149):
        deep = [deep]
    held = store.checkpoints.save(checkpoint("s", result("c", deep), business_state=deep), after=None)
    assert store.checkpoints.load("s") == held
    with pytest.raises(RecordFormatError, match="nested"):
        store.checkpoints.save(held.but(business_state=[[deep]]), after=held)


def test_after_must_be_a_saved_checkpoint_of_the_session(store: LogStore) -> None:
    """Saving after what was never saved, or after another session's checkpoint, is a mistake in the program."""
    other = store.checkpoints.save(checkpoint("other"), after=None)
    for after in (checkpoint(), other):
        with pytest.raises(ConfigurationError):
            store.checkpoints.save(checkpoint(), after=after)


@pytest.mark.parametrize("body", [b'{"v":2}', b'{"v":99,"checkpoint":{}}', b"{}", b"[]", b"", b'{"v":1}', b"\xff"])
def test_a_newer_format_and_damage_are_refused(backend: Backend, store: LogStore, body: bytes) -> None:
    """An entry of a newer format, or one that is damaged, is an error: it is neither skipped nor guessed at."""
    store.checkpoints.save(checkpoint(), after=None)
    backend.log.append("session/s", entry(1, body, kind="reset"))
    for call in (store.checkpoints.load, store.checkpoints.history):
        with pytest.raises(RecordFormatError):
            call("s")
