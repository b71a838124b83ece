"""Every tool call gets exactly one result, in call order, after any sequence of crashes, aborts, pauses and resumes.

(An aborted call gets a `not-run` or an `unknown-outcome` result; a rejected call gets a rejection result.)
"""

from itertools import product
from typing import Any

import pytest

from durable import Status
from durable.transcript import call_ids, first_fault
from tests.support.runs import Clock, Crash, fresh_agent, memory_store, run
from tests.support.sessions import dying, go_on, ids, look, pay, results, signal_after, stored, to_the_end

ANSWERS = [
    [("look", {"what": "a"}), ("pay", {}), ("nonsense", {}), ("look", {"what": "b"})],
    [("pay", {}), ("look", {"what": "c"})],
    "done",
]


def agent(store: Any) -> Any:
    return fresh_agent(ANSWERS, [look, pay], store, tool_concurrency=1, abort_grace=0.01)


def interrupt(how: str, store: Any) -> None:
    """Let one more process have a go, which comes to an end in this way."""
    match how:
        case "crash":
            try:
                go_on(agent(dying(store, 1)))
            except Crash:
                return
        case "abort":
            go_on(agent(store), **signal_after(4))
        case "reject":
            go_on(agent(store), approved=False)
        case _:
            go_on(agent(store))


@pytest.mark.parametrize("sequence", [*product(["crash", "abort", "reject", "go on"], repeat=3)], ids=" - ".join)
def test_after_any_sequence(sequence: tuple[str, ...]) -> None:
    """Three interruptions of any kind, one after the other, and then the end: one result for each call, in order."""
    store = memory_store(clock=Clock())
    for how in sequence:
        interrupt(how, store)
    result = to_the_end(agent(store))
    assert first_fault(result.messages) is None
    assert set(ids(result.messages)) == call_ids(result.messages)
    assert len(ids(result.messages)) == len(set(ids(result.messages))) == 6
    assert stored(store).status is Status.FINISHED


def test_what_the_result_of_each_call_is() -> None:
    """A call that ran has its result, a rejected one the rejection, and one that never started says so."""
    store = memory_store(clock=Clock())
    go_on(agent(store))
    go_on(agent(store), approved=False)
    run(agent(store).approvals.resolve(stored(store).approval_id, approved=True, **signal_after(1)))
    result = to_the_end(agent(store))
    assert results(result.messages) == ["A", "rejected", "not-found", "B", "not-run", "not-run"]
