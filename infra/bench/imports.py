"""What a cold start imports, timed inside fresh processes; files are in the page cache."""

import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
REPEATS = 7

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
        for name, code in STARTS.items():
            for cache in (compiled, bare):
                start(code, {"PYTHONPYCACHEPREFIX": cache})
            forget(Path(bare))
            warm, modules = timed(code, compiled)
            cold, _ = timed(code, bare)
            print(f"  {name:28}  {warm:>19}  {cold:>23}   {modules:7}", flush=True)

    show_sizes()


def show_sizes() -> None:
    """What is uploaded, of the newest build in the cache of `sam build`; dependencies should be under 8 MB."""
    print("\nWhat a deployment uploads, zipped, in MB\n")
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


def timed(code: str, cache: str) -> tuple[str, int]:
    """The milliseconds in words, and how many modules there were at the end."""
    environment = {"PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": "1"}
    found = [start(code, environment) for _ in range(REPEATS)]
    times = [milliseconds for milliseconds, _ in found]
    return f"{statistics.median(times):.0f} ({min(times):.0f}-{max(times):.0f})", found[0][1]


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
