"""What of an agent must be the same for a sleeping run to find its agent again: model, tools and instructions.

Code is not part of it. The parts are kept one by one, so that a difference can be named.
"""

import hashlib
import json

from pydantic import JsonValue

from durable.definition import AgentDefinition
from durable.records import Checkpoint

FINGERPRINT_VERSION = 1


def fingerprint(agent: AgentDefinition) -> dict[str, JsonValue]:
    """Version, model, a hash of each tool's schema by name, a hash of the instructions, and one over all of them."""
    parts: dict[str, JsonValue] = {
        "v": FINGERPRINT_VERSION,
        "model": agent.provider.name if agent.provider else None,
        "tools": {spec.name: _short(dict(spec.parameters)) for spec in agent.tool_specs},
        "instructions": _short(agent.instructions),
    }
    return {**parts, "hash": _short(parts)}


def had_tool(checkpoint: Checkpoint, name: str) -> bool:
    """Whether the agent that started the run had a tool of this name (yes, where nothing tells)."""
    tools = (checkpoint.fingerprint or {}).get("tools")
    return name in tools if isinstance(tools, dict) else True


def _short(value: JsonValue) -> str:
    """The first 16 hex digits of the SHA-256 of the value as key-sorted JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]
