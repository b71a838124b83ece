"""Wherever a run crashes, it resumes to the same end.

Generated conversations are crashed at every point there is: before and after each write to the store, each model call
and each tool start, and before a tool gives its result. A new process goes on, and at the end:

    1. the transcript, the counts and the usage are those of the run that did not crash
    2. each call has one result, in call order, and what was sent to the model was in order every time
    3. no call with a recorded result ran again, no stored model turn was asked for again
    4. a call that may run again did, one of recovery `report` never, one of recovery `ask` only when a human said so
    5. nobody was asked twice about a call, except about one of recovery `ask` that had begun
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from durable import (
    ApprovalDecision,
    Checkpoint,
    PropagatingToolError,
    ProviderUnavailableError,
    Status,
    decide,
    execute,
    resume_after_approval,
)
from durable.admission import admitted, as_messages, redelivered
from durable.executor import run_to_pause
from tests.support.plans import RECOVERY, Plan, random_plan
from tests.support.runs import Crash
from tests.support.worlds import SESSION, Build, Interruption, Process, World, show

CONVERSATIONS = 160
CHUNKS = 8
TWICE = 12
"""How many pairs of crash points are tried of each conversation."""


@dataclass(frozen=True)
class Conversation:
    """What is said, by whom it is decided, and in which way a client goes on after a crash."""

    seed: int
    plans: tuple[Plan, ...]
    build: Build
    accepts: bool
    retries: str
    decisions: dict[str, bool] = field(repr=False)

    def approves(self, key: str) -> bool:
        return self.decisions[key]


def conversation(seed: int) -> Conversation:
    random = Random(seed)
    steps = random.choice([1, 2, 2, 3, 3, 4])
    first = random.randint(1, steps)
    lengths = [first, steps - first] if first < steps else [first]
    plans = tuple(random_plan(random, f"p{n}", length) for n, length in enumerate(lengths))
    keys = [call.key for plan in plans for step in plan.steps for call in step]
    return Conversation(
        seed=seed,
        plans=plans,
        build=Build(tool_concurrency=random.choice([None, 1, 2])),
        accepts=random.random() < 0.4,
        retries=random.choice(["same", "nothing", "resume"]),
        decisions={key: random.random() < 0.7 for key in keys},
    )


def world_of(conversation: Conversation) -> World:
    random = Random(conversation.seed)
    return World(paces=lambda: random.choice([0, 0, 1, 3]))


async def converse(process: Process, said: Conversation) -> None:
    """What a client, its approver and a deployment do until everything is said and answered."""
    world = process.world
    for _ in range(40):
        stored = world.stored
        done = stored.turns if stored else 0
        if done == len(said.plans) and stored is not None and stored.status is Status.FINISHED:
            return
        try:
            await act(process, said, stored, done)
        except (ProviderUnavailableError, PropagatingToolError):
            pass  # once each: tried again
    world.faults.append("the conversation gets nowhere")


async def act(process: Process, said: Conversation, stored: Checkpoint | None, done: int) -> None:
    agent, text = process.agent, said.plans[done].text()
    if stored is not None and stored.status is Status.AWAITING_APPROVAL:
        id = stored.approval_id or ""
        approved = said.approves(process.approvals.get(id).request.arguments["key"])
        decision = ApprovalDecision(id=id, approved=approved)
        decide(
            decision, approvals=process.approvals, checkpoints=process.checkpoints, tools={}, now=process.world.clock()
        )
        await resume_after_approval(agent, id, store=process)
    elif said.accepts:
        key = (f"key-{done}", text)
        checkpoint = stored
        if redelivered(stored, *key) is None:
            checkpoint = admitted(agent, stored, as_messages(text), session_id=SESSION, request=key)
            checkpoint = process.checkpoints.save(checkpoint, after=stored)
        await run_to_pause(agent, checkpoint, saved=checkpoint, store=process)
    elif stored is None or stored.status is Status.FINISHED or said.retries == "same":
        await execute(agent, text, session_id=SESSION, store=process)
    elif said.retries == "nothing":
        await execute(agent, [], session_id=SESSION, store=process)
    else:
        await agent.resume(SESSION)


@dataclass(frozen=True)
class End:
    """How a conversation ended."""

    transcript: list[tuple[Any, ...]]
    counts: tuple[Any, ...]
    ran: dict[str, int]
    points: int


def end_of(world: World, points: int) -> End:
    stored = world.stored
    assert stored is not None
    counts = (stored.turns, stored.step, stored.committed, stored.usage, stored.finish_reason)
    return End(show(stored.messages), counts, dict(world.ran()), points)


def uncrashed(said: Conversation) -> End:
    world = world_of(said)
    process = Process(world, build=said.build)
    process.go(converse(process, said))
    assert world.faults == []
    return end_of(world, process.points)


def crashed(said: Conversation, *crashes: int) -> tuple[World, int]:
    """Let the process die at each of the points in turn, and a last one go on to the end; how many of them died."""
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
    """Everything in which a crashed conversation is not as it should be."""
    yield from world.faults
    end = end_of(world, 0)
    if end.counts != expected.counts:
        yield f"counts {end.counts} instead of {expected.counts}"
    if len(end.transcript) != len(expected.transcript):
        yield "another transcript"
        return
    stored = world.stored
    assert stored is not None
    for message, there, wanted in zip(stored.messages, end.transcript, expected.transcript, strict=True):
        if there != wanted and not (message.role == "tool" and is_excused(said, world, message)):
            yield f"{there} instead of {wanted}"
    ran = world.ran()
    for key in {*ran, *expected.ran}:
        recovery = recovery_of(said, key)
        least = expected.ran.get(key, 0) if recovery == "rerun" else 0
        most = expected.ran.get(key, 0) + (0 if recovery == "report" else crashes)
        if not least <= ran[key] <= most:
            yield f"{key} ({recovery}) ran {ran[key]} times instead of {expected.ran.get(key, 0)}"


def recovery_of(said: Conversation, key: str) -> str:
    calls = (call for plan in said.plans for step in plan.steps for call in step)
    return next(RECOVERY[call.tool] for call in calls if call.key == key)


def is_excused(said: Conversation, world: World, message: Any) -> bool:
    """A call that had begun: reported as unknown, or run again only if a human said so."""
    recovery, kind = RECOVERY[message.tool_name], (message.content or {}).get("kind")
    if message.tool_call_id not in world.began or not message.is_error:
        return False
    return (recovery, kind) in {("report", "unknown-outcome"), ("ask", "rejected")}


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_crash_at_any_point_changes_nothing(chunk: int) -> None:
    """Crash a conversation at each of its points, go on in a new process: it ends as if nothing had happened."""
    schedules = 0
    for seed in range(chunk, CONVERSATIONS, CHUNKS):
        said = conversation(seed)
        expected = uncrashed(said)
        for at in range(expected.points):
            world, died = crashed(said, at)
            assert list(differences(said, expected, world, died)) == [], (seed, at)
            schedules += died
    print(schedules)
