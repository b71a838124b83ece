"""Dynamic agents: instructions, tools and model made for the context of a run, and what a resume makes of them."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from durable import Agent, ConfigurationError, RunContext, ToolContext, tool
from durable.admission import admitted
from durable.executor import run_to_pause
from durable.providers.scripted import Scripted
from tests.support.runs import Clock, memory_store, numbered, run
from tests.support.sessions import crashes, dying, look, pay, recorder, results, stored
from tests.support.transcripts import user


class Desk:
    """An agent for each tenant, and what it was made for each time."""

    def __init__(self, answers: Any = ("done",)) -> None:
        self.answers = answers
        self.made: list[tuple[str, RunContext]] = []
        self.models: list[Scripted] = []
        self.ran: list[str] = []

    def note(self, what: str, context: RunContext) -> str:
        self.made.append((what, context))
        return str(context.context)

    def instructions(self, context: RunContext) -> str:
        return f"Serve {self.note('instructions', context)}."

    def tools(self, context: RunContext) -> list[Any]:
        self.note("tools", context)
        return [look, pay] if context.context == "acme" else [look]

    def provider(self, context: RunContext) -> str:
        return f"model of {self.note('provider', context)}"

    def make_provider(self, model: str) -> Scripted:
        self.models.append(Scripted(self.answers, name=model))
        return self.models[-1]

    def agent(self, store: Any, **options: Any) -> Agent:
        given: dict[str, Any] = {
            "instructions": self.instructions,
            "tools": self.tools,
            "provider": self.provider,
            "make_provider": self.make_provider,
            **options,
        }
        return Agent(name="t", store=store, clock=Clock(), ids=numbered("run"), **given)


def later(make: Callable[[RunContext], Any]) -> Callable[[RunContext], Any]:
    async def made(context: RunContext) -> Any:
        return make(context)

    return made


@pytest.mark.parametrize("colour", ["plain", "async"])
def test_an_agent_is_made_for_the_context(colour: str) -> None:
    """Instructions, tools and model may be functions of the run's context, synchronous or not."""
    desk, store = Desk(), memory_store(clock=Clock())
    parts = {name: getattr(desk, name) for name in ("instructions", "tools", "provider")}
    agent = desk.agent(store, **({name: later(part) for name, part in parts.items()} if colour == "async" else {}))
    run(agent.send("go", session_id="s", context="acme"))
    [model] = desk.models
    [request] = model.requests
    assert (model.name, request.instructions) == ("model of acme", "Serve acme.")
    assert [spec.name for spec in request.tools] == ["look", "pay"]
    assert {context for _, context in desk.made} == {RunContext(session_id="s", run_id="run1", context="acme")}


def test_a_provider_may_be_given_as_it_is() -> None:
    """The function for the model may give a provider instead of a name."""
    models = {"acme": Scripted(["big"]), "bob": Scripted(["small"])}
    agent = Desk().agent(None, provider=lambda context: models[context.context], make_provider=None)
    assert run(agent.send("go", context="acme")).text == "big"
    assert run(agent.send("go", context="bob")).text == "small"


def test_only_one_part_may_be_dynamic() -> None:
    """A part that is no function stays as it is beside one that is."""
    desk = Desk()
    agent = desk.agent(None, tools=[pay], instructions="Be brief.", provider=Scripted(["done"], name="fixed"))
    assert run(agent.send("go")).text == "done"
    assert desk.made == []
    dynamic = desk.agent(None, tools=[pay], provider=Scripted(["done"], name="fixed"))
    run(dynamic.send("go", context="acme"))
    assert [what for what, _ in desk.made] == ["instructions"]


def test_the_context_and_the_model_are_kept() -> None:
    """`run_config` keeps what the run was made for and the model that was chosen; a plain agent keeps nothing."""
    store = memory_store(clock=Clock())
    run(Desk().agent(store).send("go", session_id="s", context={"tenant": "acme"}))
    assert stored(store).run_config == {
        "context": {"tenant": "acme"},
        "model": "model of {'tenant': 'acme'}",
    }
    plain = Desk().agent(store, instructions=None, tools=(), provider=Scripted(["done"], name="fixed"))
    run(plain.send("go", session_id="plain"))
    assert stored(store, "plain").run_config is None
    run(plain.send("go", session_id="with", context=0))
    assert stored(store, "with").run_config == {"context": 0, "model": "fixed"}


def test_a_tool_sees_the_context() -> None:
    """`ctx.run_context` is what the caller gave with the input, in the live run and in a resumed one."""
    seen: list[Any] = []

    @tool
    def see(ctx: ToolContext) -> None:
        seen.append(ctx.run_context)

    store = memory_store(clock=Clock())
    desk = Desk([[("see", {}), ("see", {})], "done"])
    crashes(
        desk.agent(dying(store, 1), tools=[see], tool_concurrency=1).send(
            "go", session_id="s", context={"tenant": "acme"}
        )
    )
    run(desk.agent(store, tools=[see]).resume("s"))
    assert seen == [{"tenant": "acme"}] * 2


def test_a_crash_resume_uses_what_was_kept() -> None:
    """A resume goes on with the saved model, and makes tools and instructions again with the saved context."""
    store = memory_store(clock=Clock())
    answers = [("look", {}), "done"]
    crashes(Desk(answers).agent(dying(store, 0)).send("go", session_id="s", context="acme"))
    desk = Desk(answers)

    def another(context: RunContext) -> str:
        raise AssertionError("the model was chosen when the run began")

    agent = desk.agent(store, provider=another, on_agent_drift="error")
    result = run(agent.send("go", session_id="s", context="ignored"))
    assert (result.text, [model.name for model in desk.models]) == ("done", ["model of acme"])
    saved = RunContext(session_id="s", run_id="run1", context="acme", model="model of acme")
    assert desk.made == [("tools", saved), ("instructions", saved)]
    assert desk.models[0].requests[0].instructions == "Serve acme."


def test_without_make_provider_the_function_sees_the_saved_model() -> None:
    """A function that gives providers itself is told which model the run began with."""
    store = memory_store(clock=Clock())
    answers = [("look", {}), "done"]
    models = {name: Scripted(answers, name=name) for name in ("old", "new")}

    def choose(context: RunContext) -> Scripted:
        return models[context.model or current]

    current = "old"
    crashes(
        Desk().agent(dying(store, 0), provider=choose, make_provider=None).send("go", session_id="s", context="acme")
    )
    current = "new"
    agent = Desk().agent(store, provider=choose, make_provider=None, on_agent_drift="error")
    assert run(agent.resume("s")).text == "done"
    assert len(models["new"].requests) == 0


def test_a_resume_after_an_approval_uses_what_was_kept() -> None:
    """A decision, also one with edited arguments, finds the tools of the run's context days later."""
    store = memory_store(clock=Clock())
    answers = [("pay", {}), "done"]
    paused = run(Desk(answers).agent(store).send("go", session_id="s", context="acme"))
    desk = Desk(answers)
    result = run(desk.agent(store).approvals.resolve(paused.approval_id, approved=True, args={"amount": 3}))
    assert results(result.messages) == [{"paid": 3}]
    assert {context.context for _, context in desk.made} == {"acme"}


def test_instructions_made_again_are_used_and_kept() -> None:
    """What the function says when the run is resumed is what the model gets, as the rule for dynamic agents says."""
    store = memory_store(clock=Clock())
    answers = [("look", {}), "done"]
    crashes(Desk(answers).agent(dying(store, 0)).send("go", session_id="s", context="acme"))
    desk = Desk(answers)
    run(desk.agent(store, instructions=lambda context: f"Serve {context.context} well.").resume("s"))
    assert desk.models[0].requests[0].instructions == stored(store).instructions == "Serve acme well."


def test_the_next_turn_takes_the_new_context() -> None:
    """A new run is made for the context that comes with its input, and for none when none comes."""
    store = memory_store(clock=Clock())
    desk = Desk(["one", "two", "three"])
    agent = desk.agent(store)
    run(agent.send("a", session_id="s", context="acme"))
    run(agent.send("b", session_id="s", context="bob"))
    assert stored(store).run_config == {"context": "bob", "model": "model of bob"}
    run(agent.send("c", session_id="s"))
    assert stored(store).run_config == {"model": "model of None"}
    assert [model.requests[0].instructions for model in desk.models] == ["Serve acme.", "Serve bob.", "Serve None."]
    assert [context.run_id for what, context in desk.made if what == "tools"] == ["run1", "run2", "run3"]


def test_the_context_is_kept_as_json() -> None:
    """The run begins with what a resume will read; what has no JSON form is refused before anything happens."""
    seen: list[Any] = []

    def instructions(context: RunContext) -> str:
        seen.append(context.context)
        return ""

    store = memory_store(clock=Clock())
    agent = Desk().agent(store, instructions=instructions)
    given: Any = {"who": ("a", "b"), "when": datetime(2030, 1, 1, tzinfo=UTC)}
    run(agent.send("go", session_id="s", context=given))
    assert seen == [{"who": ["a", "b"], "when": "2030-01-01T00:00:00Z"}]
    nonsense: Any = object()
    with pytest.raises(ConfigurationError, match="context"):
        run(agent.send("go", session_id="t", context=nonsense))
    assert store.checkpoints.load("t") is None


def test_an_accepted_run_is_made_when_it_begins() -> None:
    """A run that was accepted and never began is made, with its context, by whoever begins it."""
    store = memory_store(clock=Clock())
    desk = Desk()
    agent = desk.agent(store)
    accepted = admitted(agent, None, [user("go")], session_id="s", request=("key", "digest"), context="acme")
    saved = store.checkpoints.save(accepted, after=None)
    assert desk.made == []
    run(run_to_pause(agent, stored(store), saved=saved, store=store))
    assert stored(store).run_config == {"context": "acme", "model": "model of acme"}
    assert {context.model for _, context in desk.made} == {None}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"make_provider": None}, "make_provider"),
        ({"provider": lambda context: None}, "provider"),
        ({"tools": lambda context: [look, look]}, "look"),
    ],
)
def test_an_agent_that_cannot_be_made_is_refused(options: dict[str, Any], says: str) -> None:
    """A function that gives no model, a name that nobody can turn into one, or two tools of one name: nothing runs."""
    store = memory_store(clock=Clock())
    with pytest.raises(ConfigurationError, match=says):
        run(Desk().agent(store, **options).send("go", session_id="s"))
    assert store.checkpoints.load("s") is None


def test_an_error_of_the_function_is_the_callers() -> None:
    """What a function of the context raises ends the run before it has begun; a resume is left for another day."""

    def instructions(context: RunContext) -> str:
        raise LookupError(context.context)

    ran: list[str] = []
    store = memory_store(clock=Clock())
    answers = [("work", {}), "done"]
    tools = [recorder(ran)]
    crashes(Desk(answers).agent(dying(store, 0), tools=tools).send("go", session_id="s", context="acme"))
    before = stored(store)
    with pytest.raises(LookupError, match="acme"):
        run(Desk(answers).agent(store, tools=tools, instructions=instructions).resume("s"))
    assert (stored(store), ran) == (before, [])
    assert run(Desk(answers).agent(store, tools=tools).resume("s")).text == "done"


def test_a_deployment_binds_what_the_agent_leaves_open() -> None:
    """`bind` gives a model, a way to make models and a store to an agent that has none; the agent's own win."""
    store, other = memory_store(clock=Clock()), memory_store(clock=Clock())
    mine, theirs = Scripted(["mine"]), Scripted(["theirs"])
    assert Agent().bind(provider=theirs, store=store).provider is theirs
    bound = Agent(provider=mine, store=store).bind(provider=theirs, store=other, make_provider=lambda name: theirs)
    assert (bound.provider, bound.store) == (mine, store)
    named = Agent(provider=lambda context: "x").bind(make_provider=lambda name: Scripted([name]))
    assert run(named.send("go")).text == "x"
