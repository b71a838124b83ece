"""Requests to the API of a deployment, signed (SigV4), and its errors."""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials

from cli.codes import Code, code_of

SERVICE = "execute-api"
TIMEOUT = 60.0
"""Seconds for one request: API Gateway itself gives up after 29."""

_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_SIGNATURE = ("Authorization", "X-Amz-Date", "X-Amz-Security-Token", "X-Amz-Content-SHA256")


class CommandError(Exception):
    """A command cannot be carried out. `code` is how it ends, `body` what the API said about it, if it did."""

    def __init__(self, code: Code, message: str, *, hint: str = "", body: dict[str, Any] | None = None) -> None:
        self.code = code
        self.hint = hint
        self.body = body or {"detail": message, "hint": hint}
        super().__init__(message)


@dataclass(frozen=True)
class Answer:
    """What the API answered: its status, and its JSON."""

    status: int
    body: dict[str, Any]


class Api:
    """The API at `url`. `transport` is where requests go in the place of the network."""

    def __init__(
        self, url: str, credentials: ReadOnlyCredentials, region: str, *, transport: httpx.BaseTransport | None = None
    ) -> None:
        self._url = url.rstrip("/")
        self._signer = SigV4Auth(credentials, SERVICE, region)
        self._transport = transport

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        given = {name: str(value) for name, value in query.items() if value is not None}
        return self.request("GET", path, query=given).body

    def post(self, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None) -> Answer:
        return self.request("POST", path, body={} if body is None else body, headers=headers)

    def delete(self, path: str) -> Answer:
        return self.request("DELETE", path)

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one request. Raises `CommandError` for every answer that is an error, and where none came."""
        content = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        given = {**({"Content-Type": "application/json"} if content is not None else {}), **(headers or {})}
        request = httpx.Request(method, self._url + path, params=query or None, content=content, headers=given)
        self._sign(request)
        try:
            with httpx.Client(timeout=TIMEOUT, transport=self._transport) as client:
                response = client.send(request)
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise CommandError(Code.TRY_AGAIN, f"No answer from {request.url.host}: {reason}") from None
        return _read(response)

    def _sign(self, request: httpx.Request) -> None:
        signed = AWSRequest(method=request.method, url=str(request.url), data=request.content)
        for name in ("content-type", "host"):
            if name in request.headers:
                signed.headers[name] = request.headers[name]
        self._signer.add_auth(signed)
        request.headers.update({name: signed.headers[name] for name in _SIGNATURE if name in signed.headers})


def _read(response: httpx.Response) -> Answer:
    try:
        body = response.json()
    except ValueError:
        body = None
    if response.status_code == 204:
        return Answer(response.status_code, {})
    if response.is_success and isinstance(body, dict):
        return Answer(response.status_code, body)
    known = body if isinstance(body, dict) else {}
    if response.status_code == 409 and "already_decided" in known:
        return Answer(response.status_code, known)  # no error document: the decision that was made
    code = code_of(response.status_code, retryable=known.get("retryable"))
    said = known.get("detail") or known.get("message") or known.get("Message") or response.reason_phrase
    name = known.get("code") or f"HTTP {response.status_code}"
    raise CommandError(code, f"{name}: {said}", hint=str(known.get("hint") or ""), body=known or None)


def segment(session_id: str) -> str:
    """A session id as it stands in a URL: itself where it is plain, else `~` and the base64url of its UTF-8."""
    if _PLAIN.fullmatch(session_id):
        return session_id
    return "~" + base64.urlsafe_b64encode(session_id.encode("utf-8", "surrogatepass")).decode().rstrip("=")
