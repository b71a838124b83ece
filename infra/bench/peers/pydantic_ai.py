"""Pydantic AI; usage is given, so that guessing it costs nothing."""

from collections.abc import Callable

from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import RequestUsage, UsageLimits

from infra.bench import measure
from infra.bench.workload import Workload


def prepare(what: Workload, variant: str) -> Callable[[], str]:
    usage = RequestUsage(input_tokens=10, output_tokens=5)
    parts = [
        [TextPart(turn.text), ToolCallPart("look", {"query": turn.query}, tool_call_id=turn.call_id)]
        for turn in what.turns
    ]
    answers = iter([ModelResponse(parts=part, usage=usage) for part in (*parts, [TextPart(what.final)])])
    agent = Agent(FunctionModel(lambda messages, info: next(answers)), name="bench")
    results = what.results

    @agent.tool_plain
    async def look(query: str) -> str:
        """Look something up."""
        return results[query]

    limits, runner = UsageLimits(request_limit=None), measure.event_loop()
    return lambda: runner.run(agent.run(what.user, usage_limits=limits)).output


if __name__ == "__main__":
    measure.main(prepare)
