"""From one checkpoint to the next: pure, each named after what happened. `transcript.settle` is the one for results."""

from collections.abc import Sequence
from datetime import datetime

from durable.approval_stream import Requested
from durable.escalation import Escalation
from durable.gate import Ask
from durable.messages import AssistantMessage, ToolCall, ToolMessage, UserMessage
from durable.nesting import inside
from durable.questions import Question
from durable.records import Checkpoint, FinishReason, Status, Usage
from durable.results import approval_digest, error_result
from durable.transcript import answered_part, pending_calls, settle


def asked(checkpoint: Checkpoint) -> Checkpoint:
    """What the model is asked about: the input that was held back is part of it now."""
    if not checkpoint.queued:
        return checkpoint
    return checkpoint.but(messages=(*checkpoint.messages, *checkpoint.queued), queued=())


def answered(checkpoint: Checkpoint, message: AssistantMessage, usage: Usage) -> Checkpoint:
    """The model has answered: one step more."""
    return checkpoint.but(
        messages=(*checkpoint.messages, message),
        step=checkpoint.step + 1,
        usage=checkpoint.usage + usage,
        finish_reason=None,
        last_error=None,
    )


def told_to_correct(checkpoint: Checkpoint, fault: str) -> Checkpoint:
    """The final answer does not validate: the model is told so, once."""
    text = f"Your answer does not have the required form: {fault}. Answer again, with nothing but the JSON."
    return checkpoint.but(
        messages=(*checkpoint.messages, UserMessage(content=text)), output_retries=checkpoint.output_retries + 1
    )


def begun(checkpoint: Checkpoint, call_ids: Sequence[str]) -> Checkpoint:
    """These calls must not silently run twice, and are about to start."""
    return checkpoint.but(started=(*checkpoint.started, *call_ids))


def paused(checkpoint: Checkpoint, approval_id: str, ask: Ask) -> Checkpoint:
    """The run waits for a human to decide about the call. An earlier decision about it is used up."""

    def unused(asking: Checkpoint) -> Checkpoint:
        return asking.but(decisions={key: made for key, made in asking.decisions.items() if key != ask.call.id})

    return inside(checkpoint, ask.within, unused).but(
        status=Status.AWAITING_APPROVAL,
        finish_reason=FinishReason.AWAITING_APPROVAL,
        approval_id=approval_id,
        pauses=checkpoint.pauses + 1,
    )


def aborted(checkpoint: Checkpoint) -> Checkpoint:
    """The run was told to stop: each call that has no result is closed, and a new message may follow.

    A run that waited for a human does not any more.
    """
    closed = _closed(checkpoint, "The run was aborted before the call started.")
    return closed.but(status=Status.IN_PROGRESS, finish_reason=FinishReason.ABORTED, approval_id=None)


def halted(checkpoint: Checkpoint) -> Checkpoint:
    """Nobody decided in time about a call that ends its run then: it does not run, nor does what stands behind it."""
    closed = _closed(checkpoint, "Nobody approved the call in time, which ends the run.")
    over = finished(closed.but(approval_id=None), FinishReason.GUARDRAIL)
    return over.but(decisions=closed.decisions)  # whoever looks next says on the record that it was applied


def _closed(checkpoint: Checkpoint, reason: str) -> Checkpoint:
    def result(call: ToolCall) -> ToolMessage:
        if call.id in checkpoint.started:
            return error_result(
                call, "unknown-outcome", "The run was interrupted while the call ran, and then stopped."
            )
        if (child := checkpoint.suspended.get(call.id)) is not None and child.step:
            text = f"The run was stopped while agent {child.agent!r} was at work; what it had done stands."
            return error_result(call, "unknown-outcome", text)
        return error_result(call, "not-run", reason)

    results = [result(call) for call in pending_calls(checkpoint)]
    return settle(checkpoint, results) if results else checkpoint


def finished(checkpoint: Checkpoint, reason: FinishReason) -> Checkpoint:
    """The run is over. Input that came when no step was left stays, and the next turn answers it."""
    answer = max(len(answered_part(checkpoint.messages)) - 1, 0)
    outcome = {"finish_reason": reason, "usage": checkpoint.usage, "answer": answer}
    checkpoint = asked(checkpoint)
    return checkpoint.but(
        status=Status.FINISHED,
        finish_reason=reason,
        turns=checkpoint.turns + 1,
        committed=len(checkpoint.messages),
        decisions={},
        requests={
            key: accepted.but(**outcome) if accepted.run_id == checkpoint.run_id else accepted
            for key, accepted in checkpoint.requests.items()
        },
    )


def request_for(checkpoint: Checkpoint, ask: Ask, *, now: datetime) -> Requested:
    """The approval that a pause asks for."""
    timeout, policy = ask.tool.approval_timeout, ask.tool.on_timeout
    question = ask.tool if isinstance(ask.tool, Question) else None
    return Requested(
        kind="approval" if question is None else "question",
        at=now,
        session_id=checkpoint.session_id,
        run_id=checkpoint.run_id,
        agent=checkpoint.agent,
        path=(checkpoint.agent, *ask.path) if ask.path else (),
        within=ask.within,
        call_id=ask.call.id,
        tool_name=ask.tool.name,
        arguments=ask.arguments,
        edited=ask.edited,
        digest=approval_digest(ask.tool.name, ask.arguments),
        requested_by=checkpoint.requested_by,
        approvals=ask.terms.approvals,
        approvers=tuple(ask.terms.approvers),
        deadline=now + timeout if timeout else None,
        on_timeout=policy.then if isinstance(policy, Escalation) else policy,
        levels=policy.levels if isinstance(policy, Escalation) else (),
        default=question.default if question is not None else None,
        remind_every=ask.tool.remind_every.total_seconds() if ask.tool.remind_every else None,
    )
