"""A provider's server that exists only in memory, and a clock that only `sleep` moves."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from durable.providers import HttpSettings
from durable.providers.openai_chat import OpenAIChat

KEY = "sk-proj-0123456789abcdef"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Time:
    """Stands still until somebody sleeps. Jitter is always the largest, so pauses can be stated."""

    def __init__(self) -> None:
        self.now = datetime(2030, 1, 1, tzinfo=UTC)
        self.slept: list[float] = []

    def clock(self) -> datetime:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += timedelta(seconds=seconds)

    def settings(self, **changes: Any) -> HttpSettings:
        return HttpSettings(**{"sleep": self.sleep, "clock": self.clock, "random": lambda: 1.0, **changes})


class Server:
    """Answers each request with the next of its answers (the last one again when they run out) and keeps requests."""

    def __init__(self) -> None:
        self.answers: list[httpx.Response | Exception] = []
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        answer = self.answers[min(len(self.requests), len(self.answers) - 1)]
        self.requests.append(request)
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(request.content) for request in self.requests]


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def connect(server: Server, time: Time) -> Callable[..., OpenAIChat]:
    """Give a function that makes an `OpenAIChat` whose server gives these answers."""

    def make(*answers: httpx.Response | Exception, model: str = "small", **options: Any) -> OpenAIChat:
        server.answers = list(answers)
        http = options.pop("http", {})
        settings = time.settings(transport=httpx.MockTransport(server), **http)
        return OpenAIChat(model, **{"api_key": KEY, "http": settings, **options})

    return make


@pytest.fixture
def said() -> Callable[..., httpx.Response]:
    """Give a function that makes a 200 whose only choice has this message (and these other fields)."""

    def make(message: Any, *, finish_reason: Any = "stop", **fields: Any) -> httpx.Response:
        choice = {"index": 0, "message": message, "finish_reason": finish_reason}
        return httpx.Response(200, json={"choices": [choice], **fields})

    return make
