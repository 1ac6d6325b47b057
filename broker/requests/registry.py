"""Table of the served APIs: API key -> handler module and the versions it answers.

Dispatch routes by this table and ApiVersions is answered from it, so only served APIs are advertised. Handler modules
are imported when their API is first called; a unit test checks that each module's ``API_KEY``, ``MIN_VERSION`` and
``MAX_VERSION`` agree with its entry. Entries are sorted by API key.
"""

from __future__ import annotations

from typing import NamedTuple


class HandlerEntry(NamedTuple):
    """Module and versions of an API's handler."""

    module: str
    min_version: int
    max_version: int


REGISTRY: dict[int, HandlerEntry] = {
    0: HandlerEntry("tidelog.broker.handlers.produce", 0, 13),
    1: HandlerEntry("tidelog.broker.handlers.fetch", 0, 18),
    2: HandlerEntry("tidelog.broker.handlers.list_offsets", 0, 11),
    3: HandlerEntry("tidelog.broker.handlers.metadata", 0, 13),
    8: HandlerEntry("tidelog.broker.handlers.offset_commit", 0, 10),
    9: HandlerEntry("tidelog.broker.handlers.offset_fetch", 0, 10),
    10: HandlerEntry("tidelog.broker.handlers.find_coordinator", 0, 6),
    11: HandlerEntry("tidelog.broker.handlers.join_group", 0, 9),
    12: HandlerEntry("tidelog.broker.handlers.heartbeat", 0, 4),
    13: HandlerEntry("tidelog.broker.handlers.leave_group", 0, 5),
    14: HandlerEntry("tidelog.broker.handlers.sync_group", 0, 5),
    15: HandlerEntry("tidelog.broker.handlers.describe_groups", 0, 6),
    16: HandlerEntry("tidelog.broker.handlers.list_groups", 0, 5),
    17: HandlerEntry("tidelog.broker.handlers.sasl_handshake", 0, 1),
    18: HandlerEntry("tidelog.broker.handlers.api_versions", 0, 4),
    19: HandlerEntry("tidelog.broker.handlers.create_topics", 0, 7),
    20: HandlerEntry("tidelog.broker.handlers.delete_topics", 0, 6),
    21: HandlerEntry("tidelog.broker.handlers.delete_records", 0, 2),
    22: HandlerEntry("tidelog.broker.handlers.init_producer_id", 0, 6),
    23: HandlerEntry("tidelog.broker.handlers.offset_for_leader_epoch", 0, 4),
    24: HandlerEntry("tidelog.broker.handlers.add_partitions_to_txn", 0, 5),
    25: HandlerEntry("tidelog.broker.handlers.add_offsets_to_txn", 0, 4),
    26: HandlerEntry("tidelog.broker.handlers.end_txn", 0, 5),
    27: HandlerEntry("tidelog.broker.handlers.write_txn_markers", 0, 2),
    28: HandlerEntry("tidelog.broker.handlers.txn_offset_commit", 0, 5),
    29: HandlerEntry("tidelog.broker.handlers.describe_acls", 0, 3),
    30: HandlerEntry("tidelog.broker.handlers.create_acls", 0, 3),
    31: HandlerEntry("tidelog.broker.handlers.delete_acls", 0, 3),
    32: HandlerEntry("tidelog.broker.handlers.describe_configs", 0, 4),
    33: HandlerEntry("tidelog.broker.handlers.alter_configs", 0, 2),
    34: HandlerEntry("tidelog.broker.handlers.alter_replica_log_dirs", 0, 2),
    35: HandlerEntry("tidelog.broker.handlers.describe_log_dirs", 0, 5),
    36: HandlerEntry("tidelog.broker.handlers.sasl_authenticate", 0, 2),
    37: HandlerEntry("tidelog.broker.handlers.create_partitions", 0, 3),
    38: HandlerEntry("tidelog.broker.handlers.create_delegation_token", 0, 3),
    39: HandlerEntry("tidelog.broker.handlers.renew_delegation_token", 0, 2),
    40: HandlerEntry("tidelog.broker.handlers.expire_delegation_token", 0, 2),
    41: HandlerEntry("tidelog.broker.handlers.describe_delegation_token", 0, 3),
    42: HandlerEntry("tidelog.broker.handlers.delete_groups", 0, 2),
    43: HandlerEntry("tidelog.broker.handlers.elect_leaders", 0, 2),
    44: HandlerEntry("tidelog.broker.handlers.incremental_alter_configs", 0, 1),
    45: HandlerEntry("tidelog.broker.handlers.alter_partition_reassignments", 0, 1),
    46: HandlerEntry("tidelog.broker.handlers.list_partition_reassignments", 0, 0),
    47: HandlerEntry("tidelog.broker.handlers.offset_delete", 0, 0),
    48: HandlerEntry("tidelog.broker.handlers.describe_client_quotas", 0, 1),
    49: HandlerEntry("tidelog.broker.handlers.alter_client_quotas", 0, 1),
    50: HandlerEntry("tidelog.broker.handlers.describe_user_scram_credentials", 0, 0),
    51: HandlerEntry("tidelog.broker.handlers.alter_user_scram_credentials", 0, 0),
    55: HandlerEntry("tidelog.broker.handlers.describe_quorum", 0, 2),
    57: HandlerEntry("tidelog.broker.handlers.update_features", 0, 2),
    60: HandlerEntry("tidelog.broker.handlers.describe_cluster", 0, 2),
    61: HandlerEntry("tidelog.broker.handlers.describe_producers", 0, 0),
    64: HandlerEntry("tidelog.broker.handlers.unregister_broker", 0, 0),
    65: HandlerEntry("tidelog.broker.handlers.describe_transactions", 0, 0),
    66: HandlerEntry("tidelog.broker.handlers.list_transactions", 0, 2),
    68: HandlerEntry("tidelog.broker.handlers.consumer_group_heartbeat", 0, 1),
    69: HandlerEntry("tidelog.broker.handlers.consumer_group_describe", 0, 1),
    71: HandlerEntry("tidelog.broker.handlers.get_telemetry_subscriptions", 0, 0),
    72: HandlerEntry("tidelog.broker.handlers.push_telemetry", 0, 0),
    74: HandlerEntry("tidelog.broker.handlers.list_config_resources", 0, 1),
    75: HandlerEntry("tidelog.broker.handlers.describe_topic_partitions", 0, 0),
    76: HandlerEntry("tidelog.broker.handlers.share_group_heartbeat", 1, 1),
    77: HandlerEntry("tidelog.broker.handlers.share_group_describe", 1, 1),
    78: HandlerEntry("tidelog.broker.handlers.share_fetch", 1, 2),
    79: HandlerEntry("tidelog.broker.handlers.share_acknowledge", 1, 2),
    80: HandlerEntry("tidelog.broker.handlers.add_raft_voter", 0, 1),
    81: HandlerEntry("tidelog.broker.handlers.remove_raft_voter", 0, 0),
    83: HandlerEntry("tidelog.broker.handlers.initialize_share_group_state", 0, 0),
    84: HandlerEntry("tidelog.broker.handlers.read_share_group_state", 0, 0),
    85: HandlerEntry("tidelog.broker.handlers.write_share_group_state", 0, 1),
    86: HandlerEntry("tidelog.broker.handlers.delete_share_group_state", 0, 0),
    87: HandlerEntry("tidelog.broker.handlers.read_share_group_state_summary", 0, 1),
    88: HandlerEntry("tidelog.broker.handlers.streams_group_heartbeat", 0, 0),
    89: HandlerEntry("tidelog.broker.handlers.streams_group_describe", 0, 0),
    90: HandlerEntry("tidelog.broker.handlers.describe_share_group_offsets", 0, 1),
    91: HandlerEntry("tidelog.broker.handlers.alter_share_group_offsets", 0, 0),
    92: HandlerEntry("tidelog.broker.handlers.delete_share_group_offsets", 0, 0),
}
