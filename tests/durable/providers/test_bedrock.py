"""Bedrock through boto3: its errors in our words, its threads in their place."""

import threading
import traceback
from typing import Any

import anyio
import anyio.to_thread
import pytest
from botocore import exceptions
from botocore.exceptions import ClientError

from durable.errors import (
    ProviderAuthenticationError,
    ProviderContextLengthError,
    ProviderError,
    ProviderRateLimitError,
    ProviderRequestError,
    ProviderResponseError,
    ProviderSetupError,
    ProviderStreamError,
    ProviderTimeoutError,
    ProviderUnavailableError,
)
from durable.messages import UserMessage
from durable.ports import Delta, ModelRequest
from tests.durable.providers.wires import bedrock_events, bedrock_over, streamed

pytestmark = pytest.mark.anyio

ASK = ModelRequest(instructions=None, messages=[UserMessage(content="private question")])
ANSWER = {
    "stopReason": "end_turn",
    "output": {"message": {"role": "assistant", "content": [{"text": "Hello."}]}},
    "usage": {"inputTokens": 1, "outputTokens": 2, "cacheReadInputTokens": 3, "cacheWriteInputTokens": 4},
}


def stated(code: str, message: str = "said so", status: int = 400) -> ClientError:
    error = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(error, "Converse")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (stated("AccessDeniedException", status=403), ProviderAuthenticationError),
        (stated("UnrecognizedClientException", status=403), ProviderAuthenticationError),
        (exceptions.NoCredentialsError(), ProviderAuthenticationError),
        (stated("ResourceNotFoundException", status=404), ProviderSetupError),
        (stated("ValidationException", "The provided model identifier is invalid."), ProviderSetupError),
        (stated("ValidationException", "Invocation with on-demand throughput isn't supported."), ProviderSetupError),
        (exceptions.NoRegionError(), ProviderSetupError),
        (stated("ValidationException", "Input Tokens Exceeded: too many"), ProviderContextLengthError),
        (stated("ValidationException", "Expected toolResult blocks"), ProviderRequestError),
        (exceptions.ParamValidationError(report="private question"), ProviderRequestError),
        (stated("ThrottlingException", status=429), ProviderRateLimitError),
        (stated("ModelTimeoutException", status=408), ProviderTimeoutError),
        (exceptions.ReadTimeoutError(endpoint_url="https://x"), ProviderTimeoutError),
        (stated("ServiceUnavailableException", status=503), ProviderUnavailableError),
        (stated("ModelErrorException", status=424), ProviderUnavailableError),
        (stated("SomethingNew", status=500), ProviderUnavailableError),
        (exceptions.EndpointConnectionError(endpoint_url="https://x"), ProviderUnavailableError),
        (exceptions.EventStreamError({"Error": {"Code": "throttlingException"}}, "x"), ProviderRateLimitError),
        (exceptions.ResponseStreamingError(error="reset"), ProviderStreamError),
        (ValueError("private question"), ProviderResponseError),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)[:40]),
)
async def test_what_boto3_raises_is_typed(error: Exception, kind: type[ProviderError]) -> None:
    """Each of its errors has our kind, whole and streamed, with the service's own words and without the request's."""
    for ask in (lambda model: model.generate(ASK), lambda model: streamed(model, ASK)):
        with pytest.raises(kind) as caught:
            await ask(bedrock_over(error)[0])
        assert type(caught.value) is kind
        assert "private" not in str(caught.value)
    assert "secret" not in "".join(traceback.format_exception(caught.value))


async def test_what_passes_is_tried_again_within_the_budget() -> None:
    """Throttling is tried again; a refusal is not; the tokens of a cache count as input."""
    model, client = bedrock_over(ANSWER, attempts=3)
    answers: list[Any] = [stated("ThrottlingException"), stated("ServiceUnavailableException"), ANSWER]

    def converse(**body: Any) -> Any:
        client.asked.append(body)
        client.answer = answers[len(client.asked) - 1]
        if isinstance(client.answer, Exception):
            raise client.answer
        return client.answer

    client.converse = converse  # type: ignore[method-assign]
    turn = await model.generate(ASK)
    assert (turn.message.content, len(client.asked)) == ("Hello.", 3)
    assert (turn.usage.input_tokens, turn.usage.cached_input_tokens, turn.usage.output_tokens) == (8, 3, 2)
    model, client = bedrock_over(stated("ValidationException"), attempts=3)
    with pytest.raises(ProviderRequestError):
        await model.generate(ASK)
    assert len(client.asked) == 1


async def test_pieces_are_told_in_the_event_loop() -> None:
    """boto3 works in another thread; whoever listens is called in the loop's."""
    threads: set[int] = set()
    model, _ = bedrock_over(bedrock_events(ANSWER))
    turn = await model.stream(ASK, lambda delta: threads.add(threading.get_ident()))
    assert (threads, turn.message.content) == ({threading.get_ident()}, "Hello.")


async def test_an_attempt_that_is_left_behind_tells_nothing_more() -> None:
    """A thread that outlives its time cannot be stopped, but what it reads from then on is nobody's."""
    go = threading.Event()

    def events() -> Any:
        first, second, *others = bedrock_events(ANSWER)
        yield from (first, second)
        go.wait(10)
        yield from others

    model, client = bedrock_over(events())
    told: list[Delta] = []
    with pytest.raises(ProviderError) as caught:
        await model.stream(ModelRequest(instructions=None, messages=ASK.messages, timeout=0.05), told.append)
    assert isinstance(caught.value, ProviderStreamError | ProviderTimeoutError)
    before = list(told)
    go.set()
    assert await anyio.to_thread.run_sync(client.closed.wait, 5)
    assert told == before


def test_the_client_is_made_with_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """boto3 gets our time-outs and no retries of its own, the region and the endpoint that were given, once."""
    import boto3

    from durable.providers.bedrock import Bedrock

    made: list[Any] = []

    class Made:
        def converse(self, **body: Any) -> Any:
            return ANSWER

    monkeypatch.setattr(boto3, "client", lambda name, **options: made.append((name, options)) or Made())
    model = Bedrock("m", region="eu-central-1", endpoint_url="https://here")
    assert made == []
    for _ in range(2):
        anyio.run(model.generate, ASK)
    [(name, options)] = made
    assert (name, options["region_name"], options["endpoint_url"]) == (
        "bedrock-runtime",
        "eu-central-1",
        "https://here",
    )
    assert options["config"].retries == {"total_max_attempts": 1}
