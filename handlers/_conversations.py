"""Cutting a session back, and deleting it."""

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from durable import conversation
from durable.errors import SessionNotFoundError, StaleCheckpointError
from durable.records import Checkpoint
from handlers._aborting import abort_run, is_under_way
from handlers._running import moved_meanwhile, not_due, stream_of, take_lease
from handlers._waiting import BusyPolicy, when_free
from handlers._wiring import App


class TruncateRequest(BaseModel):
    """The body: how many of the first messages stay."""

    model_config = ConfigDict(extra="forbid")

    message_count: Annotated[int, Field(ge=0)]
    on_busy: BusyPolicy = "reject"


def truncate_session(app: App, session_id: str, request: TruncateRequest, *, owner: str, until: datetime) -> Checkpoint:
    """Cut the session back to its first messages, under its lease; give it as it stands then.

    Raises `SessionBusyError` while somebody runs it, and what `conversation.check_cut` raises.
    """

    def cut() -> Checkpoint:
        return _cut(app, session_id, request.message_count, owner=owner, until=until)

    return when_free(app, cut, on_busy=request.on_busy, until=until)


def _cut(app: App, session_id: str, count: int, *, owner: str, until: datetime) -> Checkpoint:
    lease = take_lease(app, session_id, owner=owner, until=until)
    try:
        stored = app.store.checkpoints.load(session_id)
        if stored is None:
            raise SessionNotFoundError(session_id)
        cut = conversation.truncated(stored, count)
        if len(cut.messages) == len(stored.messages):
            return stored
        return app.store.checkpoints.save(cut, after=stored)
    except StaleCheckpointError:
        raise moved_meanwhile(app, session_id) from None
    finally:
        app.store.leases.release(lease)


def delete_session(app: App, session_id: str, *, by: str | None, owner: str, until: datetime) -> None:
    """Delete the session; one that is not there stays so.

    What it waits for is cancelled before and its run is told to stop, as by an abort. Whoever still runs it cannot
    save any more: the end of the session stands where its next save would.
    """
    stored = app.store.checkpoints.load(session_id)
    if stored is not None and is_under_way(stored):
        stored = abort_run(app, session_id, by=by, owner=owner, until=until)
    app.store.checkpoints.delete(session_id)
    head = app.store.log.head(stream_of(session_id))
    if stored is not None and head is not None and head.due_run is not None:
        not_due(app, session_id, head.due_run)
