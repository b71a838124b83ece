"""From a model string to a provider."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from durable.errors import (
    ConfigurationError,
    ProviderAuthenticationError,
    ProviderError,
    ProviderOverloadedError,
    ProviderRateLimitError,
    ProviderRequestError,
    ProviderSetupError,
    ProviderStreamError,
    ProviderTimeoutError,
)
from durable.messages import UserMessage
from durable.ports import Delta, ModelRequest, ModelTurn, NativeProvider, StreamingProvider
from durable.providers import provider_from, with_fallback
from durable.providers.openai_chat import OpenAIChat
from durable.providers.scripted import Scripted

SCRIPTS = """
from durable.providers.scripted import Scripted
answers = ["from a list"]
def function(request): return "from a function"
ready = Scripted(["ready-made"], name="ready")
number = 7
"""


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module `tour_scripts` that can be imported."""
    (tmp_path / "tour_scripts.py").write_text(SCRIPTS)
    (tmp_path / "tour_broken.py").write_text("import no_such_module_anywhere")
    monkeypatch.syspath_prepend(tmp_path)


def test_openai_needs_a_key_or_a_base_url() -> None:
    """With neither, the error says which setting is missing; an empty setting is a missing one."""
    assert isinstance(provider_from("openai:small", api_key="k"), OpenAIChat)
    assert provider_from("openai:llama3:8b", base_url="http://127.0.0.1/v1").name == "openai:llama3:8b"
    for given in ({}, {"api_key": "", "base_url": ""}):
        with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
            provider_from("openai:small", **given)


@pytest.mark.anyio
@pytest.mark.usefixtures("scripts")
@pytest.mark.parametrize(
    ("attribute", "text"), [("answers", "from a list"), ("function", "from a function"), ("ready", "ready-made")]
)
async def test_scripted_names_a_module_and_an_attribute(attribute: str, text: str) -> None:
    """A list, a function or a scripted model of a module answers."""
    provider = provider_from(f"scripted:tour_scripts:{attribute}")
    turn = await provider.generate(ModelRequest(instructions=None, messages=[UserMessage(content="hi")]))
    assert isinstance(provider, Scripted)
    assert turn.message.content == text


@pytest.mark.usefixtures("scripts")
@pytest.mark.parametrize(
    "model",
    [
        "scripted:tour_scripts:missing",
        "scripted:tour_scripts:number",
        "scripted:no_such_module:x",
        "scripted:tour_broken:x",
        "scripted:.relative:x",
    ],
)
def test_a_script_that_is_not_there_says_so(model: str) -> None:
    """The error names the model string."""
    with pytest.raises(ConfigurationError, match=model):
        provider_from(model)


@pytest.mark.parametrize(
    "model",
    [
        "",
        "openai",
        "openai:",
        "bedrock:",
        "anthropic:",
        "openai-responses",
        "gpt-small",
        "scripted:",
        "scripted:module",
        "scripted::x",
        "scripted:m:",
        "a:b",
    ],
)
def test_an_unknown_model_lists_what_is_known(model: str) -> None:
    """Anything else is refused with the forms that exist."""
    with pytest.raises(ConfigurationError, match="openai:<model>, openai-responses:<model>, anthropic:<model>"):
        provider_from(model, api_key="k")


@pytest.mark.parametrize(
    ("model", "kind", "origin"),
    [
        ("openai:small", "OpenAIChat", "openai-chat"),
        ("openai-responses:small", "OpenAIResponses", "openai-responses"),
        ("anthropic:claude", "Anthropic", "anthropic"),
        ("bedrock:us.anthropic.claude-v1:0", "Bedrock", "bedrock@anthropic"),
        ("bedrock:amazon.nova-micro-v1:0", "Bedrock", "bedrock@amazon"),
        ("bedrock:us-gov.anthropic.claude-v1:0", "Bedrock", "bedrock@anthropic"),
        ("bedrock:arn:aws:bedrock:us-east-1:1:inference-profile/eu.amazon.nova-v1:0", "Bedrock", "bedrock@amazon"),
    ],
)
def test_each_protocol_has_its_string(model: str, kind: str, origin: str) -> None:
    """The string names protocol and model, the provider's name is that string, and no key shows."""
    made = provider_from(model, api_key="sk-secret")
    assert (type(made).__name__, made.name) == (kind, model)
    assert isinstance(made, NativeProvider)
    assert made.origin == origin
    assert "secret" not in repr(made) + str(vars(made))


def test_another_server_is_another_origin() -> None:
    """Native turns of one compatible server are not sent to another one: the host tells them apart, not the port."""
    origins = {
        provider_from("openai:m", base_url=url).origin  # type: ignore[attr-defined]
        for url in (
            "https://a.example/v1",
            "https://b.example/v1",
            "https://b.example:8443/v2",
            "https://api.openai.com/v1",
        )
    }
    assert origins == {"openai-chat@a.example", "openai-chat@b.example", "openai-chat"}


@pytest.mark.parametrize("model", ["openai:m", "openai-responses:m", "anthropic:m"])
def test_a_model_without_key_and_server_names_the_setting(model: str) -> None:
    """The error says which setting is missing."""
    with pytest.raises(ConfigurationError, match="_API_KEY"):
        provider_from(model)


class Busy:
    """A provider that fails, or tells something and then fails."""

    name = "busy"

    def __init__(self, error: ProviderError, told: str = "") -> None:
        self.error, self.told, self.asked = error, told, 0

    async def generate(self, request: ModelRequest) -> ModelTurn:
        self.asked += 1
        raise self.error

    async def stream(self, request: ModelRequest, tell: Callable[[Delta], None]) -> ModelTurn:
        self.asked += 1
        tell(Delta("text", self.told))
        raise self.error


ASK = ModelRequest(instructions=None, messages=[UserMessage(content="hi")])


@pytest.mark.anyio
@pytest.mark.parametrize("error", [ProviderOverloadedError("p", "busy"), ProviderRateLimitError("p", "slow")])
async def test_a_fallback_answers_when_the_first_model_cannot(error: ProviderError) -> None:
    """Errors that pass lead to the next model, whole and streamed; the name stays the first one's."""
    first, second = Busy(error), Scripted(["from the second"])
    both = with_fallback([first, second])
    assert (both.name, with_fallback([second])) == ("busy", second)
    assert isinstance(both, StreamingProvider)
    told: list[Delta] = []
    assert (await both.generate(ASK)).message.content == "from the second"
    assert (await both.stream(ASK, told.append)).message.content == "from the second"
    assert ([delta.text for delta in told], first.asked) == (["from the second"], 2)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "error", [ProviderRequestError("p", "no"), ProviderAuthenticationError("p", "no"), ProviderSetupError("p", "no")]
)
async def test_a_fallback_hides_no_mistake(error: ProviderError) -> None:
    """A refused request, a missing key or a wrong name is raised: another model would only hide it."""
    second = Scripted(["never"])
    with pytest.raises(type(error)):
        await with_fallback([Busy(error), second]).generate(ASK)
    assert second.requests == []


@pytest.mark.anyio
async def test_a_fallback_never_starts_over_what_was_shown() -> None:
    """After the first piece of an answer the error stands, and so it does when no time is left."""
    second = Scripted(["never"])
    both = with_fallback([Busy(ProviderStreamError("p", "cut"), told="Hel"), second])
    assert isinstance(both, StreamingProvider)
    with pytest.raises(ProviderStreamError):
        await both.stream(ASK, lambda delta: None)
    with pytest.raises(ProviderTimeoutError):
        await with_fallback([Busy(ProviderTimeoutError("p", "slow")), second]).generate(replace(ASK, timeout=0.0))
    assert second.requests == []
