"""A deployment in this process: the real handlers over a memory store, with fakes for Step Functions and SNS."""

import io
import logging
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import ModuleType, SimpleNamespace
from typing import Any

import anyio
import pytest

from durable import Agent, Approval, Checkpoint, Tool, ToolContext, tool
from durable.providers.scripted import Script, Scripted
from handlers import _observe, _settings, _wiring, approvals, recover, runs, sessions, steps
from handlers._executions import STEP_INPUT_VERSION, execution_input
from handlers._settings import Settings
from tests.support.aws import FakeEvents, FakeStates, FakeTopics
from tests.support.deaths import Death, Mortal, mortal_store
from tests.support.events import Answered, Context, rest_event
from tests.support.runs import Clock, memory_store, numbered

MACHINE = "arn:aws:states:eu-west-1:123456789012:stateMachine:desk-runs"
TOPIC = "arn:aws:sns:eu-west-1:123456789012:approvals"
ENVIRONMENT = {
    "TABLE_NAME": "sessions",
    "AGENT_MODULE": "agent_of_this_test",
    "STATE_MACHINE_ARN": MACHINE,
    "TOPIC_ARN": TOPIC,
    "PUBLIC_URL": "https://desk.example/v1",
    "EVENT_BUS": "default",
    "LOG_LEVEL": "DEBUG",
}

PAY: list[Any] = [("pay", {"amount": 5}), "Paid."]


class Deployment:
    """What a test sees of it. `script` is what the model says, `paid` what the gated tool did."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store: Any = memory_store(clock=self.clock)
        self.states: Any = FakeStates()
        self.topics: Any = FakeTopics()
        self.events: Any = FakeEvents()
        self.log = io.StringIO()
        self.script: Script = ["Hello.", "Again.", "And again."]
        self.approval_timeout: timedelta | None = None
        self.approval_terms: dict[str, Any] = {}
        self.paid: list[int] = []
        self.tools: list[Tool] = []
        self.sleep: Callable[[float], Awaitable[None]] = anyio.sleep
        self.models: list[Scripted] = []
        self.death = Death()
        self._ids = numbered("run")

    @property
    def agent(self) -> Agent:
        """The agent as a cold start builds it."""

        @tool
        def look(what: str = "it") -> str:
            return what.upper()

        @tool
        def fail() -> None:
            raise RuntimeError("the service is down")

        @tool(needs_approval=True, approval_timeout=self.approval_timeout, **self.approval_terms)
        def pay(amount: int, ctx: ToolContext) -> dict[str, Any]:
            self.paid.append(amount)
            return {"paid": amount, "by": ctx.approval.by if ctx.approval else None}

        self.models.append(Scripted(self.script))
        return Agent(
            name="desk",
            tools=[look, fail, pay, *self.tools],
            provider=self.models[-1],
            clock=self.clock,
            sleep=self.sleep,
            ids=lambda: self._ids(),
        )

    @property
    def asked(self) -> int:
        """How many model calls there were."""
        return sum(len(model.requests) for model in self.models)

    def cold_start(self) -> None:
        """Forget everything that an environment keeps between invocations."""
        _wiring.app.cache_clear()
        _settings.settings.cache_clear()

    def dies(self, work: Callable[[], Any], *, at: int) -> bool:
        """Do it in a process that dies at its `at`-th point; whether it did. The next one begins cold.

        A point is before or after each call to the log, the leases, Step Functions, SNS or EventBridge.
        """
        return self._interrupted(work, at, None)

    def overtaken(self, work: Callable[[], Any], *, at: int, by: Callable[[], Any]) -> bool:
        """Do it, and at its `at`-th point let another process do something else; whether it came to that."""

        def meanwhile() -> None:
            mine = self.store, self.states, self.topics, self.events
            self.store, self.states, self.topics, self.events = alive
            self.cold_start()
            try:
                with ThreadPoolExecutor(1) as other:  # this one may be in the middle of its event loop
                    other.submit(by).result()
            finally:
                self.store, self.states, self.topics, self.events = mine
                self.cold_start()

        alive = self.store, self.states, self.topics, self.events
        return self._interrupted(work, at, meanwhile)

    def _interrupted(self, work: Callable[[], Any], at: int, instead: Callable[[], Any] | None) -> bool:
        self.cold_start()
        alive = self.store, self.states, self.topics, self.events
        self.death.reset(at, instead)
        self.store = mortal_store(self.store, self.death)
        self.states, self.topics = Mortal(self.states, self.death), Mortal(self.topics, self.death)
        self.events = Mortal(self.events, self.death)
        try:
            work()
        except BaseException:
            if not self.death.dead:
                raise
        finally:
            passed = self.death.passed
            self.death.reset()
            self.store, self.states, self.topics, self.events = alive
            self.cold_start()
        return passed

    # Requests

    def request(
        self, method: str, path: str, *, seconds: float = 29.0, request_id: str = "r1", **event: Any
    ) -> Answered:
        module = {"callbacks": approvals, "approvals": approvals}.get(path.split("/")[1], sessions)
        if method == "DELETE" or path.endswith(("/runs", "/resume", "/abort", "/forks", "/truncate")):
            module = runs
        context = Context(seconds=seconds, request_id=request_id)
        return Answered(module.handler(rest_event(method, path, **event), context))

    def send(self, input: Any = "hi", session: str = "s", **event: Any) -> Answered:
        return self.request("POST", f"/sessions/{session}/runs", body={"input": input}, **event)

    def get(self, path: str, **query: str) -> Answered:
        return self.request("GET", path, query=query or None)

    # The state machine

    def slice(self, session: str = "s", *, run_id: str | None = None, execution: str = "arn:1", **more: Any) -> Any:
        """What RunSlice gives for the session's run; `answer` is what came back from a wait."""
        task = self.slice_task(session, run_id=run_id, execution=execution, answer=more.pop("answer", {}))
        return steps.handler(task, Context(**{"seconds": 900.0, **more}))

    def slice_task(
        self, session: str = "s", *, run_id: str | None = None, execution: str = "arn:1", answer: Any = None
    ) -> dict[str, Any]:
        return {
            "task": "run-slice",
            "v": STEP_INPUT_VERSION,
            "session_id": session,
            "run_id": run_id or self.stored(session).run_id,
            "execution": execution,
            "answer": answer or {},
        }

    def ask(self, approval_id: str, task_token: str = "task-token-1", session: str = "s") -> Any:
        return steps.handler(self.ask_task(approval_id, task_token, session), Context())

    def ask_task(self, approval_id: str, task_token: str, session: str = "s") -> dict[str, Any]:
        return {
            "task": "ask-human",
            "v": STEP_INPUT_VERSION,
            "session_id": session,
            "run_id": self.stored(session).run_id,
            "approval_id": approval_id,
            "task_token": task_token,
        }

    def recover(self, seconds: float = 60.0) -> Any:
        return recover.handler({}, Context(seconds=seconds))

    # What there is

    def stored(self, session: str = "s") -> Checkpoint:
        checkpoint = self.store.checkpoints.load(session)
        assert checkpoint is not None
        return checkpoint

    def approval(self, id: str) -> Approval:
        approval = self.store.approvals.get(id)
        assert approval is not None
        return approval

    def head(self, session: str = "s") -> Any:
        return self.store.log.head(f"session/{session}")

    def lease(self, session: str = "s") -> Any:
        return self.store.leases.look(f"session/{session}")

    def hold(self, session: str = "s", *, seconds: float, owner: str = "somebody") -> Any:
        until = self.clock() + timedelta(seconds=seconds)
        return self.store.leases.acquire(f"session/{session}", owner, until=until, revision=-1)

    def pause(self, session: str = "s") -> str:
        """A run that waits for a human; give the approval's id."""
        self.script = PAY
        self.cold_start()
        answered = self.send("pay", session=session)
        assert answered.status == 202
        return answered.json["approval_id"]

    def callback(self) -> str:
        """The callback token of the newest message to people."""
        found = re.search(r"/callbacks/(\S+)", self.topics.messages[-1]["Message"])
        assert found is not None
        return found[1]

    def run_input(self, session: str = "s") -> str:
        return execution_input(session_id=session, run_id=self.stored(session).run_id)


@pytest.fixture
def clouds(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Deployment]]:
    """Makes deployments that nobody has called yet; the newest is the one that handlers run in."""
    current = [Deployment()]
    for name in Settings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)

    class AgentModule(ModuleType):
        @property
        def agent(self) -> Agent:
            return current[0].agent

    def client(name: str, **options: Any) -> Any:
        return {"stepfunctions": current[0].states, "sns": current[0].topics, "events": current[0].events}[name]

    monkeypatch.setitem(sys.modules, ENVIRONMENT["AGENT_MODULE"], AgentModule("agent_of_this_test"))
    monkeypatch.setattr(_wiring, "boto3", SimpleNamespace(Session=lambda: SimpleNamespace(client=client)))
    monkeypatch.setattr(_wiring, "make_client", lambda session: None)
    monkeypatch.setattr(_wiring, "dynamodb_store", lambda **given: current[0].store)
    _observe.logger()

    def make() -> Deployment:
        current[0] = deployment = Deployment()
        deployment.cold_start()
        for handler in logging.getLogger(Settings.model_fields["service_name"].default).handlers:
            monkeypatch.setattr(handler, "stream", deployment.log)
        return deployment

    yield make
    current[0].cold_start()


@pytest.fixture
def cloud(clouds: Callable[[], Deployment]) -> Deployment:
    """A deployment that nobody has called yet."""
    return clouds()
