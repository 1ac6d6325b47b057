from __future__ import annotations

import logging
import sys

import pytest

from tidelog.broker.security.log_lines import LineFormatter
from tidelog.commands.running.serve_process import configure_logging


def test_a_text_of_a_client_forges_no_line() -> None:
    forged = 'g\n2026-01-01 00:00:00 INFO    tidelog.audit: {"event": "login"}\r\x1b[2K\u2028'
    record = logging.LogRecord("tidelog", logging.INFO, "", 0, "group %s is empty", (forged,), None)
    line = LineFormatter().format(record)
    assert line.isprintable()
    assert line.endswith(r'INFO    tidelog: group g\n2026-01-01 00:00:00 INFO    tidelog.audit: {"event": "login"}\r\x1b[2K\u2028 is empty')  # fmt: skip # noqa: E501


def test_a_traceback_keeps_its_lines() -> None:
    try:
        raise ValueError("a\nb")
    except ValueError:
        record = logging.LogRecord("tidelog", logging.ERROR, "", 0, "it failed", (), sys.exc_info())
    assert LineFormatter().format(record).splitlines()[-2:] == ["ValueError: a", "b"]


def test_the_log_of_a_broker_has_such_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.RootLogger(logging.WARNING)
    monkeypatch.setattr(logging, "root", root)
    configure_logging("info")
    (handler,) = root.handlers
    assert isinstance(handler.formatter, LineFormatter)
    assert root.level == logging.INFO
