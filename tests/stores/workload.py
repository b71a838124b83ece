"""The workload that stores are measured by: an agent's run of N turns with one tool call each.

A user message of 200 B, turns of 100 B with 100 B of arguments, results of 1,000 B that zlib shrinks about threefold,
and an answer of 300 B: it is saved before each call, with each result and at the end.
"""

import random
from collections.abc import Iterator

from durable.messages import AssistantMessage, Conversational, ToolCall, ToolMessage, UserMessage
from durable.ports import CheckpointStore
from durable.records import Checkpoint, Status, Usage
from stores.contract.backend import START

_WORDS = ["".join(random.Random(seed).choices("abcdefghijklmnopqrstuvwxyz", k=3 + seed % 7)) for seed in range(220)]


def text(size: int, seed: int) -> str:
    """Give words, the same for the same seed: they shrink like prose."""
    words = random.Random(seed)
    return " ".join(words.choice(_WORDS) for _ in range(size // 4))[:size]


def steps(turns: int, *, result_size: int = 1000) -> Iterator[Conversational]:
    for number in range(turns):
        arguments = f'{{"query":"{text(88, number)}"}}'
        call = ToolCall(id=f"call_{number:08d}", name="search", arguments=arguments)
        yield AssistantMessage(content=text(100, number), tool_calls=(call,))
        yield ToolMessage(tool_call_id=call.id, tool_name="search", content=text(result_size, -number - 1))


def run(store: CheckpointStore, session_id: str, turns: int, *, result_size: int = 1000) -> tuple[Checkpoint, int]:
    """Make the store calls of one `execute()`; give the last checkpoint and how many saves there were."""
    held = store.load(session_id)
    now = Checkpoint(
        session_id=session_id,
        agent="research",
        run_id="run_0123456789abcdef",
        instructions=text(120, 1),
        messages=(UserMessage(content=text(200, 2)),),
        fingerprint={"v": 1, "model": "openai:gpt", "tools": {"search": "0123456789abcdef"}, "all": "fedcba9876543210"},
        created_at=START,
        updated_at=START,
    )
    saves = 0
    for message in steps(turns, result_size=result_size):
        now = now.but(messages=(*now.messages, message))
        if isinstance(message, AssistantMessage):
            usage = now.usage + Usage(model_calls=1, input_tokens=500, output_tokens=50)
            now = now.but(step=now.step + 1, usage=usage)
        now = held = store.save(now, after=held)
        saves += 1
    answer = AssistantMessage(content=text(300, 3))
    now = now.but(messages=(*now.messages, answer), status=Status.FINISHED, committed=2 * turns + 2, turns=1)
    return store.save(now, after=held), saves + 1
