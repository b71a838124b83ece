"""Runs the emulator with its gaps closed: `python -m infra.local.launcher`, in the emulator's own environment.

`infra.local.cloud` starts it with a minimal environment, its folder in TMPDIR, and a pipe as standard input.
When that pipe closes, because the program that holds it has ended in whatever way, the emulator, the functions that
it runs and the folder go too. Beside AWS's requests it answers `POST /_local/kill?function=NAME` (SIGKILL to every
process of that function) and `GET /_local/workers`; from `POST /_local/throttle` until `POST /_local/serve` the table
refuses every request, and `GET /_local/throttled` says how many that were.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

EMULATOR = "ministack"
EMULATOR_VERSION = "1.5.33"

THROTTLES = (
    "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException",
    "com.amazon.coral.availability#ThrottlingException",
)
"""What DynamoDB says when requests come too fast: for the table, and for the account."""


def main() -> None:
    _require_emulator_version()
    run_folder = Path(os.environ["TMPDIR"])
    threading.Thread(target=_end_with_parent, args=(run_folder,), daemon=True).start()

    import ministack.app

    from infra.local import patches

    runtime_dir = run_folder / "lambda-runtime"
    runtime_dir.mkdir()
    patches.apply(runtime_dir)
    ministack.app.app = _with_control_requests(ministack.app.app)
    ministack.app.main()


def _require_emulator_version() -> None:
    try:
        found = version(EMULATOR)
    except PackageNotFoundError:
        found = "none"
    if found != EMULATOR_VERSION:
        sys.exit(
            f"The local cloud patches {EMULATOR} {EMULATOR_VERSION} and no other version; this environment has "
            f"{found}. Remove that environment and run `make cloud`."
        )


def _end_with_parent(run_folder: Path) -> None:
    """Wait until standard input closes, then end this process group and remove the run's folder."""
    sys.stdin.buffer.read()
    shutil.rmtree(run_folder, ignore_errors=True)
    if os.getpgid(0) == os.getpid():  # started in a group of its own, as it should be
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _with_control_requests(emulator: Any) -> Any:
    """The emulator's ASGI application, with the launcher's own requests in front."""

    table = Throttle()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/_local/"):
            if table.refuses(scope):
                await table.refuse(send)
            else:
                await emulator(scope, receive, send)
            return
        function = parse_qs(scope["query_string"].decode()).get("function", [""])[0]
        request = (scope["method"], scope["path"])
        answer: Any = None
        if request == ("GET", "/_local/workers"):
            answer = _workers(function)
        elif request == ("POST", "/_local/kill"):
            answer = _workers(function)
            for worker in answer:
                os.kill(worker["pid"], signal.SIGKILL)
        elif request in (("POST", "/_local/throttle"), ("POST", "/_local/serve"), ("GET", "/_local/throttled")):
            if request[0] == "POST":
                table.throttles = scope["path"] == "/_local/throttle"
            answer = table.refused
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 404 if answer is None else 200, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    return app


class Throttle:
    """Whether DynamoDB refuses requests, and how many it has refused so far."""

    def __init__(self) -> None:
        self.throttles = False
        self.refused = 0

    def refuses(self, scope: Any) -> bool:
        target = dict(scope["headers"]).get(b"x-amz-target", b"") if scope["type"] == "http" else b""
        return self.throttles and target.startswith(b"DynamoDB_")

    async def refuse(self, send: Any) -> None:
        kind = THROTTLES[self.refused % len(THROTTLES)]
        self.refused += 1
        headers = [(b"content-type", b"application/x-amz-json-1.0")]
        await send({"type": "http.response.start", "status": 400, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps({"__type": kind, "message": kind}).encode()})


def _workers(function: str) -> list[dict[str, Any]]:
    """The live processes of one function, or of all: `[{"function", "pid", "busy"}]`."""
    from ministack.core import lambda_runtime

    with lambda_runtime._lock:
        workers = [worker for pool in lambda_runtime._workers.values() for worker in pool]
    return [
        {"function": worker.func_name, "pid": worker._proc.pid, "busy": worker.in_use}
        for worker in workers
        if worker._proc is not None and worker._proc.poll() is None and function in ("", worker.func_name)
    ]


if __name__ == "__main__":
    main()
