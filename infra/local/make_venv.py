"""Makes a virtual environment from a requirements file, and shows how far it has got.

`python3 infra/local/make_venv.py .venv requirements/dev.txt "the development environment"`. It uses the standard
library alone, and runs on interpreters that are too old for the project: it is what tells their users.
"""

import os
import re
import subprocess
import sys
import time
import venv

MINIMUM = (3, 11)


def main(folder: str, requirements: str, what: str) -> "str | None":
    """Make the environment; None when that succeeded, else what to tell the user."""
    found = sys.version_info[:2]
    if found < MINIMUM:
        return (
            f"Python {MINIMUM[0]}.{MINIMUM[1]} or newer is needed, and {sys.executable} is {found[0]}.{found[1]}. "
            "Name another one, for instance: make PYTHON=python3.13 run"
        )
    started = time.monotonic()
    print(f"Installing {what} into {folder} (once) ...", flush=True)
    try:
        venv.create(folder, clear=True, with_pip=True, symlinks=True)
    except (subprocess.CalledProcessError, OSError) as error:
        return f"Could not make {folder}: {error}. On Debian and Ubuntu, install the package python3-venv first."
    tail = install(os.path.join(folder, "bin", "python"), requirements)
    if tail is not None:
        return f"Installing {what} failed. The last lines of pip:\n\n{tail}\n\nThe same command tries again."
    print(f"Installed {what} in {time.monotonic() - started:.0f} seconds.", flush=True)
    return None


def install(python: str, requirements: str) -> "str | None":
    """Run pip; None when it succeeded, else the end of what it printed."""
    with open(requirements) as file:
        total = sum(bool(re.match(r"\w", line)) for line in file)
    command = [python, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    command += ["--requirement", requirements]
    lines, collected, shown = [], 0, 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True) as pip:
        for line in pip.stdout or ():
            lines.append(line.rstrip())
            collected += line.startswith("Collecting ")
            if line.startswith("Installing collected packages"):
                progress("  unpacking ...")
            elif line.startswith("Collecting ") and time.monotonic() - shown > (0.1 if sys.stdout.isatty() else 10):
                shown = time.monotonic()
                progress(f"  {collected} of about {total} packages")
    if sys.stdout.isatty():
        progress("")
    return "\n".join(lines[-15:]) if pip.returncode else None


def progress(text: str) -> None:
    """Say how far it has got: on a terminal in one line that is written over, elsewhere in a few lines."""
    if sys.stdout.isatty():
        print(f"\r\033[K{text}", end="", flush=True)
    else:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
