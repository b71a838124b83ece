"""The tour (`make run`): the main job of this project, on the template that goes to AWS, in a cloud on this machine.

A run starts through API Gateway. The Lambda that works on it is killed between two tools. The run goes on without
repeating anything, pauses for an approval, is approved with a callback token, and finishes. At the end it is forked:
what if a tool had said something else? Each step says what happens and why; the first one that does not happen as it
should ends the tour with status 1 and says what to do.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from infra.local.cloud import PROJECT, Deployment, LocalCloud, LocalCloudError
from infra.local.inbox import Inbox
from infra.local.model_server import ModelServer, calls, text

RECORDING = "openai-chat-sequential-tools-1.json"
QUESTION = "Can the country of Crumpet have dragons? Answer with only YES or NO"
SESSION = "/sessions/dragons"
SECRET = "model-api-keys"
MODEL_KEYS = {"openai": "a-key-that-only-the-secret-holds"}
REQUEST_SECONDS = 10
PARAMETERS = {
    "Model": "openai:gpt-4o-mini",
    "RequestSeconds": str(REQUEST_SECONDS),  # short, since the lease of a killed Lambda lasts until its time is up
    "MinModelSeconds": "2",
}
RUNNING = ("RunsFunction", "StepsFunction", "ApprovalsFunction")
LOOKING = ("SessionsFunction",)


class TourError(Exception):
    """A step of the tour did not go as it should."""


@dataclass
class Tour:
    """What the steps share."""

    cloud: LocalCloud
    model: ModelServer
    deployment: Deployment
    inbox: Inbox
    key: str = "order-1"

    def get(self, path: str, *, sign: bool = True) -> Any:
        return expect(self.deployment.request("GET", path, sign=sign), 200)

    def send_request(self) -> httpx.Response:
        """The one request of the tour; sent again, it is the same to the byte."""
        return self.deployment.request(
            "POST", f"{SESSION}/runs", json={"input": QUESTION}, headers={"Idempotency-Key": self.key}
        )


# --- The steps --------------------------------------------------------------------------------------------------------


def start_and_kill(tour: Tour) -> None:
    step("Start a run, and kill the Lambda that works on it")
    explain(f"POST {SESSION}/runs  {QUESTION!r}")
    answers: list[httpx.Response] = []
    with tour.model.hold(1) as held:
        request = threading.Thread(target=lambda: answers.append(tour.send_request()), daemon=True)
        request.start()
        wait_for("the second call of the model", lambda: tour.model.count(1) or not request.is_alive())
        if not request.is_alive():
            raise TourError(f"The request ended before it could be killed: {answers[0].status_code} {answers[0].text}")
        explain("The model asked for lookup_population, the tool ran, and the model is being asked what comes next.")
        killed = tour.cloud.kill_function("RunsFunction")
        request.join(30)
        held.release()
    explain(f"SIGKILL: {killed} Lambda process is gone in the middle of its work. The client got status")
    explain(f"{answers[0].status_code}; on AWS, 503 with Retry-After. Nobody knows yet how far the run had come.")


def show_what_is_saved(tour: Tour) -> None:
    step("Look at what is left of it")
    session = tour.get(SESSION)
    messages = tour.get(f"{SESSION}/messages")["messages"]
    explain(f"GET {SESSION}  status {session['status']}, revision {session['revision']}")
    for message in messages:
        explain(f"  {describe(message)}")
    explain("Every step was saved before the next one began, so only the unanswered model call is lost.")
    if messages[-1]["role"] != "tool":
        raise TourError("The result of lookup_population is not in the saved session.")


def send_again(tour: Tour) -> None:
    step("Send the same request again")
    explain("Same Idempotency-Key: it is recognised, and starts nothing a second time. The killed Lambda still holds")
    explain(f"the session's lease for up to {REQUEST_SECONDS} seconds; then the state machine carries the run on ...")
    while not running_executions(tour):
        accepted = tour.send_request()
        expect(accepted, 202)
        time.sleep(float(accepted.headers["Retry-After"]))
    wait_for("the run to pause for its approval", lambda: tour.get(SESSION)["status"] == "awaiting-approval", pause=0.5)
    asked = [tour.model.count(exchange) for exchange in range(2)]
    explain(f"It resumed at the call that was lost: model call 1 was made {times(asked[0])}, call 2 {times(asked[1])}.")
    if asked != [1, 2]:
        raise TourError(f"The model was asked {asked} times for its first two turns, not once and twice.")


def approve(tour: Tour) -> None:
    step("Approve the tool call that waits for a human")
    (approval,) = tour.get("/approvals")["approvals"]
    explain(f"GET /approvals  {approval['tool']}({as_arguments(approval['arguments'])}) is {approval['status']}.")
    (execution,) = running_executions(tour)
    explain(f"No Lambda runs meanwhile. The Step Functions execution {execution[:12]}… waits, for days if need be.")
    token = tour.inbox.callback_token(about=approval["id"])
    explain("The approvers got a message (SNS) with a link that holds a secret, single-use callback token.")
    explain(f"GET /callbacks/{token[:6]}…  shows what is asked; only a POST decides.")
    tour.get(f"/callbacks/{token}", sign=False)
    decided = tour.deployment.request("POST", f"/callbacks/{token}", json={"approved": True}, sign=False)
    decision = expect(decided, 200)["decision"]
    explain(f"POST /callbacks/{token[:6]}…  approved by {decision['by']!r} via {decision['via']!r}.")


def finish(tour: Tour) -> None:
    step("See it finish")
    wait_for("the run to finish", lambda: tour.get(SESSION)["status"] == "finished", pause=0.5)
    session = tour.get(SESSION)
    explain(f"Answer: {session['text']}    ({session['steps']} model turns, {session['tool_calls']} tool calls)")
    again = expect(tour.send_request(), 200)
    explain(f"The same request, sent once more, answers {again['text']!r} from its record; nothing runs.")
    explain(f"GET {SESSION}/history  (newest first)")
    for entry in tour.get(f"{SESSION}/history")["entries"]:
        moment = entry["saved_at"][11:19]
        explain(f"  revision {entry['revision']:2}  {moment}  {entry['messages']} messages  {entry['status']}")
    usage = session["usage"]
    explain("What it cost:")
    explain(f"  model     {usage['input_tokens']} tokens in, {usage['output_tokens']} out")
    for what, functions in (("the run", RUNNING), ("looking", LOOKING)):
        spent = store_costs(tour, functions)
        units = f"{spent['write_units']:.1f} write units, {spent['read_units']:.1f} read units"
        explain(f"  DynamoDB  {what}: {spent['requests']:.0f} requests, {units}")
    if tour.model.count(2) != 1 or session["text"] is None:
        raise TourError(f"The last turn of the model was asked for {times(tour.model.count(2))}.")


def what_if(tour: Tour) -> None:
    step("Ask: what if the tool had said something else?")
    before = tour.get(f"{SESSION}/history")
    called = [call for message in tour.get(f"{SESSION}/messages")["messages"] for call in message.get("tool_calls", [])]
    patch = {"tool_result": {"tool_call_id": called[-1]["id"], "result": False}}
    request = {"from_step": 2, "patch": patch}
    made = expect(tour.deployment.request("POST", f"{SESSION}/forks", json=request), 201)
    explain(
        f"POST {SESSION}/forks  from step {made['step']}, where {called[-1]['name']} now says False instead of True."
    )
    explain(f"The fork is {made['session_id']!r}: a session of its own, with every result of the first two steps.")
    fork = f"/sessions/{made['segment']}"
    asked = tour.model.count(2)
    resumed = expect(tour.deployment.request("POST", f"{fork}/resume"), 200)
    explain(
        f"POST {fork}/resume  runs on from there: no tool again, model call 3 {times(tour.model.count(2) - asked)}."
    )
    explain(
        f"Answer: {resumed['text']}. This model gives the same next answer whatever a tool said; a real one reads it."
    )
    explain(f"GET {SESSION}/compare/{made['segment']}")
    compared = tour.get(f"{SESSION}/compare/{made['segment']}")
    for line in compared["text"].splitlines():
        explain(f"  {line}")
    explain("The session it came from has not changed.")
    if compared["diverged_at"] != 2 or tour.get(f"{SESSION}/history") != before:
        raise TourError("The fork does not part from its source at step 2, or has changed it.")


# --- What the steps use -----------------------------------------------------------------------------------------------


def expect(response: httpx.Response, status: int) -> Any:
    """The JSON of a response that has the status it should have."""
    if response.status_code != status:
        request = response.request
        raise TourError(
            f"{request.method} {request.url.path} answered {response.status_code} instead of {status}: {response.text}"
        )
    return response.json()


def wait_for(what: str, done: Callable[[], Any], *, seconds: float = 30, pause: float = 0.1) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise TourError(f"Waited {seconds:.0f} seconds for {what}.")
        time.sleep(pause)


def running_executions(tour: Tour) -> list[str]:
    machine = tour.deployment.outputs["StateMachineArn"]
    listed = tour.cloud.client("stepfunctions").list_executions(stateMachineArn=machine, statusFilter="RUNNING")
    return [execution["name"] for execution in listed["executions"]]


def store_costs(tour: Tour, functions: Sequence[str]) -> dict[str, float]:
    """What these functions logged about their use of the table, added up. A killed invocation logged nothing."""
    total = {"requests": 0.0, "write_units": 0.0, "read_units": 0.0}
    for function in functions:
        for line in tour.cloud.logs(function):
            spent = json.loads(line).get("store", {}) if line.startswith("{") else {}
            total = {name: number + spent.get(name, 0) for name, number in total.items()}
    return total


def describe(message: dict[str, Any]) -> str:
    called = [f"{call['name']}({as_arguments(call.get('arguments'))})" for call in message.get("tool_calls") or []]
    said = message.get("content")
    return f"{message['role']:9}  {', '.join(called) if called else said}"


def as_arguments(arguments: Any) -> str:
    """A tool call's arguments, parsed or as the model wrote them, as Python shows them."""
    given = json.loads(arguments) if isinstance(arguments, str) else arguments or {}
    return ", ".join(f"{name}={value!r}" for name, value in given.items())


def times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


# --- The frame --------------------------------------------------------------------------------------------------------

_steps = iter(range(1, 100))


def step(title: str) -> None:
    print(f"\n{next(_steps)}. {title}", flush=True)


def explain(line: str) -> None:
    print(f"   {line}", flush=True)


def conversation() -> tuple[ModelServer, str]:
    """The model of the tour, and a line that says what it is: a recording of a real one, where there is one."""
    file = Path(os.environ.get("RECORDINGS_DIR", PROJECT.parent / "shared" / "recordings")) / RECORDING
    if file.is_file():
        return ModelServer.recorded(file), "Its answers were recorded from a real model."
    made_up = [
        calls(("lookup_population", {"country": "Crumpet"})),
        calls(("can_have_dragons", {"population": 123124})),
        text("YES"),
    ]
    about = "Its answers are scripted: no recordings were found (RECORDINGS_DIR=folder names some)."
    return ModelServer(made_up), about


@contextmanager
def deployed(
    parameters: Mapping[str, str], keys: Mapping[str, str] = MODEL_KEYS
) -> Iterator[tuple[LocalCloud, Deployment]]:
    """A local cloud that checks signatures and permissions, with the project deployed and `keys` in its secret."""
    started = time.monotonic()
    with LocalCloud(auth=True) as cloud:
        step("Start a cloud on this machine and deploy template.yaml to it")
        explain("API Gateway, Lambda, DynamoDB and Step Functions in one process, reachable from this machine alone;")
        explain("the template is the one that goes to AWS, built and deployed by the SAM CLI ...")
        cloud.client("secretsmanager").create_secret(Name=SECRET, SecretString=json.dumps(dict(keys)))
        deployment = cloud.deploy(cloud.stage(), {**parameters, "ApiKeySecret": SECRET})
        explain(
            f"Up after {time.monotonic() - started:.0f} seconds, with signatures and permissions checked as on AWS."
        )
        yield cloud, deployment


def take_tour() -> None:
    started = time.monotonic()
    model, about = conversation()
    with model, deployed({**PARAMETERS, "OpenAIBaseUrl": model.base_url}) as (cloud, deployment):
        explain(f"The model is a server on this machine that speaks OpenAI Chat Completions. {about}")
        tour = Tour(cloud, model, deployment, Inbox(cloud, deployment.outputs["ApprovalTopicArn"]))
        try:
            for part in (start_and_kill, show_what_is_saved, send_again, approve, finish, what_if):
                part(tour)
        except (TourError, TimeoutError):
            show_errors(cloud)
            raise
    seconds = time.monotonic() - started
    print(f"\nDone in {seconds:.0f} seconds; nothing is left running. Next: edit agent.py, then `make serve`.")


def show_errors(cloud: LocalCloud) -> None:
    """The errors that the functions logged, which usually say what went wrong."""
    for function in RUNNING + LOOKING:
        for line in cloud.logs(function):
            if re.search(r'Error|"level":"(ERROR|CRITICAL)"', line):
                print(f"   [{function}] {line}", file=sys.stderr)


def main() -> int:
    try:
        take_tour()
    except KeyboardInterrupt:
        print("\nStopped; nothing is left running.", file=sys.stderr)
        return 130
    except (TourError, LocalCloudError, TimeoutError, ValueError) as error:
        print(f"\nThe tour stopped here: {error}", file=sys.stderr)
        print("Nothing is left running. If you changed the code, `make test-unit` often says more.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
