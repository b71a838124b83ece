"""`make serve`: the project, deployed to a cloud on this machine that stays up until Ctrl-C.

With OPENAI_API_KEY or ANTHROPIC_API_KEY set, the agent talks to that model (MODEL names another; OPENAI_BASE_URL a
server): the keys become a secret of the local cloud. Without, it talks to the one conversation of the tour. Whatever is
sent to the approvers is printed.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Mapping
from typing import NoReturn

from infra.local.cloud import ADMIN, Deployment, LocalCloud, LocalCloudError
from infra.local.inbox import LINK, Inbox
from infra.local.tour import MODEL_KEYS, QUESTION, conversation, deployed, explain, step

MODELS = {"openai": "openai:gpt-4.1-mini", "anthropic": "anthropic:claude-sonnet-4-5"}
"""Whose keys are looked for, and the model of each unless MODEL says another."""


def serve() -> None:
    keys = {name: os.environ.get(f"{name.upper()}_API_KEY", "") for name in MODELS}
    if any(keys.values()):
        name = os.environ.get("MODEL") or next(MODELS[name] for name, key in keys.items() if key)
        parameters = {"Model": name, "OpenAIBaseUrl": os.environ.get("OPENAI_BASE_URL", "")}
        stay_up(parameters, f"The model is {name}, with the key of your shell.", keys)
        return
    model, about = conversation()
    with model:
        parameters = {"Model": "openai:any", "OpenAIBaseUrl": model.base_url}
        stay_up(parameters, f"The model answers one question only, {QUESTION!r}. {about}")


def stay_up(parameters: Mapping[str, str], about_model: str, keys: Mapping[str, str] = MODEL_KEYS) -> NoReturn:
    """Deploy, say how to use it, and print what the approvers are sent; Ctrl-C ends it."""
    with deployed(parameters, keys) as (cloud, deployment):
        explain(about_model)
        inbox = Inbox(cloud, deployment.outputs["ApprovalTopicArn"])
        say_how_to_use(cloud, deployment)
        while True:
            try:
                message = inbox.next(seconds=3600)
            except TimeoutError:
                continue
            show_message(deployment, message)


def say_how_to_use(cloud: LocalCloud, deployment: Deployment) -> None:
    keys = f"{ADMIN.access_key}:{ADMIN.secret_key}"
    sign = f"--aws-sigv4 aws:amz:{deployment.region}:execute-api --user {keys} -H 'Content-Type: application/json'"
    body = shlex.quote(f'{{"input": "{QUESTION}"}}')
    step("Use it from another terminal (Ctrl-C here ends it)")
    explain(f"API={deployment.api_url}")
    explain(f"""api() {{ curl -sS {sign} "$API$@"; echo; }}""")
    explain("")
    explain(f"api /sessions/one/runs -d {body}")
    explain("api /sessions/one")
    explain("api /approvals")
    explain("""api /approvals/ID/decision -d '{"approved": true}'""")
    explain("")
    explain(
        f"The AWS CLI and SDKs see it with AWS_ENDPOINT_URL={cloud.endpoint_url} AWS_DEFAULT_REGION={deployment.region}"
    )
    explain(f"and the keys {keys.replace(':', ' and ')}. With these, the command line of this project, too:")
    explain(f".venv/bin/python -m cli runs show one --url $API --region {deployment.region}")


def show_message(deployment: Deployment, message: str) -> None:
    """Print a message to the approvers, with the link to this cloud in the place of the one to AWS."""
    step("A message to the approvers")
    for line in message.splitlines():
        explain(line)
    found = LINK.search(message)
    if found:
        explain(f"""Here:   curl -d '{{"approved": true}}' {deployment.api_url}/callbacks/{found[1]}""")


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # both end the `with` blocks
    try:
        serve()
    except KeyboardInterrupt:
        print("\nStopped; nothing is left running.", file=sys.stderr)
    except LocalCloudError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
