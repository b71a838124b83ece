"""The OpenAI Agents SDK, tracing off."""

from collections.abc import Callable

from agents import Agent, FunctionTool, Model, ModelResponse, Runner, Usage, set_tracing_disabled
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from infra.bench import measure
from infra.bench.workload import Workload


class Prepared(Model):
    def __init__(self, what: Workload) -> None:
        asked = [
            [
                said(turn.text, n),
                ResponseFunctionToolCall(
                    id=f"fc_{n}", call_id=turn.call_id, name="look", arguments=turn.arguments, type="function_call"
                ),
            ]
            for n, turn in enumerate(what.turns)
        ]
        self._answers = iter([*asked, [said(what.final, len(what.turns))]])

    async def get_response(self, *args, **kwargs):
        usage = Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15)
        return ModelResponse(output=next(self._answers), usage=usage, response_id=None)

    def stream_response(self, *args, **kwargs):
        raise NotImplementedError


def said(text: str, n: int) -> ResponseOutputMessage:
    content = [ResponseOutputText(text=text, type="output_text", annotations=[])]
    return ResponseOutputMessage(id=f"msg_{n}", role="assistant", status="completed", type="message", content=content)


def prepare(what: Workload, variant: str) -> Callable[[], str]:
    set_tracing_disabled(True)
    results = {turn.call_id: turn.result for turn in what.turns}

    async def look(context, arguments: str) -> str:
        return results[context.tool_call_id]

    schema = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    tool = FunctionTool("look", "Look something up.", schema, look, strict_json_schema=False)
    agent = Agent(name="bench", tools=[tool], model=Prepared(what))
    runner = measure.event_loop()
    return lambda: runner.run(Runner.run(agent, what.user, max_turns=1_000_000)).final_output


if __name__ == "__main__":
    measure.main(prepare)
