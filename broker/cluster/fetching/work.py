"""Values of a fetch loop (``tidelog.broker.cluster.fetching.fetcher``): settings, positions, and the work on logs."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.broker.cluster.fetching.session import FetchKey


class FetcherConfig(NamedTuple):
    """Settings of a fetch loop: broker id and epoch of the follower, and the ``replica.fetch`` keys."""

    replica_id: int
    broker_epoch: int
    max_wait_ms: int = 500
    min_bytes: int = 1
    partition_max_bytes: int = 1024 * 1024
    response_max_bytes: int = 10 * 1024 * 1024
    backoff_ms: int = 1000


class LogPosition(NamedTuple):
    """Start and end of a follower's log; ``last_epoch`` is the newest leader epoch that the log knows, at least that of
    its last record; -1 if there is none.
    """

    end_offset: int
    last_epoch: int
    log_start_offset: int


class FollowedPartition(NamedTuple):
    """A partition to fetch: its topic, its leader's epoch, and the position of this broker's log."""

    topic: str
    leader_epoch: int
    position: LogPosition


class Append(NamedTuple):
    """Append these records, which begin at ``offset``, the log's end; stop before a batch of a later epoch than
    ``leader_epoch`` (KAFKA-18723). Without records, only the leader's high watermark or log start has changed.
    """

    key: FetchKey
    leader_epoch: int
    offset: int
    records: memoryview
    high_watermark: int
    log_start_offset: int


class TruncateToEpochEnd(NamedTuple):
    """Truncate the log to the end of ``epoch`` in this log or in the leader's (``end_offset``), the smaller one."""

    key: FetchKey
    leader_epoch: int
    epoch: int
    end_offset: int


class TruncateTo(NamedTuple):
    """Truncate the log to ``offset``, where the leader's log ends."""

    key: FetchKey
    leader_epoch: int
    offset: int


class StartAt(NamedTuple):
    """Delete all records and begin at ``offset``, the leader's log start: it is above the end of this broker's log."""

    key: FetchKey
    leader_epoch: int
    offset: int


Work = Append | TruncateToEpochEnd | TruncateTo | StartAt
