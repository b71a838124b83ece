"""What AWS hands to a Lambda function: REST API events and the context."""

import json
from typing import Any

CALLER = "arn:aws:sts::123456789012:assumed-role/desk/ada"


class Context:
    """A Lambda context whose time stands still."""

    def __init__(self, *, seconds: float = 29.0, request_id: str = "request-1") -> None:
        self.aws_request_id = request_id
        self.seconds = seconds

    def get_remaining_time_in_millis(self) -> int:
        return int(self.seconds * 1000)


def rest_event(
    method: str,
    path: str,
    *,
    body: object = None,
    headers: dict[str, str] | None = None,
    query: dict[str, str] | None = None,
    caller: str | None = CALLER,
    stage: str = "v1",
) -> dict[str, Any]:
    """A request as a REST API's Lambda proxy integration hands it over. A body that is no text is sent as JSON."""
    text = body if body is None or isinstance(body, str) else json.dumps(body)
    given = {"Content-Type": "application/json", **(headers or {})}
    return {
        "resource": path,
        "path": path,
        "httpMethod": method,
        "headers": given,
        "multiValueHeaders": {name: [value] for name, value in given.items()},
        "queryStringParameters": query,
        "multiValueQueryStringParameters": {name: [value] for name, value in query.items()} if query else None,
        "pathParameters": None,
        "stageVariables": None,
        "requestContext": {
            "accountId": "123456789012",
            "apiId": "api",
            "httpMethod": method,
            "identity": {"sourceIp": "192.0.2.1", "userArn": caller},
            "path": f"/{stage}{path}",
            "protocol": "HTTP/1.1",
            "requestId": "gateway-1",
            "resourcePath": path,
            "stage": stage,
        },
        "body": text,
        "isBase64Encoded": False,
    }


class Answered:
    """A proxy response, read."""

    def __init__(self, response: dict[str, Any]) -> None:
        self.status: int = response["statusCode"]
        self.text: str = response["body"]
        self.headers = {name: values[0] for name, values in response["multiValueHeaders"].items()}

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def is_problem(self) -> bool:
        """Whether it is an error as every one should look: a problem document that says what to do."""
        if self.headers["Content-Type"] != "application/problem+json":
            return False
        body = self.json
        return body["status"] == self.status and all(body[name] for name in ("type", "title", "detail", "code", "hint"))

    def __repr__(self) -> str:
        return f"<Answered {self.status} {self.text}>"
