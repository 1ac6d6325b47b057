"""The audit log: no line is longer than its fields' limits, whatever a client sends."""

from __future__ import annotations

import json
import logging

import pytest

from tidelog.broker.security.audit import MAX_CHARACTERS, MAX_REASON_CHARACTERS, record, record_change


def write(caplog: pytest.LogCaptureFixture, reason: str | None, **fields: object) -> dict[str, object]:
    caplog.set_level(logging.INFO, "tidelog.audit")
    record("login failed", reason, **fields)
    entry: dict[str, object] = json.loads(caplog.records[-1].getMessage())
    return entry


def test_reasons_are_cut_as_names_are(caplog: pytest.LogCaptureFixture) -> None:
    entry = write(caplog, "r" * 100_000, user="u" * 100_000)
    assert entry == {"event": "login failed", "user": "u" * MAX_CHARACTERS, "reason": "r" * MAX_REASON_CHARACTERS}
    assert caplog.records[-1].levelno == logging.WARNING


def test_usual_reasons_are_whole(caplog: pytest.LogCaptureFixture) -> None:
    reason = "Cannot change principals during re-authentication from User.{0}: User.{0}".format("n" * MAX_CHARACTERS)
    assert write(caplog, reason)["reason"] == reason


def test_names_in_lines_of_changes_are_whole(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tidelog.audit")
    record_change("topic created", topic="t" * 249)
    assert json.loads(caplog.records[-1].getMessage()) == {"event": "topic created", "topic": "t" * 249}
