"""Golden sessions: what a version of this package has stored, for every later one to load and resume.

`python -m tests.support.golden` writes those of today's format into `tests/golden/sessions-v<FORMAT>/`, once: a file
that is there is never written again.
"""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from durable import Agent, AssistantMessage, RunContext, ToolCall, ToolContext, ToolMessage, tool
from durable.admission import admitted
from durable.executor import run_to_pause
from durable.ports import Entry, IdFactory
from durable.providers.scripted import Scripted
from durable.records import FORMAT
from durable.transcript import pending_calls, settle
from tests.support.runs import Clock, memory_store, numbered, run
from tests.support.sessions import crashes, dying, stored
from tests.support.transcripts import user

FOLDER = Path(__file__).parents[1] / "golden"


@tool
async def look(what: str = "it") -> dict[str, Any]:
    """Look at something."""
    return {"seen": what.upper(), "parts": [1, 2.5, None, False, ""]}


@tool
async def fail() -> None:
    """Do not work."""
    raise RuntimeError("It does not work.")


@tool(recovery="report")
async def mail(to: str) -> str:
    """Send a mail."""
    return f"mail to {to}"


@tool(needs_approval=True, approval_timeout=timedelta(days=365_000))
async def pay(amount: int, ctx: ToolContext) -> dict[str, Any]:
    """Pay money."""
    return {"paid": amount, "by": ctx.approval.by if ctx.approval else None}


def calls(*asked: tuple[str, str, Mapping[str, Any]], text: str = "") -> AssistantMessage:
    made = [ToolCall(id=id, name=name, arguments=json.dumps(arguments)) for id, name, arguments in asked]
    return AssistantMessage(content=text, tool_calls=tuple(made))


FIRST = calls(("toolu_1", "look", {"what": "é"}), ("", "fail", {}), text="Let me see.")
MANY = calls(
    ("toolu_2", "look", {"what": "a"}),
    ("toolu_3", "mail", {"to": "ada"}),
    ("toolu_4", "pay", {"amount": 5}),
    ("toolu_1", "look", {"what": "b"}),
    ("toolu_5", "pay", {"amount": 7}),
)
ANSWERS = [FIRST, "One.", MANY, "Two.", "Three."]


def golden_agent(store: Any, ids: IdFactory) -> Agent:
    """The agent of these sessions, for ever: it takes an unfinished one to its end without drift."""

    def instructions(context: RunContext) -> str:
        return f"Serve {context.context}."

    return Agent(
        name="golden",
        instructions=instructions,
        tools=[look, fail, mail, pay],
        provider=Scripted(ANSWERS, name="golden:1"),
        on_agent_drift="error",
        store=store,
        clock=Clock(),
        ids=ids,
        tool_concurrency=1,
    )


HANDED = calls(("toolu_1", "look", {"what": "c"}), ("toolu_1", "clerk", {"task": "Pay all of it."}))


def golden_desk(store: Any, ids: IdFactory) -> Agent:
    """A lead with an office below it and a clerk below that, for ever."""
    clerk = Agent(
        name="clerk",
        instructions="Pay.",
        tools=[look, fail, mail, pay],
        provider=Scripted([FIRST, MANY, "All paid."], name="golden:1"),
        on_agent_drift="error",
        tool_concurrency=1,
    )
    office = Agent(
        name="office",
        tools=[look],
        subagents=[clerk],
        provider=Scripted([HANDED, "It is done."], name="golden:2"),
        on_agent_drift="error",
        tool_concurrency=1,
    )
    lead = Scripted([calls(("toolu_1", "office", {"task": "See to it."})), "Done.", "And done."], name="golden:3")
    return Agent(
        name="desk",
        subagents=[office],
        provider=lead,
        on_agent_drift="error",
        store=store,
        clock=Clock(),
        ids=ids,
    )


def agent_of(store: Any, ids: IdFactory) -> Agent:
    """The agent that the session was made with."""
    return {"golden": golden_agent, "desk": golden_desk}[stored(store).agent](store, ids)


def finished(store: Any, ids: IdFactory) -> None:
    """One turn with results of every JSON kind and an error, requested with a key."""
    agent = golden_agent(store, ids)
    accepted = admitted(
        agent, None, [user("go")], session_id="s", requested_by="bob", request=("key-1", "digest-1"), context="acme"
    )
    saved = store.checkpoints.save(accepted, after=None)
    run(run_to_pause(agent, saved, saved=saved, store=store))


def in_progress(store: Any, ids: IdFactory) -> None:
    """The second turn: its process died in its second call, when the fourth had its result; then a message came."""
    finished(store, ids)
    crashes(golden_agent(dying(store, 2), ids).send("more", session_id="s", context="acme"))
    before = stored(store)
    fourth = pending_calls(before)[2]
    held = ToolMessage(tool_call_id=fourth.id, tool_name=fourth.name, content={"seen": "earlier"})
    before = store.checkpoints.save(settle(before, [held]), after=before)
    agent = golden_agent(store, ids)
    store.checkpoints.save(admitted(agent, before, [user("quickly")], session_id="s"), after=before)


def awaiting_approval(store: Any, ids: IdFactory) -> None:
    """The second turn, paused on the second of its gated calls: the first was approved with other arguments."""
    finished(store, ids)
    agent = golden_agent(store, ids)
    paused = run(agent.send("more", session_id="s", requested_by="bob", context="acme"))
    run(agent.approvals.resolve(paused.approval_id, approved=True, by="ada", note="less", args={"amount": 4}))


def awaiting_approval_below(store: Any, ids: IdFactory) -> None:
    """A sub-agent of a sub-agent waits on its second gated call; the first was approved with other arguments."""
    agent = golden_desk(store, ids)
    paused = run(agent.send("go", session_id="s", requested_by="bob", context="acme"))
    run(agent.approvals.resolve(paused.approval_id, approved=True, by="ada", note="less", args={"amount": 4}))


SESSIONS = {
    "finished": finished,
    "in-progress": in_progress,
    "awaiting-approval": awaiting_approval,
    "awaiting-approval-below": awaiting_approval_below,
}


def write(name: str, path: Path) -> None:
    """Make the session with today's code and keep the entries of its streams, as they are, in a new file."""
    store: Any = memory_store(clock=Clock(), ids=numbered("save"))
    SESSIONS[name](store, numbered("id"))
    streams = ["session/s", *(f"approval/{one.id}" for one in store.approvals.list(status=None).items)]
    kept = {stream: [_plain(entry) for entry in store.log.read(stream)] for stream in streams}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x") as file:
        json.dump(kept, file, indent=1, ensure_ascii=False)
        file.write("\n")


def read(path: Path) -> Any:
    """A store that holds what the file holds, entry by entry."""
    store: Any = memory_store(clock=Clock(), ids=numbered("new-save"))
    for stream, entries in json.loads(path.read_text()).items():
        for entry in entries:
            assert store.log.append(stream, _entry(entry))
    return store


def _plain(entry: Entry) -> dict[str, Any]:
    return {
        "revision": entry.revision,
        "kind": entry.kind,
        "base": entry.base,
        "save_id": entry.save_id,
        "written_at": entry.written_at.isoformat(),
        "body": entry.body.decode(),
    }


def _entry(plain: dict[str, Any]) -> Entry:
    written_at = datetime.fromisoformat(plain["written_at"])
    return Entry(**{**plain, "written_at": written_at, "body": plain["body"].encode()})


if __name__ == "__main__":
    for each in SESSIONS:
        if not (path := FOLDER / f"sessions-v{FORMAT}" / f"{each}.json").exists():
            write(each, path)
