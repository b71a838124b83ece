"""Serving one API request: route it, turn every error into a problem document, say what it took of the store."""

from functools import cache
from typing import Any

from aws_lambda_powertools.event_handler import APIGatewayRestResolver, Response
from aws_lambda_powertools.event_handler.api_gateway import Router

from durable.capacity import Capacity
from durable.errors import DurableError
from handlers._ids import principal
from handlers._observe import logger
from handlers._responses import InternalError, NoSuchPath, RequestInvalid, capacity_view, problem
from handlers._settings import settings
from handlers._wiring import app

PRINCIPAL = "Durable-Principal"
MAX_PRINCIPAL = 256

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
    """The principal behind the request being served; None on a path that takes no signature.

    That is the IAM user or role that signed it, or the user whom a trusted caller names in `Durable-Principal`. Where
    approvers are separate a trusted caller, which many people share, must name one. Raises `RequestInvalid`.
    """
    event = router.current_event
    signer = principal(event.raw_event.get("requestContext", {}).get("identity", {}).get("userArn"))
    named = event.headers.get(PRINCIPAL)
    trusted = signer is not None and signer in {one.strip() for one in settings().trusted_callers.split(",")}
    if named is not None:
        if not trusted:
            raise RequestInvalid(
                f"{PRINCIPAL} is for the trusted callers of this deployment, and you are none of them."
            )
        if not 1 <= len(named) <= MAX_PRINCIPAL or not named.isprintable():
            raise RequestInvalid(f"{PRINCIPAL} must have 1 to {MAX_PRINCIPAL} printable characters.")
        return named
    if trusted and settings().separate_approvers:
        raise RequestInvalid(f"Approvers are separate here: name the user that you act for in {PRINCIPAL}.")
    return signer


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
