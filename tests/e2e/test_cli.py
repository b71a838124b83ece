"""The command line, as an operator uses it: a process of its own, against the deployed template, signed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from botocore.credentials import Credentials

from cli.codes import Code
from cli.target import connect
from tests.e2e.conftest import World

pytestmark = pytest.mark.e2e

PROJECT = Path(__file__).parents[2]


def environment(world: World, credentials: Credentials | None = None) -> dict[str, str]:
    """What AWS's own tools read, for this cloud."""
    keys: Any = credentials or world.deployment.credentials
    return {
        **world.cloud.client_environment(),
        "PATH": "/usr/bin:/bin",
        "AWS_ACCESS_KEY_ID": keys.access_key,
        "AWS_SECRET_ACCESS_KEY": keys.secret_key,
    }


def durable(world: World, *words: str, ends: Code = Code.OK, credentials: Credentials | None = None) -> str:
    """What the command prints; it ends as it should."""
    named = [] if "--stack" in words else ["--url", world.deployment.api_url]
    command = [sys.executable, "-m", "cli", *words, *named]
    done = subprocess.run(
        command, cwd=PROJECT, env=environment(world, credentials), capture_output=True, text=True, check=False
    )
    assert done.returncode == ends, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stdout if ends in (Code.OK, Code.UNFINISHED, Code.DIFFERENT) else done.stderr


def test_a_run_is_started_looked_at_forked_and_compared(world: World) -> None:
    """From the first message to the comparison of what if, every command once."""
    session = world.new_session()
    assert "answer         Both done." in durable(world, "runs", "start", session, f"steps {session}", "--key", "k")
    again = json.loads(durable(world, "runs", "start", session, f"steps {session}", "--key", "k", "--json"))
    assert (again["text"], world.ledger.count(session, "model-0")) == ("Both done.", 1)
    assert durable(world, "history", session).splitlines()[1].split()[2] == "finished"
    messages = json.loads(durable(world, "runs", "show", session, "--messages", "--json"))["messages"]
    call_id = messages[1]["tool_calls"][0]["id"]
    assert f'{call_id} step({{"name": "one"}})' in durable(world, "runs", "show", session, "--messages")
    patch = ["--step", "1", "--tool-result", f'{call_id}="one failed"']
    assert f"session  {session}.fork-1" in durable(world, "fork", session, *patch)
    assert "Both done." in durable(world, "runs", "resume", f"{session}.fork-1")
    text = durable(world, "compare", session, f"{session}.fork-1", ends=Code.DIFFERENT)
    assert '- step({"name": "one"}) -> "one done"\n+ step({"name": "one"}) -> "one failed"\n' in text
    durable(world, "fork", session, "--step", "1", "--id", f"{session} again", "--resume")
    assert "every step is the same" in durable(world, "compare", session, f"{session} again")


def test_an_approval_is_found_and_decided(world: World) -> None:
    """A run that waits ends with 3; its approval is listed, shown, approved, and the run finishes."""
    session = world.new_session()
    waiting = json.loads(durable(world, "runs", "start", session, f"pay {session}", "--json", ends=Code.UNFINISHED))
    id = waiting["approval_id"]
    world.mail(id)
    assert id in durable(world, "approvals", "list")
    assert 'arguments  {"amount": 5}' in durable(world, "approvals", "show", id)
    assert "status      approved" in durable(world, "approvals", "approve", id, "--note", "fine")
    assert "Paid." in world.until(session, "finished")["text"]
    assert "Paid." in durable(world, "runs", "show", session)
    assert world.ledger.count(session, "pay") == 1
    command = [sys.executable, "-m", "cli", "approvals", "reject", id, "--url", world.deployment.api_url]
    other = subprocess.run(command, cwd=PROJECT, env=environment(world), capture_output=True, text=True, check=False)
    assert other.returncode == Code.REFUSED
    assert "decided otherwise" in other.stdout


def test_a_rejected_call_never_runs(world: World) -> None:
    """`approvals reject` tells the model why, and the run goes on without the call; `--wait` waits for that."""
    session = world.new_session()
    durable(world, "runs", "start", session, f"pay {session}", ends=Code.UNFINISHED)
    id = json.loads(durable(world, "runs", "show", session, "--json", ends=Code.UNFINISHED))["approval_id"]
    world.mail(id)
    durable(world, "approvals", "reject", id, "--note", "too much")
    world.until(session, "finished")
    assert '"note": "too much"' in durable(world, "runs", "show", session, "--messages")
    assert world.ledger.count(session, "pay") == 0


def test_errors_end_with_codes_of_their_own(world: World) -> None:
    """What is not there, not allowed, not now and not listed end differently, and say what to do."""
    assert "SESSION_NOT_FOUND" in durable(world, "runs", "show", "nobody", ends=Code.NOT_FOUND)
    stranger = world.cloud.create_user("stranger-with-a-shell")
    durable(world, "approvals", "list", ends=Code.NOT_PERMITTED, credentials=stranger)
    session = world.new_session()
    durable(world, "runs", "start", session, f"pay {session}", ends=Code.UNFINISHED)
    refused = durable(world, "runs", "resume", session, ends=Code.REFUSED)
    assert "SESSION_AWAITING_APPROVAL" in refused
    assert "Decide the approval first" in refused
    assert "it has steps 0, 1" in durable(world, "fork", session, "--step", "9", ends=Code.NOT_FOUND)
    durable(world, "runs", "show", "s", "--stack", "no-such-stack", ends=Code.NOT_FOUND)


def test_a_stack_names_its_api(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--stack` finds the output of the deployed stack through CloudFormation."""
    for name, value in environment(world).items():
        monkeypatch.setenv(name, value)
    api = connect(url=None, stack=world.deployment.stack, region=None, profile=None)
    assert api._url == world.deployment.outputs["ApiUrl"]
