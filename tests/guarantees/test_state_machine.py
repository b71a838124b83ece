"""Whatever is done to a session, in whatever order, it keeps its promises and can be used.

Clients send, retry, redeliver and interrupt; processes crash, are aborted, run out of time and are overtaken; humans
approve, reject, edit and come too late; the agent is deployed anew with other tools, another model or other
instructions. It hands tasks to a sub-agent, which has one of its own. After each step:

    1. what is stored is in order: each call has one result, in call order, and only what is pending is open
    2. what was sent to the model was in order for every protocol, and held everything that was stored
    3. no call with a recorded result ran again, none ran without the approval it needs, none after an abort
    4. no decision was used twice, and nobody was asked twice
    5. what the history lists never changes, and its revisions rise without a gap
    6. a refusal has written nothing
    7. the session is usable: somebody with the right agent brings it to an end, and it answers a new message

Rules 1 to 4 are checked at every point by `tests/support/worlds.py`.
"""

from collections import Counter
from contextlib import suppress
from itertools import cycle, pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from durable import (
    AgentDriftError,
    ApprovalClosedError,
    ApprovalDecision,
    Checkpoint,
    ConfigurationError,
    DurableError,
    FinishReason,
    InvalidDecisionError,
    Message,
    PropagatingToolError,
    ProviderRequestError,
    ProviderUnavailableError,
    RequestConflictError,
    ResumeToolMissingError,
    RunResult,
    SessionAwaitingApprovalError,
    StaleCheckpointError,
    Status,
    UserMessage,
    decide,
    execute,
    resume_after_approval,
)
from durable.admission import admitted, as_messages, recorded_answer, redelivered
from durable.executor import run_to_pause
from durable.plan import is_poisoned, run_input
from tests.support.effort import effort
from tests.support.plans import BELOW, FREE, GATED, RECOVERY, Plan, PlannedCall
from tests.support.runs import Crash
from tests.support.worlds import SESSION, Act, Build, Interruption, Process, World, check_save

REFUSALS = (
    AgentDriftError,
    ApprovalClosedError,
    ConfigurationError,
    InvalidDecisionError,
    RequestConflictError,
    ResumeToolMissingError,
    SessionAwaitingApprovalError,
)
"""Errors after which everything is as it was."""

ENDS = (ProviderRequestError, ProviderUnavailableError, PropagatingToolError)
"""Errors that a run ends with; what it did before is kept."""

own_calls = st.builds(
    PlannedCall,
    tool=st.sampled_from([*FREE, *FREE, *GATED]),
    key=st.just(""),
    turns=st.sampled_from([0, 1, 3, 10]),
    fails=st.booleans(),
    kind=st.sampled_from(["normal"] * 9 + ["invalid", "unknown", "malformed"]),
    id=st.sampled_from([None] * 6 + ["", "same"]),
)
troubles = st.sampled_from([None, None, None, "down", "refused"])


def with_agents(calls: st.SearchStrategy[PlannedCall], *below: str) -> st.SearchStrategy[PlannedCall]:
    """Calls, some of which run the first of the agents below, whose calls may run the next."""
    if not below:
        return calls
    task = st.lists(st.lists(with_agents(own_calls, *below[1:]), min_size=1, max_size=2), max_size=2)
    plan = st.builds(lambda steps, trouble: Plan("", tuple(map(tuple, steps)), trouble), task, troubles)
    return calls | calls | st.builds(PlannedCall, tool=st.just(below[0]), key=st.just(""), plan=plan)


calls = with_agents(own_calls, *BELOW)
steps = st.lists(st.lists(calls, min_size=1, max_size=4), max_size=3)
work = st.lists(st.lists(calls, min_size=2, max_size=4), min_size=1, max_size=3)
acts: st.SearchStrategy[Act] = st.sampled_from(["crash", "crash", "abort", "deadline", "intrude"])
interruptions = st.builds(Interruption, st.integers(-1, 8) | st.integers(0, 25), acts)
perhaps = st.none() | interruptions
some_tools = st.frozensets(st.sampled_from([*sorted(RECOVERY), *BELOW]), max_size=2)
builds = st.builds(
    Build,
    missing=some_tools,
    changed=some_tools,
    model=st.sampled_from(["planned:1", "planned:2"]),
    instructions=st.sampled_from([None, "Be brief."]),
    on_agent_drift=st.sampled_from(["error", "warn", "ignore"]),
    tool_concurrency=st.sampled_from([None, 1, 2]),
    max_steps=st.sampled_from([10, 10, 2]),
    abort_grace=st.sampled_from([5.0, 0.0]),
)


class Session(RuleBasedStateMachine):
    """One session and everything that can come to it."""

    @initialize(build=builds, paces=st.lists(st.integers(0, 3), min_size=1, max_size=5), work=work, at=perhaps)
    def begin(self, build: Build, paces: list[int], work: Any, at: Interruption | None) -> None:
        self.build = build
        self.world = World(paces=cycle(paces).__next__, intruder=self.intrude)
        self.messages = 0
        self.said: Counter[str] = Counter()
        self.keys: list[tuple[str, str]] = []
        self.answers: dict[str, str] = {}
        self.listed: dict[int, Checkpoint] = {}
        self.tried: tuple[Any, ...] = ()
        self.run(self.execute, self.new_text(work), at=at)

    @property
    def status(self) -> Status:
        return self.world.stored.status if self.world.stored else Status.FINISHED

    @property
    def rests(self) -> bool:
        return self.status is Status.FINISHED

    @property
    def runs(self) -> bool:
        return self.status is Status.IN_PROGRESS

    @property
    def waits(self) -> bool:
        return self.status is Status.AWAITING_APPROVAL

    # --- what clients do ---------------------------------------------------------------------------------------------

    @precondition(lambda self: not self.waits)
    @rule(work=work, trouble=troubles, at=perhaps)
    def send(self, work: Any, trouble: Any, at: Interruption | None) -> None:
        """A new message: the next turn, or one that comes while the last is unfinished."""
        self.run(self.execute, self.new_text(work, trouble), at=at)

    @precondition(lambda self: not self.waits)
    @rule(at=perhaps)
    def send_again(self, at: Interruption | None) -> None:
        """The newest message once more: a retry, or the next turn."""
        if not (self.runs and run_input(self.world.stored) == as_messages(self.newest)):
            self.said[self.newest] += 1
        self.run(self.execute, self.newest, at=at)

    @precondition(lambda self: not self.waits)
    @rule(part=st.floats(0, 1), steps=steps, at=perhaps)
    def send_history(self, part: float, steps: Any, at: Interruption | None) -> None:
        """All finished turns, as much of the unfinished one as the client has heard of, and a new message."""
        stored = self.world.stored
        known: list[Message] = [*stored.messages, *stored.queued] if stored else []
        committed = stored.committed if stored else 0
        heard = known[: committed + round(part * (len(known) - committed))]
        if len(heard) < 2 or is_poisoned(stored):
            self.said.update(message.content for message in heard if isinstance(message, UserMessage))
        self.run(self.execute, [*heard, UserMessage(content=self.new_text(steps))], at=at)

    @precondition(lambda self: not self.waits)
    @rule(work=work, trouble=troubles, at=perhaps)
    def deliver(self, work: Any, trouble: Any, at: Interruption | None) -> None:
        """A request with a key, as a deployment takes it."""
        self.keys.append((f"key-{len(self.keys)}", self.new_text(work, trouble)))
        self.run(self.accept, *self.keys[-1], at=at)

    @precondition(lambda self: self.keys)
    @rule(which=st.integers(0, 50), same=st.sampled_from([True, True, False]), at=perhaps)
    def redeliver(self, which: int, same: bool, at: Interruption | None) -> None:
        """The same request once more is never a second turn; another one under its key is refused."""
        key, text = self.keys[-1 - which % len(self.keys)]
        if same:
            self.run(self.accept, key, text, at=at)
        elif self.world.stored is not None and key in self.world.stored.requests:
            assert isinstance(self.run(self.accept, key, self.new_text([])), RequestConflictError)

    @precondition(lambda self: self.runs)
    @rule(nothing=st.booleans(), at=perhaps)
    def resume(self, nothing: bool, at: Interruption | None) -> None:
        if nothing:
            self.run(self.execute, [], at=at)
        else:
            self.run(self.carry_on, at=at)

    @precondition(lambda self: self.waits)
    @rule(input=st.sampled_from(["nothing", "message", "request"]))
    def send_past_an_approval(self, input: str) -> None:
        """No input goes past an open approval."""
        text = self.new_text([])
        work = (self.accept, "key", text) if input == "request" else (self.execute, text if input == "message" else [])
        assert isinstance(self.run(*work), SessionAwaitingApprovalError)

    # --- what humans do ----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.waits)
    @rule(at=perhaps)
    def approve(self, at: Interruption | None) -> None:
        self.run(self.answer, self.world.stored.approval_id, "approve", at=at)

    @precondition(lambda self: self.waits)
    @rule(edits=st.booleans(), at=interruptions)
    def approve_and_be_interrupted(self, edits: bool, at: Interruption) -> None:
        self.run(self.answer, self.world.stored.approval_id, "edit" if edits else "approve", at=at)

    @precondition(lambda self: self.waits)
    @rule(at=perhaps)
    def reject(self, at: Interruption | None) -> None:
        self.run(self.answer, self.world.stored.approval_id, "reject", at=at)

    @precondition(lambda self: self.world.asked)
    @rule(
        which=st.integers(0, 50),
        verdict=st.sampled_from(["approve", "reject", "edit", "nonsense", "none"]),
        minutes=st.sampled_from([0, 0, 0, 59, 61]),
        at=perhaps,
    )
    def decide(self, which: int, verdict: str, minutes: int, at: Interruption | None) -> None:
        """Any decision, or none, about any approval that ever was, perhaps after its deadline."""
        self.world.clock.advance(minutes=minutes)
        ids = self.world.approval_ids
        self.run(self.answer, ids[-1 - which % len(ids)], verdict, at=at)

    # --- what a deployment does --------------------------------------------------------------------------------------

    @precondition(lambda self: not self.rests)
    @rule(build=builds)
    def deploy(self, build: Build) -> None:
        """The next process is built otherwise."""
        self.build = build

    # --- how each is done in a process -------------------------------------------------------------------------------

    def run(self, work: Any, *arguments: Any, at: Interruption | None = None) -> DurableError | None:
        """Do it in a new process, which may be interrupted; give the error that it ended with."""
        process, before = Process(self.world, at, self.build), self.world.stored
        self.was_accepted = False
        try:
            process.go(work(process, *arguments))
        except Crash:
            assert process.dead
        except REFUSALS as error:
            if not process.overtaken:
                self.world.expect(self.was_accepted or before == self.world.stored, f"{error!r} came after a save")
            return error
        except StaleCheckpointError as error:
            assert process.overtaken
            return error
        except ENDS as error:
            return error
        return None

    async def execute(self, process: Process, input: Any) -> None:
        await execute(process.agent, input, session_id=SESSION, store=process, **process.options)

    async def carry_on(self, process: Process) -> None:
        stored = process.checkpoints.load(SESSION)
        if stored is not None:
            await run_to_pause(process.agent, stored, saved=stored, store=process, **process.options)

    async def accept(self, process: Process, key: str, text: str) -> None:
        stored = process.checkpoints.load(SESSION)
        if (known := redelivered(stored, key, text)) is not None:
            self.was_accepted = True
            assert stored is not None
            if known.run_id == stored.run_id and stored.status is Status.IN_PROGRESS:
                await run_to_pause(process.agent, stored, saved=stored, store=process, **process.options)
            elif known.finish_reason is not None:
                assert recorded_answer(stored, known) == self.answers[key]
            return
        checkpoint = admitted(process.agent, stored, as_messages(text), session_id=SESSION, request=(key, text))
        checkpoint = process.checkpoints.save(checkpoint, after=stored)
        self.was_accepted = True
        await run_to_pause(process.agent, checkpoint, saved=checkpoint, store=process, **process.options)

    async def answer(self, process: Process, id: str, verdict: str) -> None:
        approval = process.approvals.get(id)
        if approval is None:
            return
        arguments: Any = approval.request.arguments
        edits = {"edit": {**arguments, "fails": False, "turns": 0}, "nonsense": {"key": None}}
        if verdict != "none":
            decide(
                ApprovalDecision(id=id, approved=verdict != "reject", args=edits.get(verdict)),
                approvals=process.approvals,
                checkpoints=process.checkpoints,
                tools=process.agent.toolset,
                now=self.world.clock(),
            )
        await resume_after_approval(process.agent, id, store=process, **process.options)

    def intrude(self) -> None:
        """Somebody else takes a message in while a process runs."""
        world = self.world
        agent = Process(world, build=self.build).agent
        key = (f"key-{len(self.keys)}", self.new_text([]))
        try:
            checkpoint = admitted(agent, world.stored, as_messages(key[1]), session_id=SESSION, request=key)
        except SessionAwaitingApprovalError:
            return
        self.keys.append(key)
        before, world.stored = world.stored, world.store.checkpoints.save(checkpoint, after=world.stored)
        check_save(world, before, world.stored)

    def new_text(self, steps: Any, trouble: Any = None) -> str:
        name = f"m{self.messages}"
        self.messages += 1
        self.newest = Plan("", tuple(map(tuple, steps)), trouble).named(name).text
        self.said[self.newest] += 1
        return self.newest

    # --- what holds after each step ----------------------------------------------------------------------------------

    @invariant()
    def nothing_went_wrong_on_the_way(self) -> None:
        assert not self.world.faults, self.world.faults
        assert self.world.store.checkpoints.load(SESSION) == self.world.stored

    @invariant()
    def nothing_is_said_more_often_than_it_was_sent(self) -> None:
        stored = self.world.stored
        if stored is not None:
            texts = Counter(m.content for m in (*stored.messages, *stored.queued) if isinstance(m, UserMessage))
            assert not texts - self.said, "a message is there twice"

    @invariant()
    def history_never_changes(self) -> None:
        entries = self.world.store.checkpoints.history(SESSION)
        revisions = [entry.revision for entry in entries]
        assert revisions == sorted(revisions, reverse=True)
        assert all(a == b + 1 for a, b in pairwise(revisions))
        for entry in entries:
            assert self.listed.setdefault(entry.revision, entry.checkpoint) == entry.checkpoint

    @invariant()
    def an_answer_that_was_given_stays(self) -> None:
        stored = self.world.stored
        for key, request in (stored.requests if stored else {}).items():
            if stored is not None and request.finish_reason is not None:
                answer = recorded_answer(stored, request)
                assert self.answers.setdefault(key, answer) == answer

    @invariant()
    def a_run_that_waits_can_be_found(self) -> None:
        stored = self.world.stored
        if stored is not None and stored.status is Status.AWAITING_APPROVAL:
            approval = self.world.store.approvals.get(stored.approval_id)
            assert approval is not None
            assert approval.request.session_id == SESSION

    @invariant()
    def the_session_is_usable(self) -> None:
        approvals = [self.world.store.approvals.get(id) for id in self.world.approval_ids]
        if (known := (self.world.stored, approvals)) == self.tried:
            return  # nothing has changed since it was tried
        self.tried = known
        world = self.world.copy()
        process = Process(world)
        result = process.go(to_an_end_and_on(process))
        assert (result.finish_reason, result.text) == (FinishReason.STOP, "done last")
        assert not world.faults, world.faults


async def to_an_end_and_on(process: Process) -> RunResult:
    """A message that no model takes, and that came when no step was left, costs one refusal more."""
    await to_an_end(process)
    with suppress(ProviderRequestError):
        return await execute(process.agent, Plan("last").text, session_id=SESSION, store=process)
    return await execute(process.agent, Plan("last").text, session_id=SESSION, store=process)


async def to_an_end(process: Process) -> None:
    """Approve what waits and carry on what is unfinished, until nothing is."""
    for _ in range(60):
        stored = process.world.stored
        if stored is None or stored.status is Status.FINISHED or is_poisoned(stored):
            return
        try:
            if stored.status is Status.AWAITING_APPROVAL:
                id = stored.approval_id or ""
                with suppress(ApprovalClosedError):  # nobody has answered in time
                    decide(
                        ApprovalDecision(id=id, approved=True),
                        approvals=process.approvals,
                        checkpoints=process.checkpoints,
                        tools={},
                        now=process.world.clock(),
                    )
                await resume_after_approval(process.agent, id, store=process)
            else:
                await process.agent.resume(SESSION)
        except ENDS:
            pass
    raise AssertionError("the session gets nowhere")


Session.TestCase.settings = settings(
    max_examples=effort(120),
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
TestSession = pytest.mark.filterwarnings("default")(Session.TestCase)
