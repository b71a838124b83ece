"""A cloud on this machine: start it, deploy to it, talk to it, break it.

    with LocalCloud(auth=True) as cloud:
        deployment = cloud.deploy(cloud.stage(agent=Path("agent.py")), {"LogLevel": "DEBUG"})
        answer = deployment.request("POST", "/sessions/s1/runs", json={"input": "Hello"})

The emulator, the functions it runs and all that they write live in one process group and one folder, which end with
the `with` block, with the program that opened it, and with Ctrl-C. It listens on the loopback interface only.
"""

from __future__ import annotations

import json as jsonlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import boto3
import httpx
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials

PROJECT = Path(__file__).resolve().parents[2]
REGION = "us-east-1"
ACCOUNT = "000000000000"
ADMIN = Credentials("test", "test")  # the emulator's root user


class LocalCloudError(RuntimeError):
    """The local cloud did not do what was asked; the message ends with the last lines of its log."""


@dataclass(frozen=True)
class Deployment:
    """One deployed stack: where it answers and what it consists of."""

    stack: str
    outputs: Mapping[str, str]
    resources: Mapping[str, str]  # logical id -> physical id
    api_url: str
    region: str
    credentials: Credentials

    def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        content: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
        sign: bool = True,
        credentials: Credentials | None = None,
        timeout: float = 60,
    ) -> httpx.Response:
        """Send one request to the API, signed (SigV4) with the deployment's credentials or the given ones."""
        request = httpx.Request(
            method, self.api_url + quote(path, safe="/%"), json=json, content=content, headers=headers, params=params
        )
        if sign:
            sign_request(request, credentials or self.credentials, region=self.region)
        # It is plain HTTP: loading the certificates of the world would take longer than most requests.
        with httpx.Client(timeout=timeout, trust_env=False, verify=False) as client:
            return client.send(request)


def sign_request(
    request: httpx.Request, credentials: Credentials, *, region: str, service: str = "execute-api"
) -> None:
    """Add the headers of AWS Signature Version 4 to a request."""
    signed = AWSRequest(method=request.method, url=str(request.url), data=request.content)
    for name in ("content-type", "host"):
        if name in request.headers:
            signed.headers[name] = request.headers[name]
    SigV4Auth(credentials, service, region).add_auth(signed)
    for name in ("Authorization", "X-Amz-Date", "X-Amz-Security-Token", "X-Amz-Content-SHA256"):
        if name in signed.headers:
            request.headers[name] = signed.headers[name]


class LocalCloud:
    """The emulator, as a context manager; `auth` makes it check signatures and the policies of users and roles.

    `extra_env` is seen by the emulator and by every function. `wait_scale` shortens the waits of state machines: 0.1
    makes Wait and Retry (not time-outs) ten times faster.
    """

    def __init__(
        self, *, auth: bool = False, extra_env: Mapping[str, str] | None = None, wait_scale: float = 1.0
    ) -> None:
        self._auth = auth
        self._extra_env = dict(extra_env or {})
        self._wait_scale = wait_scale
        self._process: subprocess.Popen[bytes] | None = None

    # --- Start and stop ---------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        python = cloud_python()
        self.folder = Path(tempfile.mkdtemp(prefix="durable-cloud-"))
        try:
            self._start(python)
            self._wait_until_healthy(30)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _start(self, python: Path) -> None:
        self.port = _free_port()
        self.endpoint_url = f"http://127.0.0.1:{self.port}"
        with (self.folder / "emulator.log").open("wb") as log:
            self._process = subprocess.Popen(
                [python, "-m", "infra.local.launcher"],
                cwd=PROJECT,
                env=self._environment(),
                stdin=subprocess.PIPE,  # closes with this program, however it ends: see the launcher
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _environment(self) -> dict[str, str]:
        """The emulator's whole environment. It is kept small, because functions inherit it."""
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(self.port),
            "MINISTACK_REGION": REGION,
            "AUTH": "true" if self._auth else "false",
            "LOG_LEVEL": "INFO",
            "LAMBDA_EXECUTOR": "local",
            "DOCKER_HOST": f"unix://{self.folder}/no-docker",  # leave the user's containers alone
            "IOT_MTLS_ENABLED": "0",
            "SFTP_ENABLED": "0",
            "SFN_WAIT_SCALE": str(self._wait_scale),
            **self._extra_env,
        }

    def _wait_until_healthy(self, seconds: float) -> None:
        assert self._process is not None
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise LocalCloudError(f"The emulator ended with status {self._process.returncode}.{self._log_tail()}")
            try:
                if httpx.get(f"{self.endpoint_url}/_ministack/health", timeout=2, trust_env=False).is_success:
                    return
            except httpx.TransportError:
                time.sleep(0.05)
        raise LocalCloudError(f"The emulator did not answer within {seconds:.0f} seconds.{self._log_tail()}")

    def _stop(self) -> None:
        """End the whole process group and remove the folder; a second call does nothing."""
        process, self._process = self._process, None
        if process is not None:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
            assert process.stdin is not None
            process.stdin.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _log_tail(self) -> str:
        log = self.folder / "emulator.log"
        return "\n\n" + "\n".join(log.read_text(errors="replace").splitlines()[-20:]) if log.exists() else ""

    # --- Deploy -----------------------------------------------------------------------------------------------------

    def stage(self, *, agent: Path | None = None) -> Path:
        """A copy of the project (what Git tracks or would track), with `agent` in the place of its agent.py."""
        folder = Path(tempfile.mkdtemp(prefix="project-", dir=self.folder))
        for file in _project_files():
            target = folder / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / file, target)
        if agent is not None:
            shutil.copy2(agent, folder / "agent.py")
        return folder

    def deploy(self, source: Path, parameters: Mapping[str, str] | None = None, stack: str = "durable") -> Deployment:
        """Run `sam build` and `sam deploy` on the template in `source`, and look up what came of it.

        A second deploy of the same stack updates it. The functions are built for, and run on, the emulator's
        interpreter, whatever runtime the template names.
        """
        pairs = [f"{name}={jsonlib.dumps(value, ensure_ascii=False)}" for name, value in (parameters or {}).items()]
        overrides = ["--parameter-overrides", *pairs] if pairs else []
        bucket = f"{stack}-artifacts"
        self.client("s3").create_bucket(Bucket=bucket)
        self._sam(source, "build", "--build-in-source", *overrides)
        self._sam(
            source, "deploy", "--stack-name", stack, "--s3-bucket", bucket, "--no-progressbar",
            "--capabilities", "CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "--no-confirm-changeset",
            "--no-fail-on-empty-changeset", *overrides,
        )  # fmt: skip
        return self.deployment(stack)

    def deployment(self, stack: str = "durable") -> Deployment:
        """What is deployed under this name now."""
        cloudformation = self.client("cloudformation")
        (description,) = cloudformation.describe_stacks(StackName=stack)["Stacks"]
        resources = cloudformation.describe_stack_resources(StackName=stack)["StackResources"]
        kinds = {r["ResourceType"]: r["PhysicalResourceId"] for r in resources}
        api, stage = kinds.get("AWS::ApiGateway::RestApi"), kinds.get("AWS::ApiGateway::Stage")
        return Deployment(
            stack=stack,
            outputs={output["OutputKey"]: output["OutputValue"] for output in description.get("Outputs", [])},
            resources={r["LogicalResourceId"]: r["PhysicalResourceId"] for r in resources},
            api_url=f"{self.endpoint_url}/_aws/execute-api/{api}/{stage}" if api else "",
            region=REGION,
            credentials=ADMIN,
        )

    def _sam(self, source: Path, command: str, *arguments: str) -> None:
        home = PROJECT / ".local" / "sam"
        home.mkdir(parents=True, exist_ok=True)
        config = self.folder / "samconfig.toml"
        config.write_text("version = 0.1\n")  # not the project's, which is about AWS
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "MAKE", "MFLAGS"))},
            **self.client_environment(),
            "NO_PROXY": "127.0.0.1,localhost",
            "TMPDIR": str(self.folder),  # the SAM CLI leaves files there
            "SAM_CLI_TELEMETRY": "0",
            "SAM_CLI_POLL_DELAY": "0.1",
            "__SAM_CLI_APP_DIR": str(home),
            "BUILD_PYTHON": str(cloud_python()),
            "BUILD_CACHE": str(PROJECT / ".local" / "build"),
            "LAMBDA_RUNTIME": "host",
        }
        sam = Path(sys.executable).with_name("sam")
        done = subprocess.run(
            [sam if sam.exists() else "sam", command, "--config-file", config, *arguments],
            cwd=source, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            said = "\n".join((done.stdout + done.stderr).splitlines()[-40:])
            raise LocalCloudError(f"`sam {command}` failed:\n\n{said}{self._log_tail() if command == 'deploy' else ''}")

    # --- Use --------------------------------------------------------------------------------------------------------

    def client_environment(self) -> dict[str, str]:
        """The environment variables that point any AWS client at this cloud, as its administrator."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": ADMIN.access_key,
            "AWS_SECRET_ACCESS_KEY": ADMIN.secret_key,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @cached_property
    def _session(self) -> boto3.Session:
        return boto3.Session(ADMIN.access_key, ADMIN.secret_key, region_name=REGION)

    def client(self, service: str, *, credentials: Credentials | None = None, config: Config | None = None) -> Any:
        """A boto3 client of this cloud, as administrator or with the given credentials."""
        keys = credentials or ADMIN
        return self._session.client(
            service,  # pyright: ignore[reportArgumentType, reportCallIssue]
            endpoint_url=self.endpoint_url,
            aws_access_key_id=keys.access_key,
            aws_secret_access_key=keys.secret_key,
            aws_session_token=keys.token,
            config=(config or Config()).merge(Config(proxies={}, s3={"addressing_style": "path"})),
        )

    def create_user(self, name: str, *statements: Mapping[str, Any]) -> Credentials:
        """A new IAM user with one inline policy of these statements (none: may do nothing), and its access key."""
        iam = self.client("iam")
        iam.create_user(UserName=name)
        if statements:
            policy = jsonlib.dumps({"Version": "2012-10-17", "Statement": [*statements]})
            iam.put_user_policy(UserName=name, PolicyName="only", PolicyDocument=policy)
        key = iam.create_access_key(UserName=name)["AccessKey"]
        return Credentials(key["AccessKeyId"], key["SecretAccessKey"])

    def workers(self, function: str = "") -> list[dict[str, Any]]:
        """The processes of one function, or of all: `{"function", "pid", "busy"}` each."""
        return self._control("GET", "workers", function)

    def kill_function(self, function: str) -> int:
        """SIGKILL every process of a function, as a crash of Lambda would; how many of them were at work."""
        return sum(worker["busy"] for worker in self._control("POST", "kill", function))

    @contextmanager
    def throttled(self) -> Iterator[None]:
        """Let DynamoDB refuse every request because they come too fast, and serve it again after that."""
        self._control("POST", "throttle")
        try:
            yield
        finally:
            self._control("POST", "serve")

    def refused_requests(self) -> int:
        """How many requests DynamoDB has refused so far because it was `throttled`."""
        return self._control("GET", "throttled")

    def _control(self, method: str, what: str, function: str = "") -> Any:
        url = f"{self.endpoint_url}/_local/{what}"
        answer = httpx.request(method, url, params={"function": self._physical(function)}, timeout=10, trust_env=False)
        return answer.raise_for_status().json()

    def _physical(self, function: str) -> str:
        """A function's name: itself, or what the logical id of any stack's function stands for."""
        if not function:
            return function
        names = [f["FunctionName"] for f in self.client("lambda").list_functions()["Functions"]]
        matching = [name for name in names if name == function or f"-{function}-" in name]
        if len(matching) != 1:
            raise LocalCloudError(f"{function!r} names {len(matching)} functions of {names}.")
        return matching[0]

    def logs(self, function: str) -> list[str]:
        """What a function has logged so far, oldest first, in the order of its invocations' ends."""
        logs, group = self.client("logs"), f"/aws/lambda/{self._physical(function)}"
        try:
            pages = logs.get_paginator("filter_log_events").paginate(logGroupName=group)
            events = [event for page in pages for event in page["events"]]
        except logs.exceptions.ResourceNotFoundException:
            return []
        return [event["message"] for event in sorted(events, key=lambda event: event["timestamp"])]

    def scale_waits(self, factor: float) -> None:
        """From now on, multiply the waits and retry delays of state machines by this factor."""
        setting = {"stepfunctions._SFN_WAIT_SCALE": factor}
        httpx.post(
            f"{self.endpoint_url}/_ministack/config", json=setting, timeout=10, trust_env=False
        ).raise_for_status()


def cloud_python() -> Path:
    """The interpreter of the emulator's environment."""
    python = PROJECT / ".local" / "cloud-venv" / "bin" / "python"
    if not python.exists():
        raise LocalCloudError(
            f"The local cloud is not installed ({python.relative_to(PROJECT)} is missing): make cloud"
        )
    return python


def _project_files() -> list[Path]:
    """The project's files, relative to its folder: what Git tracks, and what it would track if it were added."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        files = [Path(name) for name in listed.stdout.split("\0") if name]
    else:  # not a clone: everything but hidden folders, which are where the commands keep what they make
        found = (path.relative_to(PROJECT) for path in PROJECT.rglob("*"))
        files = [file for file in found if not any(part.startswith((".", "__pycache__")) for part in file.parts)]
    return [file for file in files if (PROJECT / file).is_file()]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
