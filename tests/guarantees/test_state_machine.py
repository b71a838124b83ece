"""Whatever is done to a session, in whatever order, it keeps its promises and can be used.

Clients send, retry, redeliver and interrupt; processes crash, are aborted, run out of time and are overtaken; humans
approve, reject, edit and come too late; the agent is deployed anew with other tools, another model or other
instructions. After each step:

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
from itertools import pairwise
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
from durable.plan import is_poisoned
from tests.support.plans import FREE, GATED, RECOVERY, Plan, PlannedCall
from tests.support.runs import Crash
from tests.support.worlds import SESSION, Act, Build, Interruption, Process, World

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

calls = st.builds(
    PlannedCall,
    tool=st.sampled_from([*FREE, *FREE, *GATED]),
    key=st.just(""),
    turns=st.sampled_from([0, 1, 3, 10]),
    fails=st.booleans(),
    kind=st.sampled_from(["normal"] * 9 + ["invalid", "unknown", "malformed"]),
    id=st.sampled_from([None] * 6 + ["", "same"]),
)
steps = st.lists(st.lists(calls, min_size=1, max_size=4), max_size=3)
troubles = st.sampled_from([None, None, None, "down", "refused"])
acts: st.SearchStrategy[Act] = st.sampled_from(["crash", "crash", "abort", "abort", "deadline", "intrude"])
interruptions = st.none() | st.builds(Interruption, st.integers(-1, 8) | st.integers(0, 25), acts)
some_tools = st.frozensets(st.sampled_from(sorted(RECOVERY)), max_size=2)
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

    @initialize(build=builds, paces=st.lists(st.integers(0, 3), min_size=1, max_size=5))
    def begin(self, build: Build, paces: list[int]) -> None:
        self.build = build
        left: list[int] = []

        def pace() -> int:
            if not left:
                left.extend(paces)
            return left.pop()

        self.world = World(paces=pace, intruder=self.intrude)
        self.messages = 0
        self.said: Counter[str] = Counter()
        self.keys: list[tuple[str, str]] = []
        self.answers: dict[str, str] = {}
        self.listed: dict[int, Checkpoint] = {}

    # --- what clients do ---------------------------------------------------------------------------------------------

    @precondition(lambda self: not self.waits)
    @rule(steps=steps, trouble=troubles, interruption=interruptions)
    def send(self, steps: Any, trouble: Any, interruption: Interruption | None) -> None:
        """A new message, whatever the session is doing."""
        self.run(self.execute, self.new_text(steps, trouble), interruption=interruption)

    @precondition(lambda self: self.messages and not self.waits)
    @rule(interruption=interruptions)
    def send_again(self, interruption: Interruption | None) -> None:
        """The newest message once more: a retry, or the next turn."""
        self.said[self.newest] += 1
        self.run(self.execute, self.newest, interruption=interruption)

    @precondition(lambda self: not self.waits)
    @rule(interruption=interruptions)
    def send_nothing(self, interruption: Interruption | None) -> None:
        self.run(self.execute, [], interruption=interruption)

    @precondition(lambda self: not self.waits)
    @rule(part=st.floats(0, 1), steps=steps, interruption=interruptions)
    def send_history(self, part: float, steps: Any, interruption: Interruption | None) -> None:
        """All finished turns, as much of the unfinished one as the client has heard of, and a new message."""
        stored = self.world.stored
        known: list[Message] = [*stored.messages, *stored.queued] if stored else []
        committed = stored.committed if stored else 0
        heard = known[: committed + round(part * (len(known) - committed))]
        self.said.update(message.content for message in heard if isinstance(message, UserMessage))
        self.run(self.execute, [*heard, UserMessage(content=self.new_text(steps))], interruption=interruption)

    @rule(steps=steps, trouble=troubles, interruption=interruptions)
    def deliver(self, steps: Any, trouble: Any, interruption: Interruption | None) -> None:
        """A request with a key, as a deployment takes it."""
        text = self.new_text(steps, trouble)
        self.keys.append((f"key-{len(self.keys)}", text))
        self.run(self.accept, *self.keys[-1], interruption=interruption)

    @precondition(lambda self: self.keys)
    @rule(which=st.integers(0, 50), interruption=interruptions)
    def redeliver(self, which: int, interruption: Interruption | None) -> None:
        """The same request once more: it is never a second turn."""
        self.run(self.accept, *self.keys[which % len(self.keys)], interruption=interruption)

    @precondition(lambda self: self.keys)
    @rule(which=st.integers(0, 50))
    def misuse_key(self, which: int) -> None:
        """A key that was used before with another body is refused."""
        key, _ = self.keys[which % len(self.keys)]
        if self.world.stored is not None and key in self.world.stored.requests:
            assert isinstance(self.run(self.accept, key, self.new_text([])), RequestConflictError)

    @precondition(lambda self: self.waits)
    @rule(nothing=st.booleans())
    def send_past_an_approval(self, nothing: bool) -> None:
        """No input goes past an open approval."""
        input = [] if nothing else self.new_text([])
        assert isinstance(self.run(self.execute, input), SessionAwaitingApprovalError)

    @rule(interruption=interruptions)
    def resume(self, interruption: Interruption | None) -> None:
        self.run(self.carry_on, interruption=interruption)

    # --- what humans do ----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.world.asked)
    @rule(
        which=st.integers(0, 50),
        verdict=st.sampled_from(["approve", "approve", "reject", "edit", "nonsense"]),
        interruption=interruptions,
    )
    def decide(self, which: int, verdict: str, interruption: Interruption | None) -> None:
        """A decision on the approval that is waited for, or on any that ever was."""
        ids = self.world.approval_ids
        waiting = self.world.stored.approval_id if self.world.stored else None
        id = waiting if waiting is not None and which % 4 else ids[which % len(ids)]
        self.run(self.answer, id, verdict, interruption=interruption)

    @precondition(lambda self: self.world.asked)
    @rule(which=st.integers(0, 50), interruption=interruptions)
    def resume_without_deciding(self, which: int, interruption: Interruption | None) -> None:
        ids = self.world.approval_ids
        self.run(self.apply, ids[which % len(ids)], interruption=interruption)

    @rule(minutes=st.sampled_from([1, 59, 61]))
    def time_passes(self, minutes: int) -> None:
        self.world.clock.advance(minutes=minutes)

    # --- what a deployment does --------------------------------------------------------------------------------------

    @rule(build=builds)
    def deploy(self, build: Build) -> None:
        """The next process is built otherwise."""
        self.build = build

    @property
    def waits(self) -> bool:
        stored = self.world.stored
        return stored is not None and stored.status is Status.AWAITING_APPROVAL

    # --- how each is done in a process -------------------------------------------------------------------------------

    def run(self, work: Any, *arguments: Any, interruption: Interruption | None = None) -> DurableError | None:
        """Do it in a new process, which may be interrupted; give the error that it ended with."""
        process, before = Process(self.world, interruption, self.build), self.world.stored
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
        decide(
            ApprovalDecision(id=id, approved=verdict != "reject", args=edits.get(verdict)),
            approvals=process.approvals,
            checkpoints=process.checkpoints,
            tools=process.agent.toolset,
            now=self.world.clock(),
        )
        await self.apply(process, id)

    async def apply(self, process: Process, id: str) -> None:
        if process.approvals.get(id) is not None:
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
        world.stored = world.store.checkpoints.save(checkpoint, after=world.stored)

    def new_text(self, steps: Any, trouble: Any = None) -> str:
        name = f"m{self.messages}"
        self.messages += 1
        named = tuple(
            tuple(PlannedCall(**{**call.__dict__, "key": f"{name}.{i}.{j}"}) for j, call in enumerate(calls))
            for i, calls in enumerate(steps)
        )
        self.newest = Plan(name, named, trouble).text
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
        world = self.world.copy()
        process = Process(world)
        process.go(to_an_end(process))
        result = process.go(execute(process.agent, Plan("last").text, session_id=SESSION, store=process))
        assert (result.finish_reason, result.text) == (FinishReason.STOP, "done last")
        assert not world.faults, world.faults


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
    max_examples=120,
    stateful_step_count=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
TestSession = pytest.mark.filterwarnings("default")(Session.TestCase)
