"""Asking the model: the transcript is checked, the pieces of the turn are told while it is written, calls get ids."""

from collections.abc import Callable, Sequence

from durable.errors import ConfigurationError
from durable.events import ArgumentsDelta, Event, ReasoningDelta, TextDelta
from durable.messages import AssistantMessage, Message
from durable.ports import Delta, IdFactory, ModelRequest, ModelTurn, NativeProvider, Provider, StreamingProvider
from durable.transcript import first_fault, name_calls


def origin_of(provider: Provider) -> str | None:
    """Whose native turns the provider sends back; None for one that does not say."""
    return provider.origin if isinstance(provider, NativeProvider) else None


class Questions:
    """The questions that a run asks its model.

    A turn is streamed where somebody listens and the provider can. A call has one id from its first piece to the
    record: the provider's, or ours where that is missing or taken, or may have been (`all_ours`).
    """

    def __init__(
        self, *, tell: Callable[[Event], None], heard: bool, taken: set[str], ids: IdFactory, all_ours: bool = False
    ) -> None:
        self._tell = tell
        self._heard = heard
        self._taken = taken
        self._ids = ids
        self._all_ours = all_ours
        self._in_order: Sequence[Message] = ()
        self._early: dict[int, str] = {}
        self._told_text = False

    async def ask(self, provider: Provider, request: ModelRequest) -> ModelTurn:
        """Give the model's turn. Raises `ConfigurationError` for a transcript that a hook has put out of order."""
        self._check(request.messages)
        self._early, self._told_text = {}, False
        if not self._heard or not isinstance(provider, StreamingProvider):
            return await provider.generate(request)
        trouble: list[Exception] = []

        def tell(delta: Delta) -> None:
            if not trouble:
                try:
                    self._tell_delta(delta)
                except Exception as error:  # the listener's, which must not look like the provider's
                    trouble.append(error)

        turn = await provider.stream(request, tell)
        if trouble:
            raise trouble[0]
        return turn

    def _check(self, messages: Sequence[Message]) -> None:
        """The run's own transcript only grows: what was in order when it was asked about before is not looked at again.

        So a turn of a long run costs no more than one of a short run. Another list, such as a hook's, is read whole.
        """
        asked_before = self._in_order
        known = len(asked_before) if _begins_with(messages, asked_before) else 0
        if fault := first_fault(messages[known:]):
            raise ConfigurationError(
                f"The model is not asked with a transcript that is out of order: {fault}"
                + (f", counted from message {known}." if known else ".")
            )
        self._in_order = messages

    def named(self, message: AssistantMessage) -> AssistantMessage:
        """The turn, each call with an id that is unique in the session; a text that nobody has heard yet is told."""
        if message.content and not self._told_text:
            self._tell(TextDelta(text=message.content))
        return name_calls(message, taken=self._taken, ids=self._ids, early=self._early, all_ours=self._all_ours)

    def _tell_delta(self, delta: Delta) -> None:
        match delta.kind:
            case "text":
                self._told_text = True
                self._tell(TextDelta(text=delta.text))
            case "reasoning":
                self._tell(ReasoningDelta(text=delta.text))
            case "arguments":
                call_id = self._early.get(delta.call) or self._early_id(delta)
                self._tell(ArgumentsDelta(tool_call_id=call_id, tool_name=delta.name, text=delta.text))

    def _early_id(self, delta: Delta) -> str:
        known = delta.id in self._taken or delta.id in self._early.values()
        usable = delta.id and not known and not self._all_ours
        self._early[delta.call] = delta.id if usable and delta.id else f"call_{self._ids()}"
        return self._early[delta.call]


def _begins_with(messages: Sequence[Message], known: Sequence[Message]) -> bool:
    """Whether the very messages of `known` come first: tuples are compared by identity before equality, in C."""
    return tuple(messages[: len(known)]) == tuple(known)
