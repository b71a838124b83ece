"""Runs that outlive their Lambdas: more steps than a slice has time for, and Lambdas that are killed at random."""

import random
import time

import pytest

from tests.e2e.conftest import World

pytestmark = [pytest.mark.e2e, pytest.mark.soak]

STEPS = 40
KILLS = 20
NAMES = [f"s{number}" for number in range(STEPS)]
ASYNC = {"Prefer": "respond-async"}


def results(world: World, session: str) -> list[str]:
    """The results of tools that the session holds, in order."""
    found: list[str] = []
    for message in world.call("GET", f"/sessions/{session}/messages").json()["messages"]:
        if message["role"] == "tool":
            found.append(message["content"])
    return found


def test_a_run_of_forty_steps_outlives_its_slices(world: World) -> None:
    """A run that takes longer than any function may is done in several slices, each step once."""
    session = world.new_session()
    assert world.start(session, "long", headers=ASYNC).status_code == 202
    shown = world.until(session, "finished", 240)
    assert shown["text"] == "All done."
    assert [world.ledger.count(session, name) for name in NAMES] == [1] * STEPS
    assert results(world, session) == [f"{name} done" for name in NAMES]


def test_a_run_whose_lambdas_are_killed_finishes(world: World) -> None:
    """At least twenty kills at random moments: the run finishes, and what was recorded is never carried out again."""
    session, moments = world.new_session(), random.Random(7)
    assert world.start(session, "killed", headers=ASYNC).status_code == 202
    killed = 0
    recorded: dict[str, int] = {}
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        shown = world.call("GET", f"/sessions/{session}").json()
        if shown["status"] == "finished":
            break
        for result in results(world, session):
            name = result.removesuffix(" done")
            recorded.setdefault(name, world.ledger.count(session, name))
        if killed < KILLS:
            time.sleep(moments.uniform(0.5, 2.0))
            killed += world.cloud.kill_function("StepsFunction")
        else:
            time.sleep(0.5)
    assert world.until(session, "finished", 10)["text"] == "All done."
    assert killed >= KILLS
    assert results(world, session) == [f"{name} done" for name in NAMES]
    assert {name: world.ledger.count(session, name) for name in recorded} == recorded
