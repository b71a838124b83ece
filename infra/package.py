"""Fills the folders that the SAM CLI uploads: one for the code of every function, one for the layer beneath them.

The Makefile's `build-…` targets call it for `sam build`. What is built is kept under a hash of all that went into it,
so that only the first build takes longer than a copy.
"""

from __future__ import annotations

import argparse
import compileall
import hashlib
import os
import platform
import py_compile
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
    key = digest(inputs, arguments.what, arguments.runtime, arguments.architecture, sys.version, platform.platform())
    built = cached(arguments.cache / f"{arguments.what}-{key}", fill, arguments.runtime)
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


def cached(folder: Path, fill: Callable[[Path], None], runtime: str) -> Path:
    """The folder, filled and compiled the first time; it appears whole or not at all, also for parallel builds."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            fresh = Path(scratch) / "fresh"
            fresh.mkdir()
            fill(fresh)
            compile_for(runtime, fresh)
            try:
                fresh.rename(folder)
            except OSError:  # another build was faster
                if not folder.is_dir():
                    raise
    return folder


def compile_for(runtime: str, folder: Path) -> None:
    """Add byte code that is used without a look at the source's time, which unpacking on Lambda changes."""
    mine = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if runtime not in ("host", mine):
        print(f"No byte code: {mine} builds for {runtime}. Cold starts are faster when both are the same.")
        return
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(folder, quiet=2, stripdir=str(folder), invalidation_mode=mode, workers=0)


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
