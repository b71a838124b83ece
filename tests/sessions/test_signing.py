"""A sub-agent of a sub-agent that asks again and again, while nothing but the store outlives a process."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.sessions.signer import NAMES

PROJECT = Path(__file__).resolve().parents[2]


def fresh_process(folder: Path) -> list[Any]:
    """How the run stands when a new process has done its part."""
    command = [sys.executable, "-m", "tests.sessions.signer", str(folder)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_five_approvals_each_in_a_fresh_process(tmp_path: Path) -> None:
    """Each process takes one decision and dies: every signature is given once, no model turn is asked for twice."""
    reason, first, _, _ = fresh_process(tmp_path)
    assert reason == "awaiting-approval"
    asked = [first]
    for _ in NAMES[1:]:
        reason, approval_id, text, _ = fresh_process(tmp_path)
        assert (reason, text) == ("awaiting-approval", "")
        asked.append(approval_id)
    reason, waits_for, text, model_calls = fresh_process(tmp_path)
    assert (reason, waits_for, text) == ("stop", None, "Done.")
    assert len(set(asked)) == len(NAMES)
    signed = [line.split() for line in (tmp_path / "signed").read_text().splitlines()]
    assert [name for name, _ in signed] == [*NAMES]
    assert len({call_id for _, call_id in signed}) == len(NAMES)
    assert model_calls == 2 + 2 + len(NAMES) + 1  # what the three agents said, each turn once
