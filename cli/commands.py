"""What the commands do: each asks the API, and gives an exit code, JSON for programs and text for people."""

import json
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cli.api import Answer, Api, CommandError, segment
from cli.codes import Code
from cli.text import approval_text, approvals_text, fields, history_text, messages_text, save_text, session_text

STOPPED = ("aborted", "parked")
"""Reasons of an unfinished run that nothing carries on by itself."""

POLL = 1.0
"""Seconds between two looks at a run that is waited for."""


@dataclass(frozen=True)
class Shown:
    """What a command has to say."""

    code: Code
    body: Any
    text: str


Command = Callable[[Api, Namespace], Shown]


def start(api: Api, given: Namespace) -> Shown:
    headers = {"Idempotency-Key": given.key} if given.key else {}
    body = {"input": given.input, **_busy(given)}
    answer = api.post(f"/sessions/{segment(given.session)}/runs", body, headers=headers | _prefer(given))
    return _run(api, answer, given)


def resume(api: Api, given: Namespace) -> Shown:
    path = f"/sessions/{segment(given.session)}/resume"
    return _run(api, api.post(path, _busy(given), headers=_prefer(given)), given)


def abort(api: Api, given: Namespace) -> Shown:
    shown = _run(api, api.post(f"/sessions/{segment(given.session)}/abort"), given)
    return replace(shown, code=Code.OK) if shown.body.get("finish_reason") == "aborted" else shown


def show(api: Api, given: Namespace) -> Shown:
    path = f"/sessions/{segment(given.session)}"
    if given.message is not None:
        message = _whole(api, f"{path}/messages/{given.message}")
        return Shown(Code.OK, message, json.dumps(message, ensure_ascii=False, indent=2))
    session = api.get(path)
    if not given.messages:
        return _standing(session)
    messages, after = list[Any](), None
    while True:
        page = api.get(f"{path}/messages", after=after)
        messages += page["messages"]
        if (after := page["next"]) is None:
            break
    return Shown(_code(session), {**session, "messages": messages}, messages_text(messages))


def _whole(api: Api, path: str) -> Any:
    """A value that the API gives part by part, however large it is."""
    parts = [api.get(path)]
    while (offset := parts[-1]["next"]) is not None:
        parts.append(api.get(path, offset=offset))
    if len({part["sha256"] for part in parts}) > 1:
        raise CommandError(Code.TRY_AGAIN, "The session moved while it was read.")
    return json.loads("".join(part["part"] for part in parts))


def history(api: Api, given: Namespace) -> Shown:
    path = f"/sessions/{segment(given.session)}/history"
    if given.revision is not None:
        entry = api.get(f"{path}/{given.revision}")
        return Shown(Code.OK, entry, save_text(entry))
    page = api.get(path, limit=given.limit, cursor=given.cursor, full=1 if given.full else None)
    return Shown(Code.OK, page, history_text(page))


def fork(api: Api, given: Namespace) -> Shown:
    body: dict[str, Any] = {"patch": _patch(given)}
    body |= {"from_step": given.step} if given.step is not None else {"revision": given.revision}
    if given.id is not None:
        body["session_id"] = given.id
    headers = {"Idempotency-Key": given.key} if given.key else {}
    made = api.post(f"/sessions/{segment(given.session)}/forks", body, headers=headers).body
    if given.resume:
        return _run(api, api.post(f"/sessions/{made['segment']}/resume", _busy(given), headers=_prefer(given)), given)
    names = ("session_id", "status", "step")
    return Shown(Code.OK, made, fields({name.replace("session_id", "session"): made[name] for name in names}))


def compare(api: Api, given: Namespace) -> Shown:
    found = api.get(f"/sessions/{segment(given.a)}/compare/{segment(given.b)}")
    differ = found["diverged_at"] is not None or bool(found["drift"])
    return Shown(Code.DIFFERENT if differ else Code.OK, found, found["text"].rstrip("\n"))


def truncate(api: Api, given: Namespace) -> Shown:
    body = {"message_count": given.messages, **_busy(given)}
    session = api.post(f"/sessions/{segment(given.session)}/truncate", body).body
    return Shown(Code.OK, session, session_text(session))


def delete(api: Api, given: Namespace) -> Shown:
    api.delete(f"/sessions/{segment(given.session)}")
    return Shown(Code.OK, {"session_id": given.session, "deleted": True}, fields({"deleted": given.session}))


def list_approvals(api: Api, given: Namespace) -> Shown:
    page = api.get("/approvals", status=given.status, limit=given.limit, cursor=given.cursor)
    return Shown(Code.OK, page, approvals_text(page))


def show_approval(api: Api, given: Namespace) -> Shown:
    approval = api.get(f"/approvals/{_approval(given)}")
    return Shown(Code.OK, approval, approval_text(approval))


def approve(api: Api, given: Namespace) -> Shown:
    args = _json(given.args, "--args") if given.args is not None else None
    said = {"args": args, "digest": given.digest}
    return _decide(api, given, {"approved": True, **{name: value for name, value in said.items() if value is not None}})


def answer(api: Api, given: Namespace) -> Shown:
    return _decide(api, given, {"answer": given.answer})


def reject(api: Api, given: Namespace) -> Shown:
    return _decide(api, given, {"approved": False})


def _decide(api: Api, given: Namespace, decision: dict[str, Any]) -> Shown:
    if given.note is not None:
        decision["note"] = given.note
    answer = api.post(f"/approvals/{_approval(given)}/decision", decision)
    text = approval_text(answer.body)
    if answer.status == 409:
        return Shown(Code.REFUSED, answer.body, f"It was decided otherwise before.\n{text}")
    return Shown(Code.OK, answer.body, text)


def _run(api: Api, answer: Answer, given: Namespace) -> Shown:
    """The run as it stands; with `--wait`, as soon as it is finished, waits for a human, or was stopped."""
    session, ends = answer.body, time.monotonic() + given.wait
    while _moves(session) and time.monotonic() < ends:
        time.sleep(min(POLL, max(0.0, ends - time.monotonic())))
        session = api.get(f"/sessions/{segment(session['session_id'])}")
    return _standing(session)


def _moves(session: dict[str, Any]) -> bool:
    return session["status"] == "in-progress" and session.get("finish_reason") not in STOPPED


def _standing(session: dict[str, Any]) -> Shown:
    return Shown(_code(session), session, session_text(session))


def _code(session: dict[str, Any]) -> Code:
    return Code.OK if session["status"] == "finished" else Code.UNFINISHED


def _prefer(given: Namespace) -> dict[str, str]:
    return {"Prefer": "respond-async"} if given.respond_async else {}


def _busy(given: Namespace) -> dict[str, str]:
    return {"on_busy": given.on_busy} if given.on_busy else {}


def _approval(given: Namespace) -> str:
    """An approval's id, which cannot be anything else in a URL."""
    if not given.id.replace("_", "").isalnum() or not given.id.isascii():
        raise CommandError(Code.USAGE, f"{given.id!r} is not the id of an approval.", hint="Try: approvals list")
    return given.id


def _patch(given: Namespace) -> dict[str, Any]:
    patch: dict[str, Any] = {}
    if given.messages is not None:
        patch["messages"] = _json(_file(given.messages), "--messages")
    if given.state is not None:
        patch["business_state"] = _json(given.state, "--state")
    if given.tool_result is not None:
        call_id, sign, result = given.tool_result.partition("=")
        if not sign:
            raise CommandError(Code.USAGE, "--tool-result takes CALL_ID=JSON.", hint="Try: runs show --messages")
        patch["tool_result"] = {
            "tool_call_id": call_id,
            "result": _json(result, "--tool-result"),
            "is_error": given.tool_error,
        }
    if given.input is not None:
        patch["append_input"] = given.input
    return patch


def _json(text: str, option: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise CommandError(Code.USAGE, f"{option} is not JSON: {error}", hint="Text needs its own quotes.") from None


def _file(name: str) -> str:
    try:
        return Path(name).read_text("utf-8")
    except (OSError, ValueError) as error:
        raise CommandError(Code.USAGE, f"--messages: {error}") from None
