"""LangGraph: a model node and a tool node over its message state, the leanest loop that it offers.

Plain functions and `invoke`, which is its fastest way; the variant `async` has coroutines and `ainvoke`. The variant
`saver` keeps every step in the in-memory saver before the next one begins.
"""

from collections.abc import Callable

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

from infra.bench import measure
from infra.bench.workload import Workload


def prepare(what: Workload, variant: str) -> Callable[[], str]:
    calls = ([{"id": turn.call_id, "name": "look", "args": {"query": turn.query}}] for turn in what.turns)
    asked = [AIMessage(content=turn.text, tool_calls=call) for turn, call in zip(what.turns, calls, strict=True)]
    answers, results = iter([*asked, AIMessage(content=what.final)]), what.results

    def model(state: MessagesState):
        return {"messages": [next(answers)]}

    def tools(state: MessagesState):
        calls = state["messages"][-1].tool_calls
        return {"messages": [ToolMessage(results[call["args"]["query"]], tool_call_id=call["id"]) for call in calls]}

    async def model_later(state: MessagesState):
        return model(state)

    async def tools_later(state: MessagesState):
        return tools(state)

    later = variant == "async"
    graph = StateGraph(MessagesState)
    graph.add_node("model", model_later if later else model)
    graph.add_node("tools", tools_later if later else tools)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
    graph.add_edge("tools", "model")
    saves = variant == "saver"
    compiled = graph.compile(checkpointer=InMemorySaver() if saves else None)
    config = {"configurable": {"thread_id": "bench"}, "recursion_limit": 1_000_000}
    options = {"durability": "sync"} if saves else {}
    first = {"messages": [HumanMessage(what.user)]}
    if later:
        runner = measure.event_loop()
        return lambda: runner.run(compiled.ainvoke(first, config))["messages"][-1].content
    return lambda: compiled.invoke(first, config, **options)["messages"][-1].content


if __name__ == "__main__":
    measure.main(prepare)
