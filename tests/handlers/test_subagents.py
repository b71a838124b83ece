"""Sub-agents on a deployment: what people see of them, what is checked when it starts, and how such a run stops."""

import json
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from durable import Agent, ConfigurationError, FinishReason, RunContext, Status, Tool, ToolContext, tool
from durable.providers.scripted import Scripted
from durable.transcript import first_fault, pending_calls
from handlers import _guard, _notify, _wiring
from tests.handlers.conftest import Deployment
from tests.handlers.test_aborting import from_elsewhere
from tests.support.runs import run

PATH = ["desk", "researcher", "clerk"]
YES = {"approved": True}


@tool(needs_approval=True)
def sign(name: str, ctx: ToolContext) -> str:
    """Sign."""
    SIGNED.append((name, ctx.session_id or ""))
    return f"signed {name}"


SIGNED: list[tuple[str, str]] = []


@pytest.fixture(autouse=True)
def nothing_signed() -> None:
    SIGNED.clear()


def clerk(*names: str, tools: Any = (sign,), **options: Any) -> Agent:
    script = [*(("sign", {"name": name}) for name in names), "All signed."]
    return Agent(name="clerk", tools=tools, **{"provider": Scripted(script), **options})


def researcher(below: Agent, **options: Any) -> Agent:
    script = Scripted([("clerk", {"task": "Sign."}), "It is done."])
    return Agent(name="researcher", subagents=[below], **{"provider": script, **options})


def deploy(cloud: Deployment, *names: str) -> None:
    cloud.tools = [researcher(clerk(*names)).as_tool()]
    cloud.script = [("researcher", {"task": "Get it signed."}), "Done."]
    cloud.cold_start()


def pause(cloud: Deployment, *names: str) -> str:
    deploy(cloud, *names or ("a",))
    answered = cloud.send("hi")
    assert answered.status == 202
    return answered.json["approval_id"]


def decide(cloud: Deployment, id: str, **body: Any) -> Any:
    return cloud.request("POST", f"/approvals/{id}/decision", body=body)


# --- approvals -------------------------------------------------------------------------------------------------------


def test_an_approval_says_which_agent_asks(cloud: Deployment) -> None:
    """The path of agents stands in the view, in the list, in the mail, and behind the link, for people and programs."""
    id = pause(cloud)
    assert cloud.get(f"/approvals/{id}").json["path"] == PATH
    assert [one["path"] for one in cloud.get("/approvals").json["approvals"]] == [PATH]
    cloud.ask(id)
    assert "Agent 'desk > researcher > clerk' asks to call 'sign'." in cloud.topics.messages[-1]["Message"]
    link = f"/callbacks/{cloud.callback()}"
    assert cloud.request("GET", link, caller=None).json["path"] == PATH
    page = cloud.request("GET", link, headers={"Accept": "text/html"}, caller=None).text
    assert "<dt>Agent</dt><dd>desk &gt; researcher &gt; clerk</dd>" in page
    body = json.loads(
        _notify.webhook_body(_wiring.app(), cloud.approval(id), "token", reminds=False, now=cloud.clock())
    )
    assert (body["data"]["agent"], body["data"]["path"]) == ("desk", PATH)


def test_without_sub_agents_the_path_is_the_agent(cloud: Deployment) -> None:
    """An approval of the run's own agent has a path, too: readers need no second case."""
    id = cloud.pause()
    assert cloud.get(f"/approvals/{id}").json["path"] == ["desk"]
    cloud.ask(id)
    assert "Agent 'desk' asks to call 'pay'." in cloud.topics.messages[-1]["Message"]


def test_edited_arguments_are_checked_against_the_tool_of_the_agent_that_asks(cloud: Deployment) -> None:
    """What does not fit the sub-agent's tool is refused; what does is what runs."""
    id = pause(cloud)
    refused = decide(cloud, id, approved=True, args={"amount": 1})
    assert (refused.status, refused.json["code"]) == (422, "DECISION_INVALID")
    assert decide(cloud, id, approved=True, args={"name": "b"}).status == 200
    assert cloud.slice()["outcome"] == "finished"
    assert SIGNED == [("b", "s")]


@pytest.mark.parametrize("way", ["api", "callback"])
def test_five_approvals_in_a_row(cloud: Deployment, way: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is one approval, told of and counted once, decided by either way and applied; each is signed once."""
    names = ["a", "b", "c", "d", "e"]
    id = pause(cloud, *names)
    ids = [id]
    cloud.slice()
    for number, _ in enumerate(names):
        cloud.cold_start()
        cloud.states.wait(f"token-{number}")
        cloud.ask(id, f"token-{number}")
        if way == "api":
            assert decide(cloud, id, **YES).status == 200
        else:
            assert cloud.request("POST", f"/callbacks/{cloud.callback()}", body=YES, caller=None).status == 200
        left = cloud.slice()
        if left["outcome"] == "awaiting-approval":
            ids.append(id := left["approval_id"])
    assert cloud.get("/sessions/s").json["text"] == "Done."
    assert [(name, "s") for name in names] == SIGNED
    assert len(set(ids)) == len(cloud.topics.messages) == 5
    assert all(cloud.approval(one).applied for one in ids)
    kinds = Counter(call["Entries"][0]["DetailType"] for call in cloud.events.called("put_events"))
    assert kinds == {"Run paused": 5, "Run finished": 1}
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    counted = {name: sum(sum(line.get(name, [])) for line in lines) for name in ("RunsPaused", "Decisions")}
    assert counted == {"RunsPaused": 5, "Decisions": 5}


@pytest.mark.parametrize("on_timeout", ["reject", "halt"])
def test_a_deadline_below(cloud: Deployment, on_timeout: Any) -> None:
    """When nobody decides in time the sub-agent is told, or the whole run ends; nothing is signed."""

    @tool(needs_approval=True, approval_timeout=timedelta(hours=1), on_timeout=on_timeout)
    def sign_in_time(name: str) -> str:
        """Sign."""
        raise AssertionError("signed though nobody had approved it")

    script = Scripted([("sign_in_time", {"name": "a"}), "Not signed."])
    cloud.tools = [researcher(clerk(tools=[sign_in_time], provider=script)).as_tool()]
    cloud.script = [("researcher", {"task": "Get it signed."}), "Done."]
    cloud.cold_start()
    id = cloud.send("hi").json["approval_id"]
    cloud.clock.advance(hours=1)
    assert cloud.slice()["outcome"] == "finished"
    stored, told = cloud.stored(), script.requests[-1].messages[-1]
    assert (cloud.approval(id).status, cloud.approval(id).applied, stored.suspended) == ("expired", True, {})
    if on_timeout == "reject":
        assert (stored.finish_reason, stored.messages[-1].content) == (FinishReason.STOP, "Done.")
        assert isinstance(told.content, dict)
        assert told.content["kind"] == "rejected"
    else:
        assert (stored.finish_reason, len(script.requests)) == (FinishReason.GUARDRAIL, 1)
        assert first_fault(stored.messages) is None


# --- sessions --------------------------------------------------------------------------------------------------------


def test_a_session_shows_the_agents_at_work(cloud: Deployment) -> None:
    """Each with its path, its step and the calls that it waits for; so does each save of the history."""
    pause(cloud)
    shown = cloud.get("/sessions/s").json["agents"]
    assert [agent["path"] for agent in shown] == [PATH[:2], PATH]
    assert [agent["step"] for agent in shown] == [1, 1]
    assert [[call["tool"] for call in agent["open_calls"]] for agent in shown] == [["clerk"], ["sign"]]
    entries = cloud.get("/sessions/s/history").json["entries"]
    assert entries[0]["agents"] == shown
    assert [len(entry["agents"]) for entry in entries] == sorted(len(entry["agents"]) for entry in entries)[::-1]
    assert cloud.get(f"/sessions/s/history/{entries[0]['revision']}").json["agents"] == shown


def test_a_session_without_any_shows_none(cloud: Deployment) -> None:
    """A plain run, and one whose agents are done, has nobody at work."""
    id = pause(cloud)
    decide(cloud, id, **YES)
    cloud.slice()
    assert cloud.get("/sessions/s").json["agents"] == []
    cloud.pause("plain")
    assert cloud.get("/sessions/plain").json["agents"] == []


def test_a_comparison_shows_what_agents_did(cloud: Deployment) -> None:
    """The steps of finished agents come from the history; those of a fork's, also from the session it came from."""
    id = pause(cloud)
    made = cloud.request("POST", "/sessions/s/forks", body={"from_step": 1, "session_id": "f"})
    assert made.status == 201
    same = cloud.get("/sessions/s/compare/f").json
    assert same["diverged_at"] is None
    decide(cloud, id, **YES)
    cloud.slice()
    ended = cloud.request("POST", "/sessions/s/forks", body={"from_step": 2, "session_id": "g"})
    assert ended.status == 201
    compared = cloud.get("/sessions/s/compare/g").json
    assert compared["diverged_at"] is None
    below = compared["b"][0]["calls"][0]["steps"][0]["calls"][0]
    assert (below["tool"], below["steps"][0]["calls"][0]["result"]) == ("clerk", "signed a")
    text = cloud.get("/sessions/s/compare/f").json["text"]
    assert '-     1: sign({"name": "a"}) -> "signed a"' in text
    assert '+     1: sign({"name": "a"}) has no result' in text


# --- what a deployment provides --------------------------------------------------------------------------------------


def slow() -> Tool:
    @tool(timeout=timedelta(hours=1))
    def crawl() -> str:
        return "late"

    return crawl


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_tool_below_that_no_slice_can_hold_is_refused(cloud: Deployment, dynamic: bool) -> None:
    """A time-out is checked at any depth when the deployment starts, and the error names the agents."""
    below = researcher(clerk(tools=[slow()]))
    if dynamic:
        below = researcher(below.subagents[0], tools=lambda context: [])  # type: ignore[arg-type]
    cloud.tools = [below.as_tool()]
    cloud.cold_start()
    with pytest.raises(ConfigurationError, match="'crawl' of agent 'desk > researcher > clerk' may take 3600 seconds"):
        _wiring.app()


def test_an_agent_without_a_model_has_that_of_the_deployment(cloud: Deployment) -> None:
    """Agents below need no provider of their own; one that names a model gets it from the deployment's factory."""
    made: list[str] = []

    def make_provider(model: str) -> Scripted:
        made.append(model)
        return Scripted(["Named."], name=model)

    def named(context: RunContext) -> str:
        return "some:model"

    plain, other = Agent(name="plain"), Agent(name="other", provider=named)
    lead = Agent(name="desk", subagents=[plain, other])

    def says(request: Any) -> Any:
        if len(request.messages) > 1:
            return "Done."
        return "Inherited." if not request.tools else [("plain", {"task": "x"}), ("other", {"task": "x"})]

    bound = lead.bind(provider=Scripted(says), make_provider=make_provider, store=cloud.store)
    result = run(bound.send("hi", session_id="s"))
    assert [message.content for message in result.messages if message.role == "tool"] == ["Inherited.", "Named."]
    assert made == ["some:model"]


# --- stopping --------------------------------------------------------------------------------------------------------


def was_stopped(cloud: Deployment) -> Any:
    stored = cloud.stored()
    assert (stored.status, stored.finish_reason) == (Status.IN_PROGRESS, FinishReason.ABORTED)
    assert first_fault(stored.messages) is None
    assert not pending_calls(stored)
    assert stored.suspended == {}
    return stored.messages[-1].content


def test_an_abort_while_an_agent_works_stops_the_run(cloud: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool of the agent below sees the signal, nobody asks a model again, and the lead's call is closed."""
    monkeypatch.setattr(_guard, "LOOKS_EVERY", 0.01)

    @tool
    async def wait(ctx: ToolContext) -> str:
        """Wait."""
        from_elsewhere(cloud)
        await ctx.signal.wait()
        return "half done"

    model = Scripted([("wait", {}), "Never asked."])
    cloud.tools = [researcher(clerk(tools=[wait], provider=model)).as_tool()]
    cloud.script = [("researcher", {"task": "Wait."}), "Never asked."]
    cloud.cold_start()
    answered = cloud.send("hi")
    assert (answered.status, answered.json["finish_reason"]) == (200, "aborted")
    closed = was_stopped(cloud)
    assert (closed["kind"], closed["tool_name"]) == ("unknown-outcome", "researcher")
    assert (len(model.requests), cloud.asked) == (1, 1)
    [*saves] = cloud.get("/sessions/s/history", full="1").json["entries"]
    assert any('"half done"' in json.dumps(save["checkpoint"]["suspended"]) for save in saves)


def test_an_abort_while_an_agent_waits_cancels_its_approval(cloud: Deployment) -> None:
    """The approval that a sub-agent asked for is closed, and nothing is signed; a message goes on from there."""
    id = pause(cloud)
    aborted = cloud.request("POST", "/sessions/s/abort", request_id="r2")
    assert (aborted.status, aborted.json["finish_reason"]) == (200, "aborted")
    assert cloud.approval(id).status == "cancelled"
    assert was_stopped(cloud)["kind"] == "unknown-outcome"
    assert cloud.get("/sessions/s").json["agents"] == []
    assert decide(cloud, id, **YES).status == 409
    assert cloud.send("rather not").json["text"] == "Done."
    assert SIGNED == []


def test_a_slice_out_of_time_goes_on_inside_the_agent(cloud: Deployment) -> None:
    """A deadline closes nothing: the next slice carries on with the agent where it was, and asks nothing twice."""
    models = [Scripted([("look_below", {}), "Seen."]), Scripted([("clerk", {"task": "Look."}), "It is done."])]

    @tool
    def look_below(ctx: ToolContext) -> str:
        """Look."""
        return "seen"

    cloud.tools = [researcher(clerk(tools=[look_below], provider=models[0]), provider=models[1]).as_tool()]
    cloud.script = [("researcher", {"task": "Look."}), "Done."]
    cloud.cold_start()
    assert cloud.send("hi", headers={"Prefer": "respond-async"}).status == 202
    assert cloud.slice(seconds=5.0)["outcome"] == "deadline"
    assert cloud.slice()["outcome"] == "finished"
    assert [len(model.requests) for model in models] == [2, 2]
