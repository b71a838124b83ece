"""`make run` is executed, as a newcomer would."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from infra.local.cloud import PROJECT
from infra.local.tour import RECORDING

pytestmark = pytest.mark.e2e

SHOWN = (
    "SIGKILL: 1 Lambda",
    "call 1 was made once, call 2 twice",
    "Answer: YES",
    "write units",
    "@@ step 2, where they part @@",
    '+ can_have_dragons({"population": 123124}) -> false',
)


def run_tour(**environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "infra.local.tour"]
    return subprocess.run(
        command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False, timeout=180
    )


def test_the_tour_ends_with_the_answer_and_leaves_nothing(tmp_path: Path) -> None:
    """It shows kill, resume, approval, answer, cost and a fork, exits 0 and leaves no file behind."""
    done = run_tour(PATH="/usr/bin:/bin", TMPDIR=str(tmp_path), RECORDINGS_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    for told in (*SHOWN, "Its answers are scripted"):
        assert told in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_tour_plays_a_recorded_conversation(tmp_path: Path) -> None:
    """With the recordings, the same job is done by what a real model said, over the real protocol."""
    folder = PROJECT / os.environ.get("RECORDINGS_DIR", "../shared/recordings")
    if not (folder / RECORDING).is_file():
        pytest.skip("RECORDINGS_DIR names no folder of recordings: the tour ran with scripted answers only")
    done = run_tour(PATH="/usr/bin:/bin", TMPDIR=str(tmp_path), RECORDINGS_DIR=str(folder))
    assert done.returncode == 0, done.stderr
    for told in (*SHOWN, "recorded from a real model"):
        assert told in done.stdout


def test_a_tour_that_fails_says_so(tmp_path: Path) -> None:
    """A recording that is not the expected conversation ends the tour with status 1 and a reason."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "openai-chat-sequential-tools-1.json").write_text('{"protocol": "other", "streaming": false}')
        done = run_tour(PATH="/usr/bin:/bin", TMPDIR=str(tmp_path), RECORDINGS_DIR=folder)
    assert done.returncode == 1
    assert "The tour stopped here" in done.stderr
