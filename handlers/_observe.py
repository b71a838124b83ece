"""Logs and metrics. A log line carries ids and numbers, never message bodies, tool arguments or tokens."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit

from handlers._settings import settings
from handlers._wiring import App

NAMESPACE = "DurableAgents"


@cache
def logger() -> Logger:
    return Logger(service=settings().service_name, level=settings().log_level)


@cache
def metrics() -> Metrics:
    return Metrics(namespace=NAMESPACE, service=settings().service_name)


def count(**numbers: float) -> None:
    """Add to the metrics of this invocation; what is 0 says nothing."""
    for name, number in numbers.items():
        if number:
            _add(name, number)


def _add(name: str, number: float) -> None:
    metrics().add_metric(name=name, unit=MetricUnit.Count, value=float(number))


@contextmanager
def invocation(app: App, context: Any) -> Iterator[None]:
    """Around the work of one invocation: its request id in every line, and at the end a line that says what it took."""
    log = logger()
    log.append_keys(request_id=context.aws_request_id)
    before = app.store.consumed()
    try:
        yield
    finally:
        spent = app.store.consumed() - before
        log.info("invocation done", extra={"store": asdict(spent)})
        _add("StoreRequests", spent.requests)
        count(WriteUnits=spent.write_units, ReadUnits=spent.read_units)
        metrics().flush_metrics()
        log.clear_state()


def about(**ids: str | int | None) -> None:
    """Put these ids into every following line of this invocation."""
    logger().append_keys(**ids)
