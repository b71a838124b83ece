"""A `session_id` identifies one logical conversation: of two runs on the same id at the same time, one wins.

The other one stops with `StaleCheckpointError`, writes nothing and starts no further tool.
"""

from typing import Any

import anyio
import pytest

from durable import ModelRequest, RunResult, StaleCheckpointError, tool
from durable.transcript import first_fault
from tests.support.runs import Clock, fresh_agent, memory_store, numbered, run
from tests.support.sessions import results, stored, texts


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("runs", [2, 5])
def test_one_of_them_wins(existing: bool, runs: int) -> None:
    """Runs that begin together from the same point: one is in the session, whole, and nothing is of the others."""
    store = memory_store(clock=Clock())
    ran: list[str] = []
    if existing:
        run(fresh_agent(["hello"], [], store).send("hi", session_id="s"))
    thinking: list[str] = []
    together = anyio.Event()
    ended: list[RunResult | StaleCheckpointError] = []

    async def one(name: str) -> None:
        async def model(request: ModelRequest) -> Any:
            if any(message.role == "tool" for message in request.messages):
                return f"{name} is done"
            thinking.append(name)
            if len(thinking) == runs:
                together.set()
            await together.wait()
            return ("work", {})

        @tool
        async def work() -> str:
            ran.append(name)
            return name

        try:
            ended.append(await fresh_agent(model, [work], store, ids=numbered(name)).send(name, session_id="s"))  # type: ignore[arg-type]
        except StaleCheckpointError as stale:
            ended.append(stale)

    async def all_of_them() -> None:
        async with anyio.create_task_group() as group:
            for number in range(runs):
                group.start_soon(one, f"run {number}")

    run(all_of_them())
    [won] = [end for end in ended if isinstance(end, RunResult)]
    [winner] = ran
    assert len(ended) == runs
    assert results(won.messages) == [winner]
    assert texts(stored(store).messages)[-4:] == [winner, "", winner, f"{winner} is done"]
    assert first_fault(stored(store).messages) is None
    assert stored(store).turns == 1 + existing
