"""What a run needs is out of reach for a while: its execution is stopped, the table throttles, the provider is down.

Every run ends, or stands still with its reason until somebody asks for it; nothing is done twice that was recorded.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from infra.local.model_server import ModelServer, calls, text
from tests.e2e.conftest import World, until

pytestmark = pytest.mark.e2e

ASYNC = {"Prefer": "respond-async"}
LASTS = pytest.mark.parametrize("seconds", [0, pytest.param(60, marks=pytest.mark.soak)], ids=["short", "a minute"])


def shown(world: World, session: str) -> dict[str, Any]:
    return world.call("GET", f"/sessions/{session}").json()


def lasts(happened: Callable[[], int], times: int, seconds: float) -> None:
    """Let an outage go on for these seconds, and until so much of it was felt."""
    ends = time.monotonic() + seconds
    until(lambda: happened() >= times and time.monotonic() >= ends, seconds + 60)


def insisted(send: Callable[[], httpx.Response]) -> httpx.Response:
    """Send a request until it is taken, as a client does that is told that it may come back."""
    answers: list[httpx.Response] = []

    def is_taken() -> bool:
        answers.append(send())
        return answers[-1].status_code < 400

    until(is_taken, 60)
    return answers[-1]


# --- An execution that is stopped -------------------------------------------------------------------------------------


def test_an_execution_that_is_stopped_under_its_slice(world: World) -> None:
    """The slice that works when its execution is stopped carries the run to its end, and nothing else starts."""
    session = world.new_session()
    gate = world.ledger.hold(session, "model-1")
    world.start(session, "steps", headers=ASYNC)
    gate.wait()
    world.stop(session)
    gate.open()
    assert world.until(session, "finished")["text"] == "Both done."
    assert world.counts(session, "model-0", "one", "model-1", "two", "model-2") == [1] * 5
    assert session not in world.runs("RUNNING")


def test_a_run_that_is_redelivered_after_its_execution_was_stopped(world: World) -> None:
    """The execution is stopped and its slice dies: the client's next try finds nobody at work, and starts another."""
    session, once = world.new_session(), {"Idempotency-Key": "k"}
    gate = world.ledger.hold(session, "model-1")
    world.start(session, "steps", headers={**once, **ASYNC})
    gate.wait()
    world.stop(session)
    assert world.cloud.kill_function("StepsFunction") >= 1
    gate.open()
    until(lambda: world.start(session, "steps", headers=once).status_code == 200)
    assert shown(world, session)["text"] == "Both done."
    assert world.counts(session, "model-0", "one", "two", "model-2") == [1] * 4
    assert world.messages(session, "user") == [f"steps {session}"]


# --- A table that throttles -------------------------------------------------------------------------------------------


@LASTS
def test_a_table_that_throttles(world: World, seconds: float) -> None:
    """One run is at work, one waits for a human, one comes in meanwhile: when the table is back, each of them ends."""
    working, asleep, late = (world.new_session() for _ in range(3))
    approval_id = world.start(asleep, "pay").json()["approval_id"]
    world.mail(approval_id)
    gate = world.ledger.hold(working, "two")
    world.start(working, "steps", headers=ASYNC)
    gate.wait()

    def decide() -> httpx.Response:
        return world.call("POST", f"/approvals/{approval_id}/decision", {"approved": True})

    def send() -> httpx.Response:
        return world.start(late, "steps", headers={"Idempotency-Key": "k"})

    with world.cloud.throttled(), ThreadPoolExecutor(2) as pool:
        before = world.cloud.refused_requests()
        gate.open()
        answers = [pool.submit(decide), pool.submit(send)]
        lasts(lambda: world.cloud.refused_requests() - before, 30, seconds)
        assert [answer.result().status_code >= 500 for answer in answers] == [True, True]
        print(f"\nthe table refused {world.cloud.refused_requests() - before} requests")
        assert world.counts(asleep, "pay") == world.counts(late, "one") == [0]

    assert insisted(decide).json()["status"] == "approved"
    assert insisted(send).json()["text"] in ("Both done.", "", None)
    for session, answer, results in ((working, "Both done.", 2), (asleep, "Paid.", 3), (late, "Both done.", 2)):
        assert world.until(session, "finished", 120)["text"] == answer
        assert len(world.messages(session, "user")) == 1
        assert len(world.messages(session, "tool")) == results
    assert world.counts(working, "model-0", "one", "model-1") == [1] * 3
    assert world.counts(asleep, "one", "pay", "two") == [1] * 3
    assert world.counts(late, "one", "two") == [1] * 2


# --- A provider that is down ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(world: World) -> Iterator[ModelServer]:
    """A provider over HTTP in the place of the scripted one."""
    answers = [calls(("step", {"name": "one"})), calls(("step", {"name": "two"})), text("Both done.")]
    with ModelServer(answers) as server:
        variables = {"MODEL": "openai:made-up", "OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "sk-made-up"}
        with world.reconfigured("RunsFunction", "StepsFunction", **variables):
            yield server


@LASTS
def test_a_provider_that_is_down(world: World, model: ModelServer, seconds: float) -> None:
    """A run in its second turn and one that comes in meanwhile say why they wait, and end when the provider is back."""
    working, late = world.new_session(), world.new_session()
    with model.hold(1) as held:
        world.start(working, "steps", headers=ASYNC)
        held.wait()
        refused = model.refused()
        with model.down(503, 529):
            held.release()
            answer = world.start(late, "steps")
            assert (answer.status_code, answer.headers["Location"][-len(late) :]) == (202, late)
            lasts(lambda: model.refused() - refused, 12, seconds)
            print(f"\nthe provider refused {model.refused() - refused} requests")
            for session in (working, late):
                waiting = shown(world, session)
                assert waiting["status"] == "in-progress"
                assert waiting["last_error"]["code"] in ("PROVIDER_UNAVAILABLE", "PROVIDER_OVERLOADED")
                assert waiting["last_error"]["retryable"] is True
    for session in (working, late):
        assert world.until(session, "finished", 180)["text"] == "Both done."
        assert world.counts(session, "one", "two") == [1, 1]
        assert world.messages(session, "user") == [f"steps {session}"]


def test_a_provider_that_is_down_for_too_long(world: World, model: ModelServer) -> None:
    """After `OutageHours` the run is parked with the reason; it goes on when somebody asks, and not before."""
    session = world.new_session()
    with world.reconfigured("StepsFunction", OUTAGE_HOURS="0.001"):
        with model.down(503):
            world.start(session, "steps", headers=ASYNC)
            until(lambda: shown(world, session)["finish_reason"] == "parked", 90)
        parked = shown(world, session)
        assert (parked["status"], parked["last_error"]["code"]) == ("in-progress", "PROVIDER_UNAVAILABLE")
        until(lambda: session not in world.runs("RUNNING"))
        assert world.counts(session, "one") == [0]
    assert world.call("POST", f"/sessions/{session}/resume").json()["text"] == "Both done."
    assert world.counts(session, "one", "two") == [1, 1]
