"""POST /sessions/{id}/forks: what it takes, and the fork that it makes."""

import asyncio
import hashlib
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from durable.fork import Fork, default_id, fork, fork_messages
from durable.messages import Message
from durable.patches import UNCHANGED, Patch, PatchedResult
from handlers._responses import RequestInvalid
from handlers._wiring import App


class ToolResultPatch(BaseModel):
    model_config = ConfigDict(extra="forbid")

    tool_call_id: str
    result: JsonValue
    is_error: bool = False


class PatchRequest(BaseModel):
    """What is different in the fork; see `durable.Patch`. A state that is null is a state, one left out stays."""

    model_config = ConfigDict(extra="forbid")

    messages: list[Message] | None = None
    business_state: JsonValue = None
    tool_result: ToolResultPatch | None = None
    append_input: Annotated[str, Field(max_length=1_000_000)] | None = None

    def patch(self) -> Patch:
        given = self.tool_result
        return Patch(
            messages=self.messages,
            business_state=self.business_state if "business_state" in self.model_fields_set else UNCHANGED,
            tool_result=PatchedResult(given.tool_call_id, given.result, given.is_error) if given else None,
            append_input=self.append_input,
        )


class ForkRequest(BaseModel):
    """The body: from which step or revision, what is different, and the new session's id where it should have one.

    Or `message_count`: the first messages of the conversation as it is, with nothing different.
    """

    model_config = ConfigDict(extra="forbid")

    from_step: Annotated[int, Field(ge=0)] | None = None
    revision: Annotated[int, Field(ge=0)] | None = None
    message_count: Annotated[int, Field(ge=0)] | None = None
    session_id: str | None = None
    patch: PatchRequest = PatchRequest()


def make_fork(
    app: App, session_id: str, body: ForkRequest, *, requested_by: str | None, request: tuple[str, str] | None
) -> Fork:
    """Make it; nothing of it runs and nothing of it is due. With a key and no id it is named after the key."""
    name = body.session_id
    if name is None and request is not None:
        name = named_after(session_id, request[0])
    if body.message_count is not None:
        if {"from_step", "revision", "patch"} & body.model_fields_set:
            raise RequestInvalid("message_count goes with none of from_step, revision and patch.")
        count = body.message_count
        return asyncio.run(
            fork_messages(
                app.agent,
                session_id,
                store=app.store,
                message_count=count,
                new_session_id=name,
                requested_by=requested_by,
                request=request,
            )
        )
    made = fork(
        app.agent,
        session_id,
        store=app.store,
        from_step=body.from_step,
        revision=body.revision,
        patch=body.patch.patch(),
        new_session_id=name,
        requested_by=requested_by,
        request=request,
    )
    return asyncio.run(made)


def named_after(session_id: str, key: str) -> str:
    """The id of the fork that a request with this key makes, whenever it comes."""
    return default_id(session_id, f"fork-{hashlib.sha256(key.encode()).hexdigest()[:16]}")
