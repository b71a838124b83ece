"""Models behind their protocols. `provider_from` makes one from a string; nothing here reads the environment."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, cast

from durable.errors import ConfigurationError
from durable.ports import Provider
from durable.providers._retries import HttpSettings

__all__ = ["HttpSettings", "provider_from"]

_KNOWN = "openai:<model>, scripted:<module>:<attribute>"


def provider_from(
    model: str,
    *,
    api_key: str | None = None,
    base_url: str | None = None,
    headers: Mapping[str, str] | None = None,
    http: HttpSettings | None = None,
) -> Provider:
    """Give the provider that a model string names.

    `openai:<model>` takes a key, a base URL for any compatible server, or both. `scripted:<module>:<attribute>` takes
    its answers from that list or function. Anything else is a `ConfigurationError`.
    """
    protocol, _, rest = model.partition(":")
    match protocol:
        case "openai" if rest:
            return _openai(rest, api_key=api_key or None, base_url=base_url or None, headers=headers, http=http)
        case "scripted" if all(rest.partition(":")):
            return _scripted(model, rest)
        case _:
            raise ConfigurationError(f"The model {model!r} is not known. It must be one of: {_KNOWN}.")


def _openai(
    model: str,
    *,
    api_key: str | None,
    base_url: str | None,
    headers: Mapping[str, str] | None,
    http: HttpSettings | None,
) -> Provider:
    from durable.providers.openai_chat import OPENAI, OpenAIChat

    if api_key is None and base_url is None:
        raise ConfigurationError(
            f"The model 'openai:{model}' needs the setting OPENAI_API_KEY (api_key), or OPENAI_BASE_URL (base_url) for "
            "a server that takes no key."
        )
    return OpenAIChat(model, api_key=api_key, base_url=base_url or OPENAI, headers=headers, http=http)


def _scripted(model: str, place: str) -> Provider:
    from durable.providers.scripted import Script, Scripted

    module, _, attribute = place.partition(":")
    try:
        answers: Any = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigurationError(f"The model {model!r} cannot be loaded: {error}.") from error
    if isinstance(answers, Scripted):
        return answers
    if callable(answers) or isinstance(answers, list | tuple):
        return Scripted(cast(Script, answers), name=model)
    raise ConfigurationError(f"The model {model!r} is neither a list nor a function of answers.")
