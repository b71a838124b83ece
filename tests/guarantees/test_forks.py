"""What forks guarantee, for generated runs. A run is a plan: turns of calls that succeed, fail or wait for a human.

1. Forked at any listed step without a patch and resumed with the same model, a run takes the same trajectory.
2. With another result for one of a step's calls, it first differs at the step that saw it.
3. Neither changes an entry of the source.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from durable import (
    AssistantMessage,
    FinishReason,
    ModelRequest,
    Patch,
    PatchedResult,
    RunResult,
    ToolMessage,
    compare_trajectories,
    render_comparison,
    tool,
)
from durable.providers.scripted import Answer
from tests.support.runs import Clock, fresh_agent, memory_store, numbered, run

Plan = Sequence[Sequence[tuple[str, dict[str, Any]]]]

calls = st.tuples(st.sampled_from(["look", "look", "fail", "pay", "nobody"]), st.just({}) | st.just({"what": "it"}))
plans: st.SearchStrategy[Plan] = st.lists(st.lists(calls, min_size=1, max_size=3), max_size=4)


class Session:
    """A session in which a plan was carried out; whatever waits for a human is approved."""

    def __init__(self, plan: Plan, max_steps: int) -> None:
        self.store: Any = memory_store(clock=Clock())
        self._plan = plan
        self._max_steps = max_steps
        self._ids = numbered("run")
        self.approved(run(self.agent.send("go", session_id="s")), "s")
        self.before = self.entries()

    @property
    def agent(self) -> Any:
        @tool
        def look(what: str) -> str:
            return what.upper()

        @tool
        def fail(what: str = "") -> None:
            raise RuntimeError(what)

        @tool(needs_approval=True)
        def pay(what: str = "") -> list[str]:
            return [what]

        return fresh_agent(
            self.answer, [look, fail, pay], self.store, ids=self._ids, max_steps=self._max_steps, tool_concurrency=1
        )

    def answer(self, request: ModelRequest) -> Answer:
        """What the plan says next; the last answer depends on everything that the tools gave."""
        turn = sum(isinstance(message, AssistantMessage) for message in request.messages)
        if turn < len(self._plan):
            return list(self._plan[turn])
        given = [message.content for message in request.messages if isinstance(message, ToolMessage)]
        return f"done {hashlib.sha256(json.dumps(given).encode()).hexdigest()[:8]}"

    def approved(self, result: RunResult | None, session: str) -> None:
        while result is not None and result.finish_reason is FinishReason.AWAITING_APPROVAL:
            result = run(self.agent.approvals.resolve(result.approval_id, approved=True))

    def forked(self, step: int, patch: Patch) -> Any:
        """The fork as it has ended."""
        made = run(self.agent.fork("s", from_step=step, patch=patch))
        self.approved(run(self.agent.resume(made.session_id)), made.session_id)
        return self.store.checkpoints.load(made.session_id)

    def entries(self) -> list[Any]:
        return list(self.store.log.read("session/s"))

    def steps(self) -> list[int]:
        return sorted({entry.step for entry in self.store.checkpoints.history("s")})


@settings(max_examples=60)
@given(plans, st.integers(1, 5))
def test_a_fork_without_a_patch_takes_the_same_way(plan: Plan, max_steps: int) -> None:
    """At every step that is listed: no step differs, and neither does anything over all."""
    session = Session(plan, max_steps)
    source = session.store.checkpoints.load("s")
    for step in session.steps():
        comparison = compare_trajectories(source, session.forked(step, Patch()))
        assert (comparison.diverged_at, comparison.drift) == (None, ()), render_comparison(comparison)
    assert session.entries() == session.before


@settings(max_examples=60)
@given(plans, st.integers(2, 5), st.data())
def test_another_result_first_shows_at_its_step(plan: Plan, max_steps: int, data: st.DataObject) -> None:
    """A patched result is where the two runs part, and an answer that depends on it differs as well."""
    session = Session(plan, max_steps)
    source = session.store.checkpoints.load("s")
    turns = [message for message in source.messages if isinstance(message, AssistantMessage)]
    for step, turn in enumerate(turns, start=1):
        if not turn.tool_calls:
            continue
        call = data.draw(st.sampled_from(turn.tool_calls))
        ended = session.forked(step, Patch(tool_result=PatchedResult(call.id, {"patched": step})))
        comparison = compare_trajectories(source, ended)
        assert comparison.diverged_at == step
        if source.finish_reason is FinishReason.STOP:
            assert comparison.a[-1].text != comparison.b[-1].text
            assert comparison.a[step:-1] == comparison.b[step:-1]
    assert session.entries() == session.before
