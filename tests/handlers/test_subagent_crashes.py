"""Wherever a process dies, or is overtaken, while a sub-agent of a sub-agent works or asks: the run ends.

As in `test_approval_crashes`, at every point that a process has. At the end:

    1. the run is finished or aborted, its transcript is in order, nobody is at work any more, and nothing is due
    2. each signature was given once at most, and a death leaves at most one of which nobody knows
    3. there are as many approvals as calls that asked, each applied, and people can tell which agent asked
    4. no model turn that was saved is asked for again
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from durable import Agent, FinishReason, Status, ToolContext, agents_at_work, subagents_of, tool
from durable.providers.scripted import Scripted
from durable.transcript import first_fault, pending_calls
from handlers import _wiring
from handlers._aborting import abort_run
from handlers._deadline import end_of
from tests.handlers.conftest import Deployment
from tests.handlers.test_approval_crashes import Clouds, at_every_point, decide, goes_on, press_again
from tests.support.events import Context

NAMES = ["a", "b"]


class Office:
    """A deployment whose agent hands a task down twice, to a clerk that asks for each signature."""

    def __init__(self, clouds: Clouds) -> None:
        self.cloud = clouds()
        self.signed: Counter[str] = Counter()
        self.asked: Counter[tuple[str, int]] = Counter()
        signed = self.signed

        @tool(needs_approval=True)
        def sign(name: str, ctx: ToolContext) -> str:
            """Sign."""
            signed[name] += 1
            return f"signed {name}"

        clerk = Agent(name="clerk", tools=[sign], provider=self._model("clerk", *self._signs(), "All signed."))
        down = self._model("office", ("clerk", {"task": "Sign."}), "It is done.")
        self.cloud.tools = [Agent(name="office", subagents=[clerk], provider=down).as_tool()]
        self.cloud.script = [("office", {"task": "Get it signed."}), "Done."]
        self.cloud.cold_start()

    def _signs(self) -> list[Any]:
        return [("sign", {"name": name}) for name in NAMES]

    def _model(self, name: str, *answers: Any) -> Scripted:
        def says(request: Any) -> Any:
            turn = sum(message.role == "assistant" for message in request.messages)
            self.asked[name, turn] += 1
            return answers[turn]

        return Scripted(says)

    def pause(self) -> str:
        """The run waits in an execution for its first signature; the approval's id."""
        id = self.cloud.send("hi").json["approval_id"]
        self.cloud.slice()
        self.tell(id)
        return id

    def tell(self, id: str) -> None:
        self.cloud.states.wait(f"token of {id}")
        self.cloud.ask(id, f"token of {id}")

    def finish(self) -> None:
        """Whatever still asks is approved, until the run is over."""
        for _ in NAMES:
            stored = goes_on(self.cloud)
            if stored.status is Status.AWAITING_APPROVAL:
                press_again(self.cloud, str(stored.approval_id), approved=True)
        goes_on(self.cloud)

    def came_to_an_end(self, *, unsure: int = 1, aborted: bool = False) -> None:
        cloud, stored = self.cloud, self.cloud.stored()
        assert stored.status is Status.FINISHED or (aborted and stored.finish_reason is FinishReason.ABORTED)
        assert first_fault(stored.messages) is None
        assert not [*pending_calls(stored), *agents_at_work(stored)]
        approvals = cloud.store.approvals.list(status=None).items
        assert all(one.request.path == ("desk", "office", "clerk") and one.applied for one in approvals)
        assert max(self.signed.values(), default=0) <= 1
        if stored.status is Status.FINISHED:
            assert stored.messages[-1].content == "Done."
            assert len(approvals) == len(NAMES)
            reported = [name for name, told in zip(NAMES, self.outcomes(), strict=True) if told == "unknown-outcome"]
            assert len(reported) <= unsure
            assert all(self.signed[name] for name in NAMES if name not in reported)
        cloud.clock.advance(days=1)
        assert cloud.recover()["started"] == 0

    def outcomes(self) -> list[Any]:
        """What the clerk was told of its calls, as the newest save that has it says."""
        known = subagents_of(self.cloud.store.checkpoints.history("s")).values()
        [clerk] = [state for state in known if state is not None and state.agent == "clerk"]
        told = [message for message in clerk.messages if message.role == "tool"]
        return [message.content["kind"] if message.is_error else message.content for message in told]  # type: ignore[index,call-overload]


def test_starting_dies(clouds: Clouds) -> None:
    """A request that is sent again, or that nobody sends again, comes to its first question once."""

    def try_at(at: int) -> bool:
        office = Office(clouds)
        died = office.cloud.dies(lambda: office.cloud.send("hi"), at=at)
        if office.cloud.store.checkpoints.load("s") is None:
            office.cloud.send("hi")
        office.finish()
        office.came_to_an_end(unsure=0)
        return died

    assert at_every_point(clouds, try_at) > 30


def test_applying_dies(clouds: Clouds) -> None:
    """The slice that applies the first decision and asks the next question dies: the next one goes on inside."""

    def try_at(at: int) -> bool:
        office = Office(clouds)
        decide(office.cloud, office.pause())
        before = office.asked.copy()
        died = office.cloud.dies(office.cloud.slice, at=at)
        office.finish()
        office.came_to_an_end()
        assert all(office.asked[turn] == times for turn, times in before.items())
        return died

    assert at_every_point(clouds, try_at) > 30


@pytest.mark.parametrize("way", ["abort", "slice"])
def test_applying_is_overtaken(clouds: Clouds, way: str) -> None:
    """An abort or another execution comes in between: the run ends, and nothing is signed twice."""

    def try_at(at: int) -> bool:
        office = Office(clouds)
        decide(office.cloud, office.pause())
        others: dict[str, Callable[[], Any]] = {
            "abort": lambda: stop(office.cloud),
            "slice": lambda: office.cloud.slice(execution="arn:2"),
        }
        happened = office.cloud.overtaken(office.cloud.slice, at=at, by=others[way])
        office.finish()
        office.came_to_an_end(unsure=0, aborted=way == "abort")
        ends[office.cloud.stored().finish_reason] += 1
        return happened

    ends = Counter[FinishReason | None]()
    assert at_every_point(clouds, try_at) > 30
    assert (ends[FinishReason.ABORTED] > 10) == (way == "abort")


def stop(cloud: Deployment) -> None:
    """What `POST …/abort` does."""
    until = end_of(Context(seconds=29), cloud.clock())
    abort_run(_wiring.app(), "s", by=None, owner="request/r2", until=until)
