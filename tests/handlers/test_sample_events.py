"""infra/events/: what to give to `sam remote invoke`, one file a case, named after the function that takes it."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.handlers.conftest import Deployment
from tests.support.events import Context

EVENTS = sorted((Path(__file__).parents[2] / "infra" / "events").glob("*.json"))
GIVES: dict[str, Any] = {
    "approvals-decide": {"code": "APPROVAL_NOT_FOUND"},
    "recover": {"started": 0},
    "runs-start": {"text": "Hello."},
    "sessions-message": {"code": "SESSION_NOT_FOUND"},
    "sessions-show": {"code": "SESSION_NOT_FOUND"},
    "steps-run-slice": {"outcome": "superseded"},
}


@pytest.mark.parametrize("file", EVENTS, ids=lambda file: file.stem)
def test_a_sample_event_is_understood(file: Path, cloud: Deployment) -> None:
    """The function takes the event as it stands, and answers what it says of things that are not there."""
    handler = importlib.import_module(f"handlers.{file.stem.partition('-')[0]}").handler
    event = json.loads(file.read_text())
    if file.stem == "steps-ask-human":
        with pytest.raises(Exception, match="There is no approval"):
            handler(event, Context())
        return
    answer = handler(event, Context())
    said = json.loads(answer["body"]) if "body" in answer else answer
    assert GIVES[file.stem].items() <= said.items()
