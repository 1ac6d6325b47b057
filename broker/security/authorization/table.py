"""Table of the permissions that each API needs, and of the answers to a client that lacks them.

Each row has the texts of the documentation and the checks themselves: ``before`` refuses a whole request, ``around``
refuses or removes parts of it, ``shortcut`` is a faster check of frequent requests. Tests make sure that every API of
the registry has a row, and that an API that needs a permission succeeds for no client without one. Letters: T topic,
G group, X transactional id, C cluster; numbers are error codes; ``page`` says what *hidden* means. Source: KafkaApis,
ControllerApis of Kafka 4.3, KIP-11, KIP-430.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.broker.security.authorization import group_guards as groups
from tidelog.broker.security.authorization import record_guards as records
from tidelog.broker.security.authorization import topic_guards as topics
from tidelog.broker.security.authorization.audit import camel_case
from tidelog.broker.security.authorization.guard import (
    Around,
    Before,
    Call,
    GuardedHandler,
    Need,
    Shortcut,
    cluster,
    edit_response,
)
from tidelog.protocol.acl import AclOperation, ResourceType
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import ClusterAuthorizationFailedError

if TYPE_CHECKING:
    from tidelog.broker.security.authorization.authorizer import Authorizer

READ, WRITE, DELETE, ALTER = AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER
DESCRIBE, CLUSTER_ACTION = AclOperation.DESCRIBE, AclOperation.CLUSTER_ACTION
GROUP, TRANSACTIONAL_ID = ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID


class Row(NamedTuple):
    """Permissions that one API needs, the answer without them, and the checks. The handler itself checks the needs that
    no check of the row covers: topics of Fetch and ShareFetch, for example.
    """

    needs: str
    refused: str
    before: Before | None = None
    around: Around | None = None
    shortcut: Shortcut | None = None


def on_cluster(operation: AclOperation) -> Row:
    """Return the row of an API that needs an operation on the cluster."""
    need = cluster(operation)
    return Row(f"{operation.name} C", "31", before=lambda call: call.require(need))


def on_group(operation: AclOperation, around: Around | None = None, *, and_topics: str = "", refused: str = "") -> Row:
    """Return the row of an API that needs an operation on the group of its request."""

    def check(call: Call) -> None:
        call.require(Need(operation, GROUP, call.request.group_id or ""))

    return Row(f"{operation.name} G{and_topics}", f"30{refused}", check, around)


def check_markers(call: Call) -> None:
    """Check WriteTxnMarkers, which needs ALTER or CLUSTER_ACTION of the cluster. Raises
    ClusterAuthorizationFailedError.
    """
    if not call.has_permission(cluster(ALTER), is_filter=True) and not call.has_permission(
        cluster(AclOperation.CLUSTER_ACTION)
    ):
        raise ClusterAuthorizationFailedError


def check_transaction(call: Call) -> None:
    """Check WRITE of a request's transactional id. Raises TransactionalIdAuthorizationFailedError."""
    call.require(Need(WRITE, TRANSACTIONAL_ID, call.request.transactional_id))


def check_transaction_and_group(call: Call) -> None:
    """Check WRITE of the transactional id and READ of the group. Raises TransactionalIdAuthorizationFailedError,
    GroupAuthorizationFailedError.
    """
    check_transaction(call)
    call.require(Need(READ, GROUP, call.request.group_id))


_GROUP_TEXT = "The group has described topic(s) that the client is not authorized to describe."
_STREAMS_TEXT = "The described group uses topics that the client is not authorized to describe."
_DESCRIBED = "30 for the group; 29 for one with topics that the client may not know, without members"
_NOTHING = Row("nothing", "-")
_TOKENS = Row("the tokens' own rules", "61-67")

ROWS: dict[ApiKey, Row] = {
    ApiKey.PRODUCE: Row(
        "WRITE T; WRITE X for a transactional batch", "29 for the partitions; 53", None, records.produce,
        records.produce_shortcut,
    ),
    ApiKey.FETCH: Row(
        "READ T; CLUSTER_ACTION C for a replica", "29 for the partitions, also when a fetch that waited ends"
    ),
    ApiKey.LIST_OFFSETS: Row("DESCRIBE T", "29, hidden", None, topics.topics_check(DESCRIBE)),
    ApiKey.METADATA: Row(
        "DESCRIBE T; to create one CREATE C or CREATE T", "29, hidden, without id or name; of all: left out", None,
        topics.metadata, topics.metadata_shortcut,
    ),
    ApiKey.OFFSET_COMMIT: on_group(
        READ, topics.topics_check(READ), and_topics="; READ T", refused="; 29 for the partitions"
    ),
    ApiKey.OFFSET_FETCH: Row(
        "DESCRIBE G; DESCRIBE T", "30 for the group; 29; of all: left out", None, groups.fetch_offsets
    ),
    ApiKey.FIND_COORDINATOR: Row(
        "DESCRIBE G; DESCRIBE X; of a share partition CLUSTER_ACTION C", "30, 53, 31 for the key", None,
        groups.find_coordinator,
    ),
    ApiKey.JOIN_GROUP: on_group(READ),
    ApiKey.HEARTBEAT: on_group(READ),
    ApiKey.LEAVE_GROUP: on_group(READ),
    ApiKey.SYNC_GROUP: on_group(READ),
    ApiKey.DESCRIBE_GROUPS: Row(
        "DESCRIBE G", "30 for the group", None,
        groups.names_check(DESCRIBE, GROUP, "groups", "groups", groups.tell_group_operations),
    ),
    ApiKey.LIST_GROUPS: Row("DESCRIBE C for all, else DESCRIBE G", "left out", None, groups.list_groups),
    ApiKey.SASL_HANDSHAKE: _NOTHING,
    ApiKey.API_VERSIONS: _NOTHING,
    ApiKey.CREATE_TOPICS: Row(
        "CREATE C or CREATE T; for the configs in the answer DESCRIBE_CONFIGS T",
        "29; the configs: 29 in topic_config_error_code", None, topics.create_topics,
    ),
    ApiKey.DELETE_TOPICS: Row(
        "DELETE C or DELETE T; DESCRIBE T decides what is told", "29, hidden, without id or name", None,
        topics.delete_topics,
    ),
    ApiKey.DELETE_RECORDS: Row("DELETE T", "29", None, topics.topics_check(DELETE)),
    ApiKey.INIT_PRODUCER_ID: Row(
        "WRITE X (and TWO_PHASE_COMMIT X for 2PC); without an id IDEMPOTENT_WRITE C, or WRITE on any T", "53; 31",
        groups.init_producer_id,
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Row("DESCRIBE T, or CLUSTER_ACTION C", "29, hidden", None, topics.end_offsets),
    ApiKey.ADD_PARTITIONS_TO_TXN: Row(
        "WRITE X, WRITE T; from version 4 on CLUSTER_ACTION C", "53; 29, the others 55; 31", None, groups.add_partitions
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: Row("WRITE X, READ G", "53; 30", check_transaction_and_group),
    ApiKey.END_TXN: Row("WRITE X", "53", check_transaction),
    ApiKey.WRITE_TXN_MARKERS: Row("ALTER C or CLUSTER_ACTION C", "31", check_markers),
    ApiKey.TXN_OFFSET_COMMIT: Row(
        "WRITE X, READ G, READ T", "53; 30; 29 for the partitions", check_transaction_and_group,
        topics.topics_check(READ),
    ),
    ApiKey.DESCRIBE_ACLS: on_cluster(DESCRIBE),
    ApiKey.CREATE_ACLS: on_cluster(ALTER),
    ApiKey.DELETE_ACLS: on_cluster(ALTER),
    ApiKey.DESCRIBE_CONFIGS: Row(
        "DESCRIBE_CONFIGS T, G, or C for everything else", "29, 30, 31 for the resource", None,
        records.configs_check(AclOperation.DESCRIBE_CONFIGS, "results"),
    ),
    ApiKey.ALTER_CONFIGS: Row(
        "ALTER_CONFIGS T, G, or C for everything else", "29, 30, 31 for the resource", None,
        records.configs_check(AclOperation.ALTER_CONFIGS, "responses"),
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: on_cluster(ALTER),
    ApiKey.DESCRIBE_LOG_DIRS: on_cluster(DESCRIBE),
    ApiKey.SASL_AUTHENTICATE: _NOTHING,
    ApiKey.CREATE_PARTITIONS: Row("ALTER T", "29", None, topics.create_partitions),
    ApiKey.CREATE_DELEGATION_TOKEN: _TOKENS,
    ApiKey.RENEW_DELEGATION_TOKEN: _TOKENS,
    ApiKey.EXPIRE_DELEGATION_TOKEN: _TOKENS,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: _TOKENS,
    ApiKey.DELETE_GROUPS: Row(
        "DELETE G", "30 for the group", None, groups.names_check(DELETE, GROUP, "groups_names", "results")
    ),
    ApiKey.ELECT_LEADERS: on_cluster(ALTER),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Row(
        "ALTER_CONFIGS T, G, or C for everything else", "29, 30, 31 for the resource", None,
        records.configs_check(AclOperation.ALTER_CONFIGS, "responses"),
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: on_cluster(ALTER),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: on_cluster(DESCRIBE),
    ApiKey.OFFSET_DELETE: on_group(
        DELETE, topics.topics_check(READ, refused=records.refuse_offset_deletion), and_topics="; READ T", refused="; 29"
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: on_cluster(AclOperation.DESCRIBE_CONFIGS),
    ApiKey.ALTER_CLIENT_QUOTAS: on_cluster(AclOperation.ALTER_CONFIGS),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: on_cluster(DESCRIBE),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: on_cluster(ALTER),
    ApiKey.DESCRIBE_QUORUM: on_cluster(DESCRIBE),
    ApiKey.UPDATE_FEATURES: on_cluster(ALTER),
    ApiKey.DESCRIBE_CLUSTER: Row(
        "nothing; DESCRIBE C for the operations", "no operations", None, edit_response(topics.describe_cluster)
    ),
    ApiKey.DESCRIBE_PRODUCERS: Row("READ T", "29", None, topics.topics_check(READ)),
    ApiKey.UNREGISTER_BROKER: on_cluster(ALTER),
    ApiKey.DESCRIBE_TRANSACTIONS: Row(
        "DESCRIBE X; of its topics DESCRIBE T", "53; topics left out", None,
        groups.names_check(
            DESCRIBE, TRANSACTIONAL_ID, "transactional_ids", "transaction_states", groups.hide_topics
        ),
    ),
    ApiKey.LIST_TRANSACTIONS: Row("DESCRIBE X", "left out", None, edit_response(groups.hide_transactions)),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: on_group(
        READ, groups.subscribe, and_topics="; DESCRIBE of each T it names", refused="; 29"
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Row(
        "DESCRIBE G; DESCRIBE of each T of its members", _DESCRIBED, None,
        groups.described_groups_check(groups.assigned_topics, _GROUP_TEXT),
    ),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: _NOTHING,
    ApiKey.PUSH_TELEMETRY: _NOTHING,
    ApiKey.LIST_CONFIG_RESOURCES: on_cluster(AclOperation.DESCRIBE_CONFIGS),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Row(
        "DESCRIBE T", "29, hidden; of all: left out", None, topics.describe_partitions
    ),
    ApiKey.SHARE_GROUP_HEARTBEAT: on_group(
        READ, groups.subscribe, and_topics="; DESCRIBE of each T it names", refused="; 29"
    ),
    ApiKey.SHARE_GROUP_DESCRIBE: Row(
        "DESCRIBE G; DESCRIBE of each T of its members", _DESCRIBED, None,
        groups.described_groups_check(groups.assigned_topics, _GROUP_TEXT),
    ),
    ApiKey.SHARE_FETCH: on_group(READ, and_topics="; READ T", refused="; 29 for the partitions"),
    ApiKey.SHARE_ACKNOWLEDGE: on_group(
        READ, topics.topics_check(READ, answer="responses", refused=records.refuse_acknowledgements),
        and_topics="; READ T", refused="; 29 for the partitions",
    ),
    ApiKey.ADD_RAFT_VOTER: on_cluster(ALTER),
    ApiKey.REMOVE_RAFT_VOTER: on_cluster(ALTER),
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: on_cluster(CLUSTER_ACTION),
    ApiKey.READ_SHARE_GROUP_STATE: on_cluster(CLUSTER_ACTION),
    ApiKey.WRITE_SHARE_GROUP_STATE: on_cluster(CLUSTER_ACTION),
    ApiKey.DELETE_SHARE_GROUP_STATE: on_cluster(CLUSTER_ACTION),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: on_cluster(CLUSTER_ACTION),
    ApiKey.STREAMS_GROUP_HEARTBEAT: on_group(
        READ, groups.streams_heartbeat, refused="; 29; topics that it may not create: a status of the group",
        and_topics="; DESCRIBE of each T of its topology; to create internal ones CREATE C or CREATE T",
    ),
    ApiKey.STREAMS_GROUP_DESCRIBE: Row(
        "DESCRIBE G; DESCRIBE of each T of its topology", _DESCRIBED, None,
        groups.described_groups_check(groups.topology_topics, _STREAMS_TEXT),
    ),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: Row(
        "DESCRIBE G; DESCRIBE T", "30 for the group; 29; of all: left out", None, groups.describe_share_offsets
    ),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: on_group(
        READ, topics.topics_check(READ, "topic_name", answer="responses", refused=records.refuse_share_offsets),
        and_topics="; READ T", refused="; 29",
    ),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: on_group(
        DELETE, topics.topics_check(READ, "topic_name", answer="responses", refused=records.refuse_share_deletion),
        and_topics="; READ T", refused="; 29",
    ),
}  # fmt: skip


def guard_handler(authorizer: Authorizer, api_key: int, module: Any) -> Any:
    """Return an API's handler with its checks; the module itself if it needs none."""
    row = ROWS[ApiKey(api_key)]
    if row is _NOTHING or row is _TOKENS:
        return module
    return GuardedHandler(authorizer, module, row.before, row.around, row.shortcut)


def page() -> str:
    """Return this table as a page of the documentation."""
    lines = [
        "# What each API needs",
        "",
        "With `authorizer.class.name` set, each request is checked by this table before it is handled. T is a topic,",
        "G a group, X a transactional id, C the cluster; numbers are error codes. *Hidden*: the answer is the same",
        "whether or not the name is there. An ALLOW of READ, WRITE, DELETE or ALTER allows DESCRIBE, one of",
        "ALTER_CONFIGS allows DESCRIBE_CONFIGS. A virtual topic (`orders?key=4711`) needs what its topic needs.",
        "",
        "Rebuilt by `make docs` from `broker/security/authorization/table.py`.",
        "",
        "| API | needs | without it |",
        "|---|---|---|",
    ]
    rows = [f"| {api.value} {camel_case(api.name)} | {row.needs} | {row.refused} |" for api, row in ROWS.items()]
    return "\n".join([*lines, *rows, ""])


if __name__ == "__main__":
    sys.stdout.write(page())
