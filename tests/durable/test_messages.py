"""Messages: what counts as the same, what parts may hold, and what of a turn belongs to its provider."""

from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from durable.messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    NativeBlock,
    NativeTurn,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
    bound_elsewhere,
    messages_adapter,
    same_message,
    shown_result,
)
from tests.support.transcripts import json_values

PNG = ImagePart.from_bytes(b"\x89PNG", "image/png")


def test_a_part_of_bytes_is_base64_with_its_type() -> None:
    """Bytes become base64; a text, an image and a file are read back as what they were."""
    assert PNG.data == b64encode(b"\x89PNG").decode()
    said = UserMessage(content=(TextPart(text="a"), PNG, FilePart(url="https://x/y", name="y"), TextPart(text="b")))
    assert messages_adapter.validate_json(messages_adapter.dump_json((said,))) == (said,)
    assert UserMessage.model_validate(said.model_dump(exclude_defaults=True)) == said
    assert said.text == "a\nb"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image"},
        {"type": "image", "data": "AAAA", "url": "https://x", "media_type": "image/png"},
        {"type": "image", "data": "AAAA"},
        {"type": "image", "data": "not base64!", "media_type": "image/png"},
        {"type": "image", "data": "AAAA", "media_type": "application/pdf"},
        {"type": "file", "data": "AAAA", "media_type": "pdf\r\nx: y"},
        {"type": "video", "url": "https://x"},
        {"type": "text"},
    ],
)
def test_a_part_that_no_provider_would_take_is_refused(part: dict[str, Any]) -> None:
    """One source, a media type that fits, base64 that decodes: else the message is not made."""
    with pytest.raises(ValidationError):
        UserMessage.model_validate({"content": [part]})


def test_an_empty_or_shown_result_keeps_its_kind() -> None:
    """A result is shown as its content alone, and with its parts described where it has some."""
    plain = ToolMessage(tool_call_id="c", tool_name="t", content={"a": 1})
    assert shown_result(plain) == {"a": 1}
    shown: Any = shown_result(plain.model_copy(update={"parts": (PNG, ImagePart(url="https://x"))}))
    assert shown["content"] == {"a": 1}
    assert shown["parts"][0] == {"type": "image", "media_type": "image/png", "bytes": 4, "sha256": "0f4636c78f65d363"}
    assert shown["parts"][1] == {"type": "image", "url": "https://x"}


def test_what_a_client_sends_again_counts_without_the_native_turn() -> None:
    """Content and parts are compared; what only the provider reads is not, since clients do not send it."""
    turn = AssistantMessage(content="hi", native=NativeTurn(origin="anthropic"))
    assert same_message(turn, AssistantMessage(content="hi"))
    assert not same_message(UserMessage(content=(PNG,)), UserMessage(content=(TextPart(text="a"),)))
    one = ToolMessage(tool_call_id="c", tool_name="t", parts=(PNG,))
    assert not same_message(one, one.model_copy(update={"parts": ()}))


def test_a_native_turn_is_for_its_origin_and_its_message() -> None:
    """Another origin, or a message that a hook has changed since, gets none."""
    blocks = (NativeBlock(kind="text", chars=2), NativeBlock(kind="call"), NativeBlock(kind="own"))
    turn = AssistantMessage(
        content="hi", tool_calls=(ToolCall(id="c", name="t"),), native=NativeTurn(origin="anthropic", blocks=blocks)
    )
    assert turn.native_for("anthropic") is turn.native
    assert turn.native_for("bedrock") is None
    assert turn.model_copy(update={"content": "hello"}).native_for("anthropic") is None
    assert turn.model_copy(update={"tool_calls": ()}).native_for("anthropic") is None
    assert bound_elsewhere((turn, AssistantMessage(content="x")), "bedrock") == 1
    assert bound_elsewhere((turn,), "anthropic") == 0


@given(value=st.dictionaries(st.text(max_size=5), json_values, max_size=4))
def test_p11_unknown_fields_survive(value: dict[str, Any]) -> None:
    """Whatever JSON a provider adds to a block is read back as it was written, order included."""
    native = NativeTurn(origin="o", fields=value, blocks=(NativeBlock(kind="own", value=value),))
    turn = AssistantMessage(native=native)
    text = turn.model_dump_json(exclude_defaults=True)
    assert AssistantMessage.model_validate_json(text).model_dump_json(exclude_defaults=True) == text


def test_a_repr_shows_no_content() -> None:
    """Neither parts nor native blocks show in a repr."""
    native = NativeTurn(origin="o", blocks=(NativeBlock(kind="own", value={"thinking": "secret"}),))
    parts = (TextPart(text="secret"), FilePart(url="https://secret"))
    for value in (native, native.blocks[0], *parts, AssistantMessage(native=native), UserMessage(content=parts)):
        assert "secret" not in repr(value) + str(value)
