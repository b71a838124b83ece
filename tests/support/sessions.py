"""Sessions as tests look at them: simple tools, what is stored, and processes that come to an end."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from durable import AbortSignal, Checkpoint, Event, FinishReason, Message, RunResult, Status, ToolMessage, tool
from tests.support.runs import Crash, CrashingCheckpoints, Stores, run


@tool
def look(what: str = "it") -> str:
    return what.upper()


@tool(needs_approval=True)
def pay(amount: int = 5) -> dict[str, int]:
    return {"paid": amount}


def recorder(ran: list[str], **options: Any) -> Any:
    """A tool `work` that says that it ran, and gives its argument back."""

    @tool(**options)
    def work(name: str = "it") -> str:
        ran.append(name)
        return name

    return work


def stored(store: Any, session_id: str = "s") -> Checkpoint:
    checkpoint = store.checkpoints.load(session_id)
    assert checkpoint is not None
    return checkpoint


def texts(messages: Sequence[Message]) -> list[Any]:
    return [message.content for message in messages]


def results(messages: Sequence[Message]) -> list[Any]:
    """What each call gave, in the order of the transcript: an error by its kind."""
    found = [message for message in messages if isinstance(message, ToolMessage)]
    return [message.content["kind"] if message.is_error else message.content for message in found]  # type: ignore[index,call-overload]


def ids(messages: Sequence[Message]) -> list[str]:
    """The ids of the calls that have a result, in the order of the transcript."""
    return [message.tool_call_id for message in messages if isinstance(message, ToolMessage)]


def dying(store: Any, at: int, *, after: bool = True) -> Stores:
    """The store as a process sees it that dies at its save number `at` (from 0)."""
    return Stores(CrashingCheckpoints(store.checkpoints, at=at, after=after), store.approvals)


def crashes(work: Any) -> None:
    """Run it in a process that dies."""
    with pytest.raises(Crash):
        run(work)


def kinds(seen: Sequence[Event]) -> list[str]:
    return [event.type for event in seen]


def asked(agent: Any) -> int:
    """How often this process has asked the model."""
    return len(agent.provider.requests)


class FailingCheckpoints(CrashingCheckpoints):
    """A checkpoint store that raises `error` at its saves number `at` (from 0), before or after they are applied."""

    def __init__(self, inner: Any, error: Callable[[], Exception], at: Sequence[int], *, after: bool = False) -> None:
        super().__init__(inner)
        self._error = error
        self._failing = at
        self._applied = after

    def save(self, checkpoint: Checkpoint, *, after: Checkpoint | None) -> Checkpoint:
        fails = self.saves in self._failing
        if fails and not self._applied:
            self.saves += 1
            raise self._error()
        saved = super().save(checkpoint, after=after)
        if fails:
            raise self._error()
        return saved


def go_on(agent: Any, *, input: Any = "go", approved: bool = True, **watch: Any) -> RunResult:
    """What a client does next: decide what waits, ask for what is recorded, or send the same again."""
    there = agent.store.checkpoints.load("s")
    if there is not None and there.status is Status.AWAITING_APPROVAL:
        return run(agent.approvals.resolve(there.approval_id, approved=approved, by="ada", **watch))
    if there is not None and there.status is Status.FINISHED:
        return run(agent.send([], session_id="s", **watch))
    return run(agent.send(input, session_id="s", **watch))


def to_the_end(agent: Any, **options: Any) -> RunResult:
    """Go on until the run is over."""
    result = go_on(agent, **options)
    while result.finish_reason is FinishReason.AWAITING_APPROVAL:
        result = go_on(agent, **options)
    return result


def signal_after(count: int) -> dict[str, Any]:
    """What a run is given that is aborted at its event number `count` (from 1)."""
    signal = AbortSignal()

    def listener(event: Event) -> None:
        if event.seq == count:
            signal.abort()

    return {"signal": signal, "listener": listener}
