"""The webhook that tells people: signed by the rules of Standard Webhooks, tried again, and never the only hope."""

import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from durable import ConfigurationError, StoreRejectedError
from handlers import _notify, _webhook
from handlers._webhook import WebhookFailed, key_of, post, signature
from handlers.steps import TryAgain
from tests.handlers.conftest import Deployment
from tests.support.aws import refused

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()


class Endpoint:
    """A server on loopback that answers with these statuses, the last one again and again."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses) or [204]
        self.got: list[tuple[dict[str, str], bytes]] = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                endpoint.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
                statuses = endpoint.statuses
                self.send_response(statuses.pop(0) if len(statuses) > 1 else statuses[0])
                self.send_header("location", "http://127.0.0.1:1/elsewhere")
                self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.setattr(_webhook, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(_notify, "secret_named", lambda place: SECRET)
    endpoint = Endpoint()
    monkeypatch.setenv("WEBHOOK_URL", endpoint.url)
    monkeypatch.setenv("WEBHOOK_SECRET", "hooks/desk")
    yield endpoint
    endpoint.close()


def test_the_signature_is_that_of_the_specification() -> None:
    """The example that Standard Webhooks libraries are tested with."""
    secret, id, timestamp = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330
    made = signature(b'{"test": 2432232314}', id=id, timestamp=timestamp, secret=secret)
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_short", "not base64!", "whsec_" + "QUFB" * 30])
def test_a_weak_secret_is_refused(secret: str) -> None:
    """A key has 24 to 64 bytes; the error does not show it."""
    with pytest.raises(ConfigurationError) as raised:
        key_of(secret)
    assert "short" not in str(raised.value)


def test_a_webhook_without_a_secret_is_refused(cloud: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deployment is told at its start, not by the first approval that nobody hears of."""
    monkeypatch.setenv("WEBHOOK_URL", "https://desk.example/hook")
    cloud.cold_start()
    with pytest.raises(ConfigurationError, match="WEBHOOK_URL needs WEBHOOK_SECRET"):
        cloud.recover()


def test_people_are_told_by_topic_and_webhook(cloud: Deployment, endpoint: Endpoint) -> None:
    """The body says what is wanted and links to it; headers say who signed what, and when."""
    id = cloud.pause()
    cloud.ask(id)
    [(headers, body)] = endpoint.got
    said = json.loads(body)
    assert said["type"] == "approval.requested"
    assert said["data"]["arguments"] == {"amount": 5}
    assert said["data"]["link"] == f"https://desk.example/v1/callbacks/{cloud.callback()}"
    assert headers["webhook-timestamp"] == str(int(cloud.clock().timestamp()))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(bytes(range(32)), signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert len(cloud.topics.messages) == 1


def test_arguments_of_any_size_are_told_of(cloud: Deployment, endpoint: Endpoint) -> None:
    """Large ones stay behind the link, and the message says so."""
    cloud.script = [("look", {}), ("pay", {"amount": 10**2000})]
    id = cloud.pause()
    large = cloud.approval(id).request.but(arguments={"text": "x" * 200_000})
    approval = cloud.approval(id).but(events=(large,))
    body = json.loads(_notify.webhook_body(_notify_app(), approval, "token", reminds=True, now=cloud.clock()))
    assert body["type"] == "approval.reminded"
    assert (body["data"]["arguments"], body["data"]["arguments_cut"]) == (None, True)


def _notify_app() -> Any:
    from handlers._wiring import app

    return app()


@pytest.mark.parametrize("status", [500, 503, 429])
def test_an_endpoint_that_fails_is_tried_again(endpoint: Endpoint, status: int) -> None:
    """Under the same id, so that the receiver can tell."""
    endpoint.statuses = [status, status, 200]
    post(endpoint.url, b"{}", id="m1", timestamp=1, secret=SECRET)
    assert [headers["webhook-id"] for headers, _ in endpoint.got] == ["m1"] * 3


@pytest.mark.parametrize("status", [301, 400, 401, 404])
def test_an_endpoint_that_refuses_is_not(endpoint: Endpoint, status: int) -> None:
    """Nor is a redirect followed: the message holds a secret link."""
    endpoint.statuses = [status]
    with pytest.raises(WebhookFailed) as raised:
        post(endpoint.url, b"{}", id="m1", timestamp=1, secret=SECRET)
    assert (raised.value.code, raised.value.retryable, len(endpoint.got)) == (str(status), False, 1)


def test_one_channel_that_fails_does_not_silence_the_other(cloud: Deployment, endpoint: Endpoint) -> None:
    """A webhook that is down costs nobody the mail, and a topic that is gone does not cost the webhook."""
    endpoint.statuses = [500]
    id = cloud.pause()
    assert cloud.ask(id)["asked"]
    endpoint.statuses = [200]
    cloud.topics.fail("publish", refused("NotFound"))
    assert cloud.ask(id, "token-2")["asked"]
    assert "people not told" in cloud.log.getvalue()


def test_when_nobody_was_told_the_task_fails(
    cloud: Deployment, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state machine tries it again, with backoff, where that may help."""
    monkeypatch.setenv("TOPIC_ARN", "")
    cloud.cold_start()
    id = cloud.pause()
    endpoint.statuses = [503]
    with pytest.raises(TryAgain, match="Webhook"):
        cloud.ask(id)
    endpoint.statuses = [404]
    with pytest.raises(StoreRejectedError, match="Webhook"):
        cloud.ask(id, "token-2")


def test_nothing_secret_is_logged(cloud: Deployment, endpoint: Endpoint) -> None:
    """Neither the secret, nor the link, nor the arguments, whether it is delivered or not."""
    endpoint.statuses = [500]
    id = cloud.pause()
    cloud.ask(id)
    log = cloud.log.getvalue()
    for secret in (SECRET, cloud.callback(), "amount"):
        assert secret not in log
