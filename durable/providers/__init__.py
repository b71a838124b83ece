"""Models behind their protocols. `provider_from` makes one from a string; nothing here reads the environment."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, cast

from pydantic import JsonValue

from durable.errors import ConfigurationError
from durable.ports import Provider
from durable.providers._retries import HttpSettings

__all__ = ["HttpSettings", "provider_from", "with_fallback"]

_KNOWN = "openai:<model>, openai-responses:<model>, anthropic:<model>, bedrock:<model>, scripted:<module>:<attribute>"


def provider_from(
    model: str,
    *,
    api_key: str | None = None,
    base_url: str | None = None,
    headers: Mapping[str, str] | None = None,
    options: Mapping[str, JsonValue] | None = None,
    http: HttpSettings | None = None,
) -> Provider:
    """Give the provider that a model string names.

    `openai:` is Chat Completions and takes a key, a base URL of any compatible server, or both; so does
    `openai-responses:`. `anthropic:` takes a key, or a base URL. `bedrock:` takes a model id or an inference profile,
    and boto3's own credentials; `base_url` is another endpoint. `scripted:<module>:<attribute>` takes its answers from
    that list or function. `options` are more fields of each request. Anything else is a `ConfigurationError`.
    """
    protocol, _, rest = model.partition(":")
    if protocol == "scripted" and all(rest.partition(":")):
        return _scripted(model, rest)
    if protocol == "bedrock" and rest:
        from durable.providers.bedrock import Bedrock

        return Bedrock(rest, endpoint_url=base_url or None, options=options, http=http)
    if protocol not in _KEYS or not rest:
        raise ConfigurationError(f"The model {model!r} is not known. It must be one of: {_KNOWN}.")
    if not api_key and not base_url:
        raise ConfigurationError(
            f"The model {model!r} needs the setting {_KEYS[protocol]}_API_KEY (api_key), or {_KEYS[protocol]}_BASE_URL "
            "(base_url) for a server that takes no key."
        )
    make = _over_http(protocol)
    where = {"base_url": base_url} if base_url else {}
    return make(rest, api_key=api_key or None, headers=headers, options=options, http=http, **where)


_KEYS = {"openai": "OPENAI", "openai-responses": "OPENAI", "anthropic": "ANTHROPIC"}


def _over_http(protocol: str) -> Callable[..., Provider]:
    match protocol:
        case "openai":
            from durable.providers.openai_chat import OpenAIChat

            return OpenAIChat
        case "openai-responses":
            from durable.providers.openai_responses import OpenAIResponses

            return OpenAIResponses
        case _:
            from durable.providers.anthropic import Anthropic

            return Anthropic


def with_fallback(providers: Sequence[Provider]) -> Provider:
    """Give one provider of several: the first, and behind it those that answer when it cannot."""
    if len(providers) == 1:
        return providers[0]
    from durable.providers.fallback import Fallback

    return Fallback(providers)


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
