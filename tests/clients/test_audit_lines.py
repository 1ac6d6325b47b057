"""Audit lines: every API by which a client changes more than its own records, groups and transactions writes one.

Every API that is served is in one of the tables below; a new one has to be put into one. Of those that write lines,
a broker with logins is asked to change something that it can and something that it cannot: only the former has a line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.access_brokers import SETTINGS, UserClient
from tests.support.broker import TidelogProcess, free_port
from tests.support.kraft_node import wait_until
from tidelog.broker.config.resource_type import ResourceType as Config
from tidelog.broker.requests.registry import REGISTRY
from tidelog.protocol.acl import AclOperation, AclPermissionType, PatternType, ResourceType
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import CoordinatorLoadInProgressError

WORK = {
    "produce", "offset_commit", "txn_offset_commit", "join_group", "sync_group", "heartbeat", "leave_group",
    "consumer_group_heartbeat", "share_group_heartbeat", "streams_group_heartbeat", "share_fetch", "share_acknowledge",
    "init_producer_id", "add_partitions_to_txn", "add_offsets_to_txn", "end_txn", "write_txn_markers", "push_telemetry",
    "initialize_share_group_state", "write_share_group_state", "delete_share_group_state",
}  # fmt: skip
"""Records, offsets, membership and transactions: what clients do all the time. A streams group's heartbeat may create
topics, whose lines are tested with it."""
READS = {
    "fetch", "list_offsets", "offset_fetch", "find_coordinator", "describe_groups", "list_groups", "api_versions",
    "offset_for_leader_epoch", "describe_acls", "describe_configs", "describe_log_dirs", "describe_delegation_token",
    "list_partition_reassignments", "describe_client_quotas", "describe_user_scram_credentials", "describe_quorum",
    "describe_cluster", "describe_producers", "describe_transactions", "list_transactions", "consumer_group_describe",
    "get_telemetry_subscriptions", "list_config_resources", "describe_topic_partitions", "share_group_describe",
    "read_share_group_state", "read_share_group_state_summary", "streams_group_describe",
    "describe_share_group_offsets",
}  # fmt: skip
LOGINS = {"sasl_handshake", "sasl_authenticate"}
ALWAYS_REFUSED = {
    "alter_replica_log_dirs", "elect_leaders", "alter_partition_reassignments", "unregister_broker", "add_raft_voter",
    "remove_raft_voter",
}  # fmt: skip
"""A lone node changes nothing by these: there is one replica, in one place, and one voter. A member's lines of them
are tested with ``broker/member/forwarding/audit.py``."""

ACL = {
    "resource_type": ResourceType.TOPIC, "resource_name": "orders", "resource_pattern_type": PatternType.LITERAL,
    "principal": "User:bob", "host": "*", "operation": AclOperation.READ, "permission_type": AclPermissionType.ALLOW,
}  # fmt: skip
FILTER = {
    "resource_type_filter": ResourceType.TOPIC, "resource_name_filter": "orders",
    "pattern_type_filter": PatternType.ANY, "principal_filter": None, "host_filter": None,
    "operation": AclOperation.ANY, "permission_type": AclPermissionType.ANY,
}  # fmt: skip
KEY = {"iterations": 4096, "salt": b"salt", "salted_password": b"p" * 64}
FLUSH = {"name": "flush.ms", "value": "9"}


def topic(name: str, partitions: int = 1) -> dict[str, Any]:
    return {"name": name, "num_partitions": partitions, "replication_factor": 1}


def named(name: str) -> dict[str, Any]:
    return {"name": name, "topic_id": bytes(16)}


def quota(kind: str, key: str) -> dict[str, Any]:
    return {
        "entity": [{"entity_type": kind, "entity_name": "ann"}],
        "ops": [{"key": key, "value": 10.0, "remove": False}],
    }


def configs(key: str, **more: int) -> dict[str, Any]:
    config = {**FLUSH, "name": key, **more}
    return {"resource_type": Config.TOPIC, "resource_name": "orders", "configs": [config]}


def partitions(name: str, **values: int) -> dict[str, Any]:
    return {"name": name, "partitions": [{"partition_index": 0, **values}]}


TOKEN = object()
"""Stands for the secret of the token that was created."""
CASES: list[tuple[str, dict[str, Any], list[dict[str, Any]]]] = [
    ("create_topics", {"topics": [topic("orders"), topic("bad name")]}, [{"event": "topic created", "name": "orders"}]),
    ("create_topics", {"topics": [topic("more")], "validate_only": True}, []),
    ("metadata", {"topics": [named("named"), named("bad name"), named("orders")], "allow_auto_topic_creation": True},
     [{"event": "topic created", "name": "named", "is_automatic": True}]),
    ("metadata", {"topics": [named("named"), named("unwanted")], "allow_auto_topic_creation": False}, []),
    ("create_partitions",
     {"topics": [{"name": "orders", "count": 3, "assignments": None}, {"name": "no", "count": 3, "assignments": None}]},
     [{"event": "partitions added", "name": "orders", "count": 3}]),
    ("alter_configs", {"resources": [configs("flush.ms")]},
     [{"event": "config changed", "resource": "TOPIC", "name": "orders", "keys": ["flush.ms"]}]),
    ("incremental_alter_configs", {"resources": [configs("retention.ms", config_operation=0)]},
     [{"event": "config changed", "resource": "TOPIC", "name": "orders", "keys": ["retention.ms"]}]),
    ("incremental_alter_configs", {"resources": [configs("no.such", config_operation=0)]}, []),
    ("alter_client_quotas",
     {"entries": [quota("user", "producer_byte_rate"), quota("user", "no_such"), quota("no", "producer_byte_rate")]},
     [{"event": "quota changed", "entity": {"user": "ann"}, "keys": ["producer_byte_rate"]}]),
    ("alter_client_quotas", {"entries": [quota("user", "producer_byte_rate")], "validate_only": True}, []),
    ("alter_user_scram_credentials",
     {"deletions": [{"name": "none", "mechanism": 2}], "upsertions": [{"name": "eve", "mechanism": 2, **KEY}]},
     [{"event": "credential set", "mechanism": "SCRAM-SHA-512", "of": "eve"}]),
    ("create_acls", {"creations": [ACL, {**ACL, "principal": "nobody"}]},
     [{"event": "acl created", "acl": {
         "resource": "TOPIC", "name": "orders", "pattern": "LITERAL", "principal": "User:bob", "host": "*",
         "operation": "READ", "permission": "ALLOW"}}]),
    ("delete_acls", {"filters": [FILTER]},
     [{"event": "acl deleted", "acl": {
         "resource": "TOPIC", "name": "orders", "pattern": "LITERAL", "principal": "User:bob", "host": "*",
         "operation": "READ", "permission": "ALLOW"}}]),
    ("create_delegation_token", {"renewers": [], "max_lifetime_ms": -1}, [{"event": "token created"}]),
    ("create_delegation_token",
     {"renewers": [{"principal_type": "Group", "principal_name": "g"}], "max_lifetime_ms": -1}, []),
    ("renew_delegation_token", {"hmac": TOKEN, "renew_period_ms": 1000}, [{"event": "token renewed"}]),
    ("renew_delegation_token", {"hmac": b"none", "renew_period_ms": 1000}, []),
    ("expire_delegation_token", {"hmac": TOKEN, "expiry_time_period_ms": -1}, [{"event": "token expired"}]),
    ("delete_records", {"topics": [partitions("orders", offset=0), partitions("no", offset=0)], "timeout_ms": 9000},
     [{"event": "records deleted", "topic": "orders", "partition": 0, "start": 0}]),
    ("offset_delete",
     {"group_id": "app", "topics": [partitions("orders")]},
     [{"event": "offsets deleted", "group": "app", "topic": "orders", "partitions": [0]}]),
    ("delete_groups", {"groups_names": ["app", "none"]}, [{"event": "group deleted", "group": "app"}]),
    ("alter_share_group_offsets",
     {"group_id": "shared", "topics": [
         {"topic_name": name, "partitions": [{"partition_index": 0, "start_offset": 0}]} for name in ("orders", "no")]},
     [{"event": "share offsets changed", "group": "shared", "topics": ["orders"]}]),
    ("delete_share_group_offsets", {"group_id": "shared", "topics": [{"topic_name": "orders"}, {"topic_name": "no"}]},
     [{"event": "share offsets deleted", "group": "shared", "topics": ["orders"]}]),
    ("update_features",
     {"feature_updates": [{"feature": "group.version", "max_version_level": 0, "upgrade_type": 2}]},
     [{"event": "features changed", "levels": {"group.version": 0}}]),
    ("update_features",
     {"feature_updates": [{"feature": "no.such", "max_version_level": 1, "upgrade_type": 1}]}, []),
    ("delete_topics", {"topics": [{"name": "orders"}, {"name": "no"}]}, [{"event": "topic deleted", "name": "orders"}]),
]  # fmt: skip


class Audited:
    """A broker that knows Ann as a super user, and Ann."""

    def __init__(self, directory: Path) -> None:
        port = free_port()
        listeners = f"PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:{port}"
        self.broker = TidelogProcess(directory, {
            **SETTINGS, "listeners": listeners, "super.users": "User:ann", "auto.create.topics.enable": "true",
        })  # fmt: skip
        self.ann = UserClient(f"127.0.0.1:{port}", "ann", "127.0.0.1")
        self._token = b""

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of changes so far."""
        logged = self.broker.log_path.read_text().splitlines()
        lines = [json.loads(line[line.index("{") :]) for line in logged if "tidelog.audit" in line]
        return [line for line in lines if line["event"] != "login"]

    def change(self, api: str, fields: dict[str, Any]) -> list[dict[str, Any]]:
        """Ask Ann's question in its newest version, again while a coordinator loads; return its lines."""
        before = len(self.lines())
        fields = {name: self._token if value is TOKEN else value for name, value in fields.items()}
        version = REGISTRY[ApiKey[api.upper()]].max_version
        response = None

        def is_answered() -> bool:
            nonlocal response
            response = self.ann.ask_quietly(api, version, **fields)
            return getattr(response, "error_code", 0) != CoordinatorLoadInProgressError.code

        wait_until(is_answered, f"an answer to {api}")
        assert response is not None
        if api == "create_delegation_token":
            self._token = bytes(response.hmac) or self._token
        return self.lines()[before:]

    def commit(self) -> None:
        """Let a group commit an offset."""
        place = {"partition_index": 0, "committed_offset": 0, "committed_leader_epoch": -1, "committed_metadata": None}
        answer = self.ann.ask_quietly(
            "offset_commit", 9, group_id="app", generation_id_or_member_epoch=-1, member_id="", group_instance_id=None,
            topics=[{"name": "orders", "partitions": [place]}],
        )  # fmt: skip
        assert answer is not None
        assert answer.topics[0].partitions[0].error_code == 0


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    audited = Audited(tmp_path_factory.mktemp("audited"))
    with audited.broker:
        yield audited
        audited.ann.close()


def test_every_api_is_in_one_table() -> None:
    served = sorted(ApiKey(key).name.lower() for key in REGISTRY)
    assert sorted([*WORK, *READS, *LOGINS, *ALWAYS_REFUSED, *{api for api, _, _ in CASES}]) == served


def test_each_change_has_its_audit_lines_and_each_refusal_has_none(audited: Audited) -> None:
    for number, (api, fields, expected) in enumerate(CASES):
        if api == "offset_delete":
            audited.commit()
        found = audited.change(api, fields)
        assert [line.pop("user") for line in found] == ["User:ann"] * len(expected), (number, api, found)
        assert [line.pop("address") for line in found] == ["127.0.0.1"] * len(expected)
        for line, facts in zip(found, expected, strict=True):
            assert line.items() >= facts.items(), api
            secret = {"salted_password", "hmac"} & line.keys()
            assert not secret
