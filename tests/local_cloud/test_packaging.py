"""What is shipped, and that the places which say so agree.

1. What the project depends on is what the layer ships, plus boto3, which the Lambda runtime brings.
2. Every requirement is pinned, without addresses, and what is tested is what is shipped.
3. A function's package holds the code and nothing else, the same for the same source.
4. The layer is built for the runtime and the machine that Lambda has, whatever builds it.
5. Both hold byte code for the runtime, and a build that cannot make it says so.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from infra.local.cloud import PROJECT

REQUIREMENTS = PROJECT / "requirements"


def pins(name: str) -> dict[str, str]:
    """The packages of a requirements file and their versions (one of them, where the file has one per Python)."""
    lines = (REQUIREMENTS / f"{name}.txt").read_text().splitlines()
    return dict(line.split(" ;")[0].split("==") for line in lines)


def build(what: str, folder: Path, *inputs: str, runtime: str = "host", path: Path | None = None) -> Path:
    """Fill a folder as `sam build` does; `path` is where other versions of Python are, if anywhere."""
    options = ["--runtime", runtime, "--architecture", "x86_64", "--cache", str(folder / "cache")]
    command = [sys.executable, "infra/package.py", what, str(folder / "artifacts"), *inputs, *options]
    environment = os.environ if path is None else {**os.environ, "PATH": str(path)}
    done = subprocess.run(command, cwd=PROJECT, env=environment, check=True, capture_output=True, text=True)
    (folder / "said").write_text(done.stdout)
    return folder / "artifacts"


def test_the_layer_ships_what_the_project_depends_on() -> None:
    """`dependencies` of pyproject.toml are the layer's requirements and boto3."""
    dependencies = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["dependencies"]
    shipped = [line for line in (REQUIREMENTS / "runtime.in").read_text().splitlines() if line[0] != "#"]
    assert [d for d in dependencies if not d.startswith("boto3")] == shipped
    assert not {"boto3", "botocore"} & pins("runtime").keys()


@pytest.mark.parametrize("name", ["runtime", "dev", "cloud"])
def test_requirements_are_pinned_and_have_no_address(name: str) -> None:
    """Each line is a package, its version, and perhaps for whom."""
    for line in (REQUIREMENTS / f"{name}.txt").read_text().splitlines():
        assert re.fullmatch(r"[a-z0-9-]+==[\w.]+( ; [\w.' <>=!]+)?", line)


def test_what_is_tested_is_what_is_shipped() -> None:
    """The development environment has the versions that the layer ships."""
    assert pins("runtime").items() <= pins("dev").items()


@pytest.mark.parametrize(
    ("variable", "parameter"), [("LAMBDA_RUNTIME", "PythonRuntime"), ("LAMBDA_ARCHITECTURE", "Architecture")]
)
def test_what_is_built_is_what_the_template_names(variable: str, parameter: str) -> None:
    """A plain `sam build` builds for the runtime and the architecture that a plain `sam deploy` asks for."""
    built = re.search(rf"^{variable} \?= (\S+)$", (PROJECT / "Makefile").read_text(), re.MULTILINE)
    named = re.search(
        rf"^  {parameter}:\n    Type: String\n    Default: (\S+)$", (PROJECT / "template.yaml").read_text(), re.M
    )
    assert built is not None
    assert named is not None
    assert built[1] == named[1]


def test_a_package_holds_the_code_and_nothing_else(tmp_path: Path) -> None:
    """Files and folders are copied without caches and hidden files, and compiled without a look at the clock."""
    source = tmp_path / "source"
    (source / "__pycache__").mkdir(parents=True)
    (source / "main.py").write_text("answer = 42\n")
    (source / "__pycache__" / "main.cpython-38.pyc").write_text("old")
    (source / ".env").write_text("SECRET=1")
    folder = build("code", tmp_path, str(source), str(source / "main.py"), "missing.py")
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    tag = sys.implementation.cache_tag
    compiled = [f"__pycache__/main.{tag}.pyc", f"source/__pycache__/main.{tag}.pyc"]
    assert files == [*compiled[:1], "main.py", compiled[1], "source/main.py"]
    flags = (folder / compiled[0]).read_bytes()[4:8]
    assert flags == (0b01).to_bytes(4, "little")  # hash-based, not checked against the source


def test_the_layer_is_built_for_the_target(tmp_path: Path) -> None:
    """The wheels are those of the named runtime, and the console scripts stay out."""
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(f"pydantic-core=={pins('runtime')['pydantic-core']}\n")
    folder = build("layer", tmp_path, str(requirements), runtime="python3.13")
    (binary,) = folder.rglob("_pydantic_core*.so")
    assert binary.name == "_pydantic_core.cpython-313-x86_64-linux-gnu.so"
    assert not (folder / "python" / "bin").exists()


@pytest.mark.parametrize("what", ["code", "layer"])
def test_what_is_shipped_is_compiled_for_its_runtime(tmp_path: Path, what: str) -> None:
    """Every module has byte code of the runtime's version, which is used without a look at the clock."""
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(f"httpx=={pins('runtime')['httpx']}\n")
    mine = f"python{sys.version_info.major}.{sys.version_info.minor}"
    inputs = [str(requirements)] if what == "layer" else ["durable", "stores", "handlers", "agent.py"]
    folder = build(what, tmp_path, *inputs, runtime=mine)
    modules = list(folder.rglob("*.py"))
    compiled = [
        module.parent / "__pycache__" / f"{module.stem}.{sys.implementation.cache_tag}.pyc" for module in modules
    ]
    assert len(modules) > 20
    assert {path.read_bytes()[4:8] for path in compiled} == {(0b01).to_bytes(4, "little")}


def test_byte_code_is_made_by_the_runtimes_own_version(tmp_path: Path) -> None:
    """Where this Python is another one, that of the runtime's name compiles, if it is what it is called."""
    python = tmp_path / "bin" / "python3.9"
    python.parent.mkdir()
    (source := tmp_path / "main.py").write_text("answer = 42\n")
    for version, compiled in (("3.8", False), ("3.9", True)):
        python.write_text(f'#!/bin/sh\n[ "$1" = -c ] && echo python{version} || echo "$@" > {tmp_path}/asked\n')
        python.chmod(0o755)
        build("code", tmp_path, str(source), runtime="python3.9", path=python.parent)
        assert (tmp_path / "asked").exists() is compiled
        assert ("No byte code: there is no python3.9" in (tmp_path / "said").read_text()) is not compiled
    asked = (tmp_path / "asked").read_text()
    assert "-m compileall" in asked
    assert "--invalidation-mode unchecked-hash" in asked
