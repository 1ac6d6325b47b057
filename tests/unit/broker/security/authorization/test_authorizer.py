"""The authorizer of a broker: what builds it, what it follows, and what is not imported without it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.unit.broker.data_broker import DataBroker
from tests.unit.broker.security.authorization.test_decision import TOPIC, context_of
from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.config.keys.authorizer import STANDARD_AUTHORIZER
from tidelog.broker.metadata.image_records import VersionedRecord
from tidelog.protocol.acl import AclOperation
from tidelog.protocol.config_def import ConfigError
from tidelog.protocol.metadata_records.records import AccessControlEntryRecord

AUTHORIZER = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:admin; User:other"}


def test_the_configuration_says_who_may_do_everything(tmp_path: Path) -> None:
    data = DataBroker(tmp_path, AUTHORIZER)
    authorizer = data.broker.authorizer
    assert authorizer is not None
    allowed = [
        name
        for name in ("admin", "other", "x")
        if authorizer.authorize(context_of(name), AclOperation.READ, TOPIC, "a")
    ]
    assert allowed == ["admin", "other"]
    data.close()


def test_acls_hold_when_they_are_committed_and_after_a_restart(tmp_path: Path) -> None:
    data = DataBroker(tmp_path, AUTHORIZER)
    record = AccessControlEntryRecord(
        id=b"i" * 16, resource_type=TOPIC, resource_name="a", pattern_type=3, principal="User:x", host="*", operation=3,
        permission_type=3,
    )  # fmt: skip
    data.broker.controller.commit([VersionedRecord(record)])
    for _ in range(2):
        authorizer = data.broker.authorizer
        assert authorizer is not None
        assert authorizer.authorize(context_of(), AclOperation.READ, TOPIC, "a")
        assert not authorizer.authorize(context_of("y"), AclOperation.READ, TOPIC, "a")
        data.close()
        data = DataBroker(tmp_path, AUTHORIZER)
    data.close()


def test_many_acls_are_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.broker.security.authorization.authorizer.MANY_ACLS", 1)
    data = DataBroker(tmp_path, AUTHORIZER)
    for number in range(4):
        record = AccessControlEntryRecord(id=bytes([number]) * 16, resource_type=TOPIC, resource_name=str(number))
        with caplog.at_level(logging.WARNING):
            data.broker.controller.commit([VersionedRecord(record)])
    assert sum("more than 1 ACLs" in record.getMessage() for record in caplog.records) == 1
    data.close()


@pytest.mark.parametrize(
    "texts",
    [
        {"authorizer.class.name": "com.example.MyAuthorizer"},
        {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"},
        {"super.users": "admin"},
    ],
)
def test_another_class_or_a_name_without_a_type_refuses_the_start(tmp_path: Path, texts: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(texts))):
        BrokerConfig({"log.dirs": str(tmp_path), **texts})
