"""A signed POST to somebody's HTTPS endpoint, in the way of Standard Webhooks (standardwebhooks.com).

The receiver checks `webhook-signature` with the shared secret, refuses old timestamps, and ignores ids that it has
seen: what is retried has the same id.
"""

import base64
import binascii
import hashlib
import hmac
import random
import time

from durable.errors import ConfigurationError, StoreError, StoreRejectedError, StoreUnavailableError

ATTEMPTS = 3
FIRST_PAUSE = 0.5
TIMEOUT = 5.0
"""Seconds, for connecting and for each read."""

PREFIX = "whsec_"


class WebhookFailed(Exception):
    """The endpoint did not take the message: `code` is an HTTP status or the name of a failure."""

    def __init__(self, code: str, *, retryable: bool) -> None:
        self.code = code
        self.retryable = retryable
        super().__init__(f"The webhook was not delivered ({code}).")

    def as_store_error(self) -> StoreError:
        kind = StoreUnavailableError if self.retryable else StoreRejectedError
        return kind("Webhook", self.code)


def post(url: str, body: bytes, *, id: str, timestamp: int, secret: str) -> None:
    """Send it, again with jitter while the endpoint does not answer or answers 429 or 5xx. Raises `WebhookFailed`."""
    import httpx  # with the first message only: it takes longer to import than the rest of the function

    headers = {
        "content-type": "application/json",
        "webhook-id": id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature(body, id=id, timestamp=timestamp, secret=secret),
    }
    with httpx.Client(timeout=TIMEOUT, follow_redirects=False) as client:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                status = client.post(url, content=body, headers=headers).status_code
            except httpx.HTTPError as error:
                failed = WebhookFailed(type(error).__name__, retryable=True)
            else:
                if 200 <= status < 300:
                    return
                failed = WebhookFailed(str(status), retryable=status == 429 or status >= 500)
            if not failed.retryable or attempt == ATTEMPTS:
                raise failed
            time.sleep(random.random() * FIRST_PAUSE * 2 ** (attempt - 1))


def secret_named(place: str) -> str:
    """Read the secret that receiver and sender share from Secrets Manager, through Powertools, which keeps it a while.

    Raises `WebhookFailed` that names the place alone.
    """
    from aws_lambda_powertools.utilities.parameters import get_secret

    try:
        value = get_secret(place, max_age=300)
    except Exception as error:
        response = getattr(error.__cause__ or error, "response", None) or {}
        code = str(response.get("Error", {}).get("Code") or type(error).__name__)
        raise WebhookFailed(f"secret {place!r}: {code}", retryable="Throttl" in code or "Internal" in code) from None
    if not isinstance(value, str):
        raise WebhookFailed(f"secret {place!r} is not a text", retryable=False)
    return value.strip()


def signature(body: bytes, *, id: str, timestamp: int, secret: str) -> str:
    """Give `v1,` and the base64 of the HMAC-SHA256 of id, timestamp and body."""
    signed = f"{id}.{timestamp}.".encode() + body
    made = hmac.new(key_of(secret), signed, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(made).decode()}"


def key_of(secret: str) -> bytes:
    """The key of a secret: base64 of 24 to 64 bytes, with or without the prefix `whsec_`."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        key = b""
    if not 24 <= len(key) <= 64:
        raise ConfigurationError("The webhook's secret must be `whsec_` and the base64 of 24 to 64 random bytes.")
    return key
