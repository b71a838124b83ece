"""Which deployment a command is about, and with whose credentials."""

import re
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import Session

from cli.api import Api, CommandError
from cli.codes import Code

_API_HOST = re.compile(r"https://[^./]+\.execute-api\.(?P<region>[^./]+)\.amazonaws\.com")
_DENIED = frozenset({"AccessDenied", "AccessDeniedException", "ExpiredToken", "InvalidClientTokenId"})


def connect(*, url: str | None, stack: str | None, region: str | None, profile: str | None) -> Api:
    """The API that the options name. Raises `CommandError` that says what is missing."""
    found = _API_HOST.match(url or "")
    try:
        session: Any = Session(profile=profile)
        region = region or (found["region"] if found else None) or session.get_config_variable("region")
        if not region:
            raise CommandError(Code.USAGE, "No AWS region.", hint="Give --region, or set AWS_DEFAULT_REGION.")
        credentials = session.get_credentials()
        if credentials is None:
            raise CommandError(Code.NOT_PERMITTED, "No AWS credentials.", hint="Log in, or give --profile.")
        return Api(url or api_of(session, stack or "", region), credentials.get_frozen_credentials(), region)
    except BotoCoreError as error:
        raise CommandError(Code.NOT_PERMITTED, f"AWS configuration: {error}") from None


def api_of(session: Any, stack: str, region: str) -> str:
    """The URL in the output `ApiUrl` of a stack."""
    try:
        described = session.create_client("cloudformation", region_name=region).describe_stacks(StackName=stack)
    except ClientError as error:
        reason: Any = error.response.get("Error", {})
        code = Code.NOT_PERMITTED if reason.get("Code") in _DENIED else Code.NOT_FOUND
        raise CommandError(
            code, f"Stack {stack!r} in {region}: {reason.get('Message') or reason.get('Code')}"
        ) from None
    outputs = described["Stacks"][0].get("Outputs", [])
    urls = [output["OutputValue"] for output in outputs if output["OutputKey"] == "ApiUrl"]
    if not urls:
        raise CommandError(
            Code.NOT_FOUND, f"Stack {stack!r} in {region} has no output ApiUrl: it is another project's."
        )
    return urls[0]
