"""A whole run over a bad network: a proxy on the wire throttles, fails, cuts off, delays, before and after the fact."""

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import botocore.endpoint
import httpx
import pytest

from durable import Agent, DurableError, ToolContext, tool
from durable.providers.scripted import Scripted
from stores.contract import TTL, Backend
from stores.dynamodb import dynamodb_store, make_client
from tests.contracts.backends import TABLE_NAME
from tests.handlers.conftest import Deployment
from tests.support.events import Answered

STEPS = 12
LARGE = "large " * 100_000

RUNS = 10
"""At most so many runs, until every kind of fault has happened."""

FAULTS: list[dict[str, Any]] = [
    {"probability": 0.04, "error": {"code": "ProvisionedThroughputExceededException"}},
    {"probability": 0.03, "error": {"code": "ThrottlingException"}},
    {"probability": 0.04, "error": {"code": "InternalServerError", "status": 500}},
    {"probability": 0.03, "error": {"code": "ServiceUnavailable", "status": 503}},
    {"probability": 0.04, "reset": True},  # before the request was applied
    {"probability": 0.06, "response": {"abort_frac": 0.0}},  # after it
    {"probability": 0.03, "response": {"abort_frac": 0.5}},
    {"probability": 0.1, "times": 2, "latency": 1500},  # the client has given up when it is applied
    {"probability": 0.3, "latency": {"min": 1, "max": 40}},
]
KINDS = (
    "ProvisionedThroughput",
    "Throttling",
    "InternalServer",
    "ServiceUnavailable",
    "reset",
    "response:abort",
    "latency",
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client waits between its attempts as ever, in fiftieths of a second."""
    quick = SimpleNamespace(sleep=lambda seconds: time.sleep(seconds / 50))
    monkeypatch.setattr(botocore.endpoint, "time", quick)


@contextmanager
def bad_network(upstream: str, folder: Path) -> Iterator[str]:
    """Put the proxy in front of a server and give its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "faults.json"
    config.write_text(json.dumps({"rules": [{"service": "dynamodb", **fault} for fault in FAULTS]}))
    command = [sys.executable, "-m", "microburst.cli", "--upstream", upstream, "--port", str(port)]
    address = f"http://127.0.0.1:{port}"
    log = (folder / "proxy.log").open("w")
    with log, subprocess.Popen([*command, "--config", str(config)], stdout=log, stderr=log) as proxy:
        try:
            wait_for(address, proxy, folder)
            yield address
        finally:
            proxy.kill()


def through(address: str) -> Any:
    """Give a client that goes through the proxy, patient with it but not for long."""
    return make_client(
        attempts=12,
        read_timeout=1.0,
        endpoint_url=address,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )


def wait_for(address: str, proxy: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and proxy.poll() is None:
        try:
            httpx.get(f"{address}/_microburst/health", trust_env=False)
        except httpx.TransportError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError((folder / "proxy.log").read_text())


class World:
    """What the tools have really done, by call id."""

    def __init__(self) -> None:
        self.done = Counter[str]()

    def agent(self, store: Any) -> Agent:
        @tool
        def work(n: int, ctx: ToolContext) -> str:
            """Work."""
            self.done[ctx.tool_call_id] += 1
            return LARGE if n == 7 else f"result {n} of {ctx.tool_call_id}"

        script = [[("work", {"n": 2 * step}), ("work", {"n": 2 * step + 1})] for step in range(STEPS)]
        return Agent(tools=[work], provider=Scripted([*script, "Done."]), store=store, max_steps=STEPS + 1)


def fired(address: str) -> Counter[str]:
    """Give how often each kind of fault has happened."""
    events = httpx.get(f"{address}/_microburst/fired?limit=10000", trust_env=False).json()
    return Counter(event["action"] for event in (events if isinstance(events, list) else events["fired"]))


def until_every_fault(address: str, carry_out: Callable[[str], None]) -> list[str]:
    """Run sessions until every kind of fault has happened, and give their ids."""
    sessions: list[str] = []
    while True:
        sessions.append(f"s{len(sessions)}")
        carry_out(sessions[-1])
        happened = fired(address)
        if all(any(kind in action for action in happened) for kind in KINDS):
            return sessions
        assert len(sessions) < RUNS, f"not every kind of fault has happened: {dict(happened)}"


LOCAL = pytest.mark.parametrize(
    "server", [pytest.param("dynamodb-local", marks=pytest.mark.dynamodb_local)], indirect=True
)


@LOCAL
def test_a_run_over_a_bad_network_loses_nothing(client: Any, backend: Backend, tmp_path: Path) -> None:
    """Through throttling, 5xx, resets before and after the request was applied and latency, a run finishes at once.

    Every tool has run once, every save is one entry, and what is loaded over a good network is the whole run.
    """
    with bad_network(client.meta.endpoint_url, tmp_path) as address:
        store = dynamodb_store(table=TABLE_NAME, client=through(address), prefix=backend.prefix)
        sessions = until_every_fault(address, lambda session: run_whole(store, session))
    print(f"\n{len(sessions)} runs, {store.consumed().requests} requests")
    near = dynamodb_store(table=TABLE_NAME, client=client, prefix=backend.prefix)
    for session_id in sessions:
        loaded = near.checkpoints.load(session_id)
        assert loaded is not None
        results = [message for message in loaded.messages if message.role == "tool"]
        assert [message.content for message in results] == [
            LARGE if n == 7 else f"result {n} of {message.tool_call_id}" for n, message in enumerate(results)
        ]
        assert len(results) == 2 * STEPS
        revisions = [entry.revision for entry in backend.log.read(f"session/{session_id}")]
        assert revisions == list(range(loaded.revision + 1))
        assert loaded.messages[-1].content == "Done."


def run_whole(store: Any, session_id: str) -> None:
    """Run an agent once from the first message to the last; each of its tools runs once."""
    world = World()
    result = asyncio.run(world.agent(store).send("Work.", session_id=session_id))
    assert (result.text, result.finish_reason) == ("Done.", "stop")
    assert len(world.done) == 2 * STEPS
    assert set(world.done.values()) == {1}


class Client:
    """Whoever uses the deployment: sends again what failed for now, as every client and the state machine do."""

    def __init__(self, cloud: Deployment) -> None:
        self.cloud = cloud
        self.failures = 0

    def post(self, path: str, body: Any, *, key: str = "k") -> Answered:
        for _ in range(20):
            answered = self.cloud.request("POST", path, body=body, headers={"Idempotency-Key": key})
            if answered.status not in (409, 503) or not answered.json["retryable"]:
                return answered
            self.failures += 1
            self.cloud.clock.advance(seconds=30)  # what `Retry-After` says at most
        raise AssertionError(f"it fails for ever: {answered}")

    def step(self, act: Callable[[], Any]) -> Any:
        for _ in range(20):
            try:
                done = act()
            except DurableError as error:
                if not error.retryable:
                    raise
                done = {"outcome": "busy"}
            if done.get("outcome") != "busy":
                return done
            self.failures += 1
            self.cloud.clock.advance(seconds=901)
        raise AssertionError("it fails for ever")


SHELVES = 6
LOOKS = [("look", {"what": f"shelf {n}"}) for n in range(SHELVES)]


@LOCAL
def test_a_deployment_over_a_bad_network_loses_nothing(
    client: Any, backend: Backend, cloud: Deployment, tmp_path: Path
) -> None:
    """Accepted, run, paused, asked, decided and finished by the handlers, with every fault between them and the table.

    Each model turn is asked for once, the payment is made once, and the transcript is whole.
    """
    with bad_network(client.meta.endpoint_url, tmp_path) as address:
        cloud.store = dynamodb_store(
            table=TABLE_NAME, client=through(address), prefix=backend.prefix, ttl=TTL, clock=cloud.clock
        )
        cloud.script = [*LOOKS, ("pay", {"amount": 5}), "Paid."]
        cloud.cold_start()
        user = Client(cloud)
        sessions = until_every_fault(address, lambda session: carry_out(user, session))
    print(f"\n{len(sessions)} runs, {user.failures} things sent again")
    assert cloud.paid == [5] * len(sessions)
    assert cloud.asked == len(sessions) * (SHELVES + 2)
    near = dynamodb_store(table=TABLE_NAME, client=client, prefix=backend.prefix)
    for session in sessions:
        loaded = near.checkpoints.load(session)
        assert loaded is not None
        results = [message.content for message in loaded.messages if message.role == "tool"]
        assert results[:-1] == [f"SHELF {n}" for n in range(SHELVES)]
        assert (loaded.status, loaded.messages[-1].content) == ("finished", "Paid.")
        revisions = [entry.revision for entry in backend.log.read(f"session/{session}")]
        assert revisions == list(range(loaded.revision + 1))


def carry_out(user: Client, session: str) -> None:
    """One run from its first message over an approval to its end."""
    cloud = user.cloud
    accepted = user.post(f"/sessions/{session}/runs", {"input": "pay"})
    assert accepted.status == 202, accepted
    while accepted.json["status"] == "in-progress":  # handed over: the state machine goes on
        user.step(lambda: cloud.slice(session))
        accepted = user.post(f"/sessions/{session}/runs", {"input": "pay"})
    approval_id = accepted.json["approval_id"]
    user.step(lambda: cloud.ask(approval_id, f"token of {session}", session))
    decided = user.post(f"/approvals/{approval_id}/decision", {"approved": True})
    assert (decided.status, decided.json["status"]) == (200, "approved"), decided
    assert user.step(lambda: cloud.slice(session))["outcome"] == "finished"


@LOCAL
@pytest.mark.parametrize("key", ["", "key of turn "])
def test_a_deployment_adds_eight_requests_at_most(client: Any, backend: Backend, cloud: Deployment, key: str) -> None:
    """Lease, head and the accepting save take at most eight requests more than `execute` does, whichever turn it is.

    With an `Idempotency-Key` two more look whether the request has come before.
    """
    cloud.store = dynamodb_store(table=TABLE_NAME, client=client, prefix=backend.prefix, ttl=TTL, clock=cloud.clock)
    cloud.script = lambda request: "Hello."
    cloud.cold_start()
    alone = dynamodb_store(table=TABLE_NAME, client=client, prefix=f"{backend.prefix}alone/", ttl=TTL)
    agent = Agent(provider=Scripted(lambda request: "Hello."), store=alone)
    for turn in range(3):
        run = asyncio.run(agent.send("hi", session_id="s")).consumed.requests
        answered = cloud.send("hi", headers={"Idempotency-Key": f"{key}{turn}"} if key else {})
        assert answered.status == 200
        assert int(answered.headers["X-Consumed-Requests"]) <= run + 8 + (2 if key else 0)
