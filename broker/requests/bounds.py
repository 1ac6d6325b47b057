"""Bounds on the elements in a request's arrays, by API: they limit the cost of a request before its handler sees it.

The protocol's own bound, 2^20 elements in all arrays of one message together (``tidelog.protocol.types.MAX_ELEMENTS``),
keeps a decoder's memory finite. These bounds are tighter: several times what clients of very large clusters send, so
that a request and its answer stay below some ten megabytes. Answers about all topics, and those of DescribeConfigs, may
be longer. A request beyond the bounds is malformed: its connection is closed, with a line in the log that names the
array. The most that clients send:

    partitions      a consumer or admin client names each partition it reads, commits or describes: tens of thousands
    names           an admin client asks for all topics, or for all groups of a coordinator, at once: tens of thousands
    anything else   members of a group, configs, quotas, ACLs, tasks, filters: hundreds
"""

from __future__ import annotations

import sys

from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.protocol.api_keys import ApiKey

PARTITIONS = NAMES = 50_000
DEFAULT = 4_000
"""Bound of the APIs that are not in MAX_ELEMENTS."""

MAX_ELEMENTS: dict[int, int] = {
    ApiKey.PRODUCE: 20_000,
    ApiKey.FETCH: 20_000,  # partitions of one broker; later requests of a session name only what has changed
    ApiKey.LIST_OFFSETS: PARTITIONS,
    ApiKey.METADATA: NAMES,
    ApiKey.OFFSET_COMMIT: PARTITIONS,
    ApiKey.OFFSET_FETCH: PARTITIONS,
    ApiKey.FIND_COORDINATOR: NAMES,
    ApiKey.SYNC_GROUP: 10_000,
    ApiKey.DESCRIBE_GROUPS: NAMES,
    ApiKey.CREATE_TOPICS: 50_000,  # 10,000 partitions, each assigned by the client to up to three brokers
    ApiKey.DELETE_TOPICS: NAMES,
    ApiKey.DELETE_RECORDS: PARTITIONS,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: PARTITIONS,
    ApiKey.ADD_PARTITIONS_TO_TXN: 10_000,  # each request stores all partitions of the transaction in one record
    ApiKey.WRITE_TXN_MARKERS: PARTITIONS,
    ApiKey.TXN_OFFSET_COMMIT: PARTITIONS,
    ApiKey.CREATE_ACLS: 20_000,  # twice what may be created at once: half of the request may exist already
    ApiKey.DESCRIBE_CONFIGS: NAMES,
    ApiKey.ALTER_CONFIGS: 50_000,
    ApiKey.ALTER_REPLICA_LOG_DIRS: PARTITIONS,
    ApiKey.DESCRIBE_LOG_DIRS: PARTITIONS,
    ApiKey.CREATE_PARTITIONS: 50_000,
    ApiKey.DELETE_GROUPS: NAMES,
    ApiKey.ELECT_LEADERS: PARTITIONS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 50_000,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: PARTITIONS,
    ApiKey.OFFSET_DELETE: PARTITIONS,
    ApiKey.DESCRIBE_PRODUCERS: PARTITIONS,
    ApiKey.DESCRIBE_TRANSACTIONS: NAMES,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: 10_000,
    ApiKey.CONSUMER_GROUP_DESCRIBE: NAMES,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: NAMES,
    ApiKey.SHARE_GROUP_DESCRIBE: NAMES,
    ApiKey.SHARE_FETCH: 10_000,
    ApiKey.SHARE_ACKNOWLEDGE: 10_000,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: PARTITIONS,
    ApiKey.READ_SHARE_GROUP_STATE: PARTITIONS,
    ApiKey.WRITE_SHARE_GROUP_STATE: PARTITIONS,
    ApiKey.DELETE_SHARE_GROUP_STATE: PARTITIONS,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: PARTITIONS,
    ApiKey.STREAMS_GROUP_DESCRIBE: NAMES,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: 10_000,
}

MAX_ANSWER_BYTES = 100_000_000
"""Largest size in bytes of a long answer without its records: by default librdkafka accepts none that is longer
(``receive.message.max.bytes``). A handler whose answers may get that long returns an error instead; else the connection
is closed, with a line in the log. Only answers of a broker with a million partitions or more come near this bound,
since no handler repeats much of what a request names. DescribeConfigs has a lower bound of its own."""

MAX_BYTES = 8 * 1024 * 1024
"""Largest size in bytes of a request without records: five times those of a request with NAMES names of common
length."""
_BYTES_KEYS: dict[int, str] = {
    # A group's members and assignments are stored as one record.
    ApiKey.JOIN_GROUP: "message.max.bytes",
    ApiKey.SYNC_GROUP: "message.max.bytes",
    ApiKey.PUSH_TELEMETRY: "telemetry.max.bytes",
}
"""API of requests with opaque bytes -> the configuration key that bounds these bytes. Beyond the key's value the answer
is an error, as in Kafka; a request longer than twice that value and than MAX_BYTES is not decoded."""


def max_bytes(api_key: int, config: BrokerConfig) -> int:
    """Return the most bytes that a request may have. ``socket.request.max.bytes`` alone bounds produce requests."""
    if api_key == ApiKey.PRODUCE:
        return sys.maxsize
    key = _BYTES_KEYS.get(api_key)
    return MAX_BYTES if key is None else max(MAX_BYTES, 2 * config.get_int(key))


def max_elements(api_key: int) -> int:
    """Return the most elements that all arrays of a request may have together."""
    return MAX_ELEMENTS.get(api_key, DEFAULT)
