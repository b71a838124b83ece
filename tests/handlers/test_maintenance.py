"""Sessions are kept short to load: a deployment writes a new base after a turn, when one is due."""

from typing import Any

import pytest

from durable import DurableError, StoreUnavailableError
from handlers import _running
from tests.handlers.conftest import Deployment

TURNS = 80
"""Two saves each: more than a base may have behind it."""


def talk(cloud: Deployment, turns: int) -> None:
    cloud.script = lambda request: f"answer to {request.messages[-1].content}"
    cloud.cold_start()
    for turn in range(turns):
        assert cloud.send(f"question {turn}").status == 200


def kinds(cloud: Deployment) -> list[str]:
    """The kinds of the session's entries, in order."""
    return [entry.kind for entry in cloud.store.log.read("session/s")]


def test_a_long_conversation_gets_a_base(cloud: Deployment) -> None:
    """After many turns the session starts from a base, nothing of it is lost, and the history lists saves alone."""
    talk(cloud, TURNS)
    assert "base" in kinds(cloud)
    assert cloud.head().base > 0
    messages = [message.content for message in cloud.stored().messages]
    assert messages == [text for n in range(TURNS) for text in (f"question {n}", f"answer to question {n}")]
    entries = cloud.get("/sessions/s/history").json["entries"]
    assert len(entries) == 50
    assert {entry["messages"] % 2 for entry in entries} == {0}
    assert len({(entry["messages"], entry["status"]) for entry in entries}) == 50


def test_it_is_done_under_the_lease(cloud: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else can begin a turn before the base is written, and the lease is free afterwards."""
    held: list[Any] = []
    maintain = cloud.store.checkpoints.maintain

    def watched(session_id: str, *, after: Any) -> Any:
        held.append(cloud.lease().owner)
        return maintain(session_id, after=after)

    monkeypatch.setattr(
        type(cloud.store.checkpoints), "maintain", lambda self, *given, **named: watched(*given, **named)
    )
    talk(cloud, 1)
    assert held == ["request/r1"]
    assert cloud.lease().owner is None


@pytest.mark.parametrize(
    "error", [StoreUnavailableError("PutItem", "no answer"), DurableError("damaged")], ids=["store", "other"]
)
def test_a_base_that_fails_is_left_for_the_next_turn(
    cloud: Deployment, monkeypatch: pytest.MonkeyPatch, error: DurableError
) -> None:
    """The run is over and saved by then: it answers as ever, the log says why, and a later turn writes the base."""

    def fails(*given: Any, **named: Any) -> Any:
        raise error

    with monkeypatch.context() as failing:
        failing.setattr(type(cloud.store.checkpoints), "maintain", fails)
        talk(cloud, TURNS)
    assert "base" not in kinds(cloud)
    assert f'"code":"{error.code}"' in cloud.log.getvalue().replace(" ", "")
    assert cloud.lease().owner is None
    talk(cloud, 1)
    assert kinds(cloud)[-1] == "base"


def test_it_is_skipped_near_the_deadline(cloud: Deployment) -> None:
    """With little time left the answer comes first; a turn with more of it writes the base."""
    talk(cloud, 1)
    left = _running.TIME_TO_MAINTAIN.total_seconds()

    def slow(request: Any) -> str:
        cloud.clock.advance(seconds=29.1 - left)
        return "late"

    cloud.script = slow
    cloud.cold_start()
    for _ in range(TURNS):
        assert cloud.send("go").json["text"] == "late"
    assert "base" not in kinds(cloud)
    talk(cloud, 1)
    assert kinds(cloud)[-1] == "base"


def test_a_paused_or_unfinished_run_is_left_as_it_is(cloud: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a finished turn is maintained: a run that waits or goes on elsewhere answers without further writes."""
    monkeypatch.setattr(
        type(cloud.store.checkpoints), "maintain", lambda *given, **named: pytest.fail("maintained too early")
    )
    cloud.pause()
