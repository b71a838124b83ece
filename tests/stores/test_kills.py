"""A process that saves may be killed at any moment: what it was told is saved is there, and the store opens."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.stores.saver import open_store
from tests.support.effort import effort

ROOT = Path(__file__).parents[2]
ROUNDS = effort(200)
A_SAVE = 0.004
"""About how long a save takes: the kill falls somewhere in the one after."""


@contextmanager
def saver(name: str, path: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.stores.saver", name, str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def killed_at_random(process: subprocess.Popen[bytes], session_id: str, chance: random.Random) -> int | None:
    """Let a session be saved in a loop, kill the process that does it, and give the last step it acknowledged."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(session_id.encode() + b"\n")
    process.stdin.flush()
    saves, child, last = chance.randrange(6), 0, None
    while True:
        if child and saves == 0:
            time.sleep(chance.uniform(0, A_SAVE))
            os.kill(child, signal.SIGKILL)
            saves = -1
        said, _, number = process.stdout.readline().partition(b" ")
        match said:
            case b"pid":
                child = int(number)
            case b"saved":
                last, saves = int(number), saves if saves < 1 else saves - 1
            case _:
                assert (said, int(number)) == (b"ended", signal.SIGKILL)
                return last


@pytest.mark.parametrize("name", ["files", "sqlite"])
def test_nothing_acknowledged_is_lost(name: str, tmp_path: Path) -> None:
    """Over 200 kills at random times the store always opens, has the last acknowledged save, and at most one more."""
    chance = random.Random(name)
    outcomes = {0: 0, 1: 0}
    before: dict[str, int] = {}
    with saver(name, tmp_path) as process:
        for number in range(ROUNDS):
            session_id = f"s{number // 20}"
            acknowledged = killed_at_random(process, session_id, chance)
            loaded = open_store(name, tmp_path).checkpoints.load(session_id)
            found = loaded.step if loaded is not None else -1
            promised = before.get(session_id, -1) if acknowledged is None else acknowledged
            assert found - promised in outcomes, f"round {number}"
            outcomes[found - promised] += 1
            before[session_id] = found
            if loaded is not None:
                assert loaded.revision == found
                assert loaded.messages[-1].content in (f"m{found}", "What is the weather in Oslo?")
    print(f"\n{name}: {ROUNDS} kills, {outcomes[1]} of them after a save that nobody was told of; {before}")
