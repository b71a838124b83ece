"""Our adapters against a mock of the providers that somebody else wrote, over each protocol that it knows.

It checks what it is sent like the providers do, calls the tools that it is offered, and breaks on demand: then it says
what it saw a client do wrong.
"""

import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from durable import Agent, ImagePart, ProviderError, TextPart, UserMessage, tool
from durable.errors import ProviderRateLimitError, ProviderRequestError, ProviderUnavailableError
from durable.events import Event, TextDelta
from durable.providers import HttpSettings
from durable.providers.anthropic import Anthropic
from durable.providers.openai_chat import OpenAIChat
from durable.providers.openai_responses import OpenAIResponses
from stores.memory import memory_store

pytestmark = pytest.mark.anyio

COMMAND = Path(__file__).parents[3] / ".local" / "llmock-venv" / "bin" / "llmock"
MISSING = "The mock of model providers is not installed: `make test` installs it into .local/llmock-venv"
PROTOCOLS: dict[str, tuple[Any, str]] = {
    "chat": (OpenAIChat, "/v1"),
    "responses": (OpenAIResponses, "/v1"),
    "anthropic": (Anthropic, "/anthropic"),
    "mistral": (OpenAIChat, "/mistral/v1"),
    "groq": (OpenAIChat, "/groq/openai/v1"),
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    if not COMMAND.exists():
        if os.environ.get("CI") == "true":
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(COMMAND), "serve", "--port", str(port), "--log-level", "error"]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={"PATH": "/usr/bin"}
    ) as server:
        address = f"http://127.0.0.1:{server.args and port}"
        try:
            wait_for(address)
            yield address
        finally:
            server.terminate()


def wait_for(address: str) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{address}/health").is_success:
                return
        except httpx.HTTPError:
            time.sleep(0.05)
    raise AssertionError("the mock server did not start within 30 seconds")


@pytest.fixture
def scene(url: str) -> Iterator[Any]:
    """Gives a function that queues what goes wrong; at the end the server has nothing to say against the client."""
    httpx.post(f"{url}/_llmock/reset").raise_for_status()

    def queue(*behaviours: dict[str, Any]) -> None:
        httpx.post(f"{url}/_llmock/scenario", json={"behaviors": behaviours}).raise_for_status()

    yield queue
    verdict = httpx.get(f"{url}/_llmock/verdict").json()
    found = [one for one in verdict.get("findings", []) if one["severity"].lower() in ("fail", "error")]
    assert found == [], verdict


def model(url: str, protocol: str, **http: Any) -> Any:
    make, path = PROTOCOLS[protocol]
    settings = HttpSettings(**{"first_backoff": 0.02, **http})
    return make("mock-model", api_key="anything", base_url=url + path, http=settings)


@tool
def get_weather(city: str) -> str:
    """Get the current weather for a city."""
    return f"21 degrees in {city}"


@pytest.mark.parametrize("listening", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_run_with_a_tool(url: str, scene: Any, protocol: str, listening: bool) -> None:
    """The tool that the server calls runs, its result is taken, and the answer is what was told piece by piece."""
    events: list[Event] = []
    agent = Agent(tools=[get_weather], provider=model(url, protocol), instructions="Be brief.")
    result = await agent.send("What is the weather in Paris?", listener=events.append if listening else None)
    assert [message.role for message in result.messages] == ["user", "assistant", "tool", "assistant"]
    assert re.match("21 degrees in ", str(result.messages[2].content))
    assert result.text
    assert (result.usage.model_calls, result.usage.input_tokens > 0, result.usage.output_tokens > 0) == (2, True, True)
    if listening:
        assert "".join(event.text for event in events if isinstance(event, TextDelta)).endswith(result.text)


class Offer(BaseModel):
    price: int
    currency: str


@pytest.mark.parametrize("protocol", ["chat", "responses"])
async def test_structured_output(url: str, scene: Any, protocol: str) -> None:
    """The schema that we send is one that the server answers to."""
    make, path = PROTOCOLS[protocol]
    provider = make("mock-model", api_key="k", base_url=url + path, structured_output=True)
    result = await Agent(provider=provider, output_type=Offer).send("What does it cost?")
    assert isinstance(result.output, Offer)


@pytest.mark.parametrize("protocol", ["chat", "responses", "anthropic"])
async def test_images_are_taken(url: str, scene: Any, protocol: str) -> None:
    """Parts have the shape that the server accepts."""
    parts = (TextPart(text="What is this?"), ImagePart.from_bytes(b"\x89PNG", "image/png"))
    result = await Agent(provider=model(url, protocol)).send([UserMessage(content=parts)])
    assert result.text


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_rate_limit_is_waited_for(url: str, scene: Any, protocol: str) -> None:
    """A 429 is tried again after the time that it names, and a lasting one is told with that time."""
    scene({"type": "fail", "status": 429, "retry_after": 0.2, "times": 1})
    assert (await Agent(provider=model(url, protocol)).send("Hello.")).text
    scene({"type": "fail", "status": 429, "retry_after": 30, "times": 1})
    with pytest.raises(ProviderRateLimitError) as caught:
        await Agent(provider=model(url, protocol, longest_wait=1.0)).send("Hello again.")
    assert caught.value.retry_after == 30


@pytest.mark.parametrize(
    ("status", "kind"), [(400, ProviderRequestError), (401, ProviderError), (503, ProviderUnavailableError)]
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_errors_are_typed(url: str, scene: Any, protocol: str, status: int, kind: type[ProviderError]) -> None:
    """What each provider's error looks like is read; those that do not pass are not tried again."""
    scene({"type": "fail", "status": status, "times": None})
    with pytest.raises(kind) as caught:
        await Agent(provider=model(url, protocol, attempts=1 if status == 503 else 3)).send("Hello.")
    assert caught.value.status == status


@pytest.mark.parametrize("fault", ["truncate", "disconnect", "malformed"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_broken_stream_is_no_turn(url: str, scene: Any, protocol: str, fault: str) -> None:
    """However a stream breaks, the run ends with a typed error, has recorded nothing of it, and asks again."""
    scene({"type": "reply", "text": "one two three four five six seven eight nine ten eleven"})
    scene({"type": "stream_fault", "kind": fault, "after_chunks": 3})
    agent = Agent(provider=model(url, protocol, attempts=1), store=memory_store())
    with pytest.raises(ProviderError) as caught:
        await agent.send("Hello.", session_id="s", listener=lambda event: None)
    assert caught.value.code in ("PROVIDER_STREAM", "PROVIDER_RESPONSE", "PROVIDER_UNAVAILABLE")
    result = await agent.send("Hello.", session_id="s", listener=lambda event: None)
    assert [message.role for message in result.messages] == ["user", "assistant"]
