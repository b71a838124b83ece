"""POST /sessions/{id}/abort: a run is stopped from another process, wherever it is."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from durable import AssistantMessage, FinishReason, Status, StoreUnavailableError, ToolCall, ToolContext, tool
from durable.providers.scripted import Scripted
from durable.transcript import first_fault, pending_calls
from handlers import _guard, _wiring
from handlers._aborting import abort_run
from handlers._deadline import end_of
from tests.handlers.conftest import Deployment
from tests.support.events import Context

LOOK: Any = ("look", {"what": "it"})


def abort(cloud: Deployment, session: str = "s") -> Any:
    return cloud.request("POST", f"/sessions/{session}/abort", request_id="r2")


def from_elsewhere(cloud: Deployment) -> None:
    """What the endpoint does, in the middle of somebody else's request."""
    until = end_of(Context(seconds=29), cloud.clock())
    abort_run(_wiring.app(), "s", by=None, owner="request/r2", until=until)


def left_by_a_dead_runner(cloud: Deployment) -> None:
    """A session with an accepted run and a call without a result, whose runner's lease has ended."""
    cloud.script = [LOOK, "Seen."]
    cloud.cold_start()
    cloud.send("hi", headers={"Prefer": "respond-async"})
    stored = cloud.stored()
    turn = AssistantMessage(tool_calls=(ToolCall(id="c1", name="look"),))
    cloud.store.checkpoints.save(
        stored.but(messages=(*stored.messages, *stored.queued, turn), queued=(), step=1), after=stored
    )


def was_aborted(cloud: Deployment) -> bool:
    stored = cloud.stored()
    assert first_fault(stored.messages) is None
    return (stored.status, stored.finish_reason) == (Status.IN_PROGRESS, FinishReason.ABORTED)


def test_a_run_that_nobody_runs_is_stopped_at_once(cloud: Deployment) -> None:
    """The abort closes the calls that have no result, takes the run off recovery's list, and answers 200."""
    left_by_a_dead_runner(cloud)
    answered = abort(cloud)
    assert (answered.status, answered.json["finish_reason"]) == (200, "aborted")
    assert was_aborted(cloud)
    assert not pending_calls(cloud.stored())
    assert cloud.stored().messages[-1].content["kind"] == "not-run"
    cloud.clock.advance(days=1)
    assert cloud.recover()["started"] == 0


def test_its_execution_ends(cloud: Deployment) -> None:
    """A slice that finds the run stopped on purpose does nothing about it."""
    left_by_a_dead_runner(cloud)
    abort(cloud)
    before = cloud.stored()
    assert cloud.slice()["outcome"] == "stopped"
    assert cloud.stored() == before


def test_a_run_stops_before_its_next_tool(cloud: Deployment) -> None:
    """The runner looks at the flag after the model has answered: the call that it asked for does not start."""

    def says(request: Any) -> Any:
        from_elsewhere(cloud)
        return LOOK

    cloud.script = says
    answered = cloud.send("hi")
    assert (answered.status, answered.json["finish_reason"]) == (200, "aborted")
    assert was_aborted(cloud)
    assert cloud.stored().messages[-1].content["kind"] == "not-run"
    assert cloud.asked == 1


def test_a_slice_stops_before_its_next_model_call(cloud: Deployment) -> None:
    """A handed-over run is stopped like any other, and its execution ends."""
    cloud.send("hi", headers={"Prefer": "respond-async"})
    cloud.store.leases.request_abort("session/s", cloud.stored().run_id)
    assert cloud.slice()["outcome"] == "stopped"
    assert was_aborted(cloud)
    assert cloud.asked == 0


def test_a_long_tool_is_told_to_stop(cloud: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a tool works the runner looks again and again, and the tool sees `ctx.signal`."""
    monkeypatch.setattr(_guard, "LOOKS_EVERY", 0.01)

    @tool
    async def wait(ctx: ToolContext) -> str:
        from_elsewhere(cloud)
        await ctx.signal.wait()
        return "half done"

    waits = replace(cloud.agent, tools=[wait], provider=Scripted([("wait", {})]))
    monkeypatch.setattr(Deployment, "agent", waits)
    cloud.cold_start()
    answered = cloud.send("hi")
    assert answered.json["finish_reason"] == "aborted"
    assert cloud.stored().messages[-1].content == "half done"


@pytest.mark.parametrize("way", ["resume", "resume later", "message"])
def test_an_aborted_run_goes_on_when_somebody_asks(cloud: Deployment, way: str) -> None:
    """A resume or a message carries it on, here or in a slice; the abort is used up."""
    left_by_a_dead_runner(cloud)
    abort(cloud)
    if way == "message":
        answered = cloud.send("rather that")
    else:
        later = {"Prefer": "respond-async"} if way == "resume later" else {}
        answered = cloud.request("POST", "/sessions/s/resume", headers=later)
    if way == "resume later":
        assert answered.status == 202
        assert cloud.slice()["outcome"] == "finished"
    assert cloud.stored().finish_reason is FinishReason.STOP
    assert cloud.lease().abort_run != cloud.stored().run_id


def test_an_abort_that_its_runner_never_saw_comes_before_the_next_message(cloud: Deployment) -> None:
    """Abort and then send is how a user interrupts: the open call is closed, and the message comes after it."""
    left_by_a_dead_runner(cloud)
    cloud.store.leases.request_abort("session/s", cloud.stored().run_id)
    assert cloud.send("rather that").status == 200
    contents = [message.content for message in cloud.stored().messages]
    assert contents[2]["kind"] == "not-run"
    assert contents[3] == "rather that"


def test_a_flag_for_another_run_is_ignored(cloud: Deployment) -> None:
    """An abort names its run: it stops no later one."""
    cloud.store.leases.request_abort("session/s", "an earlier run")
    assert cloud.send("hi").json["finish_reason"] == "stop"


def test_where_nothing_runs_nothing_is_stopped(cloud: Deployment) -> None:
    """A finished session is left as it is, however often somebody asks; an unknown one is 404."""
    cloud.send("hi")
    before = cloud.stored()
    for _ in range(2):
        answered = abort(cloud)
        assert (answered.status, answered.json["status"]) == (200, "finished")
    assert cloud.stored() == before
    assert abort(cloud, "nobody").json["code"] == "SESSION_NOT_FOUND"


def test_somebody_who_runs_it_is_asked(cloud: Deployment) -> None:
    """While another process holds the lease the answer is 202, and the flag stands."""
    left_by_a_dead_runner(cloud)
    cloud.hold(seconds=20)
    before = cloud.stored()
    answered = abort(cloud)
    assert (answered.status, answered.headers["Location"]) == (202, "/v1/sessions/s")
    assert cloud.stored() == before
    assert cloud.lease().abort_run == before.run_id


def test_a_runner_whose_lease_was_taken_over_stops(cloud: Deployment) -> None:
    """A retry of the same execution raises the fence: the slice before it writes nothing more and starts no tool."""
    cloud.send("hi", headers={"Prefer": "respond-async"})
    revisions: list[int] = []

    def says(request: Any) -> Any:
        cloud.store.leases.acquire("session/s", "arn:1", until=end_of(Context(seconds=9), cloud.clock()), revision=0)
        revisions.append(cloud.stored().revision)
        return LOOK

    cloud.script = says
    cloud.cold_start()
    assert cloud.slice()["outcome"] == "busy"
    assert len(revisions) == 1
    assert cloud.stored().revision == revisions[0] + 1  # the turn that it had paid for already
    assert len(pending_calls(cloud.stored())) == 1


def test_a_look_that_fails_stops_nothing(cloud: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A throttled read of the lease is no answer: the run goes on."""

    def fails(self: Any, stream: str) -> Any:
        raise StoreUnavailableError("GetItem", "ThrottlingException")

    monkeypatch.setattr(type(cloud.store.leases), "look", fails)
    assert cloud.send("hi").json["finish_reason"] == "stop"


# --- a run that waits for a human ------------------------------------------------------------------------------------


def paused(cloud: Deployment) -> tuple[str, list[str]]:
    """A run whose execution waits with a task token; the approval, and what the execution is woken with."""
    id = cloud.pause()
    cloud.slice()
    cloud.ask(id, "token-1")
    return id, cloud.states.wait("token-1")


def test_an_approval_is_cancelled_with_its_run(cloud: Deployment) -> None:
    """The approval says who stopped it, the call is closed, the execution is woken and ends, nothing is due."""
    id, woken = paused(cloud)
    told = len(cloud.events.called("put_events"))
    answered = abort(cloud)
    assert (answered.status, answered.json["finish_reason"]) == (200, "aborted")
    assert was_aborted(cloud)
    assert cloud.stored().messages[-1].content["kind"] == "not-run"
    approval = cloud.approval(id)
    assert (approval.status, approval.applied) == ("cancelled", True)
    assert len(woken) == 1
    assert len(cloud.events.called("put_events")) == told + 1
    assert cloud.slice()["outcome"] == "stopped"
    assert cloud.recover()["started"] == 0
    assert cloud.paid == []


def test_a_decision_after_the_cancelling_is_told_so(cloud: Deployment) -> None:
    """409 `APPROVAL_CLOSED`: the tool never runs."""
    id, _ = paused(cloud)
    abort(cloud)
    answered = cloud.request("POST", f"/approvals/{id}/decision", body={"approved": True})
    assert (answered.status, answered.json["code"]) == (409, "APPROVAL_CLOSED")
    assert cloud.paid == []


def test_a_decision_that_was_first_stands_and_the_run_stops(cloud: Deployment) -> None:
    """The abort loses the approval to a vote: the flag stops the run before the approved call starts."""
    id, _ = paused(cloud)
    assert cloud.request("POST", f"/approvals/{id}/decision", body={"approved": True}).status == 200
    assert abort(cloud).status == 202
    assert cloud.slice(execution="arn:1")["outcome"] == "stopped"
    assert was_aborted(cloud)
    assert (cloud.approval(id).status, cloud.paid) == ("approved", [])


@pytest.mark.parametrize("who", ["slice", "recovery", "abort"])
def test_an_abort_that_is_cut_short_anywhere_is_made_up_for(who: str, clouds: Callable[[], Deployment]) -> None:
    """Wherever the aborting process dies, the approval is cancelled with its run, or neither is."""
    for at in range(1, 100):
        cloud = clouds()
        id, _ = paused(cloud)
        died = cloud.dies(lambda: abort(cloud), at=at)  # noqa: B023 - called at once
        cloud.clock.advance(minutes=2)  # the dead one's lease ends
        if cloud.approval(id).status != "cancelled":
            assert cloud.stored().status == "awaiting-approval"
            assert abort(cloud).status == 200
        elif who == "recovery":
            cloud.recover()
            cloud.slice()
        elif who == "slice":
            cloud.slice()
        else:
            abort(cloud)
        if cloud.stored().status == "awaiting-approval":
            cloud.slice()
        assert was_aborted(cloud)
        assert cloud.paid == []
        cloud.clock.advance(minutes=10)
        cloud.recover()
        assert cloud.recover()["started"] == 0
        if not died:
            return
    raise AssertionError("it never came to its end")


def test_a_cancelled_run_goes_on_with_a_new_message(cloud: Deployment) -> None:
    """Nothing of the approval stands in the way of the next input."""
    paused(cloud)
    abort(cloud)
    cloud.script = lambda request: "Never mind."
    cloud.cold_start()
    assert cloud.send("leave it").json["text"] == "Never mind."
