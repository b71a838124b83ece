"""Fixtures and the report of the contract, for a `conftest.py`: `from stores.contract.plugin import *`."""

from collections import Counter
from collections.abc import Generator
from typing import Any, Final

import pytest

from stores.contract.backend import TTL, MovedClock, Opened, Subject

__all__ = ["clock", "pytest_runtest_makereport", "pytest_terminal_summary", "store"]

_PROPERTY: Final = "stores.contract"
_MODULE: Final = "stores.contract."


@pytest.fixture
def clock() -> MovedClock:
    """The time of the test, for the backend to tell."""
    return MovedClock()


@pytest.fixture
def store(backend: Subject) -> Opened:
    """The backend, opened once with the ordinary time to live."""
    return backend.open(ttl=TTL)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    module = getattr(getattr(item, "function", None), "__module__", "")
    if module.startswith(_MODULE):
        backend = getattr(item, "funcargs", {}).get("backend")
        name = backend.name if backend is not None else "not there"
        report.user_properties.append((_PROPERTY, f"{name}\t{module.removeprefix(_MODULE)}"))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests of each capability ran on each backend, and how many of them failed."""
    passed, failed = Counter[str](), Counter[str]()
    for outcome, counter in (("passed", passed), ("failed", failed), ("error", failed)):
        for report in terminalreporter.stats.get(outcome, ()):
            counter.update(value for name, value in _properties(report) if name == _PROPERTY)
    backends = sorted({key.partition("\t")[0] for key in passed | failed})
    if not backends:
        return
    terminalreporter.section("contract of the stores")
    for backend in backends:
        mine = sorted(key for key in passed | failed if key.partition("\t")[0] == backend)
        parts = [f"{key.partition(chr(9))[2]} {_count(passed[key], failed[key])}" for key in mine]
        total = _count(sum(passed[key] for key in mine), sum(failed[key] for key in mine))
        terminalreporter.write_line(f"{backend}: {total} ({', '.join(parts)})")
    # One conftest.py may import this for another: the report is written once.
    for report in [report for reports in terminalreporter.stats.values() for report in reports]:
        if properties := getattr(report, "user_properties", None):
            properties[:] = [one for one in properties if one[0] != _PROPERTY]


def _properties(report: Any) -> list[tuple[str, Any]]:
    return getattr(report, "user_properties", [])


def _count(passed: int, failed: int) -> str:
    return f"{passed} passed" if not failed else f"{passed} passed, {failed} FAILED"
