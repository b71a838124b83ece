"""A run with sub-agents is one checkpoint: the state of an agent at work is a part of that of the agent above it.

`Checkpoint.suspended` holds it under the id of the call which runs the agent, from the first thing that the agent does
until the call has its result. `within` names such calls, from the outermost one inwards: () is the run's own agent.
Pure.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from durable.messages import ToolCall, UserMessage
from durable.ports import HistoryEntry
from durable.records import Checkpoint, Decision
from durable.transcript import pending_calls

KnownAgents: TypeAlias = Mapping[str, Checkpoint | None]
"""What is known of sub-agents, by the id of the call that ran them; None: saved before the first thing one had done."""


def new_child(above: Checkpoint, *, agent: str, task: str, now: datetime) -> Checkpoint:
    """What an agent begins with. The session and the run are those of the whole run, and its context is inherited."""
    context = (above.run_config or {}).get("context")
    return Checkpoint(
        session_id=None,
        run_id="",
        agent=agent,
        queued=(UserMessage(content=task),),
        run_config=None if context is None else {"context": context},
        began_at=now,
        created_at=now,
        updated_at=now,
    )


def with_child(above: Checkpoint, call_id: str, child: Checkpoint) -> Checkpoint:
    """The checkpoint with this state of the agent that works for the call. What it used is used by those above, too.

    Once a model has answered it again, what had stopped the run is over.
    """
    before = above.suspended.get(call_id)
    used = child.usage if before is None else child.usage - before.usage
    return above.but(
        suspended={**above.suspended, call_id: child},
        usage=above.usage + used,
        last_error=None if used.model_calls else above.last_error,
    )


def inside(checkpoint: Checkpoint, within: Sequence[str], change: Callable[[Checkpoint], Checkpoint]) -> Checkpoint:
    """The checkpoint with the state of one agent changed."""
    if not within:
        return change(checkpoint)
    child = inside(checkpoint.suspended[within[0]], within[1:], change)
    return checkpoint.but(suspended={**checkpoint.suspended, within[0]: child})


def every_decision(checkpoint: Checkpoint) -> Iterator[Decision]:
    """What was decided about calls that have no result yet, at any depth."""
    yield from checkpoint.decisions.values()
    for child in checkpoint.suspended.values():
        yield from every_decision(child)


def undecided(checkpoint: Checkpoint) -> Checkpoint:
    """The state of an agent and of those below it, without what was decided: it is asked anew."""
    return checkpoint.but(decisions={}, suspended={id: undecided(child) for id, child in checkpoint.suspended.items()})


@dataclass(frozen=True, slots=True)
class AgentAtWork:
    """An agent that works for a call: the names from the run's own agent to it, and its state."""

    path: tuple[str, ...]
    checkpoint: Checkpoint

    @property
    def open_calls(self) -> tuple[ToolCall, ...]:
        """Its calls that have no result yet, those that other agents work for among them."""
        return pending_calls(self.checkpoint)


def agents_at_work(checkpoint: Checkpoint, *, above: tuple[str, ...] = ()) -> Iterator[AgentAtWork]:
    """The sub-agents at work in a run, each one before those that work for it."""
    path = (*above, checkpoint.agent)
    for child in checkpoint.suspended.values():
        yield AgentAtWork((*path, child.agent), child)
        yield from agents_at_work(child, above=path)


def subagents_of(history: Iterable[HistoryEntry]) -> KnownAgents:
    """What these saves, newest first, tell of the sub-agents of their run, at any depth: the newest state of each.

    Its state goes when a call has its result, so it is the history that knows what an agent has done; `compare` shows
    it. The turn that an agent ended with is in no save of its own: what it said is the result of its call.
    """
    known: dict[str, Checkpoint | None] = {}
    for entry in history:
        for id, child in _seen(entry.checkpoint):
            known.setdefault(id, child)
    return known


def _seen(checkpoint: Checkpoint) -> Iterator[tuple[str, Checkpoint | None]]:
    for id, child in checkpoint.suspended.items():
        yield id, child
        yield from _seen(child)
    for call in pending_calls(checkpoint):
        if call.id not in checkpoint.suspended:
            yield call.id, None
