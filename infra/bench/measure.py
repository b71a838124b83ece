"""Times one framework in this process: `python -m infra.bench.<runner> TURNS [VARIANT]` prints one line of JSON.

A runner gives `prepare(workload, variant)`: it makes whatever can be made once (agent, graph, model, store) and gives
the function that is timed, which runs the agent and gives its answer.
"""

import asyncio
import gc
import json
import sys
import time
import tracemalloc
from collections.abc import Callable

from infra.bench.workload import Workload, workload

REPEATS = 5
AT_LEAST = 1.0
AT_MOST = 20.0
"""Seconds: short runs are repeated for so long, and after so long no further repeat begins."""

Prepare = Callable[[Workload, str], Callable[[], str]]


def main(prepare: Prepare) -> None:
    turns, variant = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
    try:
        found = measured(prepare, turns, variant)
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}"[:200]}
    print(json.dumps(found))


def measured(prepare: Prepare, turns: int, variant: str) -> dict[str, list[float] | float | None]:
    """Wall and CPU milliseconds per turn of each repeat, and KB per turn: the most that was allocated at once."""
    answer(prepare, workload(10), variant)  # what is imported or made with the first run is no cost of a turn
    wall: list[float] = []
    cpu: list[float] = []
    began, passed = time.perf_counter(), 0.0
    while passed < AT_LEAST or (len(wall) < REPEATS and passed < AT_MOST):
        seconds, busy = answer(prepare, workload(turns), variant)
        wall.append(1000 * seconds / turns)
        cpu.append(1000 * busy / turns)
        passed = time.perf_counter() - began
    quick = wall[0] * turns < 1000 * AT_MOST / 4  # tracing makes everything several times as slow
    return {"wall": wall, "cpu": cpu, "kb": traced(prepare, workload(turns), variant) / 1024 / turns if quick else None}


def event_loop() -> asyncio.Runner:
    """One with its loop made: a program has that once, so it is no cost of a run."""
    runner = asyncio.Runner()
    runner.get_loop()
    return runner


def answer(prepare: Prepare, what: Workload, variant: str) -> tuple[float, float]:
    """Run once; the seconds that passed, and the seconds that all threads were busy."""
    run = prepare(what, variant)
    gc.collect()
    busy, began = time.process_time(), time.perf_counter()
    text = run()
    seconds, busy = time.perf_counter() - began, time.process_time() - busy
    if text != what.final:
        raise AssertionError("the run did not end with the answer")
    return seconds, busy


def traced(prepare: Prepare, what: Workload, variant: str) -> int:
    run = prepare(what, variant)
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    run()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak - before
