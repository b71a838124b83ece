"""The API keys of model providers: where a deployment keeps them, and nowhere else.

A secret is the key itself, or a JSON object with a key for each protocol: `{"openai": "…", "anthropic": "…"}`. It is
read with the first invocation of an environment, through Powertools, and never shown: errors name the place alone.
"""

import json
from typing import Any

from durable.errors import ConfigurationError, ProviderUnavailableError
from handlers._settings import Settings

_SAME = {"openai-responses": "openai"}
_LASTING = ("AccessDenied", "NotFound", "InvalidParameter", "InvalidRequest", "Decryption", "ValidationException")


class Keys:
    """The key for each protocol, read once when the first one is asked for; `session` is boto3's."""

    def __init__(self, settings: Settings, session: Any) -> None:
        self._settings = settings
        self._session = session
        self._read: dict[str, str] | str | None = None

    def __repr__(self) -> str:
        return "<Keys>"

    def key_for(self, protocol: str) -> str | None:
        """Give the key of `openai`, `openai-responses` or `anthropic`; None where there is none.

        Raises `ConfigurationError` where it cannot be read, `ProviderUnavailableError` where that may pass.
        """
        family = _SAME.get(protocol, protocol)
        own = {"openai": self._settings.openai_api_key, "anthropic": self._settings.anthropic_api_key}.get(family)
        if own or family not in ("openai", "anthropic"):
            return own or None
        if self._read is None:
            self._read = _parsed(self._fetch())
        return (self._read if isinstance(self._read, str) else self._read.get(family)) or None

    def _fetch(self) -> str:
        if place := self._settings.api_key_secret:
            from aws_lambda_powertools.utilities.parameters import SecretsProvider

            secrets = SecretsProvider(boto3_session=self._session)
            return _fetched("secret", place, lambda: secrets.get(place, max_age=0))
        if place := self._settings.api_key_parameter:
            from aws_lambda_powertools.utilities.parameters import SSMProvider

            store = SSMProvider(boto3_session=self._session)
            return _fetched("parameter", place, lambda: store.get(place, decrypt=True, max_age=0))
        return ""


def _fetched(what: str, place: str, fetch: Any) -> str:
    try:
        value = fetch()
    except Exception as error:
        why = getattr(error.__cause__ or error, "response", None) or {}
        code = str(why.get("Error", {}).get("Code") or type(error).__name__)
        words = f"The {what} {place!r}, which holds the API key, cannot be read ({code})."
        if any(mark in code + str(error) for mark in _LASTING):
            raise ConfigurationError(words) from None  # the cause might show what was read
        raise ProviderUnavailableError("api key", words) from None
    return value if isinstance(value, str) else ""


def _parsed(text: str) -> dict[str, str] | str:
    try:
        value = json.loads(text)
    except ValueError:
        return text.strip()
    if not isinstance(value, dict):
        return text.strip()
    return {str(name): str(key).strip() for name, key in value.items()}
