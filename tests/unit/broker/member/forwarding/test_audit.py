"""Audit lines of forwarded changes: a change that the controller made has a line, one that it refused has none."""

from __future__ import annotations

import importlib
import json
import logging
from typing import Any

import pytest

from tests.support.questions import build
from tests.unit.broker.admin_broker import context_of
from tidelog.broker.cluster.forwarding import FORWARDED
from tidelog.broker.member.forwarding.audit import LINES, note_forwarded
from tidelog.broker.requests.registry import REGISTRY
from tidelog.protocol.api_keys import ApiKey, response_header_version
from tidelog.protocol.header import RequestHeader, encode_request_header
from tidelog.protocol.schema.fields import Message

READS = {ApiKey.LIST_PARTITION_REASSIGNMENTS, ApiKey.DESCRIBE_QUORUM}
REFUSED = {"error_code": 42}
ACL = {
    "resource_type": 2, "resource_name": "t", "principal": "User:bob", "host": "*", "operation": 3,
    "permission_type": 3,
}  # fmt: skip
SHOWN = {
    "resource": "TOPIC", "name": "t", "pattern": "LITERAL", "principal": "User:bob", "host": "*", "operation": "READ",
    "permission": "ALLOW",
}  # fmt: skip
USER = [{"entity_type": "user", "entity_name": "ann"}]
OTHER = [{"entity_type": "user", "entity_name": None}]
OPS = [{"key": "request_percentage", "value": 1.0, "remove": False}]
KEYS = [{"name": "flush.ms", "value": "secret"}]
RESOURCES = [{"resource_type": 2, "resource_name": name, "configs": KEYS} for name in ("t", "u")]
CHANGED = [{"resource_type": 2, "resource_name": "u", **REFUSED}, {"resource_type": 2, "resource_name": "t"}]
CONFIG_LINE = {"event": "config changed", "resource": "TOPIC", "name": "t", "keys": ["flush.ms"]}
SCRAM = {"mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": b"secret"}
CASES: dict[ApiKey, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    ApiKey.CREATE_TOPICS: (
        {"topics": [{"name": "t"}, {"name": "u"}]},
        {"topics": [{"name": "t", "configs": []}, {"name": "u", "configs": None, **REFUSED}]},
        {"event": "topic created", "name": "t"},
    ),
    ApiKey.DELETE_TOPICS: (
        {"topics": [{"name": None, "topic_id": b"i" * 16}, {"name": "u"}]},
        {"responses": [{"name": "t", "topic_id": b"i" * 16}, {"name": "u", **REFUSED}]},
        {"event": "topic deleted", "name": "t"},
    ),
    ApiKey.CREATE_PARTITIONS: (
        {"topics": [{"name": "u", "count": 9, "assignments": None}, {"name": "t", "count": 4, "assignments": None}]},
        {"results": [{"name": "u", **REFUSED}, {"name": "t"}]},
        {"event": "partitions added", "name": "t", "count": 4},
    ),
    ApiKey.ALTER_CONFIGS: ({"resources": RESOURCES}, {"responses": CHANGED}, CONFIG_LINE),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ({"resources": RESOURCES}, {"responses": CHANGED}, CONFIG_LINE),
    ApiKey.ALTER_CLIENT_QUOTAS: (
        {"entries": [{"entity": USER, "ops": OPS}, {"entity": OTHER, "ops": OPS}]},
        {"entries": [{"entity": USER, "error_message": None, **REFUSED}, {"entity": OTHER, "error_message": None}]},
        {"event": "quota changed", "entity": {"user": None}, "keys": ["request_percentage"]},
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (
        {"deletions": [{"name": "bob", "mechanism": 1}], "upsertions": [{"name": "ann", **SCRAM}]},
        {"results": [{"user": "bob", "error_message": None, **REFUSED}, {"user": "ann", "error_message": None}]},
        {"event": "credential set", "mechanism": "SCRAM-SHA-256", "of": "ann"},
    ),
    ApiKey.CREATE_ACLS: (
        {"creations": [{**ACL, "host": "10.0.0.1"}, ACL]},
        {"results": [{"error_message": None, **REFUSED}, {"error_message": None}]},
        {"event": "acl created", "acl": SHOWN},
    ),
    ApiKey.DELETE_ACLS: (
        {"filters": []},
        {"filter_results": [
            {"error_message": None, "matching_acls": [{"error_message": None, **ACL}]},
            {"error_message": None, "matching_acls": [{"error_message": None, **ACL}]},
            {"error_message": None, "matching_acls": [{"error_message": None, **ACL, "host": "10.0.0.1", **REFUSED}]},
        ]},
        {"event": "acl deleted", "acl": SHOWN},
    ),
    ApiKey.CREATE_DELEGATION_TOKEN: (
        {"renewers": [], "max_lifetime_ms": -1},
        {"principal_type": "User", "principal_name": "ann", "token_id": "id", "hmac": b"secret"},
        {"event": "token created", "token": "id", "owner": "User:ann"},
    ),
    ApiKey.RENEW_DELEGATION_TOKEN: (
        {"hmac": b"secret"}, {"expiry_timestamp_ms": 7}, {"event": "token renewed", "until_ms": 7},
    ),
    ApiKey.EXPIRE_DELEGATION_TOKEN: (
        {"hmac": b"secret"}, {"expiry_timestamp_ms": 7}, {"event": "token expired", "until_ms": 7},
    ),
    ApiKey.ELECT_LEADERS: (
        {"topic_partitions": None},
        {"replica_election_results": [
            {"topic": "t", "partition_result": [
                {"partition_id": 0, "error_message": None}, {"partition_id": 1, "error_message": None, **REFUSED}]},
            {"topic": "u", "partition_result": [{"partition_id": 0, "error_message": None, **REFUSED}]},
        ]},
        {"event": "leaders elected", "topic": "t", "partitions": [0]},
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (
        {"topics": [{"name": "t", "partitions": [{"partition_index": 3, "replicas": [1]}]}]},
        {"error_message": None, "responses": [
            {"name": "t", "partitions": [
                {"partition_index": 3, "error_message": None},
                {"partition_index": 4, "error_message": None, **REFUSED}]},
        ]},
        {"event": "partitions reassigned", "topic": "t", "partitions": [3]},
    ),
    ApiKey.UPDATE_FEATURES: (
        {"feature_updates": [{"feature": "group.version", "max_version_level": 1}]},
        {"error_message": None, "results": []},
        {"event": "features changed", "levels": {"group.version": 1}},
    ),
    ApiKey.UNREGISTER_BROKER: (
        {"broker_id": 4}, {"error_message": None}, {"event": "broker unregistered", "broker": 4},
    ),
    ApiKey.ADD_RAFT_VOTER: ({"voter_id": 3}, {"error_message": None}, {"event": "voter added", "controller": 3}),
    ApiKey.REMOVE_RAFT_VOTER: ({"voter_id": 3}, {"error_message": None}, {"event": "voter removed", "controller": 3}),
}  # fmt: skip
WHOLE = {
    ApiKey.CREATE_DELEGATION_TOKEN, ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.UPDATE_FEATURES, ApiKey.UNREGISTER_BROKER, ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER,
}  # fmt: skip
"""APIs whose answer has one error for all."""


def messages(key: ApiKey, version: int, asked: dict[str, Any], answered: dict[str, Any]) -> tuple[bytes, bytes]:
    """Encode a request and its response, with their headers."""
    name = "".join(word.capitalize() for word in key.name.split("_"))
    module = importlib.import_module(f"tidelog.protocol.messages.{key.name.lower()}")
    request: Message = build(getattr(module, f"{name}Request"), asked, version)
    response: Message = build(getattr(module, f"{name}Response"), answered, version)
    header = b"\0\0\0\7" + b"\0" * response_header_version(key, version)
    frame = encode_request_header(RequestHeader(key, version, 7, "client")) + request.encode(version)
    return frame, header + response.encode(version)


def lines_of(caplog: pytest.LogCaptureFixture, frame: bytes, response: bytes) -> list[dict[str, Any]]:
    """Return the audit lines of an answered request."""
    caplog.clear()
    caplog.set_level(logging.INFO, "tidelog.audit")
    for _ in note_forwarded(context_of(0), memoryview(frame), memoryview(response)):
        pass
    return [json.loads(record.getMessage()) for record in caplog.records if record.name == "tidelog.audit"]


def test_each_forwarded_api_that_changes_something_has_its_lines() -> None:
    assert set(LINES) == set(CASES) == FORWARDED - READS


@pytest.mark.parametrize("key", CASES, ids=lambda key: key.name)
def test_a_change_has_its_audit_line(caplog: pytest.LogCaptureFixture, key: ApiKey) -> None:
    asked, answered, expected = CASES[key]
    frame, response = messages(key, REGISTRY[key].max_version, asked, answered)
    assert lines_of(caplog, frame, response) == [{**expected, "user": "User:ANONYMOUS", "address": "10.0.0.9"}]
    assert "secret" not in caplog.text


@pytest.mark.parametrize("key", sorted(WHOLE))
def test_a_request_refused_as_a_whole_has_no_audit_line(caplog: pytest.LogCaptureFixture, key: ApiKey) -> None:
    asked, answered, _ = CASES[key]
    frame, response = messages(key, REGISTRY[key].max_version, asked, answered | REFUSED)
    assert not lines_of(caplog, frame, response)


@pytest.mark.parametrize(
    "key",
    [
        ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ALTER_CLIENT_QUOTAS, ApiKey.UPDATE_FEATURES,
    ],
)  # fmt: skip
def test_a_validated_change_has_no_audit_line(caplog: pytest.LogCaptureFixture, key: ApiKey) -> None:
    asked, answered, _ = CASES[key]
    frame, response = messages(key, REGISTRY[key].max_version, asked | {"validate_only": True}, answered)
    assert not lines_of(caplog, frame, response)


def test_an_unreadable_response_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    asked, answered, _ = CASES[ApiKey.CREATE_ACLS]
    frame, response = messages(ApiKey.CREATE_ACLS, 3, asked, answered)
    assert not lines_of(caplog, frame, response[:-9])
    assert "cannot read a controller's answer" in caplog.text
