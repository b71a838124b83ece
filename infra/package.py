"""Fills the folders that the SAM CLI uploads: one for the code of every function, one for the layer beneath them.

The Makefile's `build-…` targets call it for `sam build`. What is built is kept under a hash of all that went into it,
so that only the first build takes longer than a copy.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

# The tags of wheels that run on Lambda: Amazon Linux 2023 for python3.12 and later, Amazon Linux 2 before.
PLATFORMS = {"x86_64": "manylinux2014_x86_64", "arm64": "manylinux2014_aarch64"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["code", "layer"])
    parser.add_argument("artifacts", type=Path, help="the folder to fill")
    parser.add_argument("inputs", type=Path, nargs="+", help="code: files and folders; layer: requirements files")
    parser.add_argument("--runtime", required=True, help="python3.13, say, or `host`: this interpreter and machine")
    parser.add_argument("--architecture", choices=sorted(PLATFORMS), required=True)
    parser.add_argument("--cache", type=Path, required=True)
    arguments = parser.parse_args()
    inputs = [path for path in arguments.inputs if path.exists()]
    if arguments.what == "code":
        fill, destination = code(inputs), arguments.artifacts
    else:
        fill, destination = layer(inputs, arguments.runtime, arguments.architecture), arguments.artifacts / "python"
    python = compiler(arguments.runtime)
    made_by = (sys.version, platform.platform(), str(python))
    key = digest(inputs, arguments.what, arguments.runtime, arguments.architecture, *made_by)
    built = cached(arguments.cache / f"{arguments.what}-{key}", fill, python)
    if python is None:
        mine = f"{sys.version_info.major}.{sys.version_info.minor}"
        print(f"No byte code: there is no {arguments.runtime} on this machine. Each cold start takes twice as long.")
        print(f"Install it, or deploy to the Python that is here: make deploy LAMBDA_RUNTIME=python{mine}")
    shutil.copytree(built, destination, dirs_exist_ok=True)


def code(inputs: Iterable[Path]) -> Callable[[Path], None]:
    """What copies the project's files and folders, without byte code of whatever interpreter ran them last."""

    def fill(folder: Path) -> None:
        for path in inputs:
            if path.is_dir():
                shutil.copytree(path, folder / path.name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
            else:
                shutil.copy2(path, folder)

    return fill


def layer(requirements: Iterable[Path], runtime: str, architecture: str) -> Callable[[Path], None]:
    """What installs the requirements as wheels for the runtime, whatever machine builds them."""
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--no-compile"]
    for path in requirements:
        command += ["--requirement", str(path)]
    if runtime != "host":
        command += ["--platform", PLATFORMS[architecture], "--implementation", "cp", "--only-binary=:all:"]
        command += ["--python-version", runtime.removeprefix("python")]

    def fill(folder: Path) -> None:
        subprocess.run([*command, "--target", str(folder)], check=True)
        shutil.rmtree(folder / "bin", ignore_errors=True)  # console scripts, which no function calls

    return fill


def cached(folder: Path, fill: Callable[[Path], None], python: str | None) -> Path:
    """The folder, filled and compiled the first time; it appears whole or not at all, also for parallel builds."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            fresh = Path(scratch) / "fresh"
            fresh.mkdir()
            fill(fresh)
            if python is not None:
                compile_with(python, fresh)
            try:
                fresh.rename(folder)
            except OSError:  # another build was faster
                if not folder.is_dir():
                    raise
    return folder


def compiler(runtime: str) -> str | None:
    """The Python that makes the runtime's byte code: this one, or one of that name on this machine; no other can."""
    if runtime in ("host", f"python{sys.version_info.major}.{sys.version_info.minor}"):
        return sys.executable
    path = shutil.which(runtime)
    if path is None:
        return None
    asked = [path, "-c", "import sys; print('python%d.%d' % sys.version_info[:2])"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False)
    return path if said.stdout.strip() == runtime else None  # a version switcher's launcher may have no such Python


def compile_with(python: str, folder: Path) -> None:
    """Add byte code that is used without a look at the source's time, which unpacking on Lambda changes."""
    command = [python, "-m", "compileall", "-qq", "-j", "0", "-s", str(folder), "--invalidation-mode", "unchecked-hash"]
    subprocess.run([*command, str(folder)], check=False)  # a file that is no Python of this version stays as it is


def digest(inputs: Iterable[Path], *others: str) -> str:
    """A hash over the contents of the inputs and everything else that shapes the result."""
    total = hashlib.sha256("\0".join((Path(__file__).read_text(), *others)).encode())
    for path in inputs:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                total.update(os.fsencode(file) + b"\0" + file.read_bytes())
    return total.hexdigest()[:20]


if __name__ == "__main__":
    main()
