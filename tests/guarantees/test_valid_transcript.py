"""The provider always receives a valid transcript.

Tool results directly follow their tool-call turn, and new user input comes after them.
"""

from itertools import product
from typing import Any

import pytest

from durable import AssistantMessage
from durable.transcript import first_fault
from tests.support.runs import Clock, Crash, fresh_agent, memory_store, run
from tests.support.sessions import dying, go_on, look, pay, signal_after, stored, texts, to_the_end

ANSWERS = [[("look", {}), ("pay", {}), ("look", {})], ("pay", {}), "done"]


def agent(store: Any) -> Any:
    return fresh_agent(ANSWERS, [look, pay], store, tool_concurrency=1, abort_grace=0.01)


@pytest.mark.parametrize("sequence", [*product(["crash", "abort", "say", "go on"], repeat=3)], ids=" - ".join)
def test_in_every_request(sequence: tuple[str, ...]) -> None:
    """Whatever interrupts the run and whatever is said meanwhile, each request is in order and ends with a question."""
    store = memory_store(clock=Clock())
    seen: list[Any] = []
    for number, how in enumerate(sequence):
        made = agent(dying(store, 1) if how == "crash" else store)
        try:
            go_on(made, input=f"{number}" if how == "say" else "go", **(signal_after(4) if how == "abort" else {}))
        except Crash:
            pass
        seen += made.provider.requests
    last = agent(store)
    to_the_end(last)
    seen += last.provider.requests  # type: ignore[union-attr]
    for request in seen:
        assert first_fault(request.messages) is None
        assert not isinstance(request.messages[-1], AssistantMessage)
    assert first_fault(stored(store).messages) is None


def test_new_input_comes_after_the_results() -> None:
    """What is said while calls are pending is never placed between a turn and its results."""
    store = memory_store(clock=Clock())
    answers = [[("look", {"what": "a"}), ("look", {"what": "b"})], "done"]
    with pytest.raises(Crash):
        run(fresh_agent(answers, [look], dying(store, 1), tool_concurrency=1).send("go", session_id="s"))
    made = fresh_agent(answers, [look], store)
    run(made.send("and?", session_id="s"))
    assert texts(made.provider.requests[0].messages) == ["go", "", "A", "B", "and?"]  # type: ignore[union-attr]
