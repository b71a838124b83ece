"""Where a deployment keeps the keys of its model providers, and who sees them."""

import json
import traceback
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from aws_lambda_powertools.utilities import parameters
from botocore.exceptions import ClientError
from botocore.stub import Stubber

from durable.errors import ConfigurationError, DurableError, ProviderUnavailableError
from handlers import _wiring
from handlers._keys import Keys
from handlers._settings import read

KEY = "sk-proj-very-secret-0123"


class Vault:
    """What Powertools asks: gives a value, or raises."""

    def __init__(self, value: Any) -> None:
        self.value, self.asked = value, list[tuple[str, dict[str, Any]]]()

    def get(self, name: str, **options: Any) -> Any:
        self.asked.append((name, options))
        if isinstance(self.value, Exception):
            raise parameters.GetParameterError(str(self.value)) from self.value
        return self.value

    def behind(self, monkeypatch: pytest.MonkeyPatch, provider: str = "SecretsProvider") -> "Vault":
        monkeypatch.setattr(parameters, provider, lambda boto3_session: self)
        return self


def keys(session: Any = None, **environment: str) -> Keys:
    return Keys(read({"TABLE_NAME": "t", **environment}), session)


@pytest.mark.parametrize(
    ("value", "openai", "anthropic"),
    [
        (KEY, KEY, KEY),
        (f" {KEY}\n", KEY, KEY),
        (json.dumps({"openai": KEY, "anthropic": "other"}), KEY, "other"),
        (json.dumps({"openai": KEY}), KEY, None),
        ("12345", "12345", "12345"),
    ],
)
@pytest.mark.parametrize("place", ["secret", "parameter"])
def test_a_secret_is_a_key_or_one_for_each_protocol(
    monkeypatch: pytest.MonkeyPatch, place: str, value: str, openai: str, anthropic: str | None
) -> None:
    """A text is the key of every provider; a JSON object names them. It is read once, and when it is first needed."""
    vault = Vault(value).behind(monkeypatch, {"secret": "SecretsProvider", "parameter": "SSMProvider"}[place])
    found = keys(**{f"API_KEY_{place.upper()}": "/keys/models"})
    assert vault.asked == []
    assert [found.key_for(name) for name in ("openai", "openai-responses", "anthropic")] == [openai, openai, anthropic]
    assert [found.key_for(name) for name in ("bedrock", "scripted")] == [None, None]
    assert [name for name, _ in vault.asked] == ["/keys/models"]
    if place == "parameter":
        assert vault.asked[0][1]["decrypt"] is True


def test_a_variable_is_for_a_machine_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key in the environment wins, and then no secret is read; with neither there is none."""
    vault = Vault("never").behind(monkeypatch)
    assert keys(OPENAI_API_KEY="own", API_KEY_SECRET="s").key_for("openai") == "own"
    assert keys().key_for("anthropic") is None
    assert vault.asked == []


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("AccessDeniedException", ConfigurationError),
        ("ResourceNotFoundException", ConfigurationError),
        ("ParameterNotFound", ConfigurationError),
        ("DecryptionFailure", ConfigurationError),
        ("ThrottlingException", ProviderUnavailableError),
        ("InternalServiceError", ProviderUnavailableError),
    ],
)
def test_a_secret_that_cannot_be_read_is_named(
    monkeypatch: pytest.MonkeyPatch, code: str, kind: type[DurableError]
) -> None:
    """The error names the place and the reason, never what was in it; one that may pass can be retried."""
    error = ClientError({"Error": {"Code": code, "Message": f"no {KEY}"}}, "GetSecretValue")
    Vault(error).behind(monkeypatch)
    with pytest.raises(kind, match=f"'prod/keys'.*{code}") as caught:
        keys(API_KEY_SECRET="prod/keys").key_for("openai")
    assert KEY not in "".join(traceback.format_exception(caught.value))


def test_powertools_asks_secrets_manager() -> None:
    """The call that the policy allows is the one that is made, with the session that the other clients share."""
    client = boto3.client("secretsmanager", "us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
    session = SimpleNamespace(client=lambda name, **_: {"secretsmanager": client}[name])
    with Stubber(client) as stub:
        stub.add_response("get_secret_value", {"SecretString": KEY}, {"SecretId": "prod/keys"})
        assert keys(session, API_KEY_SECRET="prod/keys").key_for("openai") == KEY
        stub.assert_no_pending_responses()


def test_no_key_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the settings, nor the keys, nor a provider made with one shows it."""
    Vault(KEY).behind(monkeypatch)
    found = keys(API_KEY_SECRET="s", ANTHROPIC_API_KEY=KEY)
    provider = _wiring.provider_from("openai:small", api_key=found.key_for("openai"))
    assert KEY not in repr(found) + repr(found._settings) + repr(provider) + str(vars(provider))


def test_options_and_fallbacks_are_read() -> None:
    """`MODEL_OPTIONS` is a JSON object, and fallbacks stand behind the model with commas between them."""
    made = read({"TABLE_NAME": "t", "MODEL": "a:b", "FALLBACK_MODELS": "c:d, e:f,", "MODEL_OPTIONS": '{"n": 1}'})
    assert (made.models, made.model_options) == (["a:b", "c:d", "e:f"], {"n": 1})
    for wrong in ("[1]", "{"):
        with pytest.raises(ConfigurationError, match="MODEL_OPTIONS"):
            read({"TABLE_NAME": "t", "MODEL_OPTIONS": wrong})
