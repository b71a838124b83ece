"""From a model string to a provider."""

from pathlib import Path

import pytest

from durable.errors import ConfigurationError
from durable.messages import UserMessage
from durable.ports import ModelRequest
from durable.providers import provider_from
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
    "model", ["", "openai", "openai:", "gpt-small", "scripted:", "scripted:module", "scripted::x", "scripted:m:", "a:b"]
)
def test_an_unknown_model_lists_what_is_known(model: str) -> None:
    """Anything else is refused with the forms that exist."""
    with pytest.raises(ConfigurationError, match="openai:<model>, scripted:<module>:<attribute>"):
        provider_from(model, api_key="k")
