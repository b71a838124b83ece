"""The README and the guide are true: their links lead somewhere, tests exist, programs run, commands are commands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cli.codes import MEANING

PROJECT = Path(__file__).resolve().parents[1]
README = (PROJECT / "README.md").read_text()
GUIDE = (PROJECT / "infra" / "GUIDE.md").read_text()
PROGRAMS = {
    found[1]: found[2]
    for section in re.split(r"^(?=##+ )", README + GUIDE, flags=re.M)
    if (found := re.match(r"##+ (.*?)\n.*?```python\n((?:(?!```).)*asyncio\.run.*?)```", section, re.S))
}
"""The complete programs, by the section that they stand in."""


PAGES = [PROJECT / "README.md", *sorted((PROJECT / "infra").glob("*.md"))]
LINKS = [(page, link) for page in PAGES for link in sorted(set(re.findall(r"\]\(([^):]+)\)", page.read_text())))]


@pytest.mark.parametrize(("page", "link"), LINKS, ids=lambda value: getattr(value, "name", value))
def test_links_lead_somewhere(page: Path, link: str) -> None:
    """Every relative link names a file of the project, and a heading that is there."""
    path, _, heading = link.partition("#")
    target = (page.parent / path) if path else page
    assert target.exists()
    if heading:
        titles = re.findall(r"^#+ (.*)$", target.read_text(), re.M)
        assert heading in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize(("test", "file"), re.findall(r"\[(test_\w+)\]\((tests/\S+\.py)\)", README))
def test_guarantees_name_their_tests(test: str, file: str) -> None:
    """Every guarantee names a test that exists."""
    assert f"def {test}(" in (PROJECT / file).read_text()


def test_every_guarantee_is_there() -> None:
    """Every module of guarantees is linked to."""
    modules = [path.relative_to(PROJECT).as_posix() for path in (PROJECT / "tests" / "guarantees").glob("test_*.py")]
    assert [module for module in modules if f"({module})" not in README] == []


def test_every_program_is_found() -> None:
    """No complete program is left out of what the next test runs, and each section has at most one."""
    assert len(PROGRAMS) == len(re.findall(r"^asyncio\.run\(", README + GUIDE, re.M)) >= 7


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_runs(program: str) -> None:
    """A complete program runs as it stands, and prints what its comments say."""
    done = subprocess.run([sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=False)
    said = re.findall(r"^ *(?:print\(.*\)  )?# (.*)\n", program, re.M)
    assert (done.stdout.splitlines(), done.stderr) == (said, "")


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


def test_exit_codes_are_those_of_the_command_line() -> None:
    """The table of exit codes says what `durable --help` says."""
    table = README.split("| exit code |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| (\d) \| (.*) \|$", table, re.M)
    assert rows == [(str(code.value), meaning) for code, meaning in MEANING.items()]
