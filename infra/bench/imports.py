"""What a cold start imports, timed inside fresh processes; files are in the page cache."""

import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
REPEATS = 11
AIM = 1.5
LAYER_AIM = 8.0

CLIENT = 'import boto3; boto3.client("dynamodb", region_name="us-east-1")'
STARTS = {
    "boto3 and a DynamoDB client": CLIENT,
    "durable": "import durable",
    "handlers.runs, wired": "import handlers.runs; from handlers._wiring import app; app()",
}
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench",
    "AWS_DEFAULT_REGION": "us-east-1",
    "TABLE_NAME": "bench",
}

# The development environment has these, a deployed function does not; botocore takes them up where they are.
NOT_DEPLOYED = ("OpenSSL", "awscrt")

TIMED = """
import sys, time
sys.modules.update(dict.fromkeys({absent!r}))
began = time.perf_counter()
{code}
print(1000 * (time.perf_counter() - began), len(sys.modules))
"""


def show() -> None:
    print("\nWhat a cold start imports, in ms: median (min-max)\n")
    print("                                     with byte code        without byte code   modules")
    with tempfile.TemporaryDirectory() as compiled, tempfile.TemporaryDirectory() as bare:
        for code in STARTS.values():
            for cache in (compiled, bare):
                start(code, {"PYTHONPYCACHEPREFIX": cache})
        forget(Path(bare))
        warm, cold = timed(compiled), timed(bare)
    for name, (times, modules) in warm.items():
        print(f"  {name:28}  {in_words(times):>19}  {in_words(cold[name][0]):>23}   {modules:7}", flush=True)
    (client, _, handler) = STARTS
    for cache, found in (("with", warm), ("without", cold)):
        ratio = statistics.median(found[handler][0]) / statistics.median(found[client][0])
        print(f"  the run handler is {ratio:.2f} times the client {cache} byte code (aim: {AIM})", flush=True)
    show_sizes()


def show_sizes() -> None:
    """What is uploaded, of the newest build in the cache of `sam build`."""
    print(f"\nWhat a deployment uploads, zipped, in MB (aim: a layer under {LAYER_AIM:g})\n")
    for what in ("code", "layer"):
        built = sorted((ROOT / ".local" / "build").glob(f"{what}-*"), key=lambda folder: folder.stat().st_mtime)
        size = f"{zipped(built[-1]) / 1e6:.1f}" if built else "not built yet: make run"
        print(f"  {what:28}  {size:>19}", flush=True)


def zipped(folder: Path) -> int:
    """The bytes of the folder as a zip."""
    with tempfile.TemporaryDirectory() as place:
        return Path(shutil.make_archive(f"{place}/package", "zip", folder)).stat().st_size


def forget(cache: Path) -> None:
    """Drop the byte code of everything but the standard library, which every runtime has compiled."""
    for folder in (ROOT, Path(sysconfig.get_path("purelib"))):
        shutil.rmtree(cache / folder.relative_to("/"), ignore_errors=True)


def timed(cache: str) -> dict[str, tuple[list[float], int]]:
    """The milliseconds of each start, and how many modules there were at its end.

    The starts take turns, so that what else the machine does meets all of them.
    """
    environment = {"PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": "1"}
    rounds = [{name: start(code, environment) for name, code in STARTS.items()} for _ in range(REPEATS)]
    return {name: ([one[name][0] for one in rounds], rounds[0][name][1]) for name in STARTS}


def in_words(times: Sequence[float]) -> str:
    return f"{statistics.median(times):.0f} ({min(times):.0f}-{max(times):.0f})"


def start(code: str, environment: Mapping[str, str]) -> tuple[float, int]:
    done = subprocess.run(
        [sys.executable, "-c", TIMED.format(absent=NOT_DEPLOYED, code=code)],
        cwd=ROOT,
        env={"PATH": os.defpath, **ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    milliseconds, modules = done.stdout.split()
    return float(milliseconds), int(modules)
