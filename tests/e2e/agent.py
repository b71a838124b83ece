"""The agent of the end-to-end tests: what it does follows from the first word that it is told.

Each model turn and each tool tells the ledger that it happened, under the session's name, which the user says too.
"""

import os
from datetime import timedelta

import anyio
import httpx

from durable import Agent, ToolContext, UserMessage, ask_human, escalate, level, tool
from durable.errors import ProviderAuthenticationError
from durable.ports import ModelRequest
from durable.providers.scripted import Answer

WHICH = {"question": "Which <b>colour</b>?", "options": ["red", "deep blue"]}
SCRIPTS: dict[str, list[Answer]] = {
    "talk": ["Hello."],
    "steps": [("step", {"name": "one"}), ("step", {"name": "two"}), "Both done."],
    "pay": [[("step", {"name": "one"}), ("pay", {"amount": 5}), ("step", {"name": "two"})], "Paid."],
    "hurry": [("pay_in_time", {"amount": 5}), "Nobody said yes."],
    "stop": [("pay_or_stop", {"amount": 5}), "Never reached."],
    "ask": [[("ask_human", WHICH), ("step", {"name": "after"})], "As you say."],
    "hurry_up": [("ask_in_time", WHICH), "Then so."],
    "escalate": [("pay_or_tell", {"amount": 5}), "Nobody said yes at any level."],
    "remind": [("pay_some_day", {"amount": 5}), "Paid at last."],
    "together": [("pay_together", {"amount": 5}), "Paid by both."],
    "stumble": [[("step", {"name": 1}), ("fail", {}), ("nonsense", {})], "So be it."],
    "locked": [ProviderAuthenticationError("scripted", "Incorrect API key provided.", status=401), "Unlocked."],
}


def walk(steps: str, seconds: str) -> list[Answer]:
    """So many steps of so many seconds, one after the other."""
    return [*(("pace", {"name": f"s{number}", "seconds": float(seconds)}) for number in range(int(steps))), "All done."]


SIGNED = ("a", "b", "c", "d", "e")


def below(session: str) -> dict[str, list[Answer]]:
    """The scripts of a lead and of the agents below it, which have no model of their own: each task names the next."""
    return {
        "delegate": [("office", {"task": f"office {session}"}), "Done."],
        "office": [[("step", {"name": "file"}), ("clerk", {"task": f"clerk {session}"})], "It is signed."],
        "clerk": [*(("sign", {"name": name}) for name in SIGNED), "All signed."],
    }


def tell(session: str, step: str) -> None:
    with httpx.Client(timeout=90, trust_env=False, verify=False) as client:
        client.post(os.environ["LEDGER_URL"], json={"session": session, "step": step})


async def answers(request: ModelRequest) -> Answer:
    """`<script> <session> …` is what the user says; the turn is how many answers came after it."""
    said = max(at for at, message in enumerate(request.messages) if isinstance(message, UserMessage))
    script, session, *more = str(request.messages[said].content).split()
    turn = sum(message.role == "assistant" for message in request.messages[said:])
    name = script if script in ("office", "clerk") else "model"
    async with httpx.AsyncClient(timeout=90, trust_env=False, verify=False) as client:
        await client.post(os.environ["LEDGER_URL"], json={"session": session, "step": f"{name}-{turn}"})
    return walk(*more)[turn] if script == "walk" else {**SCRIPTS, **below(session)}[script][turn]


@tool
def step(name: str, ctx: ToolContext) -> str:
    """Do one step."""
    tell(ctx.session_id or "", name)
    return f"{name} done"


@tool
async def pace(name: str, seconds: float, ctx: ToolContext) -> str:
    """Do one step, slowly. Whoever is stopped before its end has not done it."""
    await anyio.sleep(seconds)
    tell(ctx.session_id or "", name)
    return f"{name} done"


@tool(needs_approval=True)
def pay(amount: int, ctx: ToolContext) -> dict[str, object]:
    """Pay."""
    tell(ctx.session_id or "", "pay")
    return {"paid": amount, "by": ctx.approval.by if ctx.approval else None}


@tool(needs_approval=True, approval_timeout=timedelta(seconds=6))
def pay_in_time(amount: int, ctx: ToolContext) -> str:
    """Pay, if somebody says yes in time."""
    tell(ctx.session_id or "", "pay")
    return "paid"


@tool(needs_approval=True, approval_timeout=timedelta(seconds=6), on_timeout="halt")
def pay_or_stop(amount: int, ctx: ToolContext) -> str:
    """Pay, or let it be altogether."""
    tell(ctx.session_id or "", "pay")
    return "paid"


@tool(
    needs_approval=True,
    approval_timeout=timedelta(seconds=2),
    on_timeout=escalate(level("e2e-leads", wait=timedelta(seconds=3)), level("e2e-cfo", wait=timedelta(minutes=5))),
)
def pay_or_tell(amount: int, ctx: ToolContext) -> str:
    """Pay, if anybody says yes."""
    tell(ctx.session_id or "", "pay")
    return "paid"


@tool(needs_approval=True, remind_every=timedelta(seconds=2))
def pay_some_day(amount: int, ctx: ToolContext) -> str:
    """Pay, whenever somebody says yes."""
    tell(ctx.session_id or "", "pay")
    return "paid"


@tool(needs_approval=True)
def sign(name: str, ctx: ToolContext) -> str:
    """Sign something."""
    tell(ctx.session_id or "", f"sign-{name}")
    return f"{name} signed"


@tool(needs_approval=True, approvals=2, approvers=["ada", "bob", "cy"])
def pay_together(amount: int, ctx: ToolContext) -> dict[str, object]:
    """Pay, if two of three say yes."""
    tell(ctx.session_id or "", "pay")
    return {"paid": amount, "voters": list(ctx.approval.voters) if ctx.approval else None}


@tool
def fail() -> str:
    """Fail."""
    raise RuntimeError("the service is down")


clerk = Agent(name="clerk", tools=[sign])
office = Agent(name="office", tools=[step], subagents=[clerk])
questions = [ask_human(), ask_human(name="ask_in_time", timeout=timedelta(seconds=6), default="red")]
tools = [*questions, step, pace, pay, pay_in_time, pay_or_stop, pay_or_tell, pay_some_day, pay_together, fail]
agent = Agent(name="e2e", max_steps=50, tools=tools, subagents=[office])
