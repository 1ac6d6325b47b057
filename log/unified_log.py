# cython: wraparound=True, boundscheck=True
"""The log of one partition: it appends, reads by isolation level, rolls, truncates and replaces segments::

    append   validate and assign offsets -> producer check -> roll? -> one pwrite -> publish ``end`` -> producer state
    read     copy ``end`` -> segment snapshot -> find the bytes -> slice       (``tidelog.log.fetch``)

Invariants:

- ``log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset``, ``recovery_point <= log_end_offset``;
- records below ``log_end_offset`` can be read: an append sets ``end``, a position, before it, a truncation after it;
- the active segment is the last of ``segments``; offsets in segment n are below the base offset of segment n + 1;
- records below ``recovery_point`` are synced, and so are the index entries of transactions aborted below it.

``lock`` is held for append, roll, truncation, a swap's last renames and changes of the offsets; a flush syncs without
it. Attributes are published by one assignment (an int, a tuple, an immutable snapshot). Reads take the lock only to
prove a transaction index, or after an error, to see whether the log has changed. Without the lock, files are made,
renamed, removed or synced by name only within ``files`` (``tidelog.log.file_use``), for which deletion waits. Retention
and swaps are in ``tidelog.log.retention``, recovery in ``tidelog.log.recovery.loader``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidelog.log.config import LogConfig, validation_params
from tidelog.log.environment import DirectoryState, LogEnvironment
from tidelog.log.fetch import FetchDataInfo, FetchIsolation, LogEnd, TailHint, collect_aborted, read_log
from tidelog.log.file_use import FileUse, LogDeletedError
from tidelog.log.files.checkpoints import sync_partition_metadata
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.index.transaction_index import AbortedTxn
from tidelog.log.leader_epochs import LeaderEpochCache
from tidelog.log.producer.replay import marker_of, rebuild_producer_state
from tidelog.log.producer.state import Marker, ProducerBatch, ProducerStateManager
from tidelog.log.records.work_budget import NO_BUDGET, WorkBudget
from tidelog.log.retention import (
    StartOffsetReason,
    delete_old_segments,
    delete_segments,
    remove_segments,
    swap_segments,
    whole_or_out_of_service,
)
from tidelog.log.segment.segment import LogSegment, find_cut, flush_indices, seal
from tidelog.log.segment.segments import LogSegments
from tidelog.log.system.file_system import LogStorageError
from tidelog.log.timestamps import TimestampAndOffset, find_offset_by_timestamp
from tidelog.log.validation.params import AppendContext, AppendOrigin
from tidelog.log.validation.relocation import relocate
from tidelog.log.validation.result import ValidationResult
from tidelog.log.validation.single_batch import CheckedBatch
from tidelog.log.validation.validator import LogValidator, validate_generally
from tidelog.protocol.compiled import words
from tidelog.protocol.errors import (
    CorruptMessageError,
    KafkaStorageError,
    OffsetOutOfRangeError,
    RecordListTooLargeError,
)

logger = logging.getLogger(__name__)


class LogAppendInfo(NamedTuple):
    """Result of an append. ``log_append_time`` is -1 under create time. With ``duplicate`` nothing was written: offsets
    are the stored batch's, both times its largest timestamp. ``high_watermark`` is the one just after the append."""

    first_offset: int
    last_offset: int
    max_timestamp: int
    log_append_time: int
    log_start_offset: int
    duplicate: bool
    size_bytes: int
    high_watermark: int


class LogParts(NamedTuple):
    """The loader's results, from which a :class:`UnifiedLog` is made."""

    topic_partition: TopicPartition
    topic_id: bytes | None
    directory: str
    config: LogConfig
    environment: LogEnvironment
    directory_state: DirectoryState
    segments: LogSegments
    producer_state: ProducerStateManager
    leader_epochs: LeaderEpochCache
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    recovered: bool = False
    """Whether the load may have written indices, after an unclean stop."""


_CLIENT = AppendOrigin.CLIENT
NO_TAIL = TailHint(-1, -1, -1, -1)
NO_BOUND = LogEnd(-1, -1, -1), -1
UNBOUND = 2**63 - 1
"""An offset above all others."""


class UnifiedLog:
    """The log of one partition: appends, reads, offsets, retention. Made by
    :func:`tidelog.log.recovery.loader.load_log`."""

    __slots__ = (
        "_active",
        "_cuts",
        "_directory_number",
        "_directory_state",
        "_is_identified",
        "_opened_end",
        "_rolled",
        "_segment_bytes",
        "_segment_ms",
        "_time",
        "_validator",
        "bound_hint",
        "clean_bound",
        "config",
        "directory",
        "end",
        "environment",
        "files",
        "flush_wanted",
        "high_watermark",
        "index_bound",
        "is_closed",
        "last_flushed_ms",
        "last_stable_offset",
        "leader_epochs",
        "lock",
        "log_end_offset",
        "log_start_offset",
        "producer_state",
        "proof_lock",
        "recovery_bound",
        "recovery_point",
        "segments",
        "tail_hint",
        "topic_id",
        "topic_partition",
        "version",
    )

    def __init__(self, parts: LogParts) -> None:
        self.topic_partition = parts.topic_partition
        self.topic_id = parts.topic_id
        self.directory = parts.directory
        self.environment = parts.environment
        self._time = parts.environment.time
        self._directory_state = parts.directory_state
        self._directory_number = parts.directory_state.note_directory_name()
        self._is_identified = False  # whether ``partition.metadata`` was synced
        self._rolled: tuple[LogSegment, ...] = ()  # rolled segments that no flush has synced with their indices yet
        self._opened_end = -1 if parts.recovered else parts.log_end_offset  # at another end ``close`` syncs the indices
        self.lock = threading.RLock()
        self.proof_lock = threading.RLock()
        self.files = FileUse()
        self.segments = parts.segments
        self._active: LogSegment = parts.segments.active
        self.producer_state = parts.producer_state
        self.leader_epochs = parts.leader_epochs
        self.log_start_offset = parts.log_start_offset
        self.recovery_point = parts.recovery_point
        # No flush moves the recovery point above this bound: a truncation that is under way may leave a gap there.
        self.recovery_bound = UNBOUND
        self.high_watermark = self.last_stable_offset = parts.log_start_offset
        self.version = 0
        self._cuts = 0  # grows with each truncation, so that a flush notices one
        self.flush_wanted = False
        self.is_closed = False
        self.last_flushed_ms = self._time.monotonic_ms()
        # Only below these offsets are entries of key and tag indices, and what ``tidelog.cleaner.checkpoint`` saved,
        # valid. At first they are the log end at the opening: indices are synced more often than the log, and may have
        # entries for records that a power loss took. Each truncation lowers them. ``tidelog.log.find.indexer`` and the
        # cleaner set theirs to UNBOUND, so that a lower value shows the next truncation.
        self.index_bound = self.clean_bound = parts.log_end_offset
        self._publish_end(parts.log_end_offset)
        self.update_config(parts.config)

    def __repr__(self) -> str:
        return f"UnifiedLog({self.topic_partition}, {self.log_start_offset} to {self.log_end_offset})"

    # ---- append

    def validate(self, records: memoryview, *, leader_epoch: int, budget: WorkBudget) -> ValidationResult:
        """Validate a client's ``records`` before :meth:`append_as_leader`, and give them offsets. The buffer is changed
        in place.

        Raises what the validator raises. Any thread, without the lock.
        """
        return self._validator.validate_and_assign_offsets(
            records, self.log_end_offset, leader_epoch, self._time.milliseconds(), _CLIENT, budget
        )

    def append_as_leader(  # noqa: C901 - one flat function: each call less is 0.1 µs of each append
        self,
        records: memoryview,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        budget: WorkBudget = NO_BUDGET,
        validated: ValidationResult | None = None,
        is_committed: bool = False,
        transaction_version: int = 0,
    ) -> LogAppendInfo:
        """Validate ``records`` (one partition's bytes of a produce request, any magic), give them offsets, write them.

        ``validated`` is the result of :meth:`validate` for them, if that was called. With ``is_committed`` the high
        watermark moves to the new log end. ``transaction_version`` is that of a marker's transaction. The buffer is
        changed in place. Raises what the validator raises, StaleOffsetsError, OutOfOrderSequenceNumberError and the
        other producer errors, RecordListTooLargeError, KafkaStorageError. No record was written then, with one
        exception: a marker stays if its index entry cannot be written, and the log goes out of service.
        """
        with self.lock:
            if self._directory_state.append_refusal is not None or self.is_closed:
                raise self._unavailable()
            next_offset = self.log_end_offset
            checked = CheckedBatch.__new__(CheckedBatch)
            validator, now_ms = self._validator, self._time.milliseconds()
            if validated is not None:
                checked.take(relocate(validated, next_offset, leader_epoch))
            elif not validator.assign_unchanged(records, next_offset, leader_epoch, now_ms, budget, checked):
                context = AppendContext(next_offset, leader_epoch, now_ms, origin, budget)
                checked.take(validate_generally(records, validator.params, context))
            entry = producer = marker = None
            if checked.producer_id >= 0:
                if checked.is_control:
                    marker = self._check_marker(checked, transaction_version)
                else:
                    if origin is _CLIENT and not checked.is_transactional:
                        entry = self.producer_state.find_if_next(
                            checked.producer_id, checked.producer_epoch, checked.base_sequence, checked.last_sequence
                        )
                    if entry is None:
                        producer = producer_batch(checked)
                        duplicate = self._check_producer(producer, origin)
                        if duplicate is not None:
                            return duplicate
            size = self._write(checked, next_offset, leader_epoch)
            last_offset, max_timestamp = checked.last_offset, checked.max_timestamp
            if entry is not None:  # the last stable offset stays: no transaction began or ended
                self.producer_state.advance(entry, checked.last_sequence, next_offset, last_offset, max_timestamp)
            elif producer is not None:
                self.producer_state.update(producer)
                self._publish_last_stable_offset()
            elif marker is not None:
                self._end_transaction(marker)
            if is_committed:
                self._move_high_watermark(last_offset + 1)
            return words.tuple_as(LogAppendInfo, (
                checked.first_offset, last_offset, max_timestamp, checked.append_time_ms, self.log_start_offset, False,
                size, self.high_watermark,
            ))  # fmt: skip

    def _write(self, checked: CheckedBatch, next_offset: int, leader_epoch: int) -> int:
        """Write the checked records and publish the new log end; return the number of bytes."""
        records, last_offset, max_timestamp = checked.records, checked.last_offset, checked.max_timestamp
        size = len(records)
        if size > self._segment_bytes:
            raise RecordListTooLargeError(
                f"{size} bytes for {self.topic_partition} are more than a segment of {self._segment_bytes} bytes"
            )
        active = self._active
        try:
            if active.should_roll(self._segment_bytes, self._segment_ms, size, max_timestamp, last_offset):
                active = self.roll()
            if leader_epoch > self.leader_epochs.latest_epoch:
                self.leader_epochs.assign(leader_epoch, next_offset)
            position = active.append(records, checked.indexed_offset, max_timestamp, checked.offset_of_max_timestamp)
        except LogStorageError as error:
            self.note_error(error)
            raise
        self.end = words.tuple_as(LogEnd, (last_offset + 1, active.base_offset, position + size))
        self.log_end_offset = last_offset + 1
        return size

    def _check_producer(self, batch: ProducerBatch, origin: AppendOrigin) -> LogAppendInfo | None:
        """Raise the producer errors; return the result of the first append if the batch is a duplicate."""
        state = self.producer_state
        if origin is AppendOrigin.CLIENT:
            first = state.find_duplicate(
                batch.producer_id, batch.producer_epoch, batch.first_sequence, batch.last_sequence
            )
            if first is not None:
                return LogAppendInfo(first.first_offset, first.last_offset, first.timestamp, first.timestamp,
                                     self.log_start_offset, True, 0, self.high_watermark)  # fmt: skip
        state.check(batch, check_sequence=origin is AppendOrigin.CLIENT)
        return None

    def _check_marker(self, checked: CheckedBatch, transaction_version: int) -> Marker | None:
        marker = marker_of(checked.records, checked.producer_id, checked.producer_epoch, checked.first_offset)
        if marker is not None:
            self.producer_state.check_marker(marker, transaction_version)
        return marker

    def _end_transaction(self, marker: Marker) -> None:
        aborted = self.producer_state.update_marker(marker)
        if aborted is not None:
            try:
                self._active.transaction_index.append(aborted)
            except LogStorageError as error:
                # The marker is in the log and cannot be removed. Without the entry a reader would take the aborted
                # records for committed ones. So nothing is served until recovery has rebuilt the index.
                self.take_out_of_service(error)
                raise
        self._publish_last_stable_offset()

    @property
    def is_serving(self) -> bool:
        """True while the log is open and neither it nor its directory has failed."""
        return not self.is_closed and self._directory_state.failure is None

    @property
    def failure(self) -> KafkaStorageError | None:
        """The error that took the log, or its directory, out of service; None while there is none."""
        return self._directory_state.failure

    def _unavailable(self) -> KafkaStorageError:
        failure = self._directory_state.failure
        if isinstance(failure, LogDeletedError):
            return LogDeletedError(f"{self.topic_partition} was deleted")
        if self.is_closed:
            return KafkaStorageError(f"the log of {self.topic_partition} is closed")
        if failure is None:
            return KafkaStorageError(f"{self.topic_partition} takes no records: {self._directory_state.append_refusal}")
        return KafkaStorageError(f"{self.topic_partition} is offline: {failure}")

    def note_error(self, error: LogStorageError) -> None:
        """Note that an operation on a file of this log failed. If the disk does not work, take the directory offline,
        else only this log.

        An error that left everything as it was (a full disk) takes nothing out of service. Any thread.
        """
        state = self._directory_state
        state.note_error(error, self.environment.file_system)
        if not error.is_recoverable:
            self.take_out_of_service(error)

    def take_out_of_service(self, error: KafkaStorageError) -> None:
        """Serve nothing of this log until it is loaded again; its directory's other logs go on. Any thread."""
        if self._directory_state.failure is None:
            logger.error("%s is out of service: %s", self.topic_partition, error)
            self._fail(error)
            self.environment.note_failed_log(self.topic_partition)

    def _fail(self, error: KafkaStorageError) -> None:
        # The log gets a DirectoryState of its own, so that appends and reads have only one state to check.
        state = DirectoryState(self._directory_state.path)
        state.failure = state.append_refusal = error
        self._directory_state = state

    # ---- read

    def read(
        self, offset: int, max_bytes: int, *, isolation: FetchIsolation, min_one_message: bool, prove: bool = True
    ) -> FetchDataInfo:
        """Read batches from the one that holds ``offset`` on, at most ``max_bytes``, which may cut the last one. With
        ``min_one_message`` the first batch is complete whatever its size.

        If a transaction index has to be proven first (``tidelog.log.index_proof``), that is done with ``prove``, which
        reads whole segments; otherwise UnprovenIndexError is raised. Raises OffsetOutOfRangeError, CorruptMessageError,
        KafkaStorageError. Any thread.
        """
        if self._directory_state.failure is not None:
            raise self._unavailable()
        try:
            return read_log(self, offset, max_bytes, isolation, min_one=min_one_message, prove=prove)
        except KafkaStorageError:
            if self.is_closed:
                raise self._unavailable() from None
            raise
        except CorruptMessageError as error:
            self.environment.damage.reads += 1
            logger.error("%s: the records at offset %d cannot be read: %s", self.topic_partition, offset, error)
            raise

    def fetch_offset_by_timestamp(self, timestamp: int) -> TimestampAndOffset | None:
        """Find the first record at or after ``timestamp`` (ms); -1 to -5 are the special values of ListOffsets that
        ``tidelog.log.timestamps`` names. Any thread.

        Source: ListOffsets v0 to v10.
        """
        if self._directory_state.failure is not None:
            raise self._unavailable()
        try:
            return find_offset_by_timestamp(self, timestamp)
        except KafkaStorageError:
            if self.is_closed:
                raise self._unavailable() from None
            raise

    def collect_aborted_transactions(self, start: int, end: int) -> list[AbortedTxn]:
        """Collect the aborted transactions that overlap offsets [``start``, ``end``). Any thread."""
        return collect_aborted(self, self.segments.values(start, self.log_end_offset), start, end)

    # ---- offsets

    @property
    def size_bytes(self) -> int:
        """Bytes of records in all segments."""
        return self.segments.size_bytes

    def update_high_watermark(self, offset: int) -> None:
        """Move the high watermark to ``offset``, within log start and log end, and with it the last stable offset."""
        with self.lock:
            self._move_high_watermark(offset)

    def _move_high_watermark(self, offset: int) -> None:
        # Comparisons in place of min and max save 0.3 µs of the 11 that a small produce request takes.
        if offset > self.log_end_offset:
            offset = self.log_end_offset
        if offset < self.log_start_offset:
            offset = self.log_start_offset
        self.high_watermark = offset
        if self.producer_state.on_high_watermark(offset):
            self._publish_last_stable_offset()
        else:
            self.last_stable_offset = offset

    def _publish_last_stable_offset(self) -> None:
        unstable = self.producer_state.first_unstable_offset
        watermark = self.high_watermark
        if unstable is None or unstable >= watermark:
            self.last_stable_offset = watermark
        else:
            self.last_stable_offset = max(unstable, self.log_start_offset)

    def maybe_increment_log_start_offset(
        self, offset: int, reason: StartOffsetReason = StartOffsetReason.DELETE_RECORDS
    ) -> bool:
        """Move the log start offset to ``offset`` (DeleteRecords, retention); return False if it is there or later.

        With DELETE_RECORDS it raises OffsetOutOfRangeError above the high watermark. Raises KafkaStorageError. The new
        start offset survives a restart once the log manager has written its checkpoint.
        """
        with self.lock:
            self._ensure_open()
            if offset > self.high_watermark and reason is StartOffsetReason.DELETE_RECORDS:
                raise OffsetOutOfRangeError(
                    f"cannot start {self.topic_partition} at {offset}, above the high watermark {self.high_watermark}"
                )
            if offset <= self.log_start_offset:
                return False
            self.log_start_offset = offset
            self.high_watermark = max(self.high_watermark, offset)
            self.last_stable_offset = max(self.last_stable_offset, offset)
            self.leader_epochs.truncate_from_start(offset)
            self._publish_last_stable_offset()
            return True

    def ensure_appendable(self) -> None:
        """Raise KafkaStorageError when the log takes no records now."""
        if self._directory_state.append_refusal is not None or self.is_closed:
            raise self._unavailable()

    def _ensure_open(self) -> None:
        """Raise KafkaStorageError if the log is closed or deleted: its directory may belong to another log by now."""
        if self.is_closed:
            raise self._unavailable()

    def _publish_end(self, offset: int) -> None:
        """Publish ``offset`` as the end, at the end of the active segment, and forget read hints."""
        self._active = active = self.segments.active
        self.version += 1
        self.end = LogEnd(offset, active.base_offset, active.size)
        self.log_end_offset = offset
        self.tail_hint = NO_TAIL
        self.bound_hint: tuple[LogEnd, int] = NO_BOUND

    # ---- roll, flush, truncate

    def roll(self, at: int = -1) -> LogSegment:
        """Begin a new active segment at the log end, or at ``at`` if that is later; an empty one that begins there is
        kept. Raises KafkaStorageError; the log is unchanged then."""
        with self.lock:
            self._ensure_open()
            old, offset = self._active, max(self.log_end_offset, at)
            if old.size == 0 and old.base_offset == offset:
                return old
            new = LogSegment.create(self.directory, offset, self.config, self.environment.file_system, self._time)
            try:
                old.on_become_inactive()
                self.producer_state.end_offset = offset
                self.producer_state.take_snapshot()
            except LogStorageError:
                new.close()
                new.delete_files()
                raise
            self._rolled = (*self._rolled, old)
            self.segments = self.segments.replace(added=(new,))
            self._publish_end(offset)
            self.flush_wanted = True
            return new

    def flush(self, up_to_offset: int | None = None) -> None:
        """Sync all segments from the recovery point to ``up_to_offset`` (default: the log end); move that point there.

        Raises KafkaStorageError. A failed sync takes the directory offline: it is unknown what the disk holds, and a
        second sync could wrongly succeed (docs/internals/faults.md, F9). A full disk does not: the next flush tries
        again (F8 there). The log's lock is not held during syncs. Any thread.
        """
        with self.lock:  # so that a marker below this end has its entry in the transaction index
            offset = self.log_end_offset if up_to_offset is None else up_to_offset
        if min(offset, self.log_end_offset) <= self.recovery_point and not self._rolled:
            return
        try:
            with self.files:
                while not self._flush(offset):
                    pass
        except LogDeletedError:
            return  # deleted: nothing is left to sync

    def _flush(self, offset: int) -> bool:
        """Try once to flush; return False if segments were replaced or the log was truncated meanwhile, so that the new
        files have to be synced.
        """
        cuts, start = self._cuts, self.recovery_point
        with self.lock:
            offset = min(offset, self.log_end_offset)
        self._directory_state.ensure_online()
        active, segments, seen = self.segments.active, self.segments.values(start, offset), self._rolled
        rolled = [segment for segment in seen if segment in self.segments]
        try:
            self.leader_epochs.flush()
            # Index entries of transactions aborted below the recovery point must be durable; see the invariants.
            aborted = [segment.transaction_index for segment in segments if segment.transaction_index.is_unsynced]
            for segment in segments:
                segment.flush(with_indices=segment is not active and segment not in rolled)
            for segment in rolled:
                flush_indices(segment)
            for index in aborted:
                index.flush()
            if aborted or any(segment.base_offset >= start for segment in segments):
                self._sync_names()
        except KafkaStorageError as error:
            with self.lock:  # a swap publishes its segments before it releases the lock
                if self.is_closed:
                    return True  # deleted: nothing is left to sync
                is_changed = any(segment not in self.segments for segment in (*segments, *rolled))
            if is_changed:
                return False
            if isinstance(error, LogStorageError):
                self.note_error(error)
            raise
        with self.lock:
            if self._cuts != cuts:
                return False
            self.last_flushed_ms = self._time.monotonic_ms()
            synced = min(offset, self.log_end_offset, self.recovery_bound)
            self.recovery_point = max(self.recovery_point, synced)
            self._rolled = tuple(segment for segment in self._rolled if segment not in seen)
        return True

    def _sync_names(self) -> None:
        """Make the topic id durable, and the names of segments and of the directory. Raises KafkaStorageError."""
        file_system = self.environment.file_system
        if self.topic_id is not None and not self._is_identified:
            sync_partition_metadata(file_system, self.directory)
            self._is_identified = True
        file_system.sync_directory(self.directory)
        self._directory_state.sync_names(file_system, self._directory_number)

    def truncate_to(self, offset: int) -> bool:
        """Drop the batch that holds ``offset`` and all later ones, and from a damaged one shortly before it on
        (``find_cut``); return False if there are none. Raises KafkaStorageError."""
        with self.lock, whole_or_out_of_service(self):
            self._ensure_open()
            if offset >= self.log_end_offset:
                self.leader_epochs.truncate_from_end(offset)  # an epoch that began here has no record
                return False
            if offset < self.segments.first.base_offset or offset <= self.log_start_offset:
                self.truncate_fully_and_start_at(offset)
                return True
            last = self.segments[self.segments.floor_index(offset)]
            cut = find_cut(last, offset)
            self._lower_offsets(LogEnd(offset, last.base_offset, cut.position))
            remove_segments(self, [s for s in self.segments if s.base_offset > offset])
            last.truncate_to(cut)
            end = self.segments.active.read_next_offset()
            # The batch that held ``offset`` was removed as a whole: the end may lie below it, even below the log start.
            if end < self.log_start_offset:
                self.truncate_fully_and_start_at(self.log_start_offset)
                return True
            self._lower_offsets(self.end._replace(offset=end))
            self._publish_end(end)
            self.leader_epochs.truncate_from_end(end)
            rebuild_producer_state(self.producer_state, self.segments, self.log_start_offset, end)
            self.update_high_watermark(self.high_watermark)
            return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop every record; the next one gets ``offset``. Raises KafkaStorageError."""
        with self.lock, whole_or_out_of_service(self):
            self._ensure_open()
            self._lower_offsets(LogEnd(offset, self.segments.first.base_offset, 0))
            delete_segments(self, self.segments)  # readers go on with them until the new one is there
            new = LogSegment.create(self.directory, offset, self.config, self.environment.file_system, self._time)
            self.segments = LogSegments((new,))
            self.leader_epochs.clear()
            self.producer_state.clear(offset)
            self.producer_state.remove_snapshots_outside(set())
            self.log_start_offset = self.high_watermark = self.last_stable_offset = offset
            self._publish_end(offset)

    def _lower_offsets(self, end: LogEnd) -> None:
        """Lower all published offsets to ``end`` before a truncation, so that no new reader gets removed bytes."""
        offset = end.offset
        self.recovery_point = min(self.recovery_point, offset)
        self.index_bound = min(self.index_bound, offset)
        self.clean_bound = min(self.clean_bound, offset)
        self.high_watermark = min(self.high_watermark, offset)
        self.last_stable_offset = min(self.last_stable_offset, offset)
        self.version += 1
        self._cuts += 1
        self._opened_end = -1
        self.log_end_offset = offset
        self.end = end

    # ---- housekeeping

    def delete_old_segments(self, now_ms: int) -> int:
        """Delete old segments by retention (``tidelog.log.retention``); return how many. Raises KafkaStorageError."""
        with self.lock:
            return 0 if self.is_closed else delete_old_segments(self, now_ms)

    def replace_segments(
        self, new: Sequence[LogSegment], old: Sequence[LogSegment], check: Callable[[], None] = lambda: None
    ) -> None:
        """Replace the segments ``old`` by the flushed ``.cleaned`` segments ``new`` (``tidelog.log.retention``).

        Call it without the lock, which it takes for the last renames. ``check`` is called under the lock before the log
        changes; if it raises, ``new`` are renamed to ``.cleaned`` again. Raises KafkaStorageError and what ``check``
        raises.
        """
        swap_segments(self, new, old, check)

    def save_indices(self) -> None:
        """Write to the disk the indices that are in memory because it was full. Raises KafkaStorageError."""
        with self.lock:
            self._ensure_open()
            for segment in self.segments:
                for index in (segment.offset_index, segment.time_index, segment.transaction_index):
                    index.save()

    def update_config(self, config: LogConfig) -> None:
        """Set the topic's configuration, from the next append on."""
        with self.lock:
            self.config = config
            self._segment_bytes, self._segment_ms = config.segment_bytes, config.segment_ms
            self._validator = LogValidator(validation_params(str(self.topic_partition), config))

    def close(self) -> None:
        """Finish the indices, write a producer snapshot and close the files. Slices not sent yet stay readable.

        Raises KafkaStorageError.
        """
        with self.lock:
            if self.is_closed:
                return
            self.is_closed = True
            if self._directory_state.failure is None:
                self.producer_state.end_offset = self.log_end_offset
                self.producer_state.take_snapshot()
            for segment in self.segments:
                segment.close()
            if self._directory_state.failure is None and self._opened_end != self.log_end_offset:
                # No flush has synced these indices, and after a clean stop only their ends are checked.
                flush_indices(self.segments.active)

    def abandon(self) -> None:
        """Stop the work on a deleted partition's files: wait for threads within ``files``, and let none open a file.

        Open files stay open for their readers. It blocks; the caller may not hold the lock or be within ``files``.
        """
        with self.lock:
            self.is_closed = True
            self._fail(LogDeletedError(f"{self.topic_partition} was deleted"))
        self.files.stop()
        for segment in self.segments:
            seal(segment)

    def release_files(self) -> None:
        """Release the files after :meth:`abandon`, when the deletion delay has passed."""
        for segment in self.segments:
            segment.release()


def producer_batch(checked: CheckedBatch) -> ProducerBatch:
    """Return the producer fields of a validated batch."""
    return ProducerBatch(
        checked.producer_id, checked.producer_epoch, checked.base_sequence, checked.last_sequence, checked.first_offset,
        checked.last_offset, checked.max_timestamp, bool(checked.is_transactional),
    )  # fmt: skip
