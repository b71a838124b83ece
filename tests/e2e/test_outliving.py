"""Runs that outlive their Lambdas: more steps than a function has time for, and Lambdas that are killed at random."""

import random
import time

import pytest

from tests.e2e.conftest import World, until

pytestmark = pytest.mark.e2e

ASYNC = {"Prefer": "respond-async"}


def names(steps: int) -> list[str]:
    return [f"s{number}" for number in range(steps)]


def slices(world: World, execution: str) -> int:
    """How many slices an execution has begun."""
    pages = world.cloud.client("stepfunctions").get_paginator("get_execution_history").paginate(executionArn=execution)
    entered = [event.get("stateEnteredEventDetails", {}).get("name") for page in pages for event in page["events"]]
    return entered.count("RunSlice")


@pytest.mark.parametrize(("steps", "seconds"), [(12, 0.8), pytest.param(40, 2.0, marks=pytest.mark.soak)])
def test_a_run_outlives_its_slices(world: World, steps: int, seconds: float) -> None:
    """A run that takes longer than its function may is done in several slices, each step once."""
    session = world.new_session()
    assert world.start(session, "walk", steps, seconds, headers=ASYNC).status_code == 202
    until(lambda: world.counts(session, "model-0") == [1])
    execution = world.execution(session)
    assert world.until(session, "finished", 400)["text"] == "All done."
    assert world.counts(session, *names(steps)) == [1] * steps
    assert world.messages(session, "tool") == [f"{name} done" for name in names(steps)]
    print(f"\n{steps} steps of {seconds:g} seconds: {(done := slices(world, execution))} slices")
    assert done > 1


def test_slices_that_are_killed_at_any_step(world: World) -> None:
    """Four slices die, in a model call or in a tool: what was recorded is not done again, what was not is."""
    session, steps = world.new_session(), 10
    deadly = random.Random(7).sample([f"model-{number}" for number in range(1, steps)] + names(steps), 4)
    deadly.sort(key=lambda step: (int(step.strip("model-s")), not step.startswith("model")))
    gates = [world.ledger.hold(session, step) for step in deadly]
    assert world.start(session, "walk", steps, 0.1, headers=ASYNC).status_code == 202
    for gate in gates:
        gate.wait()
        assert world.cloud.kill_function("StepsFunction") >= 1
        gate.open()
    assert world.until(session, "finished")["text"] == "All done."
    assert world.messages(session, "tool") == [f"{name} done" for name in names(steps)]
    everything = [*names(steps), *(f"model-{number}" for number in range(steps + 1))]
    done = dict(zip(everything, world.counts(session, *everything), strict=True))
    assert done == {step: 1 + (step in deadly) for step in everything}


@pytest.mark.soak
def test_a_run_whose_lambdas_are_killed_finishes(world: World) -> None:
    """Twenty kills at random moments of a run of forty steps: it finishes, and nothing recorded is done again."""
    steps, kills = 40, 20
    session, moments = world.new_session(), random.Random(7)
    assert world.start(session, "walk", steps, 2, headers=ASYNC).status_code == 202
    recorded: dict[str, int] = {}
    killed, done, deadline = 0, -1, time.monotonic() + 500
    while world.call("GET", f"/sessions/{session}").json()["status"] != "finished":
        assert time.monotonic() < deadline, "the run does not finish"
        for result in world.messages(session, "tool"):
            name = result.removesuffix(" done")
            recorded.setdefault(name, world.ledger.count(session, name))
        if killed < kills and len(recorded) > done:  # it has got further since the last one died
            time.sleep(moments.uniform(0, 3))
            killed_now = world.cloud.kill_function("StepsFunction")
            killed, done = killed + killed_now, len(recorded) if killed_now else done
        else:
            time.sleep(0.2)
    again = sum(world.counts(session, *names(steps))) - steps
    print(f"\n{killed} kills; {again} steps that had not been recorded were done again")
    assert killed >= kills
    assert world.messages(session, "tool") == [f"{name} done" for name in names(steps)]
    assert len(recorded) > steps / 2
    assert {name: world.ledger.count(session, name) for name in recorded} == recorded
