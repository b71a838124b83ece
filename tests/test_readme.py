"""The README is true: its links lead somewhere, its tests exist, its program runs, its commands are commands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
README = (PROJECT / "README.md").read_text()
PROGRAM = next(block for block in re.findall(r"```python\n(.*?)```", README, re.S) if "asyncio.run" in block)


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#:]+)\)", README))))
def test_links_lead_somewhere(target: str) -> None:
    """Every relative link names a file of the project."""
    assert (PROJECT / target).exists()


@pytest.mark.parametrize(("test", "file"), re.findall(r"\[(test_\w+)\]\((tests/\S+\.py)\)", README))
def test_guarantees_name_their_tests(test: str, file: str) -> None:
    """Every guarantee names a test that exists."""
    assert f"def {test}(" in (PROJECT / file).read_text()


def test_the_program_runs() -> None:
    """The program for one process runs as it stands, and says what it should."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("Done: order 17 is paid back.\n", "")


@pytest.mark.parametrize("command", sorted(set(re.findall(r"(?:^|`)make ([a-z-]+)", README, re.M))))
def test_make_commands_exist(command: str) -> None:
    """Every `make` command that is mentioned is a target."""
    assert re.search(rf"^{command}:", (PROJECT / "Makefile").read_text(), re.M)


def test_parameters_are_the_templates() -> None:
    """Every parameter that is described is one of the template's."""
    table = README.split("| parameter |")[1].split("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    template = (PROJECT / "template.yaml").read_text().split("Conditions:")[0]
    assert named
    assert not [name for name in named if not re.search(rf"^  {name}:$", template, re.M)]
