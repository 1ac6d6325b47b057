"""Changes of a resource's configs: noted for the audit log with their keys, unless they are only validated."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from tests.unit.broker.admin_broker import AdminBroker, context_of
from tidelog.broker.config.resource_type import ResourceType
from tidelog.broker.handlers.config_change import begin_change
from tidelog.broker.security.changes import Notes
from tidelog.broker.security.late_lines import LateLines
from tidelog.protocol.errors import PolicyViolationError
from tidelog.protocol.messages.alter_configs import AlterableConfig, AlterConfigsResource

CONFIGS = [AlterableConfig(name="retention.ms", value="5"), AlterableConfig(name="flush.ms", value="secret")]
TOPIC = AlterConfigsResource(resource_type=ResourceType.TOPIC, resource_name="t", configs=CONFIGS)


def lines(caplog: pytest.LogCaptureFixture, notes: Notes) -> list[dict[str, object]]:
    """Write the delayed lines, and return the audit log."""
    caplog.set_level(logging.INFO, "tidelog.audit")
    assert not [waiting for waiting in notes.write() if waiting is not None]
    return [json.loads(record.getMessage()) for record in caplog.records if record.name == "tidelog.audit"]


def test_a_change_is_done_and_noted_with_its_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    admin, notes, done = AdminBroker(tmp_path), Notes(LateLines(lambda turn: None, lambda: 0.0)), list[str]()
    change = begin_change(admin.broker, context_of(1), TOPIC, lambda: done.append("t"), notes)
    assert (change.done, done) == (True, ["t"])
    (line,) = lines(caplog, notes)
    assert (line["event"], line["name"], line["keys"]) == ("config changed", "t", ["flush.ms", "retention.ms"])


def test_a_validated_change_has_no_audit_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    admin, done = AdminBroker(tmp_path), list[str]()
    assert begin_change(admin.broker, context_of(1), TOPIC, lambda: done.append("t"), None).done
    assert done == ["t"]
    assert lines(caplog, Notes(LateLines(lambda turn: None, lambda: 0.0))) == []


def test_a_refused_change_has_no_audit_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def refuse() -> None:
        raise PolicyViolationError

    admin, notes = AdminBroker(tmp_path), Notes(LateLines(lambda turn: None, lambda: 0.0))
    with pytest.raises(PolicyViolationError):
        begin_change(admin.broker, context_of(1), TOPIC, refuse, notes)
    assert lines(caplog, notes) == []
