"""``tidelog serve`` with a Kafka directory or keys that it cannot serve: one line, exit code 1, nothing written."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka_directories import KafkaDirectory
from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.server import Server
from tidelog.protocol.config_def import ConfigError
from tidelog.protocol.metadata_records.records import (
    AccessControlEntryRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)

TOPIC_ID = b"t" * 16
REMOTE = ConfigRecord(resource_type=2, resource_name="t", name="remote.storage.enable", value="true")
ELSEWHERE = PartitionRecord(partition_id=0, topic_id=TOPIC_ID, replicas=[1, 2], leader=1, leader_epoch=4)
ACL = AccessControlEntryRecord(id=TOPIC_ID, principal="User:ann")
LEVEL = FeatureLevelRecord(name="metadata.version", feature_level=25)
TOPIC = TopicRecord(name="t", topic_id=TOPIC_ID)
CASES: dict[str, tuple[list[Any], list[int], str]] = {
    "other voters": ([], [1, 2, 3], "other nodes (2, 3)"),
    "another broker": ([RegisterBrokerRecord(broker_id=5)], [1], "other nodes (5)"),
    "replicas elsewhere": ([TOPIC, ELSEWHERE], [1], "other nodes (2)"),
    "remote storage": ([LEVEL, TOPIC, REMOTE], [1], "remote storage"),
    "ACLs": ([LEVEL, ACL], [1], "authorizer.class.name"),
    "a newer Kafka": ([FeatureLevelRecord(name="metadata.version", feature_level=99)], [1], "level 99"),
    "an older Kafka": ([FeatureLevelRecord(name="metadata.version", feature_level=6)], [1], "level 6"),
    "a much older Kafka": ([TOPIC], [1], "no metadata.version"),
    "a feature of tomorrow": ([LEVEL, FeatureLevelRecord(name="group.version", feature_level=2)], [1], "level 2"),
}


@pytest.mark.parametrize("name", CASES)
def test_an_error_of_one_line_says_what_cannot_be_served(tmp_path: Path, name: str) -> None:
    records, voters, text = CASES[name]
    source = KafkaDirectory.__new__(KafkaDirectory)
    source.path = tmp_path / "data"
    source.path.mkdir()
    source.add_metadata([(record, 0) for record in records])
    state = {"leaderId": -1, "leaderEpoch": 1, "votedId": -1, "currentVoters": [{"voterId": one} for one in voters]}
    (source.path / "__cluster_metadata-0" / "quorum-state").write_text(json.dumps(state))
    before = contents(source.path)
    command = [sys.executable, "-m", "tidelog.cli", "serve", "--data-dir", str(source.path), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert text in line
    assert contents(source.path) == before


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


PEM = {"ssl.keystore.type": "PEM", "ssl.keystore.location": "/nonexistent.pem"}
SECURITY: dict[str, tuple[dict[str, str], str]] = {
    "no keystore": ({"listeners": "SSL://127.0.0.1:0"}, "ssl.keystore.location"),
    "a keystore that is not there": ({"listeners": "SASL_SSL://127.0.0.1:0", **PEM}, "/nonexistent.pem"),
    "no mechanism": ({"listeners": "SASL_PLAINTEXT://127.0.0.1:0"}, "GSSAPI"),
    "an unknown mechanism": (
        {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms": "DIGEST-MD5"}, "DIGEST-MD5"
    ),
    "PLAIN without users": (
        {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms": "PLAIN"}, "sasl.jaas.config"
    ),
    "an admin interface with passwords in clear": ({"admin.listener": "0.0.0.0:0"}, "admin.listener"),
    "an admin keystore that is not there": ({"admin.ssl.keystore.location": "/nonexistent.pem"}, "/nonexistent.pem"),
}  # fmt: skip


@pytest.mark.parametrize("name", SECURITY)
def test_wrong_security_settings_leave_no_directory(tmp_path: Path, name: str) -> None:
    texts, said = SECURITY[name]
    config = BrokerConfig({"log.dirs": str(tmp_path / "new" / "data"), "listeners": "PLAINTEXT://127.0.0.1:0", **texts})
    with pytest.raises(ConfigError, match=re.escape(said)):
        asyncio.run(Server(config).start())
    assert list(tmp_path.iterdir()) == []
