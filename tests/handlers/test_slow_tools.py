"""Tools that take too long: their own time-outs, slices that are too short for them, threads that are given up."""

import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from durable import ConfigurationError, ToolContext, tool
from durable.workers import abandoned
from tests.handlers.conftest import Deployment

SHORT = timedelta(seconds=0.05)


@pytest.fixture
def stuck(cloud: Deployment) -> Iterator[threading.Event]:
    """The deployment has a tool that never returns by itself; the event lets it go."""
    gate = threading.Event()

    @tool(timeout=SHORT)
    def stick() -> str:
        gate.wait(30)
        return "late"

    cloud.tools = [stick]
    cloud.script = [("stick", {}), "I do not know."]
    cloud.cold_start()
    yield gate
    gate.set()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and "AnyIO worker" in thread.name:
            thread.join(5)


class Left(BaseException):
    """The process has ended."""


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(code: int) -> None:
        raise Left(code)

    monkeypatch.setattr(os, "_exit", leave)


def test_a_tool_that_never_returns_is_closed_after_its_own_time(cloud: Deployment, stuck: threading.Event) -> None:
    """The call gets the result `unknown-outcome` after its time-out, and the run goes on with it."""
    answered = cloud.send("go")
    assert (answered.status, answered.json["text"]) == (200, "I do not know.")
    result: Any = cloud.stored().messages[2].content
    assert (result["kind"], result["message"]) == ("unknown-outcome", "The call did not end within 0.05 seconds.")
    assert abandoned() == 1


@pytest.mark.usefixtures("exits")
def test_an_environment_with_a_thread_that_was_given_up_is_left(cloud: Deployment, stuck: threading.Event) -> None:
    """The next invocation there ends the process before it does anything; once the thread has ended it need not."""
    cloud.send("go")
    before = cloud.store.consumed()
    with pytest.raises(Left):
        cloud.send("again")
    with pytest.raises(Left):
        cloud.slice(run_id="r")
    assert cloud.store.consumed() - before == type(before)()
    stuck.set()
    for _ in range(500):
        if abandoned() == 0:
            break
        threading.Event().wait(0.01)
    cloud.script = ["Hello."]
    cloud.cold_start()
    assert cloud.send("again", session="t").json["text"] == "Hello."


def test_a_tool_is_told_the_time_that_is_left_for_it(cloud: Deployment) -> None:
    """`ctx.remaining` is what the slice has left, or the call's own time where that is shorter."""
    seen: dict[str, float] = {}

    @tool(timeout=timedelta(seconds=7))
    async def short(ctx: ToolContext) -> None:
        seen["short"] = ctx.remaining()

    @tool
    async def long(ctx: ToolContext) -> None:
        seen["long"] = ctx.remaining()

    cloud.tools = [short, long]
    cloud.script = [[("short", {}), ("long", {})], "Done."]
    cloud.cold_start()
    assert cloud.send("go").status == 200
    assert 6 < seen["short"] <= 7
    assert 25 < seen["long"] <= 27


def test_a_call_starts_only_where_its_time_is_left(cloud: Deployment) -> None:
    """A call that may take longer than the request has is handed over before it starts, and starts in a slice."""
    ran: list[str] = []

    @tool(timeout=timedelta(seconds=100))
    async def minutes() -> None:
        ran.append("minutes")

    cloud.tools = [minutes]
    cloud.script = [("minutes", {}), "Done."]
    cloud.cold_start()
    assert cloud.send("go").status == 202
    assert ran == []
    assert cloud.slice()["outcome"] == "finished"
    assert ran == ["minutes"]


@pytest.mark.parametrize(("seconds", "fits"), [(895, True), (895.5, False)])
def test_a_time_out_longer_than_a_slice_is_refused_at_wiring(cloud: Deployment, seconds: float, fits: bool) -> None:
    """A tool whose calls would never be started is a fault of the deployment, which names the tool and the remedy."""

    @tool(timeout=timedelta(seconds=seconds))
    def endless() -> None:
        """Take for ever."""

    cloud.tools = [endless]
    cloud.cold_start()
    if fits:
        assert cloud.send("hi").status == 200
    else:
        with pytest.raises(ConfigurationError, match=r"endless.*SliceSeconds"):
            cloud.send("hi")


@pytest.mark.parametrize("timeout", [timedelta(0), timedelta(seconds=-1)])
def test_a_time_out_is_positive(timeout: timedelta) -> None:
    """A tool without any time is a fault that is told where the tool is made."""
    with pytest.raises(ConfigurationError, match="timeout must be positive"):

        @tool(timeout=timeout)
        def never() -> None:
            """Do nothing."""
