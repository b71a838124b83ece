"""The local cloud itself: what it starts it ends, and what it deploys is what goes to AWS.

1. Nothing is left when the block ends, nor when the program that started the cloud is killed.
2. It refuses an emulator of another version.
3. The SAM CLI builds, deploys and updates a stack in it; the API checks signatures and policies.
4. A staged copy holds the project's files and the agent that was asked for.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from infra.local.cloud import PROJECT, Deployment, LocalCloud, LocalCloudError, cloud_python
from tests.local_cloud.workbench import REMEMBERS_TOKEN, Workbench, callback

pytestmark = pytest.mark.local_cloud

TEMPLATE = """
    AWSTemplateFormatVersion: "2010-09-09"
    Transform: AWS::Serverless-2016-10-31
    Parameters:
      PythonRuntime: {Type: String, Default: python3.13}
      Greeting: {Type: String, Default: Hello}
    Resources:
      DependenciesLayer:
        Type: AWS::Serverless::LayerVersion
        Metadata: {BuildMethod: makefile}
        Properties: {ContentUri: ., CompatibleRuntimes: [!Ref PythonRuntime]}
      Api:
        Type: AWS::Serverless::Api
        Properties: {StageName: v1, Auth: {DefaultAuthorizer: AWS_IAM}}
      GreetFunction:
        Type: AWS::Serverless::Function
        Metadata: {BuildMethod: makefile}
        Properties:
          CodeUri: .
          Handler: agent.handler
          Runtime: !Ref PythonRuntime
          Layers: [!Ref DependenciesLayer]
          Environment: {Variables: {GREETING: !Ref Greeting}}
          Events:
            Greet: {Type: Api, Properties: {RestApiId: !Ref Api, Path: "/greet/{name}", Method: POST}}
    Outputs:
      Greeting: {Value: !Ref Greeting}
"""
AGENT = """
    import json, os
    import pydantic
    import durable

    def handler(event, context):
        print("greeting", event["pathParameters"]["name"])
        said = os.environ["GREETING"] + " " + event["pathParameters"]["name"]
        files = [durable.__file__, durable.__cached__, pydantic.__file__, pydantic.__cached__]
        return {"statusCode": 200, "body": json.dumps({"said": said, "body": event["body"], "files": files})}
"""


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def is_running(pid: int) -> bool:
    """Whether a process is there, other than as a zombie that nobody has collected yet."""
    status = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return status.strip() != "" and not status.startswith("Z")


def wait_until(true: object, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_nothing_is_left_when_the_block_ends() -> None:
    """The emulator, its functions and its folder are gone after the block, also when it ends with an error."""
    try:
        with LocalCloud() as cloud:
            bench = Workbench(cloud)
            bench.invoke(bench.function("def handler(event, context): return 1"))
            (worker,) = cloud.workers()
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert not is_listening(cloud.port)
    assert not cloud.folder.exists()
    wait_until(lambda: not is_running(worker["pid"]))


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_when_the_program_is_killed(signum: signal.Signals) -> None:
    """Whatever ends the program that started the cloud ends the cloud."""
    # Where the tests run in the background, SIGINT is ignored, and programs inherit that.
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    work = "with LocalCloud() as c: print(c.port, c.folder, flush=True); input()"
    program = f"{listen}\nfrom infra.local.cloud import *\n{work}"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as started:
        assert started.stdout is not None
        port, folder = started.stdout.readline().split()
        assert is_listening(int(port))
        started.send_signal(signum)
        started.wait(10)
        wait_until(lambda: not is_listening(int(port)))
        wait_until(lambda: not Path(folder).exists())


def test_another_version_of_the_emulator_is_refused() -> None:
    """The launcher names the version that it patches when the environment has another one, or none."""
    command = [sys.executable, "-m", "infra.local.launcher"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ministack 1.5.33 and no other version; this environment has none" in done.stderr


@pytest.fixture(scope="module")
def cloud() -> Iterator[LocalCloud]:
    with LocalCloud(auth=True) as cloud:
        yield cloud


@pytest.fixture(scope="module")
def project(cloud: LocalCloud, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with a template of one function and the agent that it runs."""
    agent = tmp_path_factory.mktemp("agent") / "my_agent.py"
    agent.write_text(textwrap.dedent(AGENT))
    project = cloud.stage(agent=agent)
    (project / "template.yaml").write_text(textwrap.dedent(TEMPLATE))
    return project


@pytest.fixture(scope="module")
def deployment(cloud: LocalCloud, project: Path) -> Deployment:
    return cloud.deploy(project, {"Greeting": 'Good "fine" morning'}, stack="greetings")


def test_a_staged_copy_is_the_project(project: Path) -> None:
    """It holds what Git holds, the given agent as agent.py, and neither environments nor caches."""
    assert (project / "infra" / "local" / "cloud.py").read_text() == Path(PROJECT / "infra/local/cloud.py").read_text()
    assert "def handler" in (project / "agent.py").read_text()
    assert not any((project / name).exists() for name in (".venv", ".local", ".git"))


def test_a_deployed_function_answers(cloud: LocalCloud, deployment: Deployment) -> None:
    """A signed request reaches the function, with its parameters, code and layer, compiled; its log can be read."""
    answer = deployment.request("POST", "/greet/Ada", json={"a": 1})
    assert answer.status_code == 200
    said = answer.json()
    assert (said["said"], said["body"]) == ('Good "fine" morning Ada', '{"a":1}')
    assert all(Path(file).exists() for file in said["files"])
    assert deployment.outputs == {"Greeting": 'Good "fine" morning'}
    assert "greeting Ada" in cloud.logs("GreetFunction")


def test_the_api_checks_who_asks(cloud: LocalCloud, deployment: Deployment) -> None:
    """Unsigned requests and users without the permission are refused, users with it are not."""
    allowed = cloud.create_user("caller", {"Effect": "Allow", "Action": "execute-api:Invoke", "Resource": "*"})
    nobody = cloud.create_user("nobody")
    assert deployment.request("POST", "/greet/Ada", sign=False).status_code == 403
    assert deployment.request("POST", "/greet/Ada", credentials=nobody).status_code == 403
    assert deployment.request("POST", "/greet/Ada", credentials=allowed).status_code == 200


def test_a_task_token_is_authorised_on_its_state_machine(cloud: LocalCloud) -> None:
    """A policy for one state machine allows its task tokens, and those of no other."""
    bench = Workbench(cloud)
    function = bench.function(REMEMBERS_TOKEN)
    machine = bench.machine(callback(function))
    execution = bench.start(machine)
    token = bench.wait_for_log(function, "token ")[0].split()[1]
    for name, of_machine in (("stranger", f"{machine}-other"), ("owner", machine)):
        statement = {"Effect": "Allow", "Action": "states:SendTaskSuccess", "Resource": of_machine}
        client = cloud.client("stepfunctions", credentials=cloud.create_user(name, statement))
        if name == "stranger":
            with pytest.raises(ClientError, match="AccessDenied"):
                client.send_task_success(taskToken=token, output="1")
        else:
            client.send_task_success(taskToken=token, output="2")
    assert bench.finish(execution)["output"] == "2"


def test_a_stack_is_updated(cloud: LocalCloud, project: Path, deployment: Deployment) -> None:
    """A second deploy under the same name changes the stack."""
    before = deployment.request("POST", "/greet/Ada").json()["said"]
    after = cloud.deploy(project, {"Greeting": "Good night"}, stack="greetings")
    assert (before, after.request("POST", "/greet/Ada").json()["said"]) == ('Good "fine" morning Ada', "Good night Ada")


def test_a_failed_build_says_why(cloud: LocalCloud, project: Path) -> None:
    """The error of `deploy` ends with what the SAM CLI said."""
    broken = project.with_name("broken")
    shutil.copytree(project, broken)
    (broken / "Makefile").write_text("build-%:\n\t@echo out of flour >&2; false\n")
    with pytest.raises(LocalCloudError, match="out of flour"):
        cloud.deploy(broken)


def test_a_missing_installation_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the emulator's environment the error names the command that makes it."""
    monkeypatch.setattr("infra.local.cloud.PROJECT", tmp_path)
    with pytest.raises(LocalCloudError, match="make cloud"):
        cloud_python()
