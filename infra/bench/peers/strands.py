"""Strands Agents; nothing of the conversation is pruned, and nothing is kept."""

import logging
import warnings
from collections.abc import Callable

from strands import Agent
from strands.agent.conversation_manager import NullConversationManager
from strands.models import Model
from strands.types.tools import AgentTool

from infra.bench import measure
from infra.bench.workload import Turn, Workload


class Prepared(Model):
    def __init__(self, what: Workload) -> None:
        self._answers = iter([*(chunks(turn.text, turn) for turn in what.turns), chunks(what.final)])

    def update_config(self, **config):
        pass

    def get_config(self):
        return {"model_id": "prepared"}

    def structured_output(self, *args, **kwargs):
        raise NotImplementedError

    async def stream(self, *args, **kwargs):
        for chunk in next(self._answers):
            yield chunk


def chunks(text: str, turn: Turn | None = None) -> list[dict]:
    def block(start: dict, delta: dict) -> list[dict]:
        opened, filled = {"contentBlockStart": {"start": start}}, {"contentBlockDelta": {"delta": delta}}
        return [opened, filled, {"contentBlockStop": {}}]

    made = [{"messageStart": {"role": "assistant"}}, *block({}, {"text": text})]
    if turn is not None:
        made += block({"toolUse": {"name": "look", "toolUseId": turn.call_id}}, {"toolUse": {"input": turn.arguments}})
    usage = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
    made.append({"messageStop": {"stopReason": "end_turn" if turn is None else "tool_use"}})
    return [*made, {"metadata": {"usage": usage, "metrics": {"latencyMs": 0}}}]


class Look(AgentTool):
    tool_name = "look"
    tool_type = "function"
    tool_spec = {  # noqa: RUF012 - the base class declares it as a property
        "name": "look",
        "description": "Look something up.",
        "inputSchema": {"json": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}},
    }

    def __init__(self, results: dict[str, str]) -> None:
        super().__init__()
        self._results = results

    async def stream(self, tool_use, invocation_state, **kwargs):
        text = self._results[tool_use["input"]["query"]]
        yield {"toolUseId": tool_use["toolUseId"], "status": "success", "content": [{"text": text}]}


def prepare(what: Workload, variant: str) -> Callable[[], str]:
    logging.disable(logging.CRITICAL)
    warnings.filterwarnings("ignore")
    agent = Agent(
        model=Prepared(what),
        tools=[Look(what.results)],
        callback_handler=None,
        conversation_manager=NullConversationManager(),
    )
    return lambda: agent(what.user).message["content"][-1]["text"]


if __name__ == "__main__":
    measure.main(prepare)
