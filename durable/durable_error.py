"""The error that every other one of this package is."""

from typing import ClassVar


class DurableError(Exception):
    """Base of all errors of this package."""

    code: ClassVar[str] = "DURABLE_ERROR"
    hint: ClassVar[str] = "See the message."
    retryable: ClassVar[bool] = False
