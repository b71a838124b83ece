"""LangGraph with the DynamoDB saver that AWS publishes, on the workloads that are counted.

`python -m infra.bench.peers.langgraph_dynamodb ENDPOINT WORKLOAD VARIANT` prints one line of JSON: what a run took, and
what a load afterwards takes. The variant `compressed` has the saver's own compression on, `delta` keeps the messages in
LangGraph's channel of deltas (beta).
"""

import json
import os
import sys
import uuid

os.environ |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_DEFAULT_REGION": "us-east-1"}

import boto3
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph_checkpoint_aws import DynamoDBSaver

from infra.bench import meter
from infra.bench.workload import Workload, named


def deltas() -> type:
    from typing import Annotated, TypedDict

    from langgraph.channels import DeltaChannel

    def extend(have, writes):
        return have + [one for write in writes for one in (write if isinstance(write, list) else [write])]

    return TypedDict("State", {"messages": Annotated[list, DeltaChannel(extend)]})


def graph(what: Workload, saver: DynamoDBSaver, asked: list[int], state: type):
    answers = iter([*what.turns, None])

    def model(state):
        turn = next(answers)
        asked.append(1)
        if turn is None:
            return {"messages": [AIMessage(what.final)]}
        call = {"id": turn.call_id, "name": "look", "args": {"query": turn.query}}
        return {"messages": [AIMessage(turn.text, tool_calls=[call])]}

    def tools(state):
        calls = state["messages"][-1].tool_calls
        found = [ToolMessage(what.results[call["args"]["query"]], tool_call_id=call["id"]) for call in calls]
        return {"messages": found}

    made = StateGraph(state)
    made.add_node("model", model)
    made.add_node("tools", tools)
    made.add_edge(START, "model")
    made.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
    made.add_edge("tools", "model")
    return made.compile(checkpointer=saver)


def main() -> dict:
    endpoint, name, variant = sys.argv[1:4]
    table, what = f"peer-{uuid.uuid4().hex}", named(name)
    os.environ["AWS_ENDPOINT_URL_DYNAMODB"] = endpoint
    boto3.client("dynamodb").create_table(
        TableName=table,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in ("PK", "SK")],
        KeySchema=[{"AttributeName": "PK", "KeyType": "HASH"}, {"AttributeName": "SK", "KeyType": "RANGE"}],
    )
    saver = DynamoDBSaver(
        table_name=table, endpoint_url=endpoint, enable_checkpoint_compression=variant == "compressed"
    )
    asked: list[int] = []
    config = {"configurable": {"thread_id": "bench"}, "recursion_limit": 100_000}
    earlier = [message for said in what.earlier for message in (HumanMessage(said[0]), AIMessage(said[1]))]
    counted = meter.install()
    try:
        state = deltas() if variant == "delta" else MessagesState
        graph(what, saver, asked, state).invoke(
            {"messages": [*earlier, HumanMessage(what.user)]}, config, durability="sync"
        )
    except Exception as error:
        return {"fails_at": len(asked), "error": f"{type(error).__name__}: {error}"[:200], "ran": counted.take()}
    ran = counted.take()
    saver.get_tuple(config)
    return {"ran": ran, "load": counted.take()}


if __name__ == "__main__":
    print(json.dumps(main()))
