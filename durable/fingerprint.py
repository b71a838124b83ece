"""What of an agent must be the same for a sleeping run to find its agent again: model, tools and instructions.

Code is not part of it. The parts are kept one by one, so that a difference can be named.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import cast

from pydantic import JsonValue

from durable.events import AgentDrift
from durable.ports import ToolSpec
from durable.records import Checkpoint

FINGERPRINT_VERSION = 1


def fingerprint(*, model: str, tools: Sequence[ToolSpec], instructions: str | None) -> dict[str, JsonValue]:
    """Version, model, a hash of each tool's schema by name, a hash of the instructions, and one over all of them."""
    parts: dict[str, JsonValue] = {
        "v": FINGERPRINT_VERSION,
        "model": model,
        "tools": {spec.name: _short(dict(spec.parameters)) for spec in tools},
        "instructions": _short(instructions),
    }
    return {**parts, "hash": _short(parts)}


def drift(then: Mapping[str, JsonValue] | None, now: Mapping[str, JsonValue]) -> AgentDrift | None:
    """How the agent that resumes differs; None when it does not, or when nothing comparable was kept."""
    if then is None or then.get("v") != now["v"] or then.get("hash") == now["hash"]:
        return None
    before, after = (cast("Mapping[str, JsonValue]", kept.get("tools") or {}) for kept in (then, now))
    models = (cast("str | None", then.get("model")), cast("str | None", now["model"]))
    return AgentDrift(
        model=models if models[0] != models[1] else None,
        tools_added=tuple(sorted(set(after) - set(before))),
        tools_removed=tuple(sorted(set(before) - set(after))),
        tools_changed=tuple(sorted(name for name in set(before) & set(after) if before[name] != after[name])),
        instructions=then.get("instructions") != now["instructions"],
    )


def had_tool(checkpoint: Checkpoint, name: str) -> bool:
    """Whether the agent that started the run had a tool of this name (yes, where nothing tells)."""
    tools = (checkpoint.fingerprint or {}).get("tools")
    return name in tools if isinstance(tools, dict) else True


def _short(value: JsonValue) -> str:
    """The first 16 hex digits of the SHA-256 of the value as key-sorted JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]
