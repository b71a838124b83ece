"""Wherever a run crashes, it resumes to the same end.

Generated conversations are crashed at every point there is: before and after each write to the store, each model call
and each tool start, and before a tool gives its result. A new process goes on, and at the end:

    1. the transcript, the counts and the usage are those of the run that did not crash
    2. each call has one result, in call order, and what was sent to the model was in order every time
    3. no call with a recorded result ran again, no stored model turn was asked for again
    4. a call that may run again did, one of recovery `report` never, one of recovery `ask` only when a human said so
    5. nobody was asked twice about a call, except about one of recovery `ask` that had begun

The rules that hold at a point are in `tests/support/worlds.py`; the others are here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, Literal

import pytest

from durable import (
    ApprovalDecision,
    Checkpoint,
    PropagatingToolError,
    ProviderUnavailableError,
    Status,
    ToolMessage,
    decide,
    execute,
    resume_after_approval,
)
from durable.admission import admitted, as_messages, redelivered
from durable.executor import run_to_pause
from tests.support.effort import effort
from tests.support.plans import BELOW, GATED, RECOVERY, Plan, key_of, random_plan
from tests.support.runs import Crash
from tests.support.worlds import SESSION, Build, Interruption, Process, World, show

CONVERSATIONS = effort(170)
CHUNKS = 10
AT_LEAST = effort(5_000)
"""Schedules, that is pairs of a conversation and a point at which it crashes."""

SEVERAL = 3
"""How many schedules with two to four crashes are tried of each conversation."""

Verdict = Literal["approve", "edit", "reject"]


@dataclass(frozen=True)
class Conversation:
    """What is said, what a human decides about each call, and in which way a client goes on after a crash."""

    seed: int
    plans: tuple[Plan, ...]
    build: Build
    accepts: bool
    retries: Literal["same", "nothing", "resume"]
    verdicts: dict[str, Verdict]
    recoveries: dict[str, str]


def conversation(seed: int) -> Conversation:
    """One or two user messages with 1 to 4 model turns in all, each of 0 to 4 calls; one in four has sub-agents."""
    random = Random(seed)
    below = BELOW if seed % 4 == 3 else ()
    steps = random.choice([2, 2, 3] if below else [1, 2, 2, 2, 3, 3, 4])
    first = steps if below else random.randint(1, steps)
    lengths = [first, steps - first] if first < steps else [first]
    plans = tuple(random_plan(random, f"p{n}", length, below=below) for n, length in enumerate(lengths))
    every = [call for plan in plans for call in plan.calls]
    calls = [call for call in every if call.plan is None]
    return Conversation(
        seed=seed,
        plans=plans,
        build=Build(
            missing=frozenset((*RECOVERY, *BELOW)) - {call.tool for call in every},
            tool_concurrency=random.choice([None, 1, 2]),
        ),
        accepts=random.random() < 0.4,
        retries=random.choice(["same", "nothing", "resume"]),
        verdicts={
            call.key: random.choice(["approve", "edit" if call.tool in GATED else "approve", "reject"])
            for call in every
        },
        recoveries={call.key: RECOVERY[call.tool] for call in calls},
    )


def world_of(said: Conversation) -> World:
    random = Random(said.seed)
    return World(paces=lambda: random.choice([0, 0, 1, 3]))


async def converse(process: Process, said: Conversation) -> None:
    """What a client, its approver and a deployment do until everything is said and answered."""
    for _ in range(40):
        stored = process.world.stored
        done = stored.turns if stored else 0
        if done == len(said.plans) and stored is not None and stored.status is Status.FINISHED:
            return
        try:
            await go_on(process, said, stored, done)
        except (ProviderUnavailableError, PropagatingToolError):
            pass  # each comes once, and is tried again
    process.world.faults.append("the conversation gets nowhere")


async def go_on(process: Process, said: Conversation, stored: Checkpoint | None, done: int) -> None:
    agent, text = process.agent, said.plans[done].text
    if stored is not None and stored.status is Status.AWAITING_APPROVAL:
        await decide_and_resume(process, said, stored.approval_id or "")
    elif said.accepts:
        key = (f"key-{done}", text)
        checkpoint = stored
        if redelivered(stored, *key) is None:
            checkpoint = admitted(agent, stored, as_messages(text), session_id=SESSION, request=key)
            checkpoint = process.checkpoints.save(checkpoint, after=stored)
        assert checkpoint is not None
        await run_to_pause(agent, checkpoint, saved=checkpoint, store=process)
    elif stored is None or stored.status is Status.FINISHED or said.retries == "same":
        await execute(agent, text, session_id=SESSION, store=process)
    elif said.retries == "nothing":
        await execute(agent, [], session_id=SESSION, store=process)
    else:
        await agent.resume(SESSION)


async def decide_and_resume(process: Process, said: Conversation, id: str) -> None:
    approval = process.approvals.get(id)
    assert approval is not None
    arguments: Any = approval.request.arguments
    verdict = said.verdicts[key_of(arguments)]
    decide(
        ApprovalDecision(
            id=id, approved=verdict != "reject", args={**arguments, "fails": False} if verdict == "edit" else None
        ),
        approvals=process.approvals,
        checkpoints=process.checkpoints,
        tools=process.agent.toolset,
        now=process.world.clock(),
    )
    await resume_after_approval(process.agent, id, store=process)


@dataclass(frozen=True)
class End:
    """How a conversation ends that does not crash, and at how many points it could."""

    transcript: list[tuple[Any, ...]]
    counts: tuple[Any, ...]
    ran: dict[str, int]
    points: int


@cache
def uncrashed(said: int) -> End:
    made = conversation(said)
    world = world_of(made)
    process = Process(world, build=made.build)
    process.go(converse(process, made))
    assert world.faults == []
    assert world.stored is not None
    return End(show(world.stored.messages), counts_of(world.stored), dict(world.ran()), process.points)


def counts_of(stored: Checkpoint) -> tuple[Any, ...]:
    return stored.turns, stored.step, stored.committed, stored.usage, stored.finish_reason, sorted(stored.requests)


def crashed(said: Conversation, *crashes: int) -> tuple[World, int]:
    """Let one process after the other die at its point, and the last one go on to the end; how many of them died."""
    world, died = world_of(said), 0
    for at in crashes:
        process = Process(world, Interruption(at), said.build)
        try:
            process.go(converse(process, said))
        except Crash:
            died += 1
    last = Process(world, build=said.build)
    last.go(converse(last, said))
    return world, died


def differences(said: Conversation, expected: End, world: World, crashes: int) -> Iterator[str]:
    """Everything in which a conversation that crashed is not as it should be."""
    yield from world.faults
    stored = world.stored
    assert stored is not None
    if counts_of(stored) != expected.counts:
        yield f"counts {counts_of(stored)} instead of {expected.counts}"
    there = show(stored.messages)
    if len(there) != len(expected.transcript):
        yield f"{len(there)} messages instead of {len(expected.transcript)}"
    for message, shown, wanted in zip(stored.messages, there, expected.transcript, strict=False):
        if shown != wanted and not (isinstance(message, ToolMessage) and is_excused(message, world)):
            yield f"{shown} instead of {wanted}"
    ran = world.ran()
    for key in {*ran, *expected.ran}:
        recovery, times = said.recoveries[key], expected.ran.get(key, 0)
        least = times if recovery == "rerun" else 0
        most = times if recovery == "report" else times + crashes
        if not least <= ran[key] <= most:
            yield f"{key} ({recovery}) ran {ran[key]} times instead of {times}"


def is_excused(result: ToolMessage, world: World) -> bool:
    """Whether the call had begun, and is reported as unknown or was refused when a human was asked about it."""
    content: Any = result.content
    kinds = {"report": "unknown-outcome", "ask": "rejected"}
    return (
        result.is_error
        and result.tool_call_id in world.began
        and kinds.get(RECOVERY[result.tool_name]) == content["kind"]
    )


def test_there_are_enough_schedules() -> None:
    """At least 5,000 pairs of a conversation and a point where it crashes are tried, with all kinds of calls."""
    schedules = sum(uncrashed(seed).points for seed in range(CONVERSATIONS))
    print(f"{schedules} schedules of {CONVERSATIONS} conversations")
    assert schedules >= AT_LEAST
    plans = [plan for seed in range(CONVERSATIONS) for plan in conversation(seed).plans]
    assert {len(step) for plan in plans for step in plan.steps} == {1, 2, 3, 4}
    assert {call.tool for plan in plans for call in plan.calls} == {*RECOVERY, *BELOW}
    together = [[call for call in step if call.plan] for plan in plans for step in plan.steps]
    assert max(map(len, together)) > 2
    assert any(below.tool in GATED for calls in together for call in calls if call.plan for below in call.plan.calls)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_crash_at_any_point_changes_nothing(chunk: int) -> None:
    """Crash a conversation at each of its points and go on in a new process: it ends as if nothing had happened."""
    for seed in range(chunk, CONVERSATIONS, CHUNKS):
        said, expected = conversation(seed), uncrashed(seed)
        for at in range(expected.points):
            world, died = crashed(said, at)
            assert died == 1
            assert list(differences(said, expected, world, died)) == [], f"conversation {seed}, crashed at {at}"


def test_crashes_on_the_way_back_change_nothing() -> None:
    """A run that goes on after a crash may crash again, anywhere, and again: it ends as if nothing had happened."""
    deaths = 0
    for seed in range(CONVERSATIONS):
        said, expected, random = conversation(seed), uncrashed(seed), Random(seed)
        for _ in range(SEVERAL):
            crashes = [random.randrange(expected.points) for _ in range(random.choice([2, 2, 3, 4]))]
            world, died = crashed(said, *crashes)
            deaths += died
            assert list(differences(said, expected, world, died)) == [], f"conversation {seed}, crashed at {crashes}"
    assert deaths > SEVERAL * CONVERSATIONS
