"""This framework on the workload: the memory store and every save on."""

from collections.abc import Callable, Mapping

from durable import Agent, Tool, tool
from durable.messages import AssistantMessage, ToolCall
from durable.ports import ModelRequest, ModelTurn
from infra.bench import measure
from infra.bench.workload import Workload
from stores.memory import memory_store


class Prepared:
    """A model whose answers are made before the run and given in order."""

    name = "prepared"

    def __init__(self, what: Workload) -> None:
        asked = [
            AssistantMessage(
                content=turn.text, tool_calls=(ToolCall(id=turn.call_id, name="look", arguments=turn.arguments),)
            )
            for turn in what.turns
        ]
        self.asked = 0
        self._turns = iter([ModelTurn(message=message) for message in (*asked, AssistantMessage(content=what.final))])

    async def generate(self, request: ModelRequest) -> ModelTurn:
        self.asked += 1
        return next(self._turns)


def look_in(results: Mapping[str, str]) -> Tool:
    @tool
    async def look(query: str) -> str:
        """Look something up."""
        return results[query]

    return look


def prepare(what: Workload, variant: str) -> Callable[[], str]:
    agent = Agent(
        tools=[look_in(what.results)], provider=Prepared(what), store=memory_store(), max_steps=len(what.turns) + 1
    )
    runner = measure.event_loop()
    return lambda: runner.run(agent.send(what.user, session_id="bench")).text


if __name__ == "__main__":
    measure.main(prepare)
