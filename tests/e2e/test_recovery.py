"""Runs that nobody drives any more: recovery looks every minute, and finishes what was asked for, and nothing else.

They began with the first test of this folder (`left_behind`), and other tests have killed Lambdas, throttled the table
and stopped the provider meanwhile. A run is due a minute after the end of the Lambda that had it last.
"""

import pytest

from tests.e2e.conftest import LeftBehind, World

pytestmark = pytest.mark.e2e

SECONDS = 200


def test_a_request_that_nobody_sends_again_is_recovered(world: World, left_behind: LeftBehind) -> None:
    """A Lambda dies in its request and the client never comes back: the run finishes, nothing recorded ran twice."""
    assert world.until(left_behind.killed, "finished", SECONDS)["text"] == "Both done."
    assert world.counts(left_behind.killed, "model-0", "one") == [1, 1]
    assert world.messages(left_behind.killed, "tool") == ["one done", "two done"]


def test_a_run_whose_execution_was_stopped_is_recovered(world: World, left_behind: LeftBehind) -> None:
    """Its last slice ran out of time with nobody to start the next one: another execution carries the run on."""
    assert world.until(left_behind.stopped, "finished", SECONDS)["text"] == "All done."
    assert world.messages(left_behind.stopped, "tool") == [f"s{number} done" for number in range(10)]
    assert world.counts(left_behind.stopped, "s0", "s1", "s2") == [1, 1, 1]


def test_a_run_that_was_aborted_is_left_alone(world: World, left_behind: LeftBehind) -> None:
    """Recovery, which has finished the others by now, starts nothing that nobody asked for."""
    world.until(left_behind.stopped, "finished", SECONDS)
    shown = world.call("GET", f"/sessions/{left_behind.aborted}").json()
    assert (shown["status"], shown["finish_reason"]) == ("in-progress", "aborted")
    assert world.counts(left_behind.aborted, "s0", "s5") == [1, 0]
    assert world.start(left_behind.aborted, "talk").json()["text"] == "Hello."
