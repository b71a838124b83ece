"""Many at once: sessions beside each other, requests on one session, and one request that comes again and again."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import SLICE_SECONDS, World, at_once, until

pytestmark = pytest.mark.e2e

TEN = 10


def key(value: object) -> dict[str, Any]:
    return {"headers": {"Idempotency-Key": str(value)}, "timeout": 300}


def taken(send: Callable[[], httpx.Response]) -> httpx.Response:
    """Send a request until it has its result, as a client does that is told to come back later."""
    answers: list[httpx.Response] = []

    def has_result() -> bool:
        answers.append(send())
        assert answers[-1].status_code in (200, 202, 409), answers[-1].text
        return answers[-1].status_code == 200

    until(has_result, 90)
    return answers[-1]


def warm(world: World, environments: int) -> None:
    """Have so many environments of the function ready: what is tried here is a crowd, not fifty imports at once."""
    while (ready := len(world.cloud.workers("RunsFunction"))) < environments:
        names = [world.new_session() for _ in range(min(ready + 3, environments))]
        at_once([partial(world.start, name, "talk", timeout=300) for name in names])


def test_sessions_at_once(world: World) -> None:
    """Every session has its own answer, and each of its steps has happened once."""
    warm(world, TEN)
    are_answered_at_once(world, TEN)


@pytest.mark.soak
def test_fifty_sessions_at_once(world: World) -> None:
    """As many as two cores can carry: their functions may take as long as a deployment lets them, 29 seconds."""
    with world.reconfigured("RunsFunction", timeout=29):
        warm(world, 50)
        are_answered_at_once(world, 50)


def are_answered_at_once(world: World, sessions: int) -> None:
    names = [world.new_session() for _ in range(sessions)]
    answers = at_once([partial(world.start, name, "steps", **key("k")) for name in names])
    statuses = Counter(answer.status_code for answer in answers)
    print(f"\n{sessions} sessions at once: {dict(statuses)}")
    # One that has to wait too long for its turn is handed over.
    assert [answer.text for answer in answers if answer.status_code not in (200, 202)] == []
    for name in names:
        assert world.until(name, "finished")["text"] == "Both done."
        assert world.messages(name, "user") == [f"steps {name}"]
        assert world.messages(name, "tool") == ["one done", "two done"]
        assert world.counts(name, "one", "two") == [1, 1]


def test_ten_requests_at_once_are_rejected_but_for_one(world: World) -> None:
    """While one of them runs, the others get 409 and leave nothing behind; sent again, they are turns of their own."""
    warm(world, TEN)
    session, answered = world.new_session(), []
    gate = world.ledger.hold(session, "model-0")

    def ask(number: int) -> httpx.Response:
        answer = world.start(session, "talk", number, **key(number))
        answered.append(answer)
        return answer

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(at_once, [partial(ask, number) for number in range(TEN)])
        until(lambda: len(answered) == TEN - 1)
        gate.open()
        answers = asked.result()
    assert Counter(answer.status_code for answer in answers) == {200: 1, 409: TEN - 1}
    [won] = [number for number, answer in enumerate(answers) if answer.status_code == 200]
    for refused in (answer for answer in answers if answer.status_code == 409):
        assert (refused.json()["code"], refused.json()["retryable"]) == ("SESSION_BUSY", True)
        assert int(refused.headers["Retry-After"]) >= 1
    assert world.messages(session, "user") == [f"talk {session} {won}"]
    assert world.counts(session, "model-0") == [1]
    lost = (won + 1) % TEN
    assert world.start(session, "talk", lost, **key(lost)).status_code == 200
    assert world.messages(session, "user") == [f"talk {session} {won}", f"talk {session} {lost}"]


def test_ten_requests_at_once_wait_for_each_other(world: World) -> None:
    """With `wait` each of them is a turn of its own, one after the other; none is lost, none comes twice."""
    warm(world, TEN)
    session = world.new_session()

    def ask(number: int) -> httpx.Response:
        body = {"input": f"talk {session} {number}", "on_busy": "wait"}
        return taken(lambda: world.call("POST", f"/sessions/{session}/runs", body, **key(number)))

    answers = at_once([partial(ask, number) for number in range(TEN)])
    assert {answer.json()["text"] for answer in answers} == {"Hello."}
    assert len({answer.json()["run_id"] for answer in answers}) == TEN
    messages = world.call("GET", f"/sessions/{session}/messages").json()["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant"] * TEN
    said = [message["content"] for message in messages if message["role"] == "user"]
    assert sorted(said) == [f"talk {session} {number}" for number in range(TEN)]
    assert world.counts(session, "model-0") == [TEN]


@pytest.mark.parametrize(
    ("during", "after"), [(30, 70), pytest.param(100, 900, marks=pytest.mark.soak)], ids=["100", "1000"]
)
def test_redeliveries_of_one_request(world: World, during: int, after: int) -> None:
    """A request that comes again and again, while it runs and when it is done, is one run with one set of effects."""
    session = world.new_session()
    gate = world.ledger.hold(session, "model-1")
    send = partial(world.start, session, "steps", **key("k"))
    first = world.start(session, "steps", headers={"Idempotency-Key": "k", "Prefer": "respond-async"})
    assert first.status_code == 202
    with ThreadPoolExecutor(8) as pool:
        early = list(pool.map(lambda _: send(), range(during)))
        gate.wait(SLICE_SECONDS)  # they have been in nobody's way
        gate.open()
        late = list(pool.map(lambda _: send(), range(after)))
    assert {answer.status_code for answer in early} == {202}
    assert {answer.status_code for answer in late} <= {200, 202}
    final = taken(send).json()
    assert {answer.json()["run_id"] for answer in (first, *early, *late)} == {final["run_id"]}
    assert {answer.json()["text"] for answer in late if answer.status_code == 200} <= {"Both done."}
    assert final["text"] == "Both done."
    assert world.messages(session, "user") == [f"steps {session}"]
    assert world.counts(session, "model-0", "one", "two", "model-2") == [1] * 4
