"""A deployment that does not list its finished sessions: they are as they are elsewhere, and cost less."""

from datetime import timedelta
from typing import Any

import pytest

from durable.messages import AssistantMessage, UserMessage
from durable.records import Status
from stores._bundle import LogStore
from stores._dynamodb_table import FINISHED, LISTING_INDEX
from stores.contract import TTL, Backend
from stores.contract.samples import checkpoint, with_messages
from stores.dynamodb import dynamodb_store
from tests.contracts.backends import TABLE_NAME


@pytest.fixture
def store(client: Any, backend: Backend) -> LogStore:
    return opened(client, backend, list_finished=False)


def opened(client: Any, backend: Backend, *, list_finished: bool) -> LogStore:
    return dynamodb_store(
        table=TABLE_NAME,
        client=client,
        prefix=backend.prefix,
        ttl=TTL,
        list_finished=list_finished,
        clock=backend.clock,
    )


def finish(store: LogStore, session_id: str) -> None:
    """One turn as a deployment makes it: announced, accepted, answered, settled."""
    now, before = store.clock(), store.checkpoints.load(session_id)
    store.log.announce(f"session/{session_id}", run_id="r", due_at=now + timedelta(seconds=90))
    held = before or checkpoint(session_id)
    asked = with_messages(held, UserMessage(content="And now?"), status=Status.IN_PROGRESS)
    held = store.checkpoints.save(asked, after=before)
    answered = with_messages(held, AssistantMessage(content="Done."), status=Status.FINISHED)
    store.checkpoints.save(answered, after=held)
    head = store.log.head(f"session/{session_id}")
    assert head is not None
    store.log.settle(head)


def indexed(client: Any, backend: Backend) -> set[str]:
    """The sessions that the index itself holds."""
    items = client.scan(TableName=TABLE_NAME, IndexName=LISTING_INDEX)["Items"]
    ours = [item["pk"]["S"] for item in items if item["pk"]["S"].startswith(backend.prefix)]
    return {pk.rpartition("/")[2] for pk in ours}


def test_a_finished_session_is_not_in_the_index(client: Any, backend: Backend, store: LogStore) -> None:
    """What is finished is not listed and takes no place in the index; it is loaded and goes on as ever."""
    finish(store, "over")
    store.checkpoints.save(checkpoint("open"), after=None)
    assert indexed(client, backend) == {"open"}
    assert [head.id for head in store.log.heads("session").items] == ["open"]
    head, loaded = store.log.head("session/over"), store.checkpoints.load("over")
    assert head is not None
    assert loaded is not None
    assert (head.status, loaded.status) == (FINISHED, FINISHED)
    finish(store, "over")
    assert len((store.checkpoints.load("over") or loaded).messages) == len(loaded.messages) + 2


def test_a_finished_session_is_found_by_recovery_when_it_is_accepted_anew(backend: Backend, store: LogStore) -> None:
    """The due mark of the next turn brings it back into the index: nothing that was accepted is forgotten."""
    finish(store, "s")
    now = backend.clock()
    assert store.log.heads("session", due_before=now + timedelta(hours=1)).items == []
    store.log.announce("session/s", run_id="next", due_at=now)
    (due,) = store.log.heads("session", due_before=now + timedelta(hours=1)).items
    assert (due.id, due.due_run) == ("s", "next")


def test_what_was_listed_before_the_switch_is_due_all_the_same(client: Any, backend: Backend, store: LogStore) -> None:
    """A session that finished while it was listed is hidden at once, and recovery still sees its next turn."""
    finish(opened(client, backend, list_finished=True), "s")
    assert store.log.heads("session").items == []
    store.log.announce("session/s", run_id="next", due_at=backend.clock())
    assert [head.id for head in store.log.heads("session", due_before=backend.clock() + TTL).items] == ["s"]


@pytest.mark.parametrize("server", [pytest.param("dynamodb-local", marks=pytest.mark.dynamodb_local)], indirect=True)
def test_turns_write_less_to_the_index(client: Any, backend: Backend, store: LogStore) -> None:
    """Ten turns of a session that is not listed take fewer write units, and no request more."""
    listing = opened(client, backend, list_finished=True)
    for _ in range(10):
        finish(listing, "listed")
        finish(store, "unlisted")
    listed, unlisted = listing.consumed(), store.consumed()
    print(f"\n10 turns, listed: {listed.write_units} write units; not listed: {unlisted.write_units}")
    assert unlisted.requests == listed.requests
    assert unlisted.write_units <= listed.write_units - 10
