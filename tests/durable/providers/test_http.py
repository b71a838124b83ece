"""Time-outs, retries and budgets of a call to a provider."""

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from durable.errors import (
    ConfigurationError,
    ProviderAuthenticationError,
    ProviderError,
    ProviderRateLimitError,
    ProviderRequestError,
    ProviderResponseError,
    ProviderSetupError,
    ProviderUnavailableError,
)
from durable.messages import UserMessage
from durable.ports import ModelRequest
from durable.providers import HttpSettings
from durable.providers._failures import Failure, retry_after
from durable.providers._retries import pause_before_retry
from durable.providers.openai_chat import OpenAIChat

pytestmark = pytest.mark.anyio

Connect = Callable[..., OpenAIChat]
OK = httpx.Response(200, json={"choices": [{"message": {"content": "fine"}}]})
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def ask(*, timeout: float | None = None) -> ModelRequest:
    return ModelRequest(instructions=None, messages=[UserMessage(content="private question")], timeout=timeout)


def failed(status: int, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, json={"error": {"message": f"failed with {status}"}}, headers=named)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 529])
async def test_a_transient_status_is_tried_again(connect: Connect, server: Any, time: Any, status: int) -> None:
    """Overload, throttling and server errors are tried again with a doubled backoff."""
    turn = await connect(failed(status), failed(status), OK).generate(ask())
    assert turn.message.content == "fine"
    assert (len(server.requests), time.slept) == (3, [0.5, 1.0])


@pytest.mark.parametrize(
    "error",
    [
        httpx.ConnectError("refused"),
        httpx.ConnectTimeout("slow"),
        httpx.ReadTimeout("slow"),
        httpx.ReadError("reset"),
        httpx.RemoteProtocolError("closed"),
        httpx.PoolTimeout("busy"),
        ConnectionResetError("reset"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_broken_connection_is_tried_again(connect: Connect, server: Any, error: Exception) -> None:
    """Connection errors and time-outs are tried again, and end as one kind of error with its cause kept."""
    assert (await connect(error, OK).generate(ask())).message.content == "fine"
    server.requests.clear()
    with pytest.raises(ProviderUnavailableError) as caught:
        await connect(error).generate(ask())
    assert (len(server.requests), caught.value.__cause__) == (3, error)
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, ProviderRequestError),
        (401, ProviderAuthenticationError),
        (403, ProviderAuthenticationError),
        (404, ProviderSetupError),
        (422, ProviderRequestError),
        (301, ProviderResponseError),
        (600, ProviderResponseError),
    ],
)
async def test_a_permanent_status_is_not_tried_again(
    connect: Connect, server: Any, status: int, kind: type[ProviderError]
) -> None:
    """What the same request will get again is raised at once, typed by its status."""
    with pytest.raises(kind, match=f"failed with {status}") as caught:
        await connect(failed(status)).generate(ask())
    assert (type(caught.value), caught.value.status, len(server.requests)) == (kind, status, 1)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(429, ProviderRateLimitError), (500, ProviderUnavailableError), (529, ProviderUnavailableError)],
)
async def test_the_attempts_are_limited(connect: Connect, server: Any, status: int, kind: type[ProviderError]) -> None:
    """After the last attempt the last failure is raised."""
    with pytest.raises(kind):
        await connect(failed(status), http={"attempts": 2}).generate(ask())
    assert len(server.requests) == 2


async def test_x_should_retry_overrules_the_status(connect: Connect, server: Any) -> None:
    """The provider's own word on retries counts more than the status."""
    assert (await connect(failed(409, x_should_retry="true"), OK).generate(ask())).message.content == "fine"
    server.requests.clear()
    with pytest.raises(ProviderUnavailableError):
        await connect(failed(500, x_should_retry="false"), OK).generate(ask())
    assert len(server.requests) == 1


async def test_an_empty_account_is_not_worth_a_retry(connect: Connect, server: Any) -> None:
    """`insufficient_quota` comes as a 429 and does not pass."""
    answer = httpx.Response(429, json={"error": {"message": "You exceeded …", "code": "insufficient_quota"}})
    with pytest.raises(ProviderSetupError, match="You exceeded"):
        await connect(answer).generate(ask())
    assert len(server.requests) == 1


async def test_the_asked_for_wait_is_kept(connect: Connect, time: Any) -> None:
    """A pause is as long as Retry-After says, in seconds, milliseconds or as a date, and never shorter."""
    in_date = "Tue, 01 Jan 2030 00:00:15 GMT"
    answers = [failed(429, retry_after="5"), failed(503, retry_after_ms="2500"), failed(429, retry_after=in_date), OK]
    await connect(*answers, http={"attempts": 4}).generate(ask())
    assert time.slept == [5.0, 2.5, 7.5]


@pytest.mark.parametrize(("wait", "budget"), [("31", 30.0), ("61", None)], ids=["budget", "longest wait"])
async def test_a_wait_that_is_too_long_is_handed_to_the_caller(
    connect: Connect, server: Any, time: Any, wait: str, budget: float | None
) -> None:
    """A Retry-After beyond the budget or the longest wait raises at once and says when to come back."""
    with pytest.raises(ProviderRateLimitError) as caught:
        await connect(failed(429, retry_after=wait), OK).generate(ask(timeout=budget))
    assert (caught.value.retry_after, len(server.requests), time.slept) == (float(wait), 1, [])


async def test_a_pause_never_outlasts_the_budget(connect: Connect, server: Any, time: Any) -> None:
    """When the next pause would end after the budget, the failure is raised instead of waiting for nothing."""
    with pytest.raises(ProviderUnavailableError, match="failed with 500"):
        await connect(failed(500), http={"attempts": 10}).generate(ask(timeout=3.5))
    assert time.slept == [0.5, 1.0]
    assert len(server.requests) == 3


async def test_no_call_is_made_without_time(connect: Connect, server: Any) -> None:
    """A budget of nothing asks nobody."""
    with pytest.raises(ProviderUnavailableError, match="no time left"):
        await connect(OK).generate(ask(timeout=0))
    assert server.requests == []


async def test_the_budget_ends_an_answer_that_trickles() -> None:
    """The budget bounds the whole call, also where each single read would be in time."""

    async def hang(request: httpx.Request) -> httpx.Response:
        await anyio.sleep_forever()
        raise AssertionError

    http = HttpSettings(transport=httpx.MockTransport(hang))
    with pytest.raises(ProviderUnavailableError, match="no answer in time"):
        await OpenAIChat("small", api_key="k", http=http).generate(ask(timeout=0.02))


async def test_time_outs_go_to_the_connection(connect: Connect, server: Any) -> None:
    """Connect and read time-outs are the configured ones, cut to the budget."""
    await connect(OK, http={"connect_timeout": 4.0, "read_timeout": 90.0}).generate(ask())
    await connect(OK, http={"connect_timeout": 4.0, "read_timeout": 90.0}).generate(ask(timeout=20.0))
    seen = [request.extensions["timeout"] for request in server.requests]
    assert [(one["connect"], one["read"]) for one in seen] == [(4.0, 90.0), (4.0, 20.0)]


async def test_a_cancelled_call_stays_cancelled(connect: Connect) -> None:
    """Whoever cancels a call gets the cancellation, not a provider's error."""

    async def hang(seconds: float) -> None:
        await anyio.sleep_forever()

    with anyio.move_on_after(0.02) as scope:
        await connect(failed(500), http={"sleep": hang}).generate(ask())
    assert scope.cancelled_caught


def test_clients_do_not_outlive_their_event_loop(connect: Connect, said: Any) -> None:
    """One provider serves several event loops, one after the other, as a warm Lambda environment makes them."""
    model = connect(said({"content": "fine"}))
    for _ in range(2):
        assert anyio.run(model.generate, ask()).message.content == "fine"


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("3", 3.0),
        ("0.5", 0.5),
        ("-1", None),
        ("nan", None),
        ("1e999", None),
        ("soon", None),
        ("", None),
        ("Tue, 01 Jan 2030 00:01:00 GMT", 60.0),
        ("Tue, 01 Jan 2030 00:01:00 -0000", 60.0),
        ("Mon, 31 Dec 2029 23:59:00 GMT", 0.0),
        ("Mon, 99 Foo 2029 99:99:99 GMT", None),
    ],
)
def test_retry_after_in_all_its_forms(value: str, seconds: float | None) -> None:
    """Seconds and HTTP dates are read; a date in the past is no wait; anything else is ignored."""
    assert retry_after({"retry-after": value}, NOW) == seconds


def test_milliseconds_win_over_seconds() -> None:
    """`retry-after-ms` is the more exact of the two."""
    assert retry_after({"retry-after": "2", "retry-after-ms": "1500"}, NOW) == 1.5
    assert retry_after({"retry-after": "2", "retry-after-ms": "?"}, NOW) == 2.0


@pytest.mark.parametrize(("jitter", "pauses"), [(0.0, [0, 0, 0, 0]), (0.5, [1, 2, 4, 4]), (1.0, [2, 4, 8, 8])])
def test_the_backoff_is_fully_jittered(jitter: float, pauses: list[float]) -> None:
    """A pause is anything from nothing to the doubled backoff, which has a ceiling."""
    settings = HttpSettings(attempts=5, first_backoff=2.0, longest_backoff=8.0)
    failure = Failure(ProviderUnavailableError("p", "down"), again=True)
    found = [
        pause_before_retry(failure, attempt, left=100.0, jitter=jitter, settings=settings) for attempt in range(1, 5)
    ]
    assert found == pauses
    assert pause_before_retry(failure, 5, left=100.0, jitter=jitter, settings=settings) is None


def test_the_number_of_attempts_is_checked() -> None:
    """At least one attempt is made."""
    with pytest.raises(ConfigurationError, match="attempts must be 1 to 20"):
        HttpSettings(attempts=0)


def test_importing_a_provider_does_not_import_httpx() -> None:
    """httpx costs its import time with the first model call and not before."""
    code = "import sys, durable.providers.openai_chat, durable.providers.scripted; sys.exit('httpx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=False).returncode == 0
