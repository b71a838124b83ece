"""Asking the model: the transcript is checked, the pieces of the turn are told while it is written, calls get ids."""

from collections.abc import Callable

from durable.errors import ConfigurationError
from durable.events import ArgumentsDelta, Event, ReasoningDelta, TextDelta
from durable.messages import AssistantMessage
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
        self._early: dict[int, str] = {}
        self._told_text = False

    async def ask(self, provider: Provider, request: ModelRequest) -> ModelTurn:
        """Give the model's turn. Raises `ConfigurationError` for a transcript that a hook has put out of order."""
        if fault := first_fault(request.messages):
            raise ConfigurationError(f"The model is not asked with a transcript that is out of order: {fault}.")
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
