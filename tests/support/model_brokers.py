"""Model of brokers for tests of readers: leaders move, connections fail, responses are throttled, batches are aborted.

Each response to a fetch has at most one batch of a partition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.logs import marker
from tidelog.client.admin.offsets import READ_COMMITTED
from tidelog.client.cluster import Cluster
from tidelog.client.connection import ClientError
from tidelog.protocol.errors import KafkaError, NotLeaderOrFollowerError
from tidelog.protocol.messages import fetch, list_offsets
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch

PLACES = [("orders", number) for number in range(3)]
BROKERS = [("one", 9092), ("two", 9092)]
MAX_FETCHES = 2_000
_LATEST, _EARLIEST = -1, -2


class Log:
    """A partition's batches, its aborted transactions, and the values that each isolation level reads (``values``)."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, bytes]] = []
        self.aborted: list[fetch.AbortedTransaction] = []
        self.times: dict[int, int] = {}
        self.end = 0
        self.open_from: int | None = None
        """The first offset of an open transaction, None without one."""
        self.values: list[list[bytes]] = [[], []]

    def append(self, *values: bytes, producer_id: int = -1, hidden: bool = False) -> None:
        """Append a batch, of a transaction if a producer is given; ``hidden``: read_committed does not return it."""
        times = [self.times.get(self.end + number, 0) for number in range(len(values))]
        records = [Record(self.end + number, times[number], None, value, []) for number, value in enumerate(values)]
        options = BatchOptions(
            producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=producer_id >= 0
        )
        self._add(build_batch(records, options), len(values))
        self.values[0] += values
        self.values[1] += () if hidden else values

    def append_times(self, *times_ms: int) -> None:
        """Append a batch of records whose values are their times."""
        self.times |= {self.end + number: time_ms for number, time_ms in enumerate(times_ms)}
        self.append(*(b"%d" % time_ms for time_ms in times_ms))

    def end_for(self, isolation_level: int) -> int:
        """Return the end, or with READ_COMMITTED the last stable offset."""
        return self.end if self.open_from is None or not isolation_level else self.open_from

    def offset_from(self, time_ms: int, isolation_level: int) -> int:
        """Return the first offset of a time or later below the isolation level's end; -1 without one."""
        if time_ms == _EARLIEST:
            return 0
        end = self.end_for(isolation_level)
        found = (one for one in self.times if self.times[one] >= time_ms and one < end)
        return end if time_ms == _LATEST else min(found, default=-1)

    def abort(self, producer_id: int, first_offset: int) -> None:
        """Abort a transaction that begins at ``first_offset``."""
        self.aborted.append(fetch.AbortedTransaction(producer_id=producer_id, first_offset=first_offset))
        self._add(marker(producer_id, commit=False), 1)

    def add_aborted(self, producer_id: int, batches: int) -> None:
        """Append an aborted transaction of ``batches`` batches."""
        start = self.end
        for number in range(batches):
            self.append(b"aborted %d" % number, producer_id=producer_id, hidden=True)
        self.abort(producer_id, start)

    def skip(self, count: int) -> None:
        """Leave out ``count`` offsets, as compaction does."""
        self.end += count

    def read(self, position: int) -> bytes:
        """Return the batch that has an offset, or the next batch; empty if there is none."""
        return next((batch for end, batch in self.batches if end > position), b"")

    def _add(self, batch: bytearray, count: int) -> None:
        batch[:8] = self.end.to_bytes(8, "big")
        self.end += count
        self.batches.append((self.end, bytes(batch)))


class ModelCluster(Cluster):
    """A cluster of two model brokers. ``before`` is called before each fetch, and may change the cluster."""

    def __init__(self, *logs: Log) -> None:
        self._timeout_s = 10.0
        self._leaders = {}
        self.logs = dict(zip(PLACES, logs, strict=False))
        self.leading = dict.fromkeys(self.logs, BROKERS[0])
        self.errors: dict[tuple[str, int], type[KafkaError]] = {}
        self.high_watermarks: dict[tuple[str, int], int] = {}
        self.is_throttled = False
        self.down: set[tuple[str, int]] = set()
        self.fetches = 0
        self.look_ups = 0
        self.before: Callable[[], None] = lambda: None

    def _ask_leaders(self, topic: str, create: bool) -> list[tuple[str, int] | None]:
        self.look_ups += 1
        return [self.leading[place] for place in self.logs]

    def client_for(self, address: tuple[str, int]) -> Any:
        return ModelClient(self, address)

    def high_watermark(self, place: tuple[str, int]) -> int:
        return self.high_watermarks.get(place, self.logs[place].end)


class ModelClient:
    """A connection to one of the model brokers."""

    bootstrap = "model"

    def __init__(self, cluster: ModelCluster, address: tuple[str, int]) -> None:
        self._cluster = cluster
        self._address = address

    def api_versions(self) -> dict[int, tuple[int, int]]:
        return dict.fromkeys(range(100), (0, 99))

    def send(self, request: Any, response_type: type, version: int) -> Any:
        if isinstance(request, list_offsets.ListOffsetsRequest):
            return self._offsets(request)
        self._cluster.fetches += 1
        assert self._cluster.fetches < MAX_FETCHES, "the reader does not end"
        self._cluster.before()
        if self._address in self._cluster.down:
            raise ClientError("connection refused")
        return fetch.FetchResponse() if self._cluster.is_throttled else self._records(request)

    def _offsets(self, request: list_offsets.ListOffsetsRequest) -> list_offsets.ListOffsetsResponse:
        (topic,) = request.topics
        found = [
            list_offsets.ListOffsetsPartitionResponse(
                partition_index=one.partition_index,
                offset=self._cluster.logs[topic.name, one.partition_index].offset_from(
                    one.timestamp, request.isolation_level
                ),
            )
            for one in topic.partitions
        ]
        return list_offsets.ListOffsetsResponse(
            topics=[list_offsets.ListOffsetsTopicResponse(name=topic.name, partitions=found)]
        )

    def _records(self, request: fetch.FetchRequest) -> fetch.FetchResponse:
        (topic,) = request.topics
        found = [
            self._partition((topic.topic, one.partition), one.fetch_offset, request.isolation_level)
            for one in topic.partitions
        ]
        return fetch.FetchResponse(responses=[fetch.FetchableTopicResponse(topic=topic.topic, partitions=found)])

    def _partition(self, place: tuple[str, int], position: int, isolation_level: int) -> fetch.PartitionData:
        log, high_watermark = self._cluster.logs[place], self._cluster.high_watermark(place)
        end = min(high_watermark, log.end_for(isolation_level))
        error = self._cluster.errors.get(place)
        if self._cluster.leading[place] != self._address:
            error = NotLeaderOrFollowerError
        if error is not None:
            return fetch.PartitionData(partition_index=place[1], error_code=error.code, high_watermark=-1)
        return fetch.PartitionData(
            partition_index=place[1],
            high_watermark=high_watermark,
            last_stable_offset=min(high_watermark, log.end_for(READ_COMMITTED)),
            aborted_transactions=log.aborted,
            records=log.read(position) if position < end else b"",
        )
