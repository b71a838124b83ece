"""Amazon Bedrock's Converse, through boto3.

boto3 is imported with the first call. It blocks, so each call runs in a worker thread, and this file is the one place
that crosses into it; the pieces of a stream come back into the event loop. Credentials and region are boto3's own
business: the function's role, or the shell's.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, assert_never, cast

import anyio
import anyio.from_thread
import anyio.to_thread
from pydantic import JsonValue

from durable.errors import (
    ConfigurationError,
    ProviderError,
    ProviderRequestError,
    ProviderStreamError,
    ProviderTimeoutError,
)
from durable.messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    Message,
    Part,
    SystemMessage,
    TextPart,
    ToolMessage,
    UserMessage,
)
from durable.ports import Delta, ModelRequest, ModelTurn, ToolSpec
from durable.providers import _bedrock_answer as answers
from durable.providers._failures import Failure
from durable.providers._http import Tell, Told
from durable.providers._retries import HttpSettings, attempts
from durable.providers._wire import (
    IdRule,
    Json,
    OpenCalls,
    arguments_object,
    checked_options,
    media,
    merged,
    result_text,
    strict_schema,
    whole_text,
)

_OURS = frozenset({"modelId", "messages", "system"})
_ID = IdRule(re.compile(r"[a-zA-Z0-9_.:-]{1,64}"))
_FORMATS = {"plain": "txt", "markdown": "md", "msword": "doc", "vnd.ms-excel": "xls"}
_GEOGRAPHIES = frozenset({"us", "us-gov", "eu", "apac", "global", "jp", "au", "ca"})
_OFFICE = "vnd.openxmlformats-officedocument."


class _Left(Exception):
    """Nobody waits for this attempt any more."""


class _Attempt:
    """One call, seen from its worker thread."""

    def __init__(self, told: Told | None) -> None:
        self._told = told
        self.over = False

    def hand_over(self, delta: Delta) -> None:
        """Tell a piece in the event loop, as long as somebody waits for the attempt."""
        if self.over:
            raise _Left
        anyio.from_thread.run_sync(self._tell, delta)

    def _tell(self, delta: Delta) -> None:
        if not self.over and self._told is not None:
            self._told(delta)


class Bedrock:
    """A model behind Converse and ConverseStream: an id, an inference profile or its ARN.

    `options` are more fields of the request, e.g. `{"inferenceConfig": {"maxTokens": 4000}}`. `region` and
    `endpoint_url` are boto3's own unless given; `client` makes another client than boto3's. `structured_output` asks
    the model's server to hold a final answer to the schema, which not every model can.
    """

    def __init__(
        self,
        model: str,
        *,
        region: str | None = None,
        endpoint_url: str | None = None,
        options: Mapping[str, JsonValue] | None = None,
        structured_output: bool = False,
        http: HttpSettings | None = None,
        client: Callable[[], Any] | None = None,
    ) -> None:
        self._model = model
        self._options = checked_options(options, _OURS)
        self._structured = structured_output
        self._settings = http or HttpSettings()
        self._make_client = client or self._boto3_client
        self._where = {"region_name": region, "endpoint_url": endpoint_url}
        self._client: Any = None

    def __repr__(self) -> str:
        return f"<Bedrock {self.name!r}>"

    @property
    def name(self) -> str:
        return f"bedrock:{self._model}"

    @property
    def origin(self) -> str:
        """Whose native turns it sends back: those of the same maker's models."""
        parts = [part for part in self._model.rpartition("/")[2].split(".") if part not in _GEOGRAPHIES]
        return f"bedrock@{parts[0] if len(parts) > 1 else self._model}"

    async def generate(self, request: ModelRequest) -> ModelTurn:
        body = self.body(request)

        def ask(attempt: _Attempt) -> Any:
            return self._made().converse(**body)

        return answers.parse(self.name, await self._attempts(request, ask, None), origin=self.origin)

    async def stream(self, request: ModelRequest, tell: Tell) -> ModelTurn:
        """Like `generate`, and `tell` gets the pieces of the turn while it is written."""
        body, told = self.body(request), Told(tell)

        def ask(attempt: _Attempt) -> Any:
            stream = answers.ConverseStream(self.name)
            response = self._made().converse_stream(**body)
            try:
                for event in response["stream"]:
                    for delta in stream.feed(event):
                        attempt.hand_over(delta)
            finally:
                response["stream"].close()
            if not stream.done:
                raise ProviderStreamError(self.name, "the stream ended before its last event")
            return stream.whole()

        turn = answers.parse(self.name, await self._attempts(request, ask, told), origin=self.origin)
        if not told.any:
            for delta in whole_text(turn):
                tell(delta)
        return turn

    async def _attempts(self, request: ModelRequest, ask: "Callable[[_Attempt], Any]", told: Told | None) -> Any:
        async def once(left: float) -> Any:
            attempt = _Attempt(told)
            try:
                found = await self._guarded(partial(ask, attempt), left)
            finally:
                attempt.over = True
            if isinstance(found, Failure) and told is not None and told.any:
                error = found.error
                if error.retryable and not isinstance(error, ProviderStreamError):
                    error = ProviderStreamError(self.name, error.reason, status=error.status)
                return Failure(error, cause=found.cause)
            return found

        return await attempts(self.name, once, budget=request.timeout, settings=self._settings)

    async def _guarded(self, ask: Callable[[], Any], left: float) -> Any:
        """Ask in a worker thread. One that is out of time cannot be stopped: it is left behind, and tells nothing."""
        try:
            with anyio.fail_after(left):
                return await anyio.to_thread.run_sync(ask, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
        except ProviderError as error:
            return Failure(error, again=error.retryable)
        except TimeoutError as error:
            return Failure(ProviderTimeoutError(self.name, "no answer in time"), again=True, cause=error)
        except Exception as error:
            return answers.failure_of(self.name, error)

    def body(self, request: ModelRequest) -> dict[str, Any]:
        """Give the arguments of `converse` for a request."""
        system = [request.instructions] if request.instructions else []
        system += [message.content for message in request.messages if isinstance(message, SystemMessage)]
        messages = self._messages(request.messages)
        ours: dict[str, Any] = {"modelId": self._model, "messages": messages}
        if system:
            ours["system"] = [{"text": text} for text in system]
        if request.tools:
            ours["toolConfig"] = {"tools": [_tool(spec) for spec in request.tools]}
        elif any("toolUse" in block for message in messages for block in message["content"]):
            names = {block["toolUse"]["name"]: None for m in messages for block in m["content"] if "toolUse" in block}
            schema: Json = {"type": "object"}
            ours["toolConfig"] = {"tools": [_tool(ToolSpec(name, name, schema)) for name in names]}
        if request.tools and request.parallel_tool_calls is not None:
            ours |= self._parallel(request.parallel_tool_calls)
        if request.output_schema is not None and self._structured:
            ours |= _held_to(strict_schema(request.output_schema) or dict(request.output_schema))
        return merged(self._options, ours)

    def _parallel(self, allowed: bool) -> Json:
        """Converse itself has no such option; the models that have one take it as a field of their own."""
        if allowed:
            return {}
        if not self.origin.endswith("@anthropic"):
            raise ConfigurationError(f"{self.name} has no option to turn parallel tool calls off.")
        choice: Json = {"type": "auto", "disable_parallel_tool_use": True}
        given = self._options.get("additionalModelRequestFields")
        return {"additionalModelRequestFields": {**(given if isinstance(given, dict) else {}), "tool_choice": choice}}

    def _messages(self, transcript: Sequence[Message]) -> list[dict[str, Any]]:
        """User and assistant in turn: what follows one another on one side is one message."""
        calls = OpenCalls(_ID)
        sides: list[dict[str, Any]] = []

        def add(role: Literal["user", "assistant"], blocks: list[Any]) -> None:
            if sides and sides[-1]["role"] == role:
                sides[-1]["content"].extend(blocks)
            elif blocks:
                sides.append({"role": role, "content": blocks})

        for index, message in enumerate(transcript):
            match message:
                case SystemMessage():
                    pass
                case UserMessage():
                    said = message.content if isinstance(message.content, tuple) else (TextPart(text=message.content),)
                    add("user", [self._part(part, n) for n, part in enumerate(said)])
                case AssistantMessage():
                    add("assistant", _turn(message, calls.turn(index, message.tool_calls), self.origin))
                case ToolMessage():
                    add("user", [self._result(message, calls.result(message.tool_call_id))])
                case _:
                    assert_never(message)
        return sides

    def _result(self, message: ToolMessage, id: str) -> dict[str, Any]:
        text, parts = result_text(message), media(message)
        content: list[Any] = [{"text": text}] if text.strip() or not parts else []
        content += [self._part(part, n) for n, part in enumerate(parts)]
        failed = {"status": "error"} if message.is_error else {}
        return {"toolResult": {"toolUseId": id, "content": content, **failed}}

    def _part(self, part: Part, number: int) -> dict[str, Any]:
        match part:
            case TextPart():
                return {"text": part.text}
            case ImagePart():
                return {"image": {"format": self._format(part), "source": self._source(part)}}
            case FilePart():
                name = re.sub(r"[^a-zA-Z0-9 ()\[\]-]+", "-", part.name or f"file {number + 1}").strip()
                return {"document": {"format": self._format(part), "name": name, "source": self._source(part)}}

    def _format(self, part: ImagePart | FilePart) -> str:
        kind = (part.media_type or (part.url or "").rpartition(".")[2].lower()).rpartition("/")[2]
        if kind.startswith(_OFFICE):
            return "xlsx" if "sheet" in kind else "docx"
        return {"jpg": "jpeg", **_FORMATS}.get(kind, kind)

    def _source(self, part: ImagePart | FilePart) -> dict[str, Any]:
        if part.data is not None:
            return {"bytes": answers.from_base64(part.data)}
        if part.url is not None and part.url.startswith("s3://"):
            return {"s3Location": {"uri": part.url}}
        raise ProviderRequestError(self.name, "Bedrock reads images and files from s3:// addresses only, or as bytes")

    def _made(self) -> Any:
        if self._client is None:
            self._client = self._make_client()
        return self._client

    def _boto3_client(self) -> Any:
        import boto3
        from botocore.config import Config

        config = Config(
            connect_timeout=self._settings.connect_timeout,
            read_timeout=self._settings.read_timeout,
            retries={"total_max_attempts": 1},  # ours know the budget
        )
        where = {name: value for name, value in self._where.items() if value is not None}
        return cast(Any, boto3).client("bedrock-runtime", config=config, **where)


def _turn(message: AssistantMessage, ids: Sequence[str], origin: str) -> list[Any]:
    native = message.native_for(origin)
    called = [
        {"toolUse": {"toolUseId": id, "name": call.name, "input": arguments_object(call)}}
        for id, call in zip(ids, message.tool_calls, strict=True)
    ]
    if native is None:
        return [*_text(message.content), *called]
    sent: list[Any] = []
    at = 0
    for block in native.blocks:
        match block.kind:
            case "own":
                sent.append(answers.with_bytes(block.value))
            case "text":
                sent.extend(_text(message.content[at : at + block.chars]))
            case "call":
                use = called.pop(0)["toolUse"]
                sent.append({"toolUse": {**answers.with_bytes(block.value), **use}})
        at += block.chars
    return sent


def _text(text: str) -> list[dict[str, Any]]:
    return [{"text": text}] if text.strip() else []


def _tool(spec: ToolSpec) -> dict[str, Any]:
    described = {"description": spec.description} if spec.description else {}  # the service refuses an empty one
    return {"toolSpec": {"name": spec.name, **described, "inputSchema": {"json": dict(spec.parameters)}}}


def _held_to(schema: Json) -> dict[str, Any]:
    structure = {"jsonSchema": {"name": "answer", "schema": json.dumps(schema)}}
    return {"outputConfig": {"textFormat": {"type": "json_schema", "structure": structure}}}
