"""The families of metrics: each name with its type, its unit and its meaning.

One row declares a metric for ``/metrics`` and for docs/metrics.md (``make docs``). Names follow Kafka's MBeans in lower
case (``kafka.log:type=Log,name=Size`` is ``kafka_log_log_size_bytes``), with the base unit at the end. A metric that
Kafka lacks begins with ``tidelog_``, or with the prefix of the metrics of Kafka that it adds to; those of the process
begin with ``process_``. Inside the broker a sample may have another name (``source``) and another unit: its value is
exported times ``scale``. Imported with the admin interface, never before.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import NamedTuple

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
MS = 0.001


class Family(NamedTuple):
    """One metric. ``source`` is its name inside the broker if that differs; ``scale`` converts it to the base unit."""

    name: str
    kind: str
    help: str
    source: str = ""
    scale: float = 1.0


def _cleaner(name: str, kind: str, meaning: str, source: str = "", scale: float = 1.0) -> Family:
    prefix = "kafka_log_logcleaner_partition_"
    return Family(prefix + name, kind, f"{meaning}, for each compacted partition.", source and prefix + source, scale)


_ROWS = (
    # clients
    Family("kafka_server_brokertopicmetrics_bytesin_total", COUNTER, "Bytes of records that clients produced."),
    Family("kafka_server_brokertopicmetrics_bytesout_total", COUNTER, "Bytes of records that consumers fetched."),
    Family("kafka_server_brokertopicmetrics_messagesin_total", COUNTER, "Records that clients produced."),
    Family("kafka_server_topicmetrics_bytesin_total", COUNTER, "Bytes of records that clients produced, by topic."),
    Family(
        "kafka_server_socket_connections", GAUGE, "Open connections of clients.", "kafka_server_socket_connection_count"
    ),
    Family(
        "kafka_network_socketserver_memorypoolused_bytes", GAUGE, "Memory of requests that were received in part.",
        "kafka_network_socketserver_memorypoolused",
    ),
    Family("kafka_network_requestmetrics_requests_total", COUNTER, "Requests, by API and version."),
    Family(
        "kafka_network_requestmetrics_totaltime_seconds", HISTOGRAM,
        "Time from a request's arrival to its answer, by API. Short ones are sampled, at most one a millisecond.",
    ),
    Family("kafka_server_socket_successful_authentication_total", COUNTER, "Logins of clients that succeeded."),
    Family("kafka_server_socket_failed_authentication_total", COUNTER, "Logins of clients that failed."),
    Family("kafka_server_socket_successful_reauthentication_total", COUNTER, "Further logins that succeeded."),
    Family("kafka_server_socket_failed_reauthentication_total", COUNTER, "Further logins that failed."),
    Family(
        "kafka_server_socket_expired_connections_killed_total", COUNTER,
        "Connections that ended because their login had expired.",
    ),
    Family(
        "kafka_server_delayedoperationpurgatory_purgatorysize", GAUGE,
        "Requests that wait for records or for their timeout.",
    ),
    Family(
        "kafka_server_delayedoperationpurgatory_expired_total", COUNTER,
        "Waiting requests that were answered with what there was: at a timeout, or for the client's next request.",
        "kafka_server_delayedoperationpurgatory_expired",
    ),
    Family("kafka_server_fetchsessioncache_sessions", GAUGE, "Incremental fetch sessions."),
    Family("kafka_server_fetchsessioncache_partitions", GAUGE, "Partitions in fetch sessions."),
    Family(
        "kafka_server_fetchsessioncache_evictions_total", COUNTER, "Fetch sessions that were evicted for new ones.",
        "kafka_server_fetchsessioncache_evictions",
    ),
    Family("kafka_server_clientquotas_throttled_total", COUNTER, "Requests and connections that waited for a quota."),
    Family("kafka_server_clientquotas_throttle_seconds_total", COUNTER, "Time that requests and connections waited."),
    Family("kafka_server_clientquotas_queue_size", GAUGE, "Requests and connections that wait for a quota now."),
    Family(
        "kafka_server_authorizer_acls", GAUGE, "Access control lists.", "kafka_server_authorizer_acls_total_count"
    ),
    Family("kafka_server_authorizer_authorization_denied_total", COUNTER, "Operations that the authorizer denied."),
    # topics and logs
    Family("kafka_controller_globaltopiccount", GAUGE, "Topics, including internal ones."),
    Family("kafka_server_replicamanager_partitioncount", GAUGE, "Partitions of this broker."),
    Family("kafka_log_log_size_bytes", GAUGE, "Bytes of a log's segments.", "kafka_log_log_size"),
    Family("kafka_log_log_numlogsegments", GAUGE, "Segments of a log."),
    Family("kafka_log_log_logstartoffset", GAUGE, "First offset of a log."),
    Family("kafka_log_log_logendoffset", GAUGE, "Offset after the last record of a log."),
    Family(
        "kafka_log_logmanager_offlinelogdirectorycount", GAUGE,
        "Log directories that are offline because they failed.",
    ),
    Family("tidelog_log_full_directories", GAUGE, "Log directories on a full or read-only file system."),
    Family(
        "tidelog_log_refused_partitions", GAUGE,
        "Partitions whose log cannot be opened or has failed; requests for them get an error.",
    ),
    Family(
        "tidelog_log_refused", GAUGE, "1 for each partition whose log cannot be opened or has failed, with the reason."
    ),
    Family(
        "tidelog_log_damaged_batches_total", COUNTER,
        "Batches that were found damaged when a log was opened, and kept.",
        "tidelog_log_damaged_batches",
    ),
    Family(
        "tidelog_log_damaged_reads_total", COUNTER,
        "Reads that found an impossible batch header; a fetch gets CORRUPT_MESSAGE.",
        "tidelog_log_damaged_reads",
    ),
    Family(
        "tidelog_log_rebuilt_indices_total", COUNTER,
        "Segments whose index was missing or contradicted the records, and was rebuilt.",
        "tidelog_log_rebuilt_indices",
    ),
    Family(
        "tidelog_log_cut_bytes_total", COUNTER, "Bytes truncated from unsynced ends of logs.",
        "tidelog_log_cut_bytes",
    ),
    Family("tidelog_index_lag_records", GAUGE, "Records that are not in key and tag indices yet."),
    Family("tidelog_index_partition_lag_records", GAUGE, "Records of a partition that are not in its indices yet."),
    Family("tidelog_index_logs", GAUGE, "Partitions with a key or tag index."),
    Family("tidelog_index_rebuilds_total", COUNTER, "Indices that were rebuilt."),
    Family("tidelog_index_thread_restarts_total", COUNTER, "Restarts of the thread that indexes."),
    # groups and transactions
    Family("kafka_coordinator_group_groupmetadatamanager_numgroups", GAUGE, "Groups that this broker coordinates."),
    Family("kafka_coordinator_transaction_transactionalids", GAUGE, "Transactional ids that this broker coordinates."),
    Family("tidelog_group_lag_records", GAUGE, "Records after a group's committed offset, by group and partition."),
    # replication
    Family("kafka_server_replicamanager_underreplicatedpartitions", GAUGE, "Led partitions whose ISR lacks replicas."),
    Family(
        "kafka_server_replicamanager_underminisrpartitioncount", GAUGE,
        "Led partitions with fewer in-sync replicas than `min.insync.replicas`.",
    ),
    Family(
        "kafka_server_replicamanager_atminisrpartitioncount", GAUGE,
        "Led partitions with exactly `min.insync.replicas` in-sync replicas.",
    ),
    Family("kafka_server_replicamanager_isrshrinks_total", COUNTER, "Changes of an ISR that removed replicas."),
    Family("kafka_server_replicamanager_isrexpands_total", COUNTER, "Changes of an ISR that added replicas."),
    Family("kafka_server_replicafetchermanager_maxlag", GAUGE, "Largest lag of a followed partition in records."),
    Family("kafka_server_replicafetchermanager_failedpartitionscount", GAUGE, "Partitions whose replication failed."),
    Family("kafka_server_leaderreplication_byterate", GAUGE, "Bytes a second to throttled replicas."),
    Family("kafka_server_followerreplication_byterate", GAUGE, "Bytes a second of throttled replicas from leaders."),
    Family("kafka_server_brokertopicmetrics_replicationbytesin_total", COUNTER, "Bytes fetched from leaders."),
    Family(
        "kafka_server_brokertopicmetrics_invalidmessagecrcrecords_total", COUNTER,
        "Batches from leaders whose checksum was wrong.",
    ),
    Family(
        "kafka_server_broker_metadata_metrics_metadata_apply_errors_total", COUNTER,
        "Changes of metadata that a part of the broker could not apply.",
        "kafka_server_broker_metadata_metrics_metadata_apply_error_count",
    ),
    # the cleaner
    Family("kafka_log_logcleaner_rounds_total", COUNTER, "Rounds of cleaning."),
    Family("kafka_log_logcleaner_failed_rounds_total", COUNTER, "Rounds of cleaning that failed."),
    Family("kafka_log_logcleaner_dead_threads_total", COUNTER, "Cleaner threads that died."),
    Family("kafka_log_logcleaner_bytes_read_total", COUNTER, "Bytes that cleaning read."),
    Family("kafka_log_logcleaner_bytes_written_total", COUNTER, "Bytes that cleaning wrote."),
    Family("kafka_log_logcleaner_records_read_total", COUNTER, "Records that cleaning read."),
    Family("kafka_log_logcleaner_records_dropped_total", COUNTER, "Records that cleaning dropped."),
    Family("kafka_log_logcleaner_unreadable_batches_total", COUNTER, "Batches that cleaning could not read."),
    Family(
        "kafka_log_logcleaner_live_threads",
        GAUGE,
        "Cleaner threads that are alive; absent with `log.cleaner.enable=false`.",
    ),
    Family(
        "kafka_log_logcleanermanager_max_dirty_percent", GAUGE,
        "Largest dirty share of the compacted logs that the cleaner has measured, in percent.",
    ),
    Family(
        "kafka_log_logcleaner_max_compaction_delay_seconds", GAUGE,
        "Time by which the most overdue log has exceeded its `max.compaction.lag.ms`; 0 if no log is overdue.",
        "kafka_log_logcleaner_max_compaction_delay_secs",
    ),
    _cleaner("cleanable_ratio", GAUGE, "Share of dirty bytes"),
    _cleaner("dirty_bytes", GAUGE, "Bytes of segments with dirty records that can be cleaned now"),
    _cleaner("first_dirty_offset", GAUGE, "First offset that was not cleaned yet"),
    _cleaner(
        "compaction_lag_seconds", GAUGE, "Age of the oldest first batch of the segments in `dirty_bytes`",
        "compaction_lag_ms", MS,
    ),
    _cleaner("quarantined", GAUGE, "1 while it is quarantined because its last round failed"),
    _cleaner("failures", GAUGE, "Rounds that failed in a row"),
    _cleaner("last_round_timestamp_seconds", GAUGE, "Unix time of the last round", "last_round_timestamp_ms", MS),
    _cleaner("last_round_duration_seconds", GAUGE, "Duration of the last round", "last_round_duration_ms", MS),
    _cleaner("last_round_bytes_before", GAUGE, "Bytes before the last round"),
    _cleaner("last_round_bytes_after", GAUGE, "Bytes after the last round"),
    _cleaner("last_round_records_before", GAUGE, "Records before the last round"),
    _cleaner("last_round_records_after", GAUGE, "Records after the last round"),
    _cleaner("map_utilization", GAUGE, "Share of the offset map that the last round used"),
    _cleaner("collision_rate", GAUGE, "Collisions per look-up in the offset map of the last round"),
    _cleaner("unreadable_batches", GAUGE, "Batches that the last round could not read"),
    # the process
    Family(
        "tidelog_loop_longest_turn_since_read_cpu_seconds", GAUGE,
        "CPU time of the longest turn of the loop since the metrics were last read.",
    ),
    Family("tidelog_loop_longest_turn_cpu_seconds", GAUGE, "CPU time of the longest turn of the loop."),
    Family("tidelog_loop_longest_turn_seconds", GAUGE, "Wall time of the longest turn of the loop."),
    Family("tidelog_loop_long_turns_total", COUNTER, "Turns of the loop of 50 ms or more, by their kind."),
    Family("tidelog_tls_certificate_expiry_seconds", GAUGE, "Unix time at which a listener's certificate expires."),
    Family("tidelog_build_info", GAUGE, "1, with the version and whether modules are compiled."),
    Family("process_start_time_seconds", GAUGE, "Unix time at which the process started."),
    Family("process_cpu_seconds_total", COUNTER, "CPU time of the process."),
    Family("process_resident_memory_bytes", GAUGE, "Resident memory of the process."),
    Family("process_open_fds", GAUGE, "Open file descriptors."),
    Family("process_max_fds", GAUGE, "Most file descriptors that may be open."),
)  # fmt: skip

FAMILIES: Mapping[str, Family] = {row.source or row.name: row for row in _ROWS}
"""Families by the names of their samples inside the broker."""


def page(rows: Iterable[Family] = _ROWS) -> str:
    """Return the page of the documentation that lists the metrics."""
    lines = [
        "# Metrics",
        "",
        "`GET /metrics` of the [admin interface](operations.md) returns these metrics in the format of Prometheus, and",
        "`?internal=1` also those of internal topics. [monitoring.md](monitoring.md) has a dashboard and alerts.",
        "",
        "Rebuilt by `make docs` from `broker/metrics/families.py`.",
        "",
        "| metric | type | |",
        "|---|---|---|",
        *(f"| `{row.name}` | {row.kind} | {row.help} |" for row in rows),
    ]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.stdout.write(page())
