"""Stopping a run from another process than the one that runs it."""

from datetime import datetime

from durable.errors import SessionBusyError, SessionNotFoundError, StaleCheckpointError
from durable.records import Checkpoint, FinishReason, Status
from durable.transitions import aborted
from handlers._running import not_due, stream_of, take_lease
from handlers._wiring import App


def abort_run(app: App, session_id: str, *, owner: str, until: datetime) -> Checkpoint:
    """Stop the session's unfinished run, or see to it that its runner does; the checkpoint as it stands.

    1. it is over, or was stopped already -> nothing
    2. somebody runs it -> the flag on the lease: the runner sees it before its next model call and before tools start
    3. nobody does -> the abort is saved here, under the lease

    The flag comes first: whoever takes the run up between our look and our lease finds it.
    """
    stored = _stored(app, session_id)
    if not is_under_way(stored):
        return stored
    stream, run_id = stream_of(session_id), stored.run_id
    app.store.leases.request_abort(stream, run_id)
    try:
        lease = take_lease(app, session_id, owner=owner, until=until)
    except SessionBusyError:
        return stored
    try:
        stored = _stored(app, session_id)
        if stored.run_id == run_id and is_under_way(stored):
            stored = app.store.checkpoints.save(aborted(stored), after=stored)
            not_due(app, session_id, run_id)
        return stored
    except StaleCheckpointError:
        return stored  # somebody who outlived their lease still runs it, and finds the flag
    finally:
        app.store.leases.release(lease)


def _stored(app: App, session_id: str) -> Checkpoint:
    stored = app.store.checkpoints.load(session_id)
    if stored is None:
        raise SessionNotFoundError(session_id)
    return stored


def is_under_way(checkpoint: Checkpoint) -> bool:
    """Whether something may still move the run by itself."""
    return checkpoint.status is not Status.FINISHED and checkpoint.finish_reason is not FinishReason.ABORTED
