"""From an input to the checkpoint that a run goes on from."""

from collections.abc import Sequence
from dataclasses import replace

from pydantic import JsonValue

from durable.capacity import NOTHING
from durable.definition import AgentDefinition
from durable.errors import ConfigurationError, RequestConflictError, ResultExpiredError
from durable.messages import AssistantMessage, Message, UserMessage
from durable.outcome import RunResult, result_of
from durable.plan import Recorded, Refuse, Resume, Start, admit
from durable.records import MAX_ACCEPTED, AcceptedRequest, Checkpoint, FinishReason, Status, Usage
from durable.tools import UnserializableResult, to_json_value

Input = str | Sequence[Message]


def as_messages(input: Input) -> tuple[Message, ...]:
    return (UserMessage(content=input),) if isinstance(input, str) else tuple(input)


def redelivered(stored: Checkpoint | None, key: str, digest: str) -> AcceptedRequest | None:
    """The record of a request that this session has accepted before, or None.

    `digest` is that of the request's body: raises `RequestConflictError` when the same key came with another one.
    """
    accepted = stored.requests.get(key) if stored is not None else None
    if accepted is not None and accepted.digest != digest:
        assert stored is not None
        raise RequestConflictError(stored.session_id or "")
    return accepted


def recorded_answer(stored: Checkpoint, accepted: AcceptedRequest) -> str:
    """The answer that a finished request was given, or `ResultExpiredError` when its message is gone."""
    index = accepted.answer
    if index is None or index >= len(stored.messages):
        raise ResultExpiredError(stored.session_id or "", accepted.run_id)
    answer = stored.messages[index]
    return answer.content if isinstance(answer, AssistantMessage) else ""


def recorded_result(stored: Checkpoint, accepted: AcceptedRequest) -> RunResult:
    """The outcome of a request that was carried out before, from its record; `ResultExpiredError` where that is gone.

    `messages` and `checkpoint` are those of the session as it is now.
    """
    return replace(
        result_of(stored.but(step=0)),
        run_id=accepted.run_id,
        text=recorded_answer(stored, accepted),
        finish_reason=accepted.finish_reason or FinishReason.STOP,
        usage=accepted.usage or Usage(),
        consumed=NOTHING,
        checkpoint=stored,
    )


def admitted(
    agent: AgentDefinition,
    stored: Checkpoint | None,
    incoming: Sequence[Message],
    *,
    session_id: str | None,
    requested_by: str | None = None,
    request: tuple[str, str] | None = None,
    context: JsonValue = None,
) -> Checkpoint:
    """Give the checkpoint from which the run goes on with this input; the input waits in `queued`.

    `request` is the key and the body's digest of a request that a deployment accepts, `context` what a dynamic agent is
    made for; a run that is resumed keeps its own. The stored checkpoint itself comes back when nothing is new. Raises
    what `plan.admit` refuses with.
    """
    now = agent.clock()
    match admit(stored, incoming, session_id=session_id):
        case Refuse(error):
            raise error
        case Recorded():
            assert stored is not None
            return stored
        case Resume(added):
            assert stored is not None
            if not added and request is None:
                return stored
            checkpoint = stored.but(queued=(*stored.queued, *added), finish_reason=None)
        case Start() as start:
            new = Checkpoint(session_id=session_id, agent=agent.name, run_id="", created_at=now, updated_at=now)
            checkpoint = _new_run(agent, stored or new, start, requested_by=requested_by, context=context)
    if request is not None:
        key, digest = request
        accepted = {**checkpoint.requests, key: AcceptedRequest(digest=digest, run_id=checkpoint.run_id)}
        checkpoint = checkpoint.but(requests=dict(list(accepted.items())[-MAX_ACCEPTED:]))
    return checkpoint


def _new_run(
    agent: AgentDefinition, base: Checkpoint, start: Start, *, requested_by: str | None, context: JsonValue
) -> Checkpoint:
    """The next run of a session, of which nothing is left but its finished turns and its accepted requests."""
    return base.but(
        agent=agent.name,
        run_id=agent.ids(),
        began_at=agent.clock(),
        status=Status.IN_PROGRESS,
        finish_reason=None,
        step=0,
        messages=(*base.messages[: start.keep], *start.history),
        committed=start.keep,
        was_cut=base.was_cut or start.keep < len(base.messages),
        results={},
        started=(),
        decisions={},
        queued=start.input,
        usage=Usage(),
        instructions=None,  # the run's first act is to take the agent as it is then
        fingerprint=None,
        run_config=None if context is None else {"context": _kept(context)},
        worked_seconds=0.0,
        output_retries=0,
        consumed=None,
        requested_by=requested_by,
        pauses=0,
        last_error=None,
    )


def _kept(context: JsonValue) -> JsonValue:
    """The context as a resume will read it, so that the run begins with the same."""
    try:
        return to_json_value(context)
    except UnserializableResult as error:
        raise ConfigurationError(f"The context of a run is kept with it: {error}.") from None
