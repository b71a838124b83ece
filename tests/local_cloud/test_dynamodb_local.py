"""DynamoDB Local starts where it can, and where it cannot the reason is told: a note to users, an error in CI."""

from __future__ import annotations

import os

import pytest

from infra.local import dynamodb_local
from infra.local.dynamodb_local import DynamoDBLocal


@pytest.mark.dynamodb_local
def test_it_answers() -> None:
    """A fresh one has no tables."""
    reason = dynamodb_local.unavailable()
    if reason is not None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"DynamoDB Local: {reason}")
    with DynamoDBLocal() as dynamodb:
        assert dynamodb.client().list_tables()["TableNames"] == []


@pytest.mark.parametrize(("ci", "status", "word"), [("", 0, "Note"), ("true", 1, "Error")])
def test_a_machine_without_java_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ci: str, status: int, word: str
) -> None:
    """Without Java the installation says which tests cannot run, and fails in CI alone."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", ci)
    assert dynamodb_local.main() == status
    said = capsys.readouterr().err
    assert said.startswith(word)
    assert "the tests against DynamoDB Local cannot run: Java 17 is not installed" in said
