"""Virtual topics, such as ``orders?key=4711``: from their partitions only the records that match the query are read.

A :class:`VirtualPartition` is used where handlers expect a ``Partition``, and reads through a :class:`FilteredLog`.
Everything else comes from the real partition: offsets, leader epochs, times, configuration. Writes are answered
INVALID_TOPIC_EXCEPTION. In the purgatory a virtual partition has the key of the real one, so an append wakes its
fetches.

Filtering reads the disk and decodes records, so it never happens on the loop:

    read(offset) -> is there a result for this offset?   yes -> it is returned
                                                         no  -> a job begins in a worker, and the fetch waits
    job done     -> the result is kept, and the purgatory lets the waiting fetch read again, which finds the result

A result without matching records is a *gap*: an empty batch that moves the client's position on. If the job stopped
because it had read enough, the gap is returned at once. If the job reached the end of the log, the gap is returned
after GAP_WAIT_MS: a busy topic with few matches should not answer its consumers at every append. So that not every
append begins a job, the next job begins at the earliest PAUSE_MS after one that reached the end of the log. Loop
thread, except the jobs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tidelog.broker.find.indexing import indexing_of, is_indexed
from tidelog.broker.loop.threads import run_in_thread
from tidelog.broker.metadata.metadata_image import PartitionState
from tidelog.broker.metadata.virtual_names import parse_query, split_name
from tidelog.broker.replica.offset_waits import OffsetWaits
from tidelog.broker.replica.partition import Partition
from tidelog.log.fetch import FetchDataInfo, FetchIsolation
from tidelog.log.find.filtering import Matching, MatchReader, Reading, gap_batch
from tidelog.log.find.index_file import IndexDamagedError
from tidelog.log.find.lookup import Query
from tidelog.protocol.errors import InvalidTopicError, KafkaError, OffsetOutOfRangeError
from tidelog.protocol.transferable import TransferableRecords

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.loop.deferred import Deferred
    from tidelog.broker.metadata.image import TopicImage
    from tidelog.log.config import LogConfig
    from tidelog.log.unified_log import LogAppendInfo, UnifiedLog

GAP_WAIT_MS = 250
"""Time before a gap at the end of the log is returned."""
PAUSE_MS = 5
"""Least time between two jobs at the end of the log. A job takes 0.2 to 0.3 ms of CPU time even if it finds nothing: at
a thousand appends a second the pause saves most of them, and delays a matching record by PAUSE_MS at most."""
KEEP_MS = 2_000
"""Age from which on a result with records is not returned, as cleaning may have removed them from the log, and is
dropped: it holds a megabyte of memory, or a file that may have been deleted."""
MAX_RESULTS = 8
"""Largest number of results that are kept for one virtual partition."""
MAX_RESULT_BYTES = 1024 * 1024
"""Largest number of bytes of records in one result."""
MAX_PARTITIONS = 1000
"""Largest number of virtual partitions that are kept. A further one replaces the one that was used least recently."""
MAX_HELD_BYTES = 256 * 1024 * 1024
"""Largest number of bytes of key offsets that all virtual partitions remember together (at most 32 MB each). With more,
those that were used least recently are dropped; their next read finds the offsets again."""

Key = tuple[int, bool]
"""Fetch offset, and whether only committed records are read."""


class _Result:
    """Result of a job for one fetch offset: the matching records below the offset ``upper``, or the error of the
    job."""

    __slots__ = ("error", "is_served", "made_ms", "matching", "upper")

    def __init__(self, matching: Matching | None, error: KafkaError | None, upper: int, made_ms: float) -> None:
        self.matching = matching
        self.error = error
        self.upper = upper
        self.made_ms = made_ms
        self.is_served = False


class FilteredLog:
    """A log from which only matching records are read. Loop thread only."""

    def __init__(
        self, broker: Broker, partition: Partition, query: Query, note_growth: Callable[[int], object]
    ) -> None:
        """``note_growth`` is called with the number of bytes by which ``held_bytes`` grew."""
        self._broker = broker
        self._partition = partition
        self._query = query
        self._note_growth = note_growth
        self._made_reader: MatchReader | None = None
        self.held_bytes = 0
        """Bytes of key offsets that the reader remembers."""
        self._is_closed = False
        self._results: OrderedDict[Key, _Result] = OrderedDict()
        self._is_running = False
        self._pause_until_ms = 0.0
        self._touch_is_due = False

    @property
    def _reader(self) -> MatchReader:
        """The reader of the real partition's log, which must be open. Raises KafkaStorageError."""
        if self._made_reader is None:
            self._made_reader = MatchReader(self._partition.local_log, self._query)
        return self._made_reader

    def read(self, offset: int, max_bytes: int, *, isolation: FetchIsolation, min_one_message: bool) -> FetchDataInfo:
        """Return the matching records from ``offset`` on if a job has found them; else nothing, after starting a job.

        Raises OffsetOutOfRangeError, what ``Partition.local_log`` raises, and the job's error: what
        ``MatchReader.read`` raises.
        """
        offsets = self._partition.offsets()
        committed = isolation is FetchIsolation.TXN_COMMITTED
        nothing = FetchDataInfo(b"", offset, [] if committed else None)
        if not offsets.log_start_offset <= offset <= offsets.log_end_offset:
            raise OffsetOutOfRangeError(f"offset {offset} is outside of the log")
        upper = offsets.last_stable_offset if committed else offsets.high_watermark
        if offset >= upper:
            return nothing
        key = (offset, committed)
        result = self._results.get(key)
        if result is None or self._is_old(result):
            self._start(key, Reading(offset, upper, min(max(max_bytes, 1), MAX_RESULT_BYTES), committed))
            return nothing
        self._results.move_to_end(key)
        return self._hand_out(result, key, upper, nothing)

    def _is_old(self, result: _Result) -> bool:
        """Return whether cleaning may have removed a result's records from the log by now."""
        return not self._is_gap(result) and self._broker.time.monotonic_ms() - result.made_ms > KEEP_MS

    @staticmethod
    def _is_gap(result: _Result) -> bool:
        return result.matching is not None and result.matching.is_gap

    def _hand_out(self, result: _Result, key: Key, upper: int, nothing: FetchDataInfo) -> FetchDataInfo:
        """Return a result's records, or its gap; ``nothing`` for a gap at the end of the log that is too new. After
        a gap at the end, or one that is returned again, begin a job for the records that follow. Raises the error of
        the job.
        """
        if result.error is not None:
            del self._results[key]
            raise result.error
        matching = result.matching
        assert matching is not None
        if matching.is_gap:
            caught_up = matching.next_offset >= result.upper
            waits = caught_up and self._broker.time.monotonic_ms() - result.made_ms < GAP_WAIT_MS
            if matching.next_offset < upper and (caught_up or result.is_served):
                self._start(key, Reading(matching.next_offset, upper, MAX_RESULT_BYTES, key[1]))
            if waits:
                return nothing
        result.is_served = True
        records = matching.records
        if isinstance(records, TransferableRecords):
            records.file.retain()
            records = TransferableRecords(records.file, records.position, records.size)
        return nothing._replace(records=records)

    def _start(self, key: Key, reading: Reading) -> None:
        """Start a job in a worker, unless one is running. During the pause after the last job, none starts; the fetch
        is woken when the pause ends."""
        if self._is_running:
            return
        wait_ms = self._pause_until_ms - self._broker.time.monotonic_ms()
        if wait_ms > 0:
            if not self._touch_is_due:
                self._touch_is_due = True
                self._broker.timers.schedule(wait_ms, self._touch_after_pause)
            return
        broker, reader, partition = self._broker, self._reader, self._partition
        indexing = indexing_of(broker) if is_indexed(partition.config) else None
        indexer = indexing.indexer(partition.topic_partition) if indexing is not None else None

        def work() -> Matching:
            try:
                return reader.read(reading, indexer)
            except IndexDamagedError as error:
                assert indexing is not None
                indexing.rebuild(partition.topic_partition, error)
                return reader.read(reading, None)

        done = run_in_thread(broker.loop, broker.executor, work, broker.timers.turns)
        self._is_running = True
        done.on_done(lambda deferred: self._keep(key, reading.upper, deferred))

    def _keep(self, key: Key, upper: int, done: Deferred[Matching]) -> None:
        """Keep the result of a job, joined to the gap before it if there is one, and wake the waiting fetches."""
        self._is_running = False
        self._count_held_bytes()
        before = self._results.pop(key, None)
        made_ms = self._broker.time.monotonic_ms()
        try:
            matching: Matching | None = done.result()
            error = None
        except KafkaError as failed:
            matching, error = None, failed
        if before is not None and before.matching is not None and before.matching.is_gap and matching is not None:
            matching = join(key[0], matching)
            if matching.is_gap:
                made_ms = before.made_ms  # the client has waited since then
        elif before is not None:
            self._drop(before)
        if matching is not None and matching.next_offset >= upper:
            self._pause_until_ms = self._broker.time.monotonic_ms() + PAUSE_MS
        result = self._results[key] = _Result(matching, error, upper, made_ms)
        if not self._is_gap(result):
            self._broker.timers.schedule(KEEP_MS, partial(self._forget, key, result))
        while len(self._results) > MAX_RESULTS:
            self._drop(self._results.popitem(last=False)[1])
        if matching is not None and matching.is_gap and matching.next_offset >= upper:
            self._broker.timers.schedule(GAP_WAIT_MS, self._touch)
        self._touch()

    def _count_held_bytes(self) -> None:
        growth = self._reader.held_bytes - self.held_bytes
        if growth and not self._is_closed:
            self.held_bytes += growth
            self._note_growth(growth)

    def _forget(self, key: Key, result: _Result) -> None:
        """Drop a result that is too old to be returned, unless another one has replaced it."""
        if self._results.get(key) is result:
            self._drop(self._results.pop(key))

    def _touch_after_pause(self) -> None:
        self._touch_is_due = False
        self._touch()

    def _touch(self) -> None:
        """Let the fetches that wait in the purgatory for this partition read again."""
        self._broker.purgatory.touch(self._partition)

    def close(self) -> None:
        """Drop all results, and release their files."""
        self._is_closed = True
        while self._results:
            self._drop(self._results.popitem()[1])

    @staticmethod
    def _drop(result: _Result) -> None:
        if result.matching is not None and isinstance(result.matching.records, TransferableRecords):
            result.matching.records.release()


def join(offset: int, matching: Matching) -> Matching:
    """Join a gap that began at ``offset`` with the result after it: return its records, or one gap from ``offset``
    on."""
    if not matching.is_gap:
        return matching
    return matching._replace(records=gap_batch(offset, matching.next_offset))


class VirtualPartition(Partition):
    """A partition of a virtual topic. It has the real partition's hash and equality, for the purgatory."""

    __slots__ = ("_filtered", "real", "tag_header")

    def __init__(self, real: Partition, image: TopicImage, filtered: FilteredLog, tag_header: str | None) -> None:
        self.real = real
        self.tag_header = tag_header
        self._filtered = filtered
        self.topic_partition = real.topic_partition._replace(topic=image.name)
        self.topic_id = image.topic_id
        self.node_id = real.node_id
        self.is_internal = real.is_internal
        self._commits = OffsetWaits()
        self._roles = self.leading = None
        self.take_over(PartitionState(real.replicas, real.isr, real.leader, real.leader_epoch))
        self.passed_over = ()
        self._log = None  # it has no log of its own that could be configured or measured

    def __hash__(self) -> int:
        return hash(self.real)

    def __eq__(self, other: object) -> bool:
        return other is self.real or (isinstance(other, VirtualPartition) and other.real is self.real)

    @property
    def local_log(self) -> UnifiedLog:
        """The real partition's log, for offsets."""
        return self.real.local_log

    @property
    def config(self) -> LogConfig:
        """The real partition's configuration. Any thread, once the log is open: threads that convert records for old
        clients read the configuration. Raises KafkaStorageError."""
        return self.real.config

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        isolation: FetchIsolation,
        min_one_message: bool,
        by_follower: bool = False,
    ) -> FetchDataInfo:
        """See :meth:`FilteredLog.read`, which reads in a worker."""
        return self._filtered.read(offset, max_bytes, isolation=isolation, min_one_message=min_one_message)

    def read_in_thread(self, offset: int, *_: object, **__: object) -> FetchDataInfo:
        """Return nothing. Any thread. The thread that converts a result for an old client needs no other one: those
        that are slices have a record from their offset on."""
        return FetchDataInfo(b"", offset)

    def when_open(self) -> Deferred[None] | None:
        """Begin to open the real partition's log. Returns None if it is open."""
        return self.real.when_open()

    @property
    def proof(self) -> None:
        """None: reads run in workers, which prove transaction indices themselves."""
        return None

    def append_records(self, *_: object, **__: object) -> LogAppendInfo:
        """Raise InvalidTopicError: a virtual topic is read-only."""
        raise read_only_error(self)

    def move_log_start(self, offset: int) -> None:
        """Raise InvalidTopicError: a virtual topic is read-only."""
        raise read_only_error(self)

    def stands_for(self, real: Partition, tag_header: str | None) -> bool:
        """Return whether this is a view of ``real`` in its current role and epoch, with the topic's tag header."""
        epochs = self.leader_epoch == real.leader_epoch and self.is_leader == real.is_leader
        return self.real is real and self.tag_header == tag_header and epochs

    @property
    def held_bytes(self) -> int:
        """Bytes of key offsets that are remembered for this partition."""
        return self._filtered.held_bytes

    def close(self) -> None:
        """Drop all results, and release their files."""
        self._filtered.close()


def read_only_error(partition: Partition) -> InvalidTopicError:
    """Return the error for writing to a virtual topic."""
    return InvalidTopicError(f"{partition.topic_partition.topic} is a virtual topic: it can only be read")


class VirtualPartitions:
    """The virtual partitions in use."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._partitions: OrderedDict[tuple[bytes, int], VirtualPartition] = OrderedDict()
        self._held_bytes = 0

    def partition(self, image: TopicImage, index: int) -> Partition:
        """Return the partition of a virtual topic. Raises UnknownTopicOrPartitionError, InvalidTopicError, and
        NotLeaderOrFollowerError if this broker has no replica of the real partition."""
        assert image.source is not None
        real = self._broker.replica_manager.partition(image.source, index)
        found = self._partitions.get((image.topic_id, index))
        header = self._tag_header(image.source, real)
        if found is not None and found.stands_for(real, header):
            self._partitions.move_to_end((image.topic_id, index))
            return found
        query = parse_query(split_name(image.name)[1], header)
        filtered = FilteredLog(self._broker, real, query, partial(self._note_growth, (image.topic_id, index)))
        partition = VirtualPartition(real, image, filtered, header)
        if found is not None:
            self._drop(self._partitions.pop((image.topic_id, index)))
        self._partitions[image.topic_id, index] = partition
        self._limit()
        return partition

    def _note_growth(self, key: tuple[bytes, int], growth: int) -> None:
        """Count the bytes that a partition remembers in addition, and count that as a use: if this partition were
        dropped, its consumer would wait for the same offsets again and again."""
        self._held_bytes += growth
        self._partitions.move_to_end(key)
        self._limit()

    def _limit(self) -> None:
        """Drop the partitions used least recently while there are too many, or while they remember too much."""
        while len(self._partitions) > MAX_PARTITIONS or (
            self._held_bytes > MAX_HELD_BYTES and len(self._partitions) > 1
        ):
            self._drop(self._partitions.popitem(last=False)[1])

    def _drop(self, partition: VirtualPartition) -> None:
        self._held_bytes -= partition.held_bytes
        partition.close()

    def _tag_header(self, source: str, real: Partition) -> str | None:
        """Return the name of the header with a topic's tags: from its log if that is open, else from its configs."""
        if real.is_open:
            return real.config.index_tag_header
        return self._broker.topic_configs.log_config(self._broker.metadata.topics[source]).index_tag_header
