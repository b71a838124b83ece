"""Compatibility with stored data: what an older version has stored is loaded and resumed.

* Checkpoints written before `status` existed are treated as `in-progress`.
* Checkpoints written before the fingerprint existed resume exactly as before, with no warning.
* Approvals that do not name the calls behind the paused one resume as they used to: those calls do not run. Each of
  them gets an error result saying it was not run, so the transcript stays valid.

Golden files are made by the version whose format they have, with `python -m tests.support.golden`, and are never
changed: data like theirs is in somebody's table. A new format gets a new folder beside the old ones, a step in
`durable.records.upgrade`, and a line for each of its files below. Those of format 0, which has no number, are made by
hand.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from durable import Approval, Checkpoint, FinishReason, RecordFormatError, Status, render_approval
from durable.approval_stream import ApprovalEvent, Expired
from durable.nesting import agents_at_work, subagents_of
from durable.records import FORMAT, upgrade
from durable.transcript import first_fault
from stores.memory import memory_store
from tests.support.golden import FOLDER, SESSIONS, agent_of, read, write
from tests.support.runs import Clock, numbered, run
from tests.support.sessions import results, stored, to_the_end

GOLDEN = {
    "sessions-v0/in-progress.json": "e0dcbdfee71387558c942e1ceddb48c294249442a6f76c4cc75da2a2493ebbf5",
    "sessions-v0/awaiting-approval.json": "002c8ec913f23bf5bf78bbf49c31807e3e7c7f2451904a5ee3ca3c60e3c10573",
    "sessions-v1/finished.json": "6a2b63492b3d2ea0a8ec56088b1ccf98b16b7e7ebe429aa1ef2017823bd2ae36",
    "sessions-v1/in-progress.json": "054d39fed59fd7eb5ab017a1f836cd1dc301f69484de04712075b4e95cfd7008",
    "sessions-v1/awaiting-approval.json": "dd54bacf5f5c4544193889825ff4344c8002f66f9ed510b913bc490122c60993",
    "sessions-v1/awaiting-approval-below.json": "85edebc6690f6865f6993d1dfa0cfb9963b466e00d138bac94348d100ff8eeec",
}
"""Each golden file with its SHA-256."""

SEEN_A = {"seen": "A", "parts": [1, 2.5, None, False, ""]}
SEEN_B = {**SEEN_A, "seen": "B"}
FIRST_TURN = [{**SEEN_A, "seen": "É"}, "execution"]

ENDS: dict[str, tuple[list[Any], str]] = {
    "sessions-v0/in-progress.json": ([{"seen": "A"}, "mail to ada"], "One."),
    "sessions-v0/awaiting-approval.json": (
        [{"seen": "A"}, {"paid": 5, "by": "ada"}, "not-run", "not-run"],
        "One.",
    ),
    "sessions-v1/finished.json": (FIRST_TURN, "One."),
    "sessions-v1/in-progress.json": (
        [
            *FIRST_TURN,
            SEEN_A,
            "unknown-outcome",
            {"paid": 5, "by": "ada"},
            {"seen": "earlier"},
            {"paid": 7, "by": "ada"},
        ],
        "Two.",
    ),
    "sessions-v1/awaiting-approval.json": (
        [*FIRST_TURN, SEEN_A, "mail to ada", {"paid": 4, "by": "ada"}, SEEN_B, {"paid": 7, "by": "ada"}],
        "Two.",
    ),
    "sessions-v1/awaiting-approval-below.json": (["It is done."], "Done."),
}
"""The results and the answer that each session comes to."""


def agent(store: Any) -> Any:
    return agent_of(store, numbered("today"))


# --- golden files ----------------------------------------------------------------------------------------------------


def test_every_golden_file_is_known_and_unchanged() -> None:
    """A golden file is made once: none is missing, none is new without an entry here, none was changed."""
    found = {
        path.relative_to(FOLDER).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in FOLDER.glob("sessions-v*/*.json")
    }
    assert found == GOLDEN
    assert {f"sessions-v{FORMAT}/{name}.json" for name in SESSIONS} <= set(GOLDEN)


@pytest.mark.parametrize("name", GOLDEN)
def test_a_golden_session_is_loaded_and_resumed(name: str) -> None:
    """Today's code loads it, and takes it to its end: nothing is lost, nothing recorded runs again, nothing drifts."""
    store = read(FOLDER / name)
    before = stored(store)
    expected, answer = ENDS[name]
    result = to_the_end(agent(store))
    assert (results(result.messages), result.text) == (expected, answer)
    assert result.messages[: len(before.messages)] == before.messages
    assert first_fault(result.messages) is None
    assert stored(store).status is Status.FINISHED
    assert stored(store).v == FORMAT


@pytest.mark.parametrize("name", GOLDEN)
def test_a_golden_session_takes_its_next_turn(name: str) -> None:
    """The conversation goes on after it, and what it is saved as is loaded again."""
    store = read(FOLDER / name)
    to_the_end(agent(store))
    before = stored(store)
    result = run(agent(store).send("and now?", session_id="s", context="acme"))
    assert result.messages[: len(before.messages)] == before.messages
    assert result.finish_reason in (FinishReason.STOP, FinishReason.AWAITING_APPROVAL)
    assert stored(store) == result.checkpoint


def test_a_golden_sub_agent_goes_on_where_it_was() -> None:
    """The state of a sub-agent of a sub-agent is loaded with all it had, and only what was left to do is done."""
    store = read(FOLDER / "sessions-v1/awaiting-approval-below.json")
    [office, clerk] = agents_at_work(stored(store))
    assert (office.path, clerk.path) == (("desk", "office"), ("desk", "office", "clerk"))
    assert (office.checkpoint.step, clerk.checkpoint.step) == (1, 2)
    to_the_end(agent(store))
    known = {child.agent: child for child in subagents_of(store.checkpoints.history("s")).values() if child is not None}
    paid = [SEEN_A, "mail to ada", {"paid": 4, "by": "ada"}, SEEN_B, {"paid": 7, "by": "ada"}]
    assert results(known["clerk"].messages) == [*FIRST_TURN, *paid]
    assert results(known["office"].messages) == [{**SEEN_A, "seen": "C"}, "All paid."]


def test_the_golden_sessions_are_in_the_states_that_they_are_named_after() -> None:
    """Each golden file of today's format covers what it is there for."""
    sessions = {name: stored(read(FOLDER / f"sessions-v{FORMAT}/{name}.json")) for name in SESSIONS}
    assert sessions["finished"].requests["key-1"].finish_reason is FinishReason.STOP
    midway = sessions["in-progress"]
    assert (midway.status, midway.started, list(midway.results)) == (Status.IN_PROGRESS, ("toolu_3",), ["call_id4"])
    assert [message.content for message in midway.queued] == ["quickly"]
    paused = sessions["awaiting-approval"]
    assert (paused.status, paused.pauses, list(paused.decisions)) == (Status.AWAITING_APPROVAL, 2, ["toolu_4"])


def test_the_golden_files_can_be_made_again(tmp_path: Path) -> None:
    """The same sessions made by today's code are the same checkpoints; a file that is there is not overwritten.

    But for what their store calls took and when the run began, which the older files do not know.
    """
    for name in SESSIONS:
        write(name, tmp_path / f"{name}.json")
        again, golden = (stored(read(folder / f"{name}.json")) for folder in (tmp_path, FOLDER / f"sessions-v{FORMAT}"))
        assert again.but(consumed=None, began_at=None) == golden.but(
            revision=again.revision, consumed=None, began_at=None
        )
    with pytest.raises(FileExistsError):
        write("finished", tmp_path / "finished.json")


# --- upgrade ---------------------------------------------------------------------------------------------------------


def plain(name: str) -> dict[str, Any]:
    """The checkpoint of a golden session as JSON, as a store of three methods may keep it."""
    return json.loads(stored(read(FOLDER / name)).model_dump_json())


def without(record: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in names}


def test_todays_format_stays_as_it_is() -> None:
    """A checkpoint of today's format is the same after `upgrade`, which changes nothing in place."""
    for name in SESSIONS:
        record = plain(f"sessions-v{FORMAT}/{name}.json")
        copy = json.loads(json.dumps(record))
        assert upgrade(record) == record == copy


def test_without_status_and_fingerprint() -> None:
    """A checkpoint without `v`, `status` and `fingerprint` is in progress and not compared."""
    record = without(plain("sessions-v1/in-progress.json"), "v", "status", "fingerprint")
    checkpoint = Checkpoint.model_validate(upgrade(record))
    assert (checkpoint.v, checkpoint.status, checkpoint.fingerprint) == (FORMAT, Status.IN_PROGRESS, None)
    store: Any = memory_store(clock=Clock())
    store.checkpoints.save(checkpoint, after=None)
    assert to_the_end(agent(store)).text == "Two."


@pytest.mark.parametrize(
    ("remaining", "closed"),
    [
        (None, ["toolu_3", "toolu_4"]),
        ([], ["toolu_3", "toolu_4"]),
        (["toolu_4"], ["toolu_3"]),
        (["toolu_3", "toolu_4"], []),
    ],
)
def test_calls_behind_an_old_pause(remaining: list[str] | None, closed: list[str]) -> None:
    """A pause of format 0 runs the calls that it names after the decision, and closes the others as `not-run`."""
    [entry] = json.loads((FOLDER / "sessions-v0/awaiting-approval.json").read_text())["session/s"]
    record = json.loads(entry["body"])["checkpoint"]
    if remaining is not None:
        record["remaining_calls"] = remaining
    checkpoint = Checkpoint.model_validate({**upgrade(record), "updated_at": entry["written_at"]})
    assert list(checkpoint.results) == closed
    for result in checkpoint.results.values():
        content: Any = result.content
        assert (result.is_error, content["kind"], content["error"]) == (True, "not-run", True)


@pytest.mark.parametrize("version", [FORMAT + 1, 99, "1", None, 1.5, [1]])
def test_a_newer_format_is_refused(version: Any) -> None:
    """What this version cannot know it does not touch: the error names the session and the format."""
    with pytest.raises(RecordFormatError, match=r"'s'.*format") as refused:
        upgrade({**plain("sessions-v1/finished.json"), "v": version})
    assert "newer version" in refused.value.hint


def test_a_store_refuses_a_newer_format() -> None:
    """A session whose newest base a newer version has written is not loaded, and not resumed."""
    store = read(FOLDER / "sessions-v1/finished.json")
    newer: Any = memory_store(clock=Clock())
    for entry in store.log.read("session/s"):
        body = entry.body.replace(b'"v":1,"checkpoint"', b'"v":2,"checkpoint"')
        newer.log.append("session/s", type(entry)(entry.revision, entry.kind, 0, entry.save_id, entry.written_at, body))
    with pytest.raises(RecordFormatError, match="format 2"):
        run(agent(newer).send("more", session_id="s"))


def test_a_golden_approval_says_what_it_said() -> None:
    """The events of an approval that was edited, escalated and voted on are loaded and counted as they were."""
    golden = json.loads((FOLDER / "approval-events-v1.json").read_text())
    events = TypeAdapter(list[ApprovalEvent]).validate_python(golden["events"])
    approval = Approval(id="apr_1", revision=len(events) - 1, events=tuple(events))
    assert len(render_approval(approval).splitlines()) == 9
    assert approval.decision is not None
    assert approval.decision.model_dump(mode="json", exclude_defaults=True) == golden["decision"]
    assert (approval.applied, approval.task_token) == (True, "task-2")
    assert approval.callback_approver("5c" * 32) == (True, "dan")
    still_open = approval.but(events=approval.events[:-2])
    assert (still_open.status, still_open.ballot.missing, still_open.level) == ("pending", 1, 1)


def test_a_golden_question_says_what_it_said() -> None:
    """The events of a question that was escalated and answered are loaded as they were; unanswered it has a default."""
    golden = json.loads((FOLDER / "question-events-v1.json").read_text())
    events = tuple(TypeAdapter(list[ApprovalEvent]).validate_python(golden["events"]))
    answered = Approval(id="apr_1", revision=len(events) - 1, events=events)
    assert answered.decision is not None
    assert answered.decision.model_dump(mode="json", exclude_defaults=True) == golden["decision"]
    assert len(render_approval(answered).splitlines()) == len(events)
    still_open = answered.but(events=events[:-2])
    assert (still_open.status, still_open.level, still_open.channels) == ("pending", 1, ("leads", "pager"))
    assert still_open.deadline is not None
    expired = still_open.but(events=(*still_open.events, Expired(at=still_open.deadline)))
    assert expired.decision is not None
    assert expired.decision.model_dump(mode="json", exclude_defaults=True) == golden["default"]
