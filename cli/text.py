"""What people read: tables and lines. Text of models and tools cannot do anything to a terminal."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

WIDEST = 80
"""Characters of a table's cell."""


def clean(text: str) -> str:
    """The text with its control characters escaped, line ends aside."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def moment(time: str | None) -> str | None:
    """A time of the API, which is in UTC, to the second."""
    return time and time.replace("+00:00", "Z").split(".")[0].rstrip("Z") + "Z"


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Columns as wide as what is in them; `-` stands for nothing."""
    cells = [tuple(headers), *(tuple(map(_cell, row)) for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(headers))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(line.rstrip() for line in lines)


def fields(values: Mapping[str, Any]) -> str:
    """One line for each value that is there."""
    shown = {name: value for name, value in values.items() if value not in (None, "", [], {})}
    width = max(map(len, shown), default=0)
    return "\n".join(f"{name.ljust(width)}  {_inline(value)}" for name, value in shown.items())


def session_text(session: Mapping[str, Any]) -> str:
    """How a run stands, and its answer."""
    usage = session.get("usage") or {}
    origin = session.get("forked_from")
    error = session.get("last_error")
    return fields(
        {
            "session": session.get("session_id"),
            "run": session.get("run_id"),
            "status": session.get("status"),
            "finish reason": session.get("finish_reason"),
            "approval": session.get("approval_id"),
            "agents": agents_text(session),
            "steps": session.get("steps"),
            "tool calls": session.get("tool_calls"),
            "tokens": f"{usage['input_tokens']} in, {usage['output_tokens']} out" if usage else None,
            "turns": session.get("turns"),
            "messages": session.get("messages"),
            "revision": session.get("revision"),
            "forked from": f"{origin['session_id']} at step {origin['step']}" if origin else None,
            "last error": f"{error['code']}: {error['message']}" if error else None,
            "updated": moment(session.get("updated_at")),
            "answer": session.get("text"),
        }
    )


def agents_text(standing: Mapping[str, Any]) -> str:
    """The sub-agents at work in a session or a save: how far each is, and what it waits for."""
    return "; ".join(map(_agent, standing.get("agents") or []))


def _agent(agent: Mapping[str, Any]) -> str:
    waits = ", ".join(call["tool"] for call in agent["open_calls"])
    return f"{path_text(agent['path'])} at step {agent['step']}" + (f", in {waits}" if waits else "")


def path_text(path: Sequence[str]) -> str:
    return " > ".join(path)


def history_text(page: Mapping[str, Any]) -> str:
    headers = ["revision", "step", "status", "finish reason", "messages", "saved at"]
    names = ("revision", "step", "status", "finish_reason", "messages")
    entries = page["entries"]
    rows = [[*(entry[name] for name in names), moment(entry["saved_at"])] for entry in entries]
    if any(entry.get("agents") for entry in entries):
        headers.append("agents")
        rows = [[*row, agents_text(entry)] for row, entry in zip(rows, entries, strict=True)]
    return table(headers, rows) + _more(page)


def save_text(entry: Mapping[str, Any]) -> str:
    """One save: what is known of it, its conversation, and those of the sub-agents that were at work."""
    about = {name: value for name, value in entry.items() if name not in ("checkpoint", "agents")}
    checkpoint = entry["checkpoint"]
    parts = [fields(about), messages_text(checkpoint["messages"]), *_below(checkpoint, (checkpoint["agent"],))]
    return "\n\n".join(parts)


def _below(checkpoint: Mapping[str, Any], above: Sequence[str]) -> Iterator[str]:
    for child in checkpoint.get("suspended", {}).values():
        path = (*above, child["agent"])
        yield f"{path_text(path)}, step {child['step']}:\n{messages_text((*child['messages'], *child['queued']))}"
        yield from _below(child, path)


def approvals_text(page: Mapping[str, Any]) -> str:
    headers = ("approval", "status", "session", "agent", "tool", "arguments", "asked at", "deadline")
    rows = (
        [
            entry["id"],
            " ".join(filter(None, (entry["status"], _count(entry)))),
            entry["session_id"],
            _asking(entry),
            *(entry[name] for name in ("tool", "arguments")),
            *(moment(entry[name]) for name in ("requested_at", "deadline")),
        ]
        for entry in page["approvals"]
    )
    shown = table(headers, rows)
    return shown + _more(page)


def _asking(approval: Mapping[str, Any]) -> str:
    """The agents from the run's own to the one that asks."""
    return path_text(approval.get("path") or [approval["agent"]])


def approval_text(approval: Mapping[str, Any]) -> str:
    decision = approval.get("decision") or {}
    trail = [
        f"{moment(event['at'])}  {clean(event.get('text', event['event']))}" for event in approval.get("trail", [])
    ]
    about = fields(
        {
            "approval": approval["id"],
            "status": approval["status"],
            "session": approval["session_id"],
            "agent": _asking(approval),
            "tool": approval["tool"],
            "arguments": approval["arguments"],
            "edited to": approval.get("edited") or decision.get("args"),
            "digest": approval.get("digest") if approval.get("edited") else None,
            "asked by": approval.get("requested_by"),
            "deadline": moment(approval.get("deadline")),
            "approvals": _votes(approval),
            "approvers": ", ".join(approval.get("approvers") or []),
            "level": _level(approval),
            "decided by": ", ".join(decision.get("voters") or []) or decision.get("by"),
            "answer": decision.get("answer"),
            "via": decision.get("via"),
            "note": decision.get("note"),
            "applied": "yes" if approval.get("applied") else "not yet",
        }
    )
    return "\n".join([about, *(f"  {line}" for line in trail)])


def _count(approval: Mapping[str, Any]) -> str | None:
    """How many have approved, of how many that need to, where one is not enough."""
    needed = approval.get("approvals", 1)
    return f"{len(approval['votes'])} of {needed}" if needed > 1 else None


def _votes(approval: Mapping[str, Any]) -> str | None:
    counted, names = (
        _count(approval),
        ", ".join(vote["by"] or "somebody unknown" for vote in approval.get("votes") or []),
    )
    return f"{counted}: {names}" if counted and names else counted


def _level(approval: Mapping[str, Any]) -> str | None:
    """Where an escalation has come to, and who is told next."""
    levels, at = approval.get("levels") or [], approval.get("level") or 0
    if not levels:
        return None
    left = "; then ".join(", ".join(level["to"]) for level in levels[at:])
    return f"{at} of {len(levels)}" + (f", next: {left}" if left else "")


def messages_text(messages: Iterable[Mapping[str, Any]]) -> str:
    """A conversation, with the ids that a fork's `--tool-result` takes."""
    return "\n".join(line for message in messages for line in _message(message))


def _message(message: Mapping[str, Any]) -> Iterator[str]:
    role, content = message["role"], message.get("content")
    if role == "tool":
        sign = "failed:" if message.get("is_error") else "->"
        yield f"{role:9}  {message['tool_call_id']} {sign} {_inline(content)}"
        return
    if content not in (None, ""):
        yield f"{role:9}  {_inline(content)}"
    for call in message.get("tool_calls") or []:
        yield f"{role:9}  {call['id']} {call['name']}({call['arguments']})"


def _more(page: Mapping[str, Any]) -> str:
    return f"\nmore: --cursor {page['cursor']}" if page.get("cursor") else ""


def _cell(value: Any) -> str:
    text = "-" if value in (None, "") else " ".join(_inline(value).split())
    text = clean(text)
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"


def _inline(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
