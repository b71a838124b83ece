"""Which deployment, which region, whose credentials."""

from typing import Any

import pytest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError, ProfileNotFound

from cli import target
from cli.api import CommandError
from cli.codes import Code

URL = "https://abc.execute-api.eu-west-1.amazonaws.com/v1"


class Session:
    """A botocore session: its credentials, its configured region, and a CloudFormation that has one stack."""

    keys: Any = Credentials("AKID", "secret")
    region: str | None = None
    outputs: Any = ()
    error: Exception | None = None
    asked: tuple[str, str] | None = None

    def __init__(self, profile: str | None = None) -> None:
        if profile == "nobody":
            raise ProfileNotFound(profile=profile)

    def get_config_variable(self, name: str) -> str | None:
        return self.region

    def get_credentials(self) -> Any:
        return self.keys

    def create_client(self, service: str, *, region_name: str) -> Any:
        type(self).asked = (service, region_name)
        return self

    def describe_stacks(self, **given: str) -> Any:
        if self.error is not None:
            raise self.error
        return {"Stacks": [{"Outputs": list(self.outputs)}]}


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> type[Session]:
    made = type("SessionOfThisTest", (Session,), {})
    monkeypatch.setattr(target, "Session", made)
    return made


def connect(**options: Any) -> Any:
    return target.connect(**{"url": None, "stack": None, "region": None, "profile": None, **options})


def signed_for(api: Any) -> str:
    return api._signer._region_name


def test_the_region_stands_in_the_url(session: type[Session]) -> None:
    """An API's own URL names its region; an option goes before it, and the configuration after it."""
    session.region = "us-east-1"
    assert signed_for(connect(url=URL)) == "eu-west-1"
    assert signed_for(connect(url=URL, region="eu-north-1")) == "eu-north-1"
    assert signed_for(connect(url="https://api.example/v1")) == "us-east-1"


def test_a_stack_names_its_api(session: type[Session]) -> None:
    """The output ApiUrl of the stack in that region is where requests go."""
    session.outputs = [{"OutputKey": "TableName", "OutputValue": "t"}, {"OutputKey": "ApiUrl", "OutputValue": URL}]
    assert connect(stack="desk", region="eu-west-1")._url == URL
    assert session.asked == ("cloudformation", "eu-west-1")


def refused(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "It is so."}}, "DescribeStacks")


@pytest.mark.parametrize(("error", "code"), [("ValidationError", Code.NOT_FOUND), ("AccessDenied", Code.NOT_PERMITTED)])
def test_a_stack_that_cannot_be_looked_at(session: type[Session], error: str, code: Code) -> None:
    """One that is not there, and one that the caller may not see, end differently."""
    session.error = refused(error)
    with pytest.raises(CommandError, match="'desk' in eu-west-1: It is so") as caught:
        connect(stack="desk", region="eu-west-1")
    assert caught.value.code == code


def test_another_projects_stack_has_no_api(session: type[Session]) -> None:
    """A stack without the output is said to be another's."""
    with pytest.raises(CommandError, match="no output ApiUrl") as caught:
        connect(stack="desk", region="eu-west-1")
    assert caught.value.code == Code.NOT_FOUND


def test_what_is_missing_is_named(session: type[Session]) -> None:
    """No region, no credentials, no such profile."""
    with pytest.raises(CommandError, match="No AWS region") as caught:
        connect(url="https://api.example/v1")
    assert caught.value.code == Code.USAGE
    with pytest.raises(CommandError, match="nobody") as caught:
        connect(url=URL, profile="nobody")
    assert caught.value.code == Code.NOT_PERMITTED
    session.keys = None
    with pytest.raises(CommandError, match="No AWS credentials") as caught:
        connect(url=URL)
    assert caught.value.code == Code.NOT_PERMITTED
