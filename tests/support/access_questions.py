"""Requests of every API that needs a permission, about given names, as plain values: the tests of authorization.

``QUESTIONS`` has, for each API, functions from names (a topic, a group, a transactional id) to the fields of a request.
An allowed request is executed, but changes nothing that a later request would see: dry runs, empty changes, ids that do
not exist. ``RULES_OF_THEIR_OWN`` has requests to which other rules apply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch
from tidelog.protocol.types import ZERO_UUID

LISTENERS = [{"name": "CONTROLLER", "host": "localhost", "port": 9}]
NOW_MS = 1_700_000_000_000


class Names(NamedTuple):
    """Names that a request is about. ``topic_id`` is the topic's id, or one that no topic has."""

    topic: str
    topic_id: bytes
    group: str
    transactional_id: str


Question = Callable[[Names], Mapping[str, Any]]
"""A function from names to the fields of a request."""


def batch(*, transactional: bool = False) -> bytes:
    """Build a batch of one record."""
    options = BatchOptions(producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    records = [Record(0, NOW_MS, None, b"value", [])]
    return bytes(build_batch(records, options) if transactional else build_batch(records))


def both_names(names: Names) -> dict[str, Any]:
    return {"name": names.topic, "topic_id": names.topic_id}


def produce(names: Names, *, transactional: bool = False) -> dict[str, Any]:
    data = [{"index": 0, "records": batch(transactional=transactional)}]
    return {
        "transactional_id": names.transactional_id if transactional else None,
        "acks": -1,
        "timeout_ms": 1000,
        "topic_data": [{**both_names(names), "partition_data": data}],
    }


def fetch(names: Names) -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    topics = [{"topic": names.topic, "topic_id": names.topic_id, "partitions": [partition]}]
    return {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 10_000, "session_epoch": -1, "topics": topics}


def offset_commit(names: Names) -> dict[str, Any]:
    partition = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
    topics = [{**both_names(names), "partitions": [partition]}]
    return {"group_id": names.group, "generation_id_or_member_epoch": -1, "topics": topics}


def offset_fetch(names: Names) -> dict[str, Any]:
    topic = {**both_names(names), "partition_indexes": [0]}
    old = {"name": names.topic, "partition_indexes": [0]}
    return {
        "group_id": names.group,
        "topics": [old],
        "groups": [{"group_id": names.group, "topics": [topic]}],
    }


def all_offsets(names: Names) -> dict[str, Any]:
    return {"group_id": names.group, "topics": None, "groups": [{"group_id": names.group, "topics": None}]}


def find_coordinator(kind: int) -> Question:
    def question(names: Names) -> dict[str, Any]:
        key = names.group if kind == 0 else names.transactional_id
        return {"key_type": kind, "key": key, "coordinator_keys": [key]}

    return question


def add_partitions(names: Names) -> dict[str, Any]:
    topics = [{"name": names.topic, "partitions": [0]}]
    transaction = {
        "transactional_id": names.transactional_id, "producer_id": 7, "producer_epoch": 0, "verify_only": True,
        "topics": topics,
    }  # fmt: skip
    return {
        "transactions": [transaction],
        "v3_and_below_transactional_id": names.transactional_id,
        "v3_and_below_producer_id": 7,
        "v3_and_below_producer_epoch": 0,
        "v3_and_below_topics": topics,
    }


def txn_offset_commit(names: Names) -> dict[str, Any]:
    partition = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
    return {
        "transactional_id": names.transactional_id, "group_id": names.group, "producer_id": 7, "producer_epoch": 0,
        "topics": [{"name": names.topic, "partitions": [partition]}],
    }  # fmt: skip


def streams_heartbeat(names: Names) -> dict[str, Any]:
    subtopology = {
        "subtopology_id": "0", "source_topics": [names.topic], "source_topic_regex": [], "state_changelog_topics": [],
        "repartition_sink_topics": [], "repartition_source_topics": [], "copartition_groups": [],
    }  # fmt: skip
    topology = {"epoch": 0, "subtopologies": [subtopology]}
    return {
        "group_id": names.group, "member_id": "m", "member_epoch": 5, "rebalance_timeout_ms": -1, "topology": topology,
    }  # fmt: skip


def configs(kind: int) -> Question:
    def question(names: Names) -> dict[str, Any]:
        name = {2: names.topic, 32: names.group}.get(kind, "1" if kind in (4, 8) else names.group)
        return {"resources": [{"resource_type": kind, "resource_name": name}]}

    return question


def alter_configs(kind: int) -> Question:
    def question(names: Names) -> dict[str, Any]:
        (resource,) = configs(kind)(names)["resources"]
        return {"resources": [{**resource, "configs": []}], "validate_only": True}

    return question


def topics_of(**partition: Any) -> Question:
    """Return the function for the field ``topics`` with one partition of the topic, which has these fields."""
    return lambda names: {"topics": [{"name": names.topic, "partitions": [partition]}]}


def create_topics(names: Names) -> dict[str, Any]:
    return {
        "topics": [{"name": names.topic, "num_partitions": 1, "replication_factor": 1}], "timeout_ms": 1000,
        "validate_only": True,
    }  # fmt: skip


def metadata(names: Names) -> dict[str, Any]:
    return {
        "topics": [{"name": names.topic}], "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": True, "include_topic_authorized_operations": True,
    }  # fmt: skip


def delete_topics(names: Names) -> dict[str, Any]:
    missing = names.topic + "-gone"
    return {"topic_names": [missing], "topics": [{"name": missing}], "timeout_ms": 1000}


def share(names: Names) -> dict[str, Any]:
    topics = [{"topic_id": names.topic_id, "partitions": [{"partition_index": 0}]}]
    return {"group_id": names.group, "member_id": "AAAAAAAAAAAAAAAAAAAAAA", "share_session_epoch": 3, "topics": topics}


def share_offsets(names: Names) -> dict[str, Any]:
    return {"groups": [{"group_id": names.group, "topics": [{"topic_name": names.topic, "partitions": [0]}]}]}


def acl_filter(names: Names) -> dict[str, Any]:
    return {
        "resource_type_filter": 2, "resource_name_filter": names.topic + "-no-acl", "pattern_type_filter": 3,
        "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1,
    }  # fmt: skip


def share_state(**fields: Any) -> Callable[[Names], dict[str, Any]]:
    """Return the function for a request to the share coordinator about partition 0, which has these fields."""
    return lambda names: {
        "group_id": names.group,
        "topics": [{"topic_id": names.topic_id, "partitions": [{"partition": 0, **fields}]}],
    }


class PermissionRequest(NamedTuple):
    """A request of one API; ``since`` is the first version with all its fields."""

    api: str
    question: Question
    since: int = 0
    only_refusals: bool = False
    """Whether two brokers may answer differently if the request is allowed; then only refusals are compared."""


_ENTRIES: list[tuple[str, Question] | tuple[str, Question, int]] = [
    ("produce", produce, 3),
    ("produce", lambda names: produce(names, transactional=True), 3),
    ("fetch", fetch),
    ("list_offsets", lambda names: {"replica_id": -1, **topics_of(partition_index=0, timestamp=-1)(names)}),
    ("metadata", metadata),
    ("metadata", lambda names: {**metadata(names), "topics": [{"name": None, "topic_id": names.topic_id}]}, 12),
    ("metadata", lambda names: {**metadata(names), "topics": None}, 1),
    ("offset_commit", offset_commit),
    ("offset_fetch", offset_fetch),
    ("offset_fetch", all_offsets, 2),
    ("find_coordinator", find_coordinator(0)),
    ("find_coordinator", find_coordinator(1)),
    (
        "join_group",
        lambda names: {
            "group_id": names.group, "session_timeout_ms": 1, "rebalance_timeout_ms": 1, "member_id": "gone",
            "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}],
        },
    ),
    ("heartbeat", lambda names: {"group_id": names.group, "generation_id": 9, "member_id": "gone"}),
    (
        "leave_group",
        lambda names: {"group_id": names.group, "member_id": "gone", "members": [{"member_id": "gone"}]},
    ),
    (
        "sync_group",  # without a protocol Apache Kafka returns that error before it checks permissions
        lambda names: {"group_id": names.group, "generation_id": 9, "member_id": "gone",
                       "protocol_type": "consumer", "protocol_name": "range"},
    ),
    ("describe_groups", lambda names: {"groups": [names.group], "include_authorized_operations": True}),
    ("list_groups", lambda names: {}),
    ("create_topics", create_topics),
    ("delete_topics", delete_topics),
    ("delete_records", lambda names: {"timeout_ms": 1000, **topics_of(partition_index=0, offset=0)(names)}),
    (
        "init_producer_id",
        lambda names: {"transactional_id": names.transactional_id, "transaction_timeout_ms": 1 << 30},
    ),
    ("init_producer_id", lambda names: {"transactional_id": None, "transaction_timeout_ms": 1000}),
    (
        "offset_for_leader_epoch",
        lambda names: {"topics": [{"topic": names.topic, "partitions": [{"partition": 0, "leader_epoch": 0}]}]},
    ),
    ("add_partitions_to_txn", add_partitions),
    (
        "add_offsets_to_txn",
        lambda names: {
            "transactional_id": names.transactional_id, "producer_id": 7, "producer_epoch": 0, "group_id": names.group,
        },
    ),
    (
        "end_txn",
        lambda names: {"transactional_id": names.transactional_id, "producer_id": 7, "producer_epoch": 0},
    ),
    (
        "write_txn_markers",
        lambda names: {
            "markers": [
                {"producer_id": 7, "producer_epoch": 0, "topics": [{"name": names.topic, "partition_indexes": [0]}]}
            ]
        },
    ),
    ("txn_offset_commit", txn_offset_commit),
    ("describe_acls", acl_filter),
    ("create_acls", lambda names: {"creations": []}),
    ("delete_acls", lambda names: {"filters": [acl_filter(names)]}),
    ("describe_configs", configs(2)),
    ("describe_configs", configs(4)),
    ("describe_configs", configs(32)),
    ("alter_configs", alter_configs(2)),
    ("alter_configs", alter_configs(4)),
    ("alter_replica_log_dirs", lambda names: {"dirs": []}),
    ("describe_log_dirs", lambda names: {"topics": [{"topic": names.topic, "partitions": [0]}]}),
    (
        "create_partitions",
        lambda names: {"topics": [{"name": names.topic, "count": 3, "assignments": None}], "timeout_ms": 1000,
                       "validate_only": True},
    ),
    ("delete_groups", lambda names: {"groups_names": [names.group + "-gone"]}),
    ("elect_leaders", lambda names: {"topic_partitions": [{"topic": names.topic, "partitions": [0]}]}),
    ("incremental_alter_configs", alter_configs(2)),
    ("incremental_alter_configs", alter_configs(4)),
    ("incremental_alter_configs", alter_configs(32)),
    ("alter_partition_reassignments", lambda names: {"topics": []}),
    ("list_partition_reassignments", lambda names: {"topics": None}),
    ("offset_delete", lambda names: {"group_id": names.group, **topics_of(partition_index=0)(names)}),
    ("describe_client_quotas", lambda names: {"components": []}),
    ("alter_client_quotas", lambda names: {"entries": [], "validate_only": True}),
    ("describe_user_scram_credentials", lambda names: {"users": []}),
    ("alter_user_scram_credentials", lambda names: {"deletions": [{"name": "gone", "mechanism": 1}]}),
    (
        "update_features",
        lambda names: {"validate_only": True,
                       "feature_updates": [{"feature": "group.version", "max_version_level": 1}]},
    ),
    (
        "describe_cluster",
        lambda names: {"include_cluster_authorized_operations": True},
    ),
    ("describe_producers", lambda names: {"topics": [{"name": names.topic, "partition_indexes": [0]}]}),
    (
        "describe_quorum",
        lambda names: {"topics": [{"topic_name": names.topic, "partitions": [{"partition_index": 0}]}]},
    ),
    ("unregister_broker", lambda names: {"broker_id": 99}),
    ("add_raft_voter", lambda names: {"voter_id": 99, "voter_directory_id": b"d" * 16, "listeners": LISTENERS}),
    ("remove_raft_voter", lambda names: {"voter_id": 99, "voter_directory_id": b"d" * 16}),
    ("describe_transactions", lambda names: {"transactional_ids": [names.transactional_id]}),
    ("list_transactions", lambda names: {}),
    (
        "consumer_group_heartbeat",
        lambda names: {"group_id": names.group, "member_id": "gone", "member_epoch": 5,
                       "subscribed_topic_names": [names.topic]},
    ),
    ("consumer_group_describe", lambda names: {"group_ids": [names.group], "include_authorized_operations": True}),
    ("list_config_resources", lambda names: {}),
    (
        "describe_topic_partitions",
        lambda names: {"topics": [{"name": names.topic}], "response_partition_limit": 10},
    ),
    ("describe_topic_partitions", lambda names: {"topics": [], "response_partition_limit": 10}),
    (
        "share_group_heartbeat",
        lambda names: {"group_id": names.group, "member_id": "gone", "member_epoch": 5,
                       "subscribed_topic_names": [names.topic]},
    ),
    ("share_group_describe", lambda names: {"group_ids": [names.group]}),
    ("share_fetch", share),
    ("share_acknowledge", share),
    ("streams_group_heartbeat", streams_heartbeat),
    ("streams_group_describe", lambda names: {"group_ids": [names.group]}),
    ("describe_share_group_offsets", share_offsets),
    (
        "alter_share_group_offsets",
        lambda names: {"group_id": names.group, "topics": [
            {"topic_name": names.topic, "partitions": [{"partition_index": 0, "start_offset": 0}]}]},
    ),
    (
        "delete_share_group_offsets",
        lambda names: {"group_id": names.group, "topics": [{"topic_name": names.topic}]},
    ),
]  # fmt: skip
_SHARE_STATES: list[tuple[str, Question]] = [
    ("initialize_share_group_state", share_state(state_epoch=1, start_offset=0)),
    ("read_share_group_state", share_state(leader_epoch=0)),
    ("write_share_group_state", share_state(state_epoch=1, leader_epoch=0, start_offset=0, state_batches=[])),
    ("delete_share_group_state", share_state()),
    ("read_share_group_state_summary", share_state(leader_epoch=-1)),
]
"""Requests to the share coordinator. If allowed, their responses depend on earlier ones, which change the states."""

QUESTIONS = [
    *(PermissionRequest(*entry) for entry in _ENTRIES),
    *(PermissionRequest(*entry, only_refusals=True) for entry in _SHARE_STATES),
]
"""Requests of all APIs. An API that is missing here needs no permission, or has its own rules (delegation tokens)."""


def fetch_as_replica(names: Names) -> dict[str, Any]:
    return {**fetch(names), "replica_id": 1, "replica_state": {"replica_id": 1, "replica_epoch": -1}}


def create_token(names: Names) -> dict[str, Any]:
    """Build a request for a token of a user who sends no requests."""
    return {"owner_principal_type": "User", "owner_principal_name": "other", "renewers": [], "max_lifetime_ms": -1}


def tokens_of(*owners: str) -> Question:
    asked = [{"principal_type": "User", "principal_name": owner} for owner in owners]
    return lambda names: {"owners": asked}


RULES_OF_THEIR_OWN = [
    PermissionRequest("create_delegation_token", create_token, 3),
    PermissionRequest("renew_delegation_token", lambda names: {"hmac": b"unknown", "renew_period_ms": -1}),
    PermissionRequest("expire_delegation_token", lambda names: {"hmac": b"unknown", "expiry_time_period_ms": -1}),
    PermissionRequest("describe_delegation_token", tokens_of("ann")),
    PermissionRequest("describe_delegation_token", tokens_of("bob", "ann")),
    PermissionRequest("fetch", fetch_as_replica, only_refusals=True),
    PermissionRequest("find_coordinator", lambda names: {"key_type": 2, "key": "x", "coordinator_keys": ["x"]}, 6),
    PermissionRequest("api_versions", lambda names: {"client_software_name": "x", "client_software_version": "1"}),
    PermissionRequest("get_telemetry_subscriptions", lambda names: {"client_instance_id": ZERO_UUID}),
]
"""Requests that the table of the APIs' permissions does not decide."""


def join_requests(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Join two requests of one API to one about the names of both, as far as the request has arrays for names."""
    both = dict(first)
    for key, value in second.items():
        if isinstance(value, list) and isinstance(first[key], list):
            both[key] = _joined_lists(first[key], value)
    return both


def _joined_lists(first: list[Any], second: list[Any]) -> list[Any]:
    found = list(first)
    for item in second:
        if not isinstance(item, dict):
            found += [] if item in found else [item]
            continue
        alike = [index for index, one in enumerate(found) if _scalars(one) == _scalars(item)]
        if alike:
            found[alike[0]] = join_requests(found[alike[0]], item)
        else:
            found.append(item)
    return found


def _scalars(item: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if not isinstance(value, (list, dict))}


NEEDS_NOTHING = frozenset(
    {"api_versions", "get_telemetry_subscriptions", "push_telemetry", "sasl_authenticate", "sasl_handshake"}
)
TOKENS = frozenset({f"{verb}_delegation_token" for verb in ("create", "renew", "expire", "describe")})
SOME_ID = bytes(range(16))
NO_ID = ZERO_UUID
