"""One process in the life of a run whose sub-agent's sub-agent asks five times: `python -m tests.sessions.signer PATH`.

It starts the session, or decides the approval that the session waits for and carries the run on; then it prints how the
run stands, and ends. Each signature is a line of `PATH/signed`.
"""

import asyncio
import json
import sys
from pathlib import Path

from durable import Agent, ToolContext, tool
from durable.providers.scripted import Scripted
from stores.sqlite import sqlite_store

NAMES = ("a", "b", "c", "d", "e")


def desk(folder: Path) -> Agent:
    """A lead, an office below it, and a clerk below that."""

    @tool(needs_approval=True)
    def sign(name: str, ctx: ToolContext) -> str:
        with (folder / "signed").open("a") as ledger:
            ledger.write(f"{name} {ctx.tool_call_id}\n")
        return f"signed {name}"

    script = Scripted([*(("sign", {"name": name}) for name in NAMES), "All signed."])
    clerk = Agent(name="clerk", tools=[sign], provider=script)
    office = Agent(name="office", subagents=[clerk], provider=Scripted([("clerk", {"task": "Sign."}), "It is done."]))
    lead = Scripted([("office", {"task": "Get it signed."}), "Done."])
    return Agent(name="desk", subagents=[office], provider=lead, store=sqlite_store(folder / "store.db"))


async def step(folder: Path) -> None:
    agent = desk(folder)
    waiting = await agent.approvals.list()
    if not waiting.items:
        result = await agent.send("Sign all of it.", session_id="s")
    else:
        [approval] = waiting.items
        assert approval.request.path == ("desk", "office", "clerk")
        result = await agent.approvals.resolve(approval.id, approved=True, by="ada")
    print(json.dumps([result.finish_reason, result.approval_id, result.text, result.usage.model_calls]))


if __name__ == "__main__":
    asyncio.run(step(Path(sys.argv[1])))
