"""The borders: settings, ids in URLs, principals, tokens, and the status of every error."""

import inspect
import re
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable import ConfigurationError, DurableError, InvalidSessionIdError, errors
from durable.agent import Agent
from durable.records import check_session_id
from handlers import _responses, _wiring
from handlers._deadline import RESERVE, bounds, end_of, seconds_left
from handlers._ids import (
    approval_of_token,
    new_callback_token,
    path_segment,
    principal,
    session_id_of,
    token_hash,
)
from handlers._settings import Settings, read
from tests.handlers.conftest import Deployment
from tests.support.events import Context
from tests.support.runs import START, memory_store

# --- settings --------------------------------------------------------------------------------------------------------


def test_settings_come_from_their_variables() -> None:
    """Each field is the variable of its name in capitals; an empty variable is one that is not set."""
    made = read({"TABLE_NAME": "t", "TTL_DAYS": "7", "MIN_MODEL_SECONDS": "2.5", "MODEL": "", "PATH": "/bin"})
    assert (made.table_name, made.ttl, made.min_model_seconds) == ("t", timedelta(days=7), 2.5)
    assert (made.model, made.log_level, made.agent_module) == ("", "INFO", "agent")
    assert read({"TABLE_NAME": "t", "TTL_DAYS": "0"}).ttl is None


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({}, "TABLE_NAME"),
        ({"TABLE_NAME": "t", "TTL_DAYS": "many"}, "TTL_DAYS"),
        ({"TABLE_NAME": "t", "TTL_DAYS": "-1"}, "TTL_DAYS"),
        ({"TABLE_NAME": "t", "MIN_MODEL_SECONDS": "0"}, "MIN_MODEL_SECONDS"),
    ],
)
def test_a_setting_that_is_missing_or_wrong_is_named(environment: dict[str, str], named: str) -> None:
    """The error names the variable, and shows no value."""
    with pytest.raises(ConfigurationError, match=named):
        read(environment)


def test_the_key_is_not_shown() -> None:
    """The API key appears in no repr."""
    made = read({"TABLE_NAME": "t", "OPENAI_API_KEY": "open-sesame"})
    assert "open-sesame" not in repr(made)


# --- the composition root --------------------------------------------------------------------------------------------


def test_the_application_is_made_once(cloud: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is made from the settings, with the first invocation and not again; clients with their first use."""
    made: list[Any] = []
    store = cloud.store
    monkeypatch.setattr(_wiring, "dynamodb_store", lambda **given: made.append(given) or store)
    monkeypatch.setenv("TABLE_PREFIX", "blue/")
    cloud.cold_start()
    assert _wiring.app() is _wiring.app()
    expected = {"table": "sessions", "client": None, "prefix": "blue/", "ttl": timedelta(days=30)}
    assert made == [{**expected, "list_finished": True}]


def test_the_agents_own_model_wins(cloud: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deployment's model is used where the agent names none."""
    monkeypatch.setenv("MODEL", "scripted:tests.handlers.test_borders:ANSWERS")
    cloud.cold_start()
    assert _wiring.app().agent.provider is cloud.models[-1]
    monkeypatch.setattr(type(cloud), "agent", property(lambda self: Agent()))
    cloud.cold_start()
    assert _wiring.app().agent.provider is not None
    assert _wiring.app().agent.store is cloud.store


ANSWERS = ["Hello."]


def test_a_module_without_an_agent_is_named(cloud: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deployment whose module defines no agent says which module it looked at."""
    monkeypatch.setitem(_wiring.importlib.sys.modules, "empty_module", SimpleNamespace())
    monkeypatch.setenv("AGENT_MODULE", "empty_module")
    cloud.cold_start()
    with pytest.raises(ConfigurationError, match="empty_module"):
        _wiring.app()


def test_an_agent_with_a_store_of_its_own_is_refused(cloud: Deployment) -> None:
    """The runs of a deployment are kept in its table: an agent that expects them elsewhere is refused at once."""
    own = replace(cloud.agent, store=memory_store())
    with patch.object(type(cloud), "agent", own), pytest.raises(ConfigurationError, match="leave `store` out"):
        _wiring.app()


def test_a_store_for_a_single_writer_is_refused(cloud: Deployment) -> None:
    """A deployment has many writers: a store that cannot tell them apart is refused at once, by its name."""

    class LastOneWins:
        single_writer = True

    cloud.store = SimpleNamespace(checkpoints=LastOneWins())
    with pytest.raises(ConfigurationError, match="LastOneWins says `single_writer`"):
        _wiring.app()


# --- ids -------------------------------------------------------------------------------------------------------------


@given(st.text(min_size=1, max_size=256))
def test_every_session_id_has_a_segment_of_its_own(session_id: str) -> None:
    """A session id becomes a URL segment of unreserved characters and back; ids that look alike stay apart."""
    try:
        check_session_id(session_id)
    except InvalidSessionIdError:
        return
    segment = path_segment(session_id)
    assert session_id_of(segment) == session_id
    assert re.fullmatch(r"[A-Za-z0-9_~-]+", segment)
    assert segment.isascii()


@given(st.text(max_size=40) | st.text(max_size=40).map("~{}".format))
def test_any_segment_is_read_or_refused(segment: str) -> None:
    """Whatever stands in the URL is a session id or `InvalidSessionIdError`."""
    try:
        check_session_id(session_id_of(segment))
    except InvalidSessionIdError:
        return


@pytest.mark.parametrize(
    ("arn", "expected"),
    [
        ("arn:aws:sts::123456789012:assumed-role/desk/ada", "arn:aws:iam::123456789012:role/desk"),
        ("arn:aws-cn:sts::123456789012:assumed-role/desk/a/b", "arn:aws-cn:iam::123456789012:role/desk"),
        ("arn:aws:iam::123456789012:user/team/ada", "arn:aws:iam::123456789012:user/team/ada"),
        ("", None),
        (None, None),
    ],
)
def test_a_principal_is_a_user_or_a_role(arn: str | None, expected: str | None) -> None:
    """The name of a session, which its holder may choose freely, is no part of the principal."""
    assert principal(arn) == expected


def test_a_callback_token_is_a_secret_that_fits_a_url() -> None:
    """Each token is new, names its approval, has 256 random bits, and is stored as a hash that does not contain it."""
    tokens = {new_callback_token("apr_1") for _ in range(100)}
    assert len(tokens) == 100
    for token in tokens:
        assert approval_of_token(token) == "apr_1"
        secret = token.partition(".")[2]
        assert len(secret) >= 43
        assert secret.replace("-", "").replace("_", "").isalnum()
        assert secret not in token_hash(token)
    assert len({token_hash(token) for token in tokens}) == 100


# --- time ------------------------------------------------------------------------------------------------------------


def test_a_run_stops_before_its_invocation_ends() -> None:
    """Some seconds are kept for saving and answering; a lease ends with the invocation."""
    context = Context(seconds=29)
    assert seconds_left(context) == 29
    assert end_of(context, START) == START + timedelta(seconds=29)
    limits = bounds(context, min_model_seconds=15)
    assert 29 - RESERVE - 1 < limits.remaining() <= 29 - RESERVE
    assert limits.min_model_seconds == 15


# --- errors ----------------------------------------------------------------------------------------------------------

ALL_ERRORS = [
    error
    for module in (errors, _responses)
    for _, error in inspect.getmembers(module, inspect.isclass)
    if issubclass(error, DurableError) and error.__module__ == module.__name__
]
OURS = {"DurableError", "ConfigurationError", "InternalError", "StoreError", "StoreRejectedError", "RecordFormatError"}
"""What is a fault of the service: 500."""
BASES = {"SessionError", "ApprovalError", "ToolError"}
"""Never answered as they are, or raised by the agent's own tools."""


@pytest.mark.parametrize("error", ALL_ERRORS, ids=lambda error: error.__name__)
def test_every_error_has_a_status_a_code_and_a_hint(error: type[DurableError]) -> None:
    """Each error of this package is mapped; only faults of the service are 500, and what may be retried says when."""
    made = error.__new__(error)
    made.__dict__.update(approval_id="apr_1", steps=(), revisions=(), options=None)
    status = _responses.status_of(made)
    assert (status == 500) is (error.__name__ in OURS | BASES)
    assert error.code == error.code.upper()
    assert error.code.replace("_", "").isalpha()
    assert error.hint.endswith(".")
    assert status in range(400, 600)
    problem = _responses.problem(made)
    assert problem.headers["Content-Type"] == "application/problem+json"
    assert ("Retry-After" in problem.headers) is error.retryable


def test_codes_are_unique() -> None:
    """A code names one error; an error without a code of its own shares its base's."""
    own = [error.code for error in ALL_ERRORS if "code" in vars(error)]
    assert len(set(own)) == len(own)
    assert set(Settings.model_fields) >= {"table_name"}
