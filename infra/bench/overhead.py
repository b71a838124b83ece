"""The table of what frameworks take per model turn; each number of turns in a fresh process."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.local import make_venv

ROOT = Path(__file__).parents[2]
HOMES = ROOT / ".local" / "peers"
TURNS = (10, 50, 200, 1_000)
ROUNDS = 3
LONG = 30.0
PATIENCE = 600.0
"""Seconds after which a process is not started again, and after which it is ended."""


@dataclass(frozen=True)
class Contender:
    """One row: a runner, its variant, and for a peer the environment that it runs in."""

    name: str
    runner: str
    variant: str = ""
    home: str | None = None

    @property
    def python(self) -> str:
        return sys.executable if self.home is None else str(HOMES / self.home / "bin" / "python")


OURS = Contender("this, every save", "infra.bench.ours")
BARE = Contender("LangGraph, no saver", "infra.bench.peers.langgraph", home="langgraph")
BARE_ASYNC = Contender("LangGraph, no saver, async", "infra.bench.peers.langgraph", "async", home="langgraph")
PEERS = (
    BARE,
    BARE_ASYNC,
    Contender("LangGraph, memory saver", "infra.bench.peers.langgraph", "saver", home="langgraph"),
    Contender("OpenAI Agents, no saver", "infra.bench.peers.openai_agents", home="openai-agents"),
    Contender("Pydantic AI, no saver", "infra.bench.peers.pydantic_ai", home="pydantic-ai"),
    Contender("Strands, no saver", "infra.bench.peers.strands", home="strands"),
)


def show(*, peers: bool) -> None:
    contenders = (OURS, *installed()) if peers else (OURS,)
    print("\nThe framework's own time per model turn, in memory; model and tool answer at once\n")
    print("                             turns   ms: median (min-max)   CPU ms: median (min-max)   KB at most")
    best: dict[tuple[str, int], float] = {}
    for turns in TURNS:
        for name, found in in_rounds(contenders, turns).items():
            print(f"  {name:26} {turns:5,}   {in_words(found)}", flush=True)
            if "wall" in found:
                best[name, turns] = min(found["wall"])
        if len(contenders) > 1:
            print()
    compare(best)


def in_rounds(contenders: Sequence[Contender], turns: int) -> dict[str, dict[str, Any]]:
    """What was found of each, in fresh processes that take turns: what else the machine does for a while hits all.

    Who failed or takes long is measured once.
    """
    total: dict[str, dict[str, Any]] = {}
    left = list(contenders)
    for _ in range(ROUNDS):
        for contender in list(left):
            began = time.monotonic()
            found = measured(contender, turns)
            if "error" in found or time.monotonic() - began > LONG:
                left.remove(contender)
            before = total.get(contender.name, {})
            times = {key: [*before.get(key, ()), *found.get(key, ())] for key in ("wall", "cpu")}
            total[contender.name] = found if "error" in found else found | times
    return total


def compare(best: Mapping[tuple[str, int], float]) -> None:
    """The ratios that are aimed at, of the best times: what else the machine does adds to a time and takes nothing."""
    pairs = [((OURS.name, 1_000), (OURS.name, 50))]
    pairs += [((OURS.name, turns), (peer.name, turns)) for peer in (BARE, BARE_ASYNC) for turns in TURNS]
    print("\n  Of the best times:")
    for one, other in pairs:
        if {one, other} <= best.keys():
            print(f"  {one[0]} at {one[1]:,} against {other[0]} at {other[1]:,}: {best[one] / best[other]:.2f}")


def installed() -> Iterator[Contender]:
    """The peers that are there, made once; one that cannot be installed is told by name."""
    reasons: dict[str, str | None] = {}
    for peer in PEERS:
        assert peer.home is not None
        if peer.home not in reasons:
            reasons[peer.home] = install(peer.home)
        if reasons[peer.home] is None:
            yield peer
        else:
            print(f"{peer.name} is not measured. {reasons[peer.home]}")


def install(home: str) -> str | None:
    requirements, ready = ROOT / "requirements" / "peers" / f"{home}.txt", HOMES / home / ".ready"
    if ready.exists() and ready.stat().st_mtime >= requirements.stat().st_mtime:
        return None
    reason = make_venv.main(str(HOMES / home), str(requirements), f"the environment of {home}")
    if reason is None:
        ready.touch()
    return reason


def measured(contender: Contender, turns: int) -> dict[str, Any]:
    """What `measure` found in a process of its own, or why it found nothing."""
    command = [contender.python, "-m", contender.runner, str(turns), contender.variant]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {PATIENCE:.0f} seconds"}
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1][:200]}
    return json.loads(done.stdout.splitlines()[-1])


def in_words(found: Mapping[str, Any]) -> str:
    if "error" in found:
        return found["error"]
    kilobytes = f"{found['kb']:10.1f}" if found["kb"] is not None else "         -"
    return f"{spread(found['wall']):>20}   {spread(found['cpu']):>24}   {kilobytes}"


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"
