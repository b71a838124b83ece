"""What is shipped, and that the places which say so agree.

1. What the project depends on is what the layer ships, plus boto3, which the Lambda runtime brings.
2. Every requirement is pinned, without addresses, and what is tested is what is shipped.
3. A function's package holds the code and nothing else, the same for the same source.
4. The layer is built for the runtime and the machine that Lambda has, whatever builds it.
"""

from __future__ import annotations

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


def build(what: str, folder: Path, *inputs: str, runtime: str = "host") -> Path:
    options = ["--runtime", runtime, "--architecture", "x86_64", "--cache", str(folder / "cache")]
    command = [sys.executable, "infra/package.py", what, str(folder / "artifacts"), *inputs, *options]
    subprocess.run(command, cwd=PROJECT, check=True)
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
