"""A run that rejects (a provider error, a raising hook, a `PropagatingToolError`, a process crash) keeps its last
`in-progress` checkpoint.
"""

from typing import Any

import pytest

from durable import Hooks, PropagatingToolError, ProviderUnavailableError, Status, ToolContext, tool
from tests.support.runs import Clock, Crash, fresh_agent, memory_store, run
from tests.support.sessions import dying, ids, look, results, stored


class Unwell(Exception):
    pass


class Run:
    """A run of three steps that is rejected in its second or third, in one of the four ways."""

    def __init__(self, way: str) -> None:
        self.way = way
        self.store: Any = memory_store(clock=Clock())
        self.well = False
        self.ran: list[str] = []

    def agent(self) -> Any:
        @tool
        def second(ctx: ToolContext) -> str:
            self.ran.append("second")
            if self.way == "a propagating tool error" and not self.well:
                raise PropagatingToolError("locked")
            return "second"

        down = ProviderUnavailableError("scripted", "down")
        answers = [("look", {}), ("second", {}), down if self.way == "a provider error" and not self.well else "done"]
        hooks = Hooks(before_tool=self.hook) if self.way == "a raising hook" else Hooks()
        store = dying(self.store, 3) if self.way == "a crash" and not self.well else self.store
        return fresh_agent(answers, [look, second], store, hooks=hooks)

    def hook(self, call: Any, arguments: Any, context: Any) -> None:
        if call.name == "second" and not self.well:
            raise Unwell


WAYS: dict[str, type[BaseException]] = {
    "a provider error": ProviderUnavailableError,
    "a raising hook": Unwell,
    "a propagating tool error": PropagatingToolError,
    "a crash": Crash,
}


@pytest.mark.parametrize("way", WAYS)
def test_it_is_rejected_and_goes_on_later(way: str) -> None:
    """The error reaches the caller, what was saved stays in progress, and the next process comes to the end."""
    rejected = Run(way)
    with pytest.raises(WAYS[way]):
        run(rejected.agent().send("go", session_id="s"))
    kept = stored(rejected.store)
    assert kept.status is Status.IN_PROGRESS
    assert ids(kept.messages)[:1] == ["call_0_0"]
    rejected.well = True
    result = run(rejected.agent().send([], session_id="s"))
    assert (result.text, results(result.messages)) == ("done", ["IT", "second"])
    assert rejected.ran.count("second") == (2 if way == "a propagating tool error" else 1)


@pytest.mark.parametrize("at", range(5))
def test_a_crash_keeps_the_last_save(at: int) -> None:
    """Whatever the process was doing when it died, the newest save is what is found."""
    store = memory_store(clock=Clock())
    answers = [("look", {}), ("look", {}), "done"]
    with pytest.raises(Crash):
        run(fresh_agent(answers, [look], dying(store, at)).send("go", session_id="s"))
    assert stored(store).revision == at
    assert stored(store).status is (Status.FINISHED if at == 4 else Status.IN_PROGRESS)
