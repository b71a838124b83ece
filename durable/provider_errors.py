"""What a model's provider may get wrong, refuse, or be too busy for. `durable.errors` draws the tree."""

from durable.durable_error import DurableError


class ProviderError(DurableError):
    """The model provider did not give an answer that can be used."""

    code = "PROVIDER"

    def __init__(self, provider: str, reason: str, *, status: int | None = None) -> None:
        self.provider = provider
        self.reason = reason
        self.status = status
        answered = f" (HTTP {status})" if status is not None else ""
        super().__init__(f"{provider}{answered}: {reason}")


class ProviderAuthenticationError(ProviderError):
    code = "PROVIDER_AUTHENTICATION"
    hint = "Check the API key and what it may do."


class ProviderSetupError(ProviderError):
    """A 4xx that is not about what was said: the model's name, the account, an option. The turn can go on later."""

    code = "PROVIDER_SETUP"
    hint = "Fix the model's name, its options or the account; then the run can be resumed."


class ProviderRequestError(ProviderError):
    """A 4xx about the transcript: the same one will get it again. A new message takes the place of the refused turn."""

    code = "PROVIDER_REQUEST"
    hint = "The provider refuses this request; its reason is in the message. A new message replaces the refused turn."


class ProviderContextLengthError(ProviderRequestError):
    code = "PROVIDER_CONTEXT_LENGTH"
    hint = "The conversation is too long for the model: shorten it, use compaction, or choose a larger model."


class ProviderRefusedError(ProviderRequestError):
    """The provider's policy forbids the request; a model that declines in its answer is no error."""

    code = "PROVIDER_REFUSED"
    hint = "The provider's policy forbids what was said. A new message replaces the refused turn."


class ProviderRateLimitError(ProviderError):
    code = "PROVIDER_RATE_LIMIT"
    hint = "Wait for `retry_after` seconds, or raise the limit with the provider."
    retryable = True

    def __init__(
        self, provider: str, reason: str, *, status: int | None = None, retry_after: float | None = None
    ) -> None:
        self.retry_after = retry_after
        super().__init__(provider, reason, status=status)


class ProviderUnavailableError(ProviderError):
    code = "PROVIDER_UNAVAILABLE"
    hint = "The provider is failing or cannot be reached: resume the run later."
    retryable = True


class ProviderOverloadedError(ProviderUnavailableError):
    code = "PROVIDER_OVERLOADED"
    hint = "The provider has too much to do: resume the run later, or name a fallback model."


class ProviderTimeoutError(ProviderUnavailableError):
    code = "PROVIDER_TIMEOUT"
    hint = "The provider did not answer in time: resume the run, or allow it more time."


class ProviderStreamError(ProviderUnavailableError):
    """The answer broke off. What of it was shown is not part of the conversation."""

    code = "PROVIDER_STREAM"
    hint = "The stream ended before its last event: resume the run, which asks again."


class ProviderResponseError(ProviderError):
    """The provider answered with something that is not an answer of its protocol."""

    code = "PROVIDER_RESPONSE"
    hint = "Check the base URL and the model: this is not an answer of the protocol. The run can be resumed."
