"""Values of a fetch loop (``tidelog.broker.cluster.fetching.fetcher``): its settings, positions, and work on a log."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.broker.cluster.fetching.session import FetchKey


class FetcherConfig(NamedTuple):
    """Settings of a fetch loop: id and epoch of the follower, and the ``replica.fetch`` keys."""

    replica_id: int
    broker_epoch: int
    max_wait_ms: int = 500
    min_bytes: int = 1
    partition_max_bytes: int = 1024 * 1024
    response_max_bytes: int = 10 * 1024 * 1024
    backoff_ms: int = 1000


class LogPosition(NamedTuple):
    """Ends of a follower's log; ``last_epoch`` is that of its last record or a later one, -1 without any."""

    end_offset: int
    last_epoch: int
    log_start_offset: int


class Followed(NamedTuple):
    """A partition that a broker leads in ``leader_epoch``, and the position of the log here."""

    topic: str
    leader_epoch: int
    position: LogPosition


class Append(NamedTuple):
    """Append these records, which begin at ``offset``, the log's end; stop before a batch of a later epoch than
    ``leader_epoch`` (KAFKA-18723). Without records only the leader's offsets are news."""

    key: FetchKey
    leader_epoch: int
    offset: int
    records: memoryview
    high_watermark: int
    log_start_offset: int


class TruncateToEpochEnd(NamedTuple):
    """Cut the log where ``epoch`` ends, here or at the leader (``end_offset``), whichever comes first."""

    key: FetchKey
    leader_epoch: int
    epoch: int
    end_offset: int


class TruncateTo(NamedTuple):
    """Cut the log at the leader's end: the leader lacks what lies after it."""

    key: FetchKey
    leader_epoch: int
    offset: int


class StartAt(NamedTuple):
    """Drop the log and begin at the leader's start: the leader has not kept what would follow."""

    key: FetchKey
    leader_epoch: int
    offset: int


Work = Append | TruncateToEpochEnd | TruncateTo | StartAt
