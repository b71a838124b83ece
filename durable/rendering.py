"""A comparison of two runs as text that reads like a diff.

--- trip
+++ trip.fork-1
@@ step 1, where they part @@
- weather({"city": "Rome"}) -> "sun"
+ weather({"city": "Rome"}) -> "rain"
@@ step 2 @@
- says "Take a hat."
+ says "Take a coat."
@@ what has changed @@
  tokens: 120 -> 124
"""

import hashlib
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from durable.trajectory import Comparison, TrajectoryStep, canonical, step_text

WIDTH = 160
"""Characters of a line that are shown; of a longer one, its length and the start of its SHA-256 stand for the rest."""

CONTEXT = 1
"""How many equal steps are shown before the one where the runs part."""


def render_comparison(comparison: Comparison, *, a: str = "a", b: str = "b") -> str:
    """The whole comparison as text, with these names for the two runs."""
    return "\n".join(_lines(comparison, a, b)) + "\n"


def _lines(comparison: Comparison, a: str, b: str) -> Iterator[str]:
    yield f"--- {a}"
    yield f"+++ {b}"
    steps = max(len(comparison.a), len(comparison.b))
    parts = comparison.diverged_at
    equal = steps if parts is None else parts - 1
    skipped = equal - CONTEXT if equal > CONTEXT else 0
    if skipped:
        yield f"@@ {_span(1, skipped)}: the same @@"
    for number in range(skipped + 1, steps + 1):
        yield f"@@ step {number}{', where they part' if number == parts else ''} @@"
        yield from _step(_at(comparison.a, number), _at(comparison.b, number))
    if parts is None:
        yield "@@ every step is the same @@"
    if comparison.drift:
        yield "@@ what has changed @@"
        for row in comparison.drift:
            yield f"  {row.field}: {_cut(canonical(row.a))} -> {_cut(canonical(row.b))}"


def _span(first: int, last: int) -> str:
    return f"step {first}" if first == last else f"steps {first} to {last}"


def _at(steps: Sequence[TrajectoryStep], number: int) -> list[str]:
    return step_text(steps[number - 1]) if number <= len(steps) else []


def _step(a: Sequence[str], b: Sequence[str]) -> Iterator[str]:
    """The lines of both, those that only one has marked with its sign."""
    for what, a_from, a_to, b_from, b_to in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if what == "equal":
            yield from (f"  {_cut(line)}" for line in a[a_from:a_to])
        else:
            yield from (f"- {_cut(line)}" for line in a[a_from:a_to])
            yield from (f"+ {_cut(line)}" for line in b[b_from:b_to])


def _cut(line: str) -> str:
    if len(line) <= WIDTH:
        return line
    digest = hashlib.sha256(line.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{line[:WIDTH]}… ({len(line):,} characters, {digest})"
