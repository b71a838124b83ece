"""A whole run over a bad network: a proxy on the wire throttles, fails, cuts off, delays, before and after the fact."""

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from durable import Agent, ToolContext, tool
from durable.providers.scripted import Scripted
from stores.contract import Backend
from stores.dynamodb import dynamodb_store, make_client
from tests.contracts.backends import TABLE_NAME

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


@pytest.mark.parametrize("server", [pytest.param("dynamodb-local", marks=pytest.mark.dynamodb_local)], indirect=True)
def test_a_run_over_a_bad_network_loses_nothing(client: Any, backend: Backend, tmp_path: Path) -> None:
    """Through throttling, 5xx, resets before and after the request was applied and latency, a run finishes at once.

    Every tool has run once, every save is one entry, and what is loaded over a good network is the whole run.
    """
    with bad_network(client.meta.endpoint_url, tmp_path) as address:
        through = make_client(
            attempts=12,
            read_timeout=1.0,
            endpoint_url=address,
            region_name="us-east-1",
            aws_access_key_id="local",
            aws_secret_access_key="local",
        )
        store = dynamodb_store(table=TABLE_NAME, client=through, prefix=backend.prefix)
        happened = Counter[str]()
        for number in range(RUNS):
            run_whole(store, f"s{number}")
            happened = fired(address)
            if all(any(kind in action for action in happened) for kind in KINDS):
                break
    print(f"\n{number + 1} runs, {store.consumed().requests} requests, faults: {dict(happened)}")
    assert all(any(kind in action for action in happened) for kind in KINDS)
    near = dynamodb_store(table=TABLE_NAME, client=client, prefix=backend.prefix)
    for session_id in (f"s{one}" for one in range(number + 1)):
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
