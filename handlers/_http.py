"""Serving one API request: route it, turn every error into a problem document, say what it took of the store."""

from functools import cache
from typing import Any

from aws_lambda_powertools.event_handler import APIGatewayRestResolver, Response
from aws_lambda_powertools.event_handler.api_gateway import Router

from durable.capacity import Capacity
from durable.errors import DurableError
from handlers._ids import principal
from handlers._observe import logger
from handlers._responses import InternalError, NoSuchPath, capacity_view, problem
from handlers._wiring import app

ANSWER_HEADERS = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
"""On every answer, errors included: a callback link is a secret, and so is what a session says."""


def serve(router: Router, event: dict[str, Any], context: Any) -> dict[str, Any]:
    before = app().store.consumed()
    answer = _resolver(router).resolve(event, context)
    for name, value in (ANSWER_HEADERS | _consumed(app().store.consumed() - before)).items():
        answer["multiValueHeaders"].setdefault(name, [value])
    return answer


def _consumed(spent: Capacity) -> dict[str, str]:
    """What the store calls of this request took, as headers."""
    taken = capacity_view(spent).items()
    return {f"X-Consumed-{name.replace('_', '-').title()}": str(number) for name, number in taken}


def caller(router: Router) -> str | None:
    """The principal that signed the request being served; None on a path that takes no signature."""
    identity = router.current_event.raw_event.get("requestContext", {}).get("identity", {})
    return principal(identity.get("userArn"))


def stage_prefix(router: Router) -> str:
    """What stands before our paths in this stage's URLs, such as `/v1`: links start with it."""
    event = router.current_event.raw_event
    full, own = event.get("requestContext", {}).get("path") or "", event.get("path") or ""
    return full[: -len(own)] if own and full.endswith(own) else ""


@cache
def _resolver(router: Router) -> APIGatewayRestResolver:
    api = APIGatewayRestResolver()
    api.include_router(router)

    @api.exception_handler(Exception)
    def failed(error: Exception) -> Response[str]:
        if isinstance(error, DurableError):
            logger().warning("request refused", extra={"code": error.code, "reason": str(error)})
            return problem(error)
        logger().error("request failed", extra={"error": type(error).__name__}, exc_info=True)
        return problem(InternalError("The request failed."))

    @api.not_found
    def not_found(error: Exception) -> Response[str]:
        return problem(NoSuchPath("There is nothing at this path with this method."))

    return api
