"""What an error says, and what it never says."""

import json
import traceback
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from durable.errors import (
    ProviderError,
    ProviderRequestError,
    ProviderResponseError,
    ProviderSetupError,
    ProviderUnavailableError,
)
from durable.messages import UserMessage
from durable.plan import POISON
from durable.ports import ModelRequest, ToolSpec
from durable.providers._failures import redactor
from durable.providers.openai_chat import OpenAIChat

pytestmark = pytest.mark.anyio

Connect = Callable[..., OpenAIChat]
KEY = "sk-proj-0123456789abcdef"
ASK = ModelRequest(instructions=None, messages=[UserMessage(content="private question")])


async def error_of(model: OpenAIChat, request: ModelRequest = ASK) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await model.generate(request)
    return caught.value


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"error": {"message": "no such model", "type": "x", "code": None}}, "no such model"),
        ({"error": "model 'x' not found"}, "model 'x' not found"),
        ([{"error": {"code": 400, "message": "bad schema"}}], "bad schema"),
        ({"object": "error", "message": "context is 10 tokens"}, "context is 10 tokens"),
        ({"detail": "Not Found"}, "Not Found"),
        ({"message": {"detail": [{"loc": ["body", "tools"], "msg": "wrong"}]}}, "body.tools: wrong"),
        ({"detail": [{"loc": ["body", 0], "msg": "wrong", "input": "private"}, {"msg": 1}]}, "body.0: wrong; an error"),
        ({"errors": [{"code": 1000, "message": "no route"}]}, "no route"),
        ({"private": "private"}, "an error without a message"),
        ({"error": {}}, "an error without a message"),
        ("plain", '"plain"'),
    ],
    ids=str,
)
async def test_the_reason_is_the_providers_own(connect: Connect, body: object, reason: str) -> None:
    """The message is found in every shape that providers use, without anything that echoes the request."""
    error = await error_of(connect(httpx.Response(400, json=body)))
    assert error.reason.startswith(reason)
    assert "private" not in str(error)
    assert str(error).startswith("openai:small (HTTP 400): ")


async def test_a_reason_that_is_no_json_is_shown_on_one_line(connect: Connect) -> None:
    """A gateway's page is shown as it is, and an empty answer is called that."""
    page = httpx.Response(502, text="<html>\n  Bad\n  Gateway</html>")
    assert (await error_of(connect(page))).reason == "<html> Bad Gateway</html>"
    assert (await error_of(connect(httpx.Response(503)))).reason == "no reason was given"


async def test_a_long_reason_is_cut(connect: Connect) -> None:
    """Not more than 500 characters of a reason are kept, and a key at the cut does not leave its first half."""
    text = "x" * 490 + f" {KEY} " + "y" * 10_000
    for answer in (httpx.Response(400, json={"error": {"message": text}}), httpx.Response(400, text=text)):
        reason = (await error_of(connect(answer))).reason
        assert len(reason) == 500
        assert reason.endswith("…")
        assert "sk-" not in reason


@pytest.mark.parametrize(
    "text",
    [
        f"Incorrect API key provided: {KEY}.",
        f"header was Authorization: Bearer {KEY}",
        "header was authorization: bearer somebody.elses-token",
        "header was Authorization: Bearer somebody.elses-token",
        "Incorrect API key provided: sk-proj-****cdef. You can find …",
        "keys gsk_abcdefgh and AIzaSyabcdefgh and xai-abcdefgh",
        "the extra header is very-secret-value",
    ],
)
async def test_no_key_is_in_an_error(connect: Connect, text: str) -> None:
    """A key that the provider echoes, or anything that looks like one, is taken out, wherever it would show."""
    model = connect(httpx.Response(401, json={"error": {"message": text}}), headers={"X-Token": "very-secret-value"})
    error = await error_of(model)
    shown = f"{error!r} {error} {''.join(traceback.format_exception(error))} {model!r} {model._endpoint!r}"
    assert "[redacted]" in str(error)
    for secret in (KEY, "somebody.elses-token", "cdef", "abcdefgh", "very-secret-value"):
        assert secret not in shown


def test_ordinary_words_are_not_keys() -> None:
    """Only what looks like a credential is taken out."""
    text = "the task-force uses Bearer auth; the risk-model is desk-bound"
    assert redactor([])(text) == text


async def test_a_transport_error_is_redacted_too(connect: Connect) -> None:
    """The text of a connection error goes through the same filter."""
    error = await error_of(connect(httpx.ProxyError(f"proxy refused {KEY}")))
    assert "proxy refused [redacted]" in error.reason


async def test_groqs_failed_tool_use_says_what_to_do(connect: Connect) -> None:
    """A call that the server refused and nobody can read is an answer that is none, without the failed arguments; the
    transcript is as good as before."""
    body = {"error": {"message": "validation failed", "code": "tool_use_failed", "failed_generation": "private"}}
    error = await error_of(connect(httpx.Response(400, json=body)))
    assert isinstance(error, ProviderResponseError)
    assert error.code not in POISON
    assert "does not fit the tool's schema" in error.reason
    assert "private" not in str(error)


async def test_groqs_failed_tool_use_is_the_call_that_the_model_made(connect: Connect) -> None:
    """Where the refused call can be read, it is the turn: the executor tells the model what is wrong with it."""
    wrote = json.dumps({"name": "look", "arguments": {"foo": 1}})
    body = {"error": {"message": "no", "code": "tool_use_failed", "failed_generation": wrote}}
    turn = await connect(httpx.Response(400, json=body)).generate(ASK)
    assert [(call.id, call.name, call.arguments) for call in turn.message.tool_calls] == [("", "look", '{"foo": 1}')]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (httpx.UnsupportedProtocol("no ftp"), ProviderSetupError),
        (httpx.LocalProtocolError("bad header"), ProviderSetupError),
        (httpx.InvalidURL("bad url"), ProviderSetupError),
        (httpx.DecodingError("bad gzip"), ProviderResponseError),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
async def test_errors_that_repeat_are_not_tried_again(
    connect: Connect, server: Any, error: Exception, kind: type[ProviderError]
) -> None:
    """What the client itself refuses, or cannot decode, is raised at once."""
    assert type(await error_of(connect(error))) is kind
    assert len(server.requests) == 1


@pytest.mark.parametrize("content", [b"", b"<html>", b"data: {}\n\n", b"\xff", b"null", b"[" * 10_000])
async def test_a_success_that_is_no_json_is_a_response_error(connect: Connect, content: bytes) -> None:
    """A status of 200 does not make an answer: its size and type are named, its content is not shown."""
    error = await error_of(connect(httpx.Response(200, content=content, headers={"content-type": "text/html"})))
    assert isinstance(error, ProviderResponseError)
    assert f"({len(content)} bytes, content type text/html)" in error.reason


async def test_a_request_that_is_not_json_is_a_request_error(connect: Connect, server: Any) -> None:
    """A tool schema with a value that JSON does not have is refused before anything is sent."""
    tool = ToolSpec(name="a", description="", parameters={"default": float("nan")})
    error = await error_of(connect(httpx.Response(200)), ModelRequest(instructions=None, messages=[], tools=[tool]))
    assert isinstance(error, ProviderRequestError)
    assert server.requests == []


async def test_a_redirect_is_not_followed(connect: Connect, server: Any) -> None:
    """The key goes to the configured address only: a redirect is an answer that is not of the protocol."""
    error = await error_of(connect(httpx.Response(308, headers={"location": "https://elsewhere/v1"})))
    assert isinstance(error, ProviderResponseError)
    assert len(server.requests) == 1


async def test_an_error_in_a_success_counts_as_its_code(connect: Connect) -> None:
    """Gateways answer 200 with an error inside; its code, where it is a status, decides the type."""
    whole = httpx.Response(200, json={"error": {"code": 502, "message": "upstream is down"}})
    inside = httpx.Response(200, json={"choices": [{"error": {"code": 429, "message": "slow down"}}]})
    without = httpx.Response(200, json={"error": {"message": "odd"}})
    found = [await error_of(connect(answer)) for answer in (whole, inside, without)]
    assert isinstance(found[0], ProviderUnavailableError)
    assert [(error.code, error.reason) for error in found] == [
        ("PROVIDER_UNAVAILABLE", "upstream is down"),
        ("PROVIDER_RATE_LIMIT", "slow down"),
        ("PROVIDER_RESPONSE", "odd"),
    ]


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (400, {"code": "context_length_exceeded", "message": "x"}, "PROVIDER_CONTEXT_LENGTH"),
        (400, {"message": "prompt is too long: 3333404 tokens > 200000 maximum"}, "PROVIDER_CONTEXT_LENGTH"),
        (400, {"message": "This model's maximum context length is 8192 tokens"}, "PROVIDER_CONTEXT_LENGTH"),
        (400, {"message": "the request exceeds the available context size"}, "PROVIDER_CONTEXT_LENGTH"),
        (413, {"type": "request_too_large", "message": "x"}, "PROVIDER_CONTEXT_LENGTH"),
        (400, {"code": "content_filter", "message": "x"}, "PROVIDER_REFUSED"),
        (400, {"code": "content_policy_violation", "message": "x"}, "PROVIDER_REFUSED"),
        (400, {"message": "messages.1: `tool_use` ids were found without `tool_result`"}, "PROVIDER_REQUEST"),
        (400, {"message": "No tool output found for tool call", "param": None}, "PROVIDER_REQUEST"),
        (400, {"message": "x", "param": "messages[3].content"}, "PROVIDER_REQUEST"),
        (400, {"message": "x", "param": "input[0]"}, "PROVIDER_REQUEST"),
        (400, {"message": "x", "param": "temperature"}, "PROVIDER_SETUP"),
        (400, {"message": "max_tokens: must be at most 8192"}, "PROVIDER_SETUP"),
        (400, {"message": "tools.0.name: too long"}, "PROVIDER_SETUP"),
        (400, {"message": "The provided model identifier is invalid."}, "PROVIDER_SETUP"),
        (400, {"message": "Your credit balance is too low to access the API."}, "PROVIDER_SETUP"),
        (402, {"message": "no balance"}, "PROVIDER_SETUP"),
        (404, {"message": "model not found", "code": "model_not_found"}, "PROVIDER_SETUP"),
        (429, {"message": "x", "code": "insufficient_quota"}, "PROVIDER_SETUP"),
        (401, {"message": "x"}, "PROVIDER_AUTHENTICATION"),
        (403, {"message": "x"}, "PROVIDER_AUTHENTICATION"),
        (400, {"message": "x", "type": "authentication_error"}, "PROVIDER_AUTHENTICATION"),
        (408, {"message": "x"}, "PROVIDER_TIMEOUT"),
        (504, {"message": "x"}, "PROVIDER_TIMEOUT"),
        (529, {"message": "x", "type": "overloaded_error"}, "PROVIDER_OVERLOADED"),
        (503, {"message": "x", "type": "slow_down"}, "PROVIDER_OVERLOADED"),
        (500, {"message": "x"}, "PROVIDER_UNAVAILABLE"),
        (429, {"message": "x"}, "PROVIDER_RATE_LIMIT"),
    ],
    ids=str,
)
async def test_what_a_provider_says_decides_the_kind(
    connect: Connect, status: int, error: dict[str, Any], kind: str
) -> None:
    """Status, code, parameter and words give the kind; only what the same transcript meets again cuts a turn."""
    found = await error_of(connect(httpx.Response(status, json={"error": error}), http={"attempts": 1}))
    assert found.code == kind
    again = kind in ("PROVIDER_CONTEXT_LENGTH", "PROVIDER_REFUSED", "PROVIDER_REQUEST")
    assert (found.code in POISON, bool(found.hint)) == (again, True)
    assert not (found.retryable and again)


async def test_half_a_surrogate_pair_in_an_error_can_be_kept(connect: Connect) -> None:
    """What a provider says is kept with the run, so it must be text that can be stored."""
    body = b'{"error": {"message": "bad \\ud83d thing"}}'
    error = await error_of(connect(httpx.Response(400, content=body)))
    assert error.reason.encode() == "bad \ufffd thing".encode()
