"""The contract kit as somebody else uses it: pointed at a store of one's own, in a folder of one's own."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from durable.messages import UserMessage
from stores.contract import MovedClock
from stores.contract.samples import checkpoint
from tests.support.documents import DocumentStore, Table

ROOT = Path(__file__).parents[2]

CONFTEST = """
from dataclasses import dataclass, field
from types import SimpleNamespace
import pytest
from stores.contract import Crash, MovedClock, missing
from stores.contract.plugin import *
from tests.support.documents import DocumentStore, Row, Table

@dataclass
class Mine:
    clock: MovedClock
    table: Table = field(default_factory=Table)
    name: str = "mine"

    def open(self, *, ttl=None, around=lambda call: call()):
        return SimpleNamespace(checkpoints=DocumentStore(self.table, self.clock, ttl, around))

    def open_dying(self, call, *, applied, ttl=None):
        left = call
        def around(made):
            nonlocal left
            left -= 1
            if left >= 0:
                return made()
            if applied:
                made()
            raise Crash
        return self.open(ttl=ttl, around=around)

@pytest.fixture
def backend(clock):
    return Mine(clock)
"""
MODULE = """
from stores.contract.checkpoints import *
from stores.contract.expiry import *
from stores.contract.crashes import *
"""
FAULTS = {
    "the last writer wins": (
        "save = DocumentStore.save\n"
        "DocumentStore.save = lambda self, new, after: save(self, new, after=self.load(new.session_id))",
        "test_a_writer_that_was_overtaken_writes_nothing",
    ),
    "what has expired is given": ("DocumentStore._live = lambda self, row: None if row is None or row.document is None"
        " else __import__('durable').Checkpoint.model_validate_json(row.document)",
        "test_a_session_is_there_while_its_newest_save_is_fresh"),
    "a delete deletes what looks alike": (
        "DocumentStore.delete = lambda self, session_id: [self.table.rows.pop(key) for key in list(self.table.rows)"
        " if key.startswith(session_id)] and None",
        "test_awkward_ids_are_sessions_of_their_own",
    ),
}  # fmt: skip
"""What stores have got wrong, and a test that must find it."""


def kit(folder: Path, conftest: str, *arguments: str) -> str:
    """Run the kit in a folder, in a process of its own, and give what it printed."""
    (folder / "conftest.py").write_text(conftest)
    (folder / "test_mine.py").write_text(MODULE)
    options = ["-p", "no:cacheprovider", "-q", "-o", f"pythonpath={ROOT}", "--import-mode=importlib", *arguments]
    command = [sys.executable, "-m", "pytest", f"--rootdir={folder}", str(folder), *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    return f"exit {done.returncode}\n{done.stdout}{done.stderr}"


def test_a_store_of_three_methods_passes(tmp_path: Path) -> None:
    """A custom store of three methods keeps the whole contract of checkpoints, and the report says how much ran."""
    said = kit(tmp_path, CONFTEST)
    assert said.startswith("exit 0"), said
    assert "mine: " in said
    assert "crashes 12 passed" in said
    assert "skipped" not in said


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(tmp_path: Path, fault: str) -> None:
    """The kit can fail: a store with a fault that others have had does not pass, and the report says where."""
    code, test = FAULTS[fault]
    said = kit(tmp_path, f"{CONFTEST}\n{code}\n", "-k", test)
    assert said.startswith("exit 1"), said
    assert f"{test}" in said
    assert "FAILED" in said


def test_a_backend_that_is_missing_fails(tmp_path: Path) -> None:
    """When the database is not there the tests fail; a skip would look like success."""
    broken = CONFTEST.replace("return Mine(clock)", 'missing("my database", "connection refused")')
    said = kit(tmp_path, broken, "-k", "test_a_first_save_is_loaded_whole")
    assert said.startswith("exit 1"), said
    assert "my database should be there to be tested, and is not: connection refused" in said
    assert "skipped" not in said


def test_capabilities_may_share_a_module() -> None:
    """No two capabilities have a test or a fixture of one name: whoever imports several loses nothing."""
    names = Counter[str]()
    for path in (ROOT / "stores" / "contract").glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and (node.name.startswith("test_") or node.decorator_list):
                names[node.name] += 1
    assert [name for name, count in names.items() if count > 1] == []
    assert len(names) > 130


def test_a_document_store_is_what_the_readme_says() -> None:
    """Three methods are all that a store needs."""
    store = DocumentStore(Table(), MovedClock())
    saved = store.save(checkpoint("s", UserMessage(content="Hello")), after=None)
    assert store.load("s") == saved
    store.delete("s")
    assert store.load("s") is None
