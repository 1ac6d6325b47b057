"""Search for records of a topic: one query to all its partitions. Each partition's results come from its end to its
beginning; they are merged by timestamp, newest first.

    loop thread   ``plan``: checks the request and collects the partitions' logs
    worker        ``FindAnswer``: waits for the indices (``_wait``), then yields records. If an index is damaged, it
                  is rebuilt, and the rest of the partition's records is read from the log

An answer that stopped at ``max_records`` says where the next page begins: ``next`` is a text with partitions and
offsets. In each of these partitions the search goes on below the offset; in the others it begins at the end. All pages
together have each matching record once.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.find.indexing import Indexing, indexing_of, is_indexed
from tidelog.log.find.index_file import IndexDamagedError
from tidelog.log.find.lookup import NotIndexedError, Query, find_newest, scan_newest
from tidelog.protocol.errors import InvalidRequestError, UnknownTopicOrPartitionError
from tidelog.protocol.record.record_batch import Record

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.log.unified_log import UnifiedLog

WAIT_S = 30.0
"""Longest time that a search waits for the indexer, for all partitions together; then it fails with
IndexBehindError."""
SETTLE_S = 5.0
"""Longest time that a search waits for indices that were just enabled, until they are open."""


class IndexBehindError(Exception):
    """The indexer did not reach the high watermarks of all logs within WAIT_S, or the broker was stopped."""


class FoundRecord(NamedTuple):
    """One record of an answer."""

    partition: int
    record: Record


@dataclass(slots=True, kw_only=True)
class FindRequest:
    """One search. ``query.tag_header`` is set by :func:`plan`. ``below`` is the position at which the previous page
    stopped. ``committed`` selects what a consumer with ``isolation.level=read_committed`` would read."""

    topic: str
    query: Query
    max_records: int | None = None
    wait: bool = False
    committed: bool = False
    below: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class FindAnswer:
    """Iterator of the found records. Iterate in a worker thread.

    At its end ``next`` is the position of the next page, None after the last one. ``index_lag`` is the number of
    offsets below the high watermarks of all partitions that the indices did not cover after the wait.
    """

    request: FindRequest
    logs: list[UnifiedLog]
    indexing: Indexing | None
    next: str | None = None
    index_lag: int = 0
    clock: Callable[[], float] = monotonic
    """Monotonic clock in seconds, for the time limits of waits."""

    def __iter__(self) -> Iterator[FoundRecord]:
        request = self.request
        if self.indexing is not None:
            self._wait(self.indexing)
        sources = [self._find_in_partition(index, log) for index, log in enumerate(self.logs)]
        merged = heapq.merge(*sources, key=lambda found: -found.record.timestamp)
        positions = dict(request.below)
        for count, found in enumerate(merged):
            if count == request.max_records:
                self.next = format_next(positions)
                return
            positions[found.partition] = found.record.offset
            yield found

    def _wait(self, indexing: Indexing) -> None:
        """Wait until the index covers the logs up to their high watermarks, if the request asks for it; else only until
        an index that was just enabled is open. Adds up ``index_lag``. Raises IndexBehindError."""
        until_s = self.clock() + (WAIT_S if self.request.wait else SETTLE_S)
        for log in self.logs:
            partition, left_s = log.topic_partition, max(0.0, until_s - self.clock())
            if self.request.wait:
                if not indexing.wait_until_indexed(partition, log.high_watermark, left_s):
                    raise IndexBehindError(f"the index of {partition} is not up to date after {WAIT_S:.0f} s")
            elif indexing.indexer(partition) is None:
                indexing.wait_until_indexed(partition, log.log_start_offset, left_s)
            indexer = indexing.indexer(partition)
            self.index_lag += indexer.lag if indexer is not None else 0

    def _find_in_partition(self, index: int, log: UnifiedLog) -> Iterator[FoundRecord]:
        """Yield the matching records of one partition, newest first; from the log if its index is damaged."""
        below = self.request.below.get(index)
        indexer = None if self.indexing is None else self.indexing.indexer(log.topic_partition)
        query, committed = self.request.query, self.request.committed
        seen = log.high_watermark if below is None else below
        try:
            for record in find_newest(log, indexer, query, below, committed=committed):
                seen = record.offset
                yield FoundRecord(index, record)
        except IndexDamagedError as error:
            assert self.indexing is not None
            self.indexing.rebuild(log.topic_partition, error)
            for record in scan_newest(log, query, seen, committed=committed):
                yield FoundRecord(index, record)


def plan(broker: Broker, request: FindRequest) -> FindAnswer:
    """Check that a topic has the index that a search needs, and collect its logs, which must be open. Loop thread.

    Raises UnknownTopicOrPartitionError, NotIndexedError, what ``Partition.local_log`` raises, and
    NotLeaderOrFollowerError if this broker has no replica of a partition.
    """
    image = broker.metadata.topics.get(request.topic)
    if image is None:
        raise UnknownTopicOrPartitionError(f"there is no topic {request.topic}")
    config = broker.topic_configs.log_config(image)
    query = request.query
    if query.key is not None and not config.index_keys:
        raise NotIndexedError(f"{request.topic} has no index of its keys: set index.keys=true on it")
    if query.tag is not None and config.index_tag_header is None:
        raise NotIndexedError(f"{request.topic} has no index of tags: set index.tag.header on it")
    request.query = query._replace(tag_header=config.index_tag_header)
    logs = [broker.replica_manager.partition(image.name, index).local_log for index in range(image.partition_count)]
    needs_index = query.key is not None or query.tag is not None
    indexing = indexing_of(broker) if needs_index and is_indexed(config) else None
    return FindAnswer(request, logs, indexing)


def format_next(positions: dict[int, int]) -> str:
    """Format the position of the next page as text: ``0:4711,1:42``."""
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(positions.items()))


def parse_next(text: str) -> dict[int, int]:
    """Parse the text of :func:`format_next`. Raises InvalidRequestError."""
    try:
        pairs = [part.split(":") for part in text.split(",") if part]
        return {int(partition): int(offset) for partition, offset in pairs}
    except ValueError:
        raise InvalidRequestError(f"next={text!r}: expected pairs PARTITION:OFFSET such as 0:4711,1:42") from None
