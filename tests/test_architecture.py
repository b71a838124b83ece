"""The house stands as it was drawn: which way imports point, what is pure, and that importing does nothing."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import durable
from durable import errors

ROOT = Path(__file__).parents[1]
PACKAGES = ("cli", "durable", "stores", "handlers")
FILES = [ROOT / "agent.py", *(path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))]
OURS = {*PACKAGES, "agent", "infra", "tests"}

MAX_FUNCTION = 50
MAX_FILE = 400


@dataclass(frozen=True)
class Import:
    """One import: of what, from where, and when it happens."""

    file: str
    module: str
    lazy: bool
    typing_only: bool

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]


def imports_of(path: Path) -> Iterator[Import]:
    """Every module that a file imports, those that are written as `from package import module` included."""
    file = path.relative_to(ROOT).as_posix()

    def walk(node: ast.AST, lazy: bool, typing_only: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.Import(names=names):
                    yield from (Import(file, alias.name, lazy, typing_only) for alias in names)
                case ast.ImportFrom(module=str() as module, names=names, level=0):
                    inside = [alias.name for alias in names if is_module(f"{module}.{alias.name}")]
                    yield from (Import(file, f"{module}.{name}", lazy, typing_only) for name in inside)
                    if len(inside) < len(names):
                        yield Import(file, module, lazy, typing_only)
                case ast.ImportFrom():
                    raise AssertionError(f"{file}: a relative import")
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                    yield from walk(child, True, typing_only)
                case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                    yield from walk(child, lazy, True)
                case _:
                    yield from walk(child, lazy, typing_only)

    return walk(ast.parse(path.read_text()), False, False)


def is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


IMPORTS = [found for path in FILES for found in imports_of(path)]


def imports(package: str) -> list[Import]:
    return [one for one in IMPORTS if one.file == f"{package}.py" or one.file.startswith(f"{package}/")]


# --- arrows ----------------------------------------------------------------------------------------------------------

ARROWS = {
    "durable": {"durable"},
    "stores": {"stores", "durable"},
    "handlers": {"handlers", "stores", "durable"},
    "agent": {"durable"},
    "cli": {"cli"},
}


@pytest.mark.parametrize("package", ARROWS)
def test_imports_point_one_way(package: str) -> None:
    """handlers -> stores -> durable, handlers -> durable, agent.py -> durable, cli alone; nobody imports infra."""
    wrong = [one for one in imports(package) if one.top in OURS - ARROWS[package]]
    assert wrong == []


def third_party(package: str) -> list[Import]:
    return [one for one in imports(package) if one.top not in sys.stdlib_module_names and one.top not in OURS]


def test_the_core_depends_on_little() -> None:
    """durable imports the standard library, pydantic and anyio; a network client only under providers/, and lazily."""
    for one in third_party("durable"):
        if one.top in ("pydantic", "pydantic_core", "anyio", "typing_extensions"):
            continue
        assert one.top in ("httpx", "boto3", "botocore"), one
        assert one.file.startswith("durable/providers/"), one
        assert one.lazy or one.typing_only, one


def test_stores_know_the_records_and_the_ports() -> None:
    """stores imports records, streams and their levels, ports, errors, messages and counting of durable; boto3 is for
    DynamoDB alone."""
    known = {"durable.records", "durable.ports", "durable.errors", "durable.messages"}
    known |= {"durable.approval_stream", "durable.capacity", "durable.counting", "durable.escalation"}
    assert {one.module for one in imports("stores") if one.top == "durable"} <= known
    for one in third_party("stores"):
        if one.top == "pytest":  # the contract is a test suite, which no other module imports
            assert one.file.startswith("stores/contract/"), one
            continue
        assert one.top in ("pydantic", "pydantic_core", "boto3", "botocore"), one
        assert one.top in ("pydantic", "pydantic_core") or "dynamodb" in one.file, one


def test_the_contract_is_for_tests() -> None:
    """What is deployed imports nothing of the contract kit, which needs pytest."""
    kit = [one for one in IMPORTS if one.module.startswith("stores.contract")]
    assert {one.file.rpartition("/")[0] for one in kit} == {"stores/contract"}


def test_a_backend_is_behind_one_file() -> None:
    """Only stores/sqlite.py knows the driver of SQLite, and only the file store locks files."""
    assert {one.file for one in IMPORTS if one.top == "sqlite3"} == {"stores/sqlite.py"}
    assert {one.file for one in IMPORTS if one.top == "fcntl"} == {"stores/_files_folder.py"}


def test_what_is_concrete_is_chosen_in_one_place() -> None:
    """Stores, providers and clients are made in handlers/_wiring.py; only the webhook has one of its own, lazily."""
    for one in imports("handlers"):
        if one.top == "httpx":
            assert (one.file, one.lazy) == ("handlers/_webhook.py", True), one
        if one.top in ("stores", "boto3") or one.module.startswith("durable.providers"):
            assert one.file == "handlers/_wiring.py", one
    assert {one.top for one in third_party("handlers")} <= {
        "aws_lambda_powertools",
        "boto3",
        "botocore",
        "httpx",
        "pydantic",
        "pydantic_core",
    }


def test_the_command_line_knows_the_api_alone() -> None:
    """cli imports the standard library, httpx and botocore: it is a client like any other, and is not deployed."""
    assert {one.top for one in third_party("cli")} == {"httpx", "botocore"}
    makefile = (ROOT / "Makefile").read_text()
    shipped = next(line for line in makefile.splitlines() if line.startswith("PACKAGE "))
    assert "cli" not in shipped.split()


def test_handlers_do_not_know_each_other() -> None:
    """A module that is deployed as a function is imported by no other module."""
    functions = {f"handlers.{path.stem}" for path in (ROOT / "handlers").glob("*.py") if not path.stem.startswith("_")}
    assert [one for one in IMPORTS if one.module in functions] == []


def test_the_environment_is_read_in_one_place() -> None:
    """Only handlers/_settings.py touches environment variables."""
    for path in FILES:
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Attribute(attr=name) | ast.alias(name=name):
                    names.add(name)
        if {"environ", "environb", "getenv", "getenvb", "putenv"} & names:
            assert path.relative_to(ROOT).as_posix() == "handlers/_settings.py"


PURE = {
    "durable_error": set[str](),
    "errors": {"durable_error", "provider_errors"},
    "provider_errors": {"durable_error"},
    "capacity": set[str](),
    "messages": set[str](),
    "records": {"capacity", "errors", "messages", "results"},
    "results": {"messages"},
    "transcript": {"messages", "ports", "records"},
    "plan": {"errors", "messages", "records", "transcript"},
    "fingerprint": {"definition", "events", "ports", "records"},
    "nesting": {"messages", "ports", "records", "transcript"},
    "patches": {"errors", "messages", "records", "tools", "transcript"},
    "trajectory": {"messages", "nesting", "records"},
    "rendering": {"trajectory"},
}
VALUES = {
    *("pydantic", "base64", "binascii", "collections", "dataclasses", "datetime", "difflib", "enum", "hashlib"),
    *("json", "re", "types", "typing"),
}


@pytest.mark.parametrize("name", PURE)
def test_what_decides_does_not_act(name: str) -> None:
    """Pure modules import values and other pure modules: no clock, no randomness, no file, no thread, no network."""
    for one in [one for one in IMPORTS if one.file == f"durable/{name}.py"]:
        allowed = {f"durable.{other}" for other in PURE[name]}
        assert one.top in VALUES or one.module in allowed, one


# --- the public door -------------------------------------------------------------------------------------------------


def test_the_public_names_are_sorted_and_true() -> None:
    """`durable.__all__` is sorted, without repetition, and lists exactly what the package imports for its users."""
    listed = durable.__all__
    assert listed == sorted(set(listed))
    assert all(hasattr(durable, name) for name in listed)
    tree = ast.parse((ROOT / "durable" / "__init__.py").read_text())
    imported = [alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(imported) == listed


def test_every_error_is_public() -> None:
    """Whoever uses the package can catch each of its errors by name, and each is in the tree of the docstring."""
    made = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert made <= set(durable.__all__)
    assert errors.__doc__ is not None
    assert all(name in errors.__doc__ for name in made)


# --- importing -------------------------------------------------------------------------------------------------------

PROBE = """
import json, logging, os, sys, threading
from collections.abc import MutableMapping
sys.dont_write_bytecode = True
root, names = sys.argv[1], sys.argv[2:]
houses = tuple(f"{root}/{name}" for name in ("durable/", "stores/", "handlers/", "cli/", "agent.py"))
sys.path.insert(0, root)
seen = []

def audit(event, arguments):
    if event == "open":
        path, mode, flags = arguments
        if (mode and set("wax+") & set(mode)) or (flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            seen.append(f"opened {path} to write")
    elif event.split(".")[0] in ("socket", "subprocess", "sqlite3") or event in ("os.mkdir", "os.system", "os.putenv"):
        seen.append(event)

def ours(frame):
    while frame is not None:
        if frame.f_code.co_filename.startswith(houses):
            return frame.f_code.co_filename
        if "importlib" not in frame.f_code.co_filename and "site-packages" in frame.f_code.co_filename:
            return None
        frame = frame.f_back
    return None

class Watched(MutableMapping):
    def __init__(self, inner):
        self.inner = inner
    def __getitem__(self, name):
        if caller := ours(sys._getframe(1)):
            seen.append(f"{caller} read {name}")
        return self.inner[name]
    def __setitem__(self, name, value):
        seen.append(f"set {name}")
    def __delitem__(self, name):
        seen.append(f"deleted {name}")
    def __iter__(self):
        return iter(self.inner)
    def __len__(self):
        return len(self.inner)

os.environ = Watched(dict(os.environ))
if any(name.startswith(("handlers", "cli", "stores.dynamodb", "stores._dynamodb")) for name in names):
    import boto3, botocore.session
    for owner, name in ((boto3, "client"), (boto3, "resource"), (boto3.session.Session, "__init__")):
        setattr(owner, name, lambda *_, name=name, **__: seen.append(f"boto3 {name}"))
sys.addaudithook(audit)
for name in names:
    # Imports go from one package to the next in one direction: what comes first can only matter inside of a package.
    for known in [known for known in sys.modules if known.split(".")[0] == name.split(".")[0]]:
        del sys.modules[known]
    __import__(name)
loggers = [logging.root, *logging.root.manager.loggerDict.values()]
for one in loggers:
    handlers = getattr(one, "handlers", ())  # a place holder has none
    seen += [f"{one} has {handler}" for handler in handlers if type(handler) is not logging.NullHandler]
seen += [f"thread {one}" for one in threading.enumerate() if one is not threading.main_thread()]
print(json.dumps({"seen": seen, "modules": sorted(sys.modules)}))
"""


def probe(*names: str, cwd: Path) -> tuple[list[str], set[str]]:
    """Import modules one after the other, each as the first one of its package, in a process without environment."""
    command = [sys.executable, "-c", PROBE, str(ROOT), *names]
    done = subprocess.run(command, cwd=cwd, env={}, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert list(cwd.iterdir()) == []
    return found["seen"], set(found["modules"])


def modules() -> list[str]:
    names = [path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for path in FILES]
    return [name.removesuffix(".__init__") for name in names]


@pytest.mark.parametrize("package", [*PACKAGES, "agent"])
def test_importing_does_nothing(package: str, tmp_path: Path) -> None:
    """Any module can be imported first, in an empty environment: no file, client, variable, log set-up or thread."""
    names = [name for name in modules() if name.partition(".")[0] == package]
    seen, imported = probe(*names, cwd=tmp_path)
    assert seen == []
    assert names
    assert package in imported


def test_the_probe_sees_what_it_looks_for(tmp_path: Path) -> None:
    """The check above would notice: a module that reads the environment, sets logging up or writes is seen."""
    package = tmp_path / "house" / "stores"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import logging, os, pathlib, threading\n"
        "os.environ.get('HOME')\n"
        "logging.basicConfig()\n"
        "open(os.devnull, 'w').close()\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    command = [sys.executable, "-c", PROBE, str(package.parent), "stores"]
    done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True, timeout=60, check=True)
    seen = " ".join(json.loads(done.stdout)["seen"])
    for what in ("read HOME", "to write", "StreamHandler", "thread"):
        assert what in seen


PROVIDERS = [f"durable.providers.{name}" for name in ("anthropic", "bedrock", "openai_chat", "openai_responses")]


@pytest.mark.parametrize("module", ["durable", "durable.providers", "durable.providers.scripted", "stores", *PROVIDERS])
def test_the_core_is_light_to_import(module: str, tmp_path: Path) -> None:
    """Importing the core brings neither httpx nor boto3: they come with the first call that needs them."""
    _, imported = probe(module, cwd=tmp_path)
    assert module in imported
    assert not imported & {"httpx", "boto3", "botocore", "aws_lambda_powertools"}
    if module == "durable":
        assert not [name for name in imported if name.startswith("durable.providers")]


COLD_START = """
import json, sys
sys.modules.update(dict.fromkeys(("OpenSSL", "awscrt")))  # botocore takes them up where they are; no function has them
import boto3
boto3.client("dynamodb", region_name="us-east-1")
boto3.DEFAULT_SESSION = None
known, read = set(sys.modules), []
sys.addaudithook(lambda event, arguments: read.append(str(arguments[0])) if event == "open" else None)
import handlers.runs
from handlers._wiring import app
app().states, app().events
print(json.dumps([sorted(set(sys.modules) - known), read]))
"""
NOT_FOR_A_RUN = (
    *("httpx", "httpcore", "sqlite3", "jsonschema", "aws_lambda_powertools.utilities.parameters", "handlers._forking"),
    *("handlers._conversations", "handlers._review", "handlers._webhook", "handlers._notify", "stores.sqlite"),
    *("stores.files", "durable.providers.anthropic", "durable.providers.bedrock", "durable.providers.openai_chat"),
)


def test_a_cold_start_brings_what_a_run_needs() -> None:
    """A model's client, other stores and what other requests need come later; all clients read boto3's data once."""
    environment = {"TABLE_NAME": "t", "AWS_DEFAULT_REGION": "us-east-1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", COLD_START]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True)
    brought, read = json.loads(done.stdout)
    assert "handlers.runs" in brought
    assert {one for one in brought for late in NOT_FOR_A_RUN if f"{one}.".startswith(f"{late}.")} == set()
    assert len(brought) < 330  # beside the 390 of a bare client
    assert len([path for path in read if Path(path).name.startswith("endpoints.json")]) == 1


# --- sizes -----------------------------------------------------------------------------------------------------------

SIZED = [path for path in FILES if path.name != "agent.py"]


@pytest.mark.parametrize("path", SIZED, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_file_tells_one_story_and_a_function_fits_a_screen(path: Path) -> None:
    """No file is longer than 400 lines, and no function longer than 50."""
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_FILE
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno + 1 <= MAX_FUNCTION, node.name
