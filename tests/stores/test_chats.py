"""One session under several processes: every message is a turn of its own, none is lost and none interleaved."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from durable.transcript import first_fault
from tests.contracts.backends import client_or_skip
from tests.stores.chatter import open_store

EACH = 100


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("dynamodb-local", marks=pytest.mark.dynamodb_local),
    ]
)
def where(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    client: Any = client_or_skip(request.param)
    keys = client._request_signer._credentials
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", keys.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", keys.secret_key)
    monkeypatch.setenv("AWS_DEFAULT_REGION", client.meta.region_name)
    return f"{client.meta.endpoint_url}#{uuid4().hex}/"


class Chatters:
    """Processes that chat, ended with the test."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._stack = ExitStack()

    def start(self, name: str, first: int = 0) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.stores.chatter", self._where, name, str(first), str(EACH)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        assert process.stdout is not None
        self._stack.callback(process.stdout.close)
        return process

    def stop(self) -> None:
        self._stack.close()


@pytest.fixture
def chatters(where: str) -> Iterator[Chatters]:
    made = Chatters(where)
    yield made
    made.stop()


def told(process: subprocess.Popen[bytes], count: int) -> None:
    """Wait until the process has said so many lines."""
    assert process.stdout is not None
    for _ in range(count):
        assert process.stdout.readline()


def told_after_all(process: subprocess.Popen[bytes]) -> int:
    """How many more messages a killed process has told to be answered."""
    assert process.stdout is not None
    process.wait()
    return process.stdout.read().count(b"\n")


def ended(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    process.stdout.read()
    assert process.wait() == 0


def in_order(where: str) -> list[str]:
    """What was said, in order: each message is followed by its answer, and nobody's come out of order."""
    stored = open_store(where).checkpoints.load("s")
    assert stored is not None
    assert (stored.turns, stored.status) == (2 * EACH, "finished")
    assert first_fault(stored.messages) is None
    said = [str(message.content) for message in stored.messages]
    assert said[1::2] == [f"re {text}" for text in said[::2]]
    for name in "ab":
        assert [text for text in said[::2] if text.startswith(name)] == [f"{name} {n}" for n in range(EACH)]
    return said[::2]


def test_two_processes_chat_in_one_session(where: str, chatters: Chatters) -> None:
    """Two processes send 200 messages to one session at once: 200 turns, alternating, none lost, none interleaved."""
    both = [chatters.start(name) for name in "ab"]
    for process in both:
        ended(process)
    said = in_order(where)
    assert len({text[0] for text in said[: EACH // 2]} | {text[0] for text in said[EACH // 2 :]}) == 2


def test_one_of_them_is_killed(where: str, chatters: Chatters) -> None:
    """One of the two is killed at random times and started again: still every message is one turn, in its order."""
    chance = random.Random(where.partition("#")[0])
    survivor, first = chatters.start("a"), 0
    for _ in range(3):
        victim = chatters.start("b", first)
        told(victim, lines := chance.randint(1, 8))
        victim.kill()
        first += lines + told_after_all(victim)
    last = chatters.start("b", first)
    ended(last)
    ended(survivor)
    in_order(where)
