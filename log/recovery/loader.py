"""Loader of a :class:`UnifiedLog` from a partition directory.

Each step leaves a directory from which loading can start again, so a kill at any point does no harm:

1. leftovers: ``.deleted`` and ``.tmp`` files are removed. ``.cleaned`` files belong to an unfinished swap, which is
   undone: they are removed, and with them every ``.swap`` at or above the lowest of them. Without a ``.cleaned`` the
   swap is finished: the ``.swap`` files replace the segments that they cover;
2. the files must form a log: names of 20 digits, regular files, base offsets that fit the contents, no segment
   missing. Otherwise the partition is refused (:class:`LogLoadError`); the others are served;
3. after a clean stop, the first and last entries of each index are checked. Otherwise segments from the recovery point
   on are recovered (``tidelog.log.recovery.segment_recovery``), and of the others every index entry is checked. Faulty
   indices are rebuilt; if damage may hide markers of transactions, an invalid transaction index is refused instead;
4. leader epochs and producer state are read from their files, cut at the log's end, and completed from the records that
   can be read.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tidelog.log.config import LogConfig
from tidelog.log.environment import DirectoryState, LogEnvironment
from tidelog.log.files.checkpoints import (
    CLEANER_OFFSET_FILE,
    CheckpointCorruptError,
    read_offset_checkpoint,
    read_partition_metadata,
    write_partition_metadata,
)
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.index.abstract_index import note_empty
from tidelog.log.index.transaction_index import note_absent
from tidelog.log.index_proof import segment_digest
from tidelog.log.leader_epochs import LeaderEpochCache
from tidelog.log.producer.replay import (
    RECALLED_BYTES,
    RECALLED_BYTES_FLUSHED,
    choose_snapshots,
    rebuild_producer_state,
)
from tidelog.log.producer.state import ProducerStateManager, snapshot_offsets_in
from tidelog.log.recovery.progress import RecoveryProgress
from tidelog.log.recovery.segment_recovery import (
    LogLoadError,
    end_after_entries,
    headers_past_damage,
    index_fault,
    rebuild_indices,
    rebuild_transaction_index,
    recover_segment,
)
from tidelog.log.segment.batch_scan import BatchHeader
from tidelog.log.segment.segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_FILE_SUFFIXES,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    LogSegment,
    file_name,
    flush_indices,
)
from tidelog.log.segment.segments import LogSegments, close_indices_until_lookup
from tidelog.log.system.file_system import FileEntry
from tidelog.log.system.reserve import write_if_room
from tidelog.log.unified_log import LogParts, UnifiedLog
from tidelog.protocol.errors import CorruptMessageError, InconsistentTopicIdError, KafkaError, KafkaStorageError
from tidelog.protocol.record.record_batch import MAGIC_V2

logger = logging.getLogger(__name__)


class LoadRequest(NamedTuple):
    """Request to load a log, with all that the caller knows of it. ``clean``: the log needs no recovery, because its
    log directory was shut down cleanly or the log is new.
    """

    topic_partition: TopicPartition
    directory: str
    config: LogConfig
    environment: LogEnvironment
    directory_state: DirectoryState
    topic_id: bytes | None = None
    log_start_offset: int = 0
    recovery_point: int = 0
    clean: bool = False
    progress: RecoveryProgress | None = None
    found_id: bytes | None = None
    """The topic id in ``partition.metadata``, if this process has read it already."""
    index_digests: frozenset[str] = frozenset()
    """Digests of the log's transaction indices from the last checkpoint."""
    saves_epochs: bool = True
    """Whether leader epochs that the load has changed are written at once. If not, the caller writes them before any
    append.
    """


def load_log(request: LoadRequest) -> UnifiedLog:
    """Open or create the log in ``request.directory``.

    Raises LogLoadError if the files do not form a log that may be served, InconsistentTopicIdError if the directory
    belongs to another topic of that name, and KafkaStorageError.
    """
    try:
        return LogLoader(request).load()
    except (KafkaStorageError, InconsistentTopicIdError):
        raise
    except KafkaError as error:  # of records, whose codes would blame the client's request
        raise LogLoadError(f"{request.directory} cannot be read: {error}") from error


def remove_after_cut(directory: str, segment: LogSegment, end: int) -> None:
    """Remove an unsynced segment that does not continue the log, or follows one that does not."""
    logger.warning(
        "%s: removing unsynced segment %d, because it does not continue the log, which ends at %d",
        directory,
        segment.base_offset,
        end,
    )
    segment.close()
    segment.delete_files()


def flush_rebuilt(segment: LogSegment) -> None:
    """Make rebuilt indices durable. On a full disk this is left out: the next start rebuilds them again."""
    write_if_room(lambda: flush_indices(segment), "a rebuilt index is not synced; the next start rebuilds it again")


def note_listed(segments: Iterable[LogSegment], sizes: Mapping[str, int]) -> None:
    """Note the indices whose files are empty or missing in a listing of names and ``sizes``, so that nothing opens
    them."""
    for segment in segments:
        for index, suffix in ((segment.offset_index, INDEX_SUFFIX), (segment.time_index, TIME_INDEX_SUFFIX)):
            if not sizes.get(file_name(segment.base_offset, suffix), 0):
                note_empty(index)
        if file_name(segment.base_offset, TXN_INDEX_SUFFIX) not in sizes:
            note_absent(segment.transaction_index)


class StateBefore(NamedTuple):
    """Producer state just before an offset. It is not complete if damage before that may hide the end of a
    transaction."""

    state: ProducerStateManager
    is_complete: bool


class LogLoader:
    """One load of one partition directory; used once, by one thread."""

    def __init__(self, request: LoadRequest) -> None:
        self._request = request
        self._file_system = request.environment.file_system
        self._directory = request.directory
        self._interval_bytes = request.config.index_interval_bytes
        self._is_compacted = request.config.compact
        self._time = request.environment.time
        self._producer_state = ProducerStateManager(
            self._file_system, self._directory, request.environment.time, request.environment.producer_id_expiration_ms
        )
        self._epochs = LeaderEpochCache(self._file_system, self._directory)
        self._topic_id: bytes | None = None
        self._names: frozenset[str] = frozenset()
        """Names in the directory after step 1. Files that later steps make or remove are not tracked."""
        self._snapshots: list[int] | None = None
        """Offsets of the producer snapshots; None if the directory has to be listed for them."""
        self._ends: dict[LogSegment, int | None] = {}
        """End offsets of segments whose ends were read; None if a segment ends with bytes that cannot be read."""

    def load(self) -> UnifiedLog:
        """Carry out the steps of the module; see :func:`load_log`."""
        request = self._request
        topic_id = self._topic_id = self._ensure_topic_id()
        segments = LogSegments(self._open_segments(self._resolve_leftovers()))
        epochs_known = self._load_epochs()
        if request.clean:
            self._check_indices(segments, every_entry=False)
        else:
            segments = self._recover(segments)
        segments = self._begin_at_start(segments)
        if not len(segments):
            base = request.log_start_offset
            segments = LogSegments(
                (LogSegment.create(self._directory, base, request.config, self._file_system, self._time),)
            )
        end = self._check_layout(segments)
        log = self._assemble(segments, topic_id, end, epochs_known=epochs_known)
        close_indices_until_lookup(segments)
        return log

    def _begin_at_start(self, segments: LogSegments) -> LogSegments:
        """Return the segments. If the log ends before its log start offset, remove their files and return none.

        That happens when an unclean stop lost all unsynced records from the log start offset on. Raises LogLoadError
        if records that were synced are missing from there on.
        """
        start = self._request.log_start_offset
        if not len(segments) or segments.active.base_offset >= start:
            return segments
        end = _end_of(segments.active, self._ends)
        if end is None or end >= start:
            return segments
        if self._request.clean or start < self._request.recovery_point:
            raise LogLoadError(
                f"{self._directory} ends at {end}, before its log start offset {start}: segments were removed"
            )
        logger.warning("%s ends at %d; it starts empty at its log start offset %d", self._directory, end, start)
        for segment in segments:
            segment.close()
            segment.delete_files()
        return LogSegments(())

    # ---- identity

    def _ensure_topic_id(self) -> bytes | None:
        """Return the topic id in ``partition.metadata``. If there is none, the caller's id is written there; the first
        flush that syncs names of segments syncs it too. Raises InconsistentTopicIdError, KafkaStorageError.
        """
        wanted = self._request.topic_id
        known = self._read_topic_id()
        if wanted is not None and known is None:
            write_partition_metadata(self._file_system, self._directory, wanted, sync=False)
        if wanted is not None and known is not None and wanted != known:
            raise InconsistentTopicIdError(
                f"{self._directory} holds the log of another topic with the name {self._request.topic_partition.topic}"
            )
        return known if wanted is None else wanted

    def _read_topic_id(self) -> bytes | None:
        """Read the id in ``partition.metadata``; None if there is none, or if it cannot be read but the caller knows
        the id: a power loss may have left the file empty. Raises CheckpointCorruptError, LogStorageError.
        """
        if self._request.found_id is not None:
            return self._request.found_id
        try:
            return read_partition_metadata(self._file_system, self._directory)
        except CheckpointCorruptError as error:
            if self._request.topic_id is None:
                raise
            logger.warning("%s; writing it again", error)
            return None

    # ---- files

    def _resolve_leftovers(self) -> list[FileEntry]:
        """Undo or finish swaps and remove other leftovers, step 1 of the module; return the listing after that."""
        listing = self._file_system.list_directory(self._directory)
        files = {entry.name for entry in listing if not entry.is_directory}
        gone = {name for name in files if name.endswith((DELETED_SUFFIX, ".tmp"))}
        cleaned = {name for name in files if name.endswith(CLEANED_SUFFIX)}
        swapped = {
            entry.name: entry.size for entry in listing if entry.name in files and entry.name.endswith(SWAP_SUFFIX)
        }
        if cleaned:
            lowest = min(self._base_offset(name) for name in cleaned)
            undone = {name for name in swapped if self._base_offset(name) >= lowest}
            # Swaps are removed first: without a .cleaned beside it, a .swap would count as finished.
            for name in sorted(undone):
                self._unlink(name)
            swapped = {name: size for name, size in swapped.items() if name not in undone}
            gone |= cleaned
        for name in sorted(gone):
            self._unlink(name)
        if swapped:
            self._finish_swap(swapped, files)
        if gone or cleaned or swapped:
            self._file_system.sync_directory(self._directory)
            listing = self._file_system.list_directory(self._directory)
        return listing

    def _finish_swap(self, swapped: Mapping[str, int], files: set[str]) -> None:
        """Remove the files that the new segments replace, then rename these without ``.swap``, record files last.
        ``swapped`` has their sizes by name."""
        bounds: list[int] = []
        for name, size in swapped.items():
            if name.removesuffix(SWAP_SUFFIX).endswith(LOG_SUFFIX):
                base = self._base_offset(name)
                bounds += [base, max(self._next_offset_of(base, size), base + 1)]
        if bounds:
            for name in sorted(files):
                covered = name.endswith(SEGMENT_FILE_SUFFIXES) and min(bounds) <= self._base_offset(name) < max(bounds)
                if covered:
                    logger.info("%s: removing %s, which a finished swap replaces", self._directory, name)
                    self._unlink(name)
        for name in sorted(swapped, key=lambda n: (n.removesuffix(SWAP_SUFFIX).endswith(LOG_SUFFIX), n)):
            path = os.path.join(self._directory, name)
            self._file_system.rename(path, path.removesuffix(SWAP_SUFFIX))

    def _next_offset_of(self, base: int, size: int) -> int:
        """Read the offset after the last readable batch of a ``.swap`` segment of ``size`` bytes."""
        segment = LogSegment(
            self._directory, base, self._request.config, self._file_system, self._time, size=size, suffix=SWAP_SUFFIX
        )
        try:
            return max((header.last_offset + 1 for header in headers_past_damage(segment)), default=base)
        finally:
            segment.records.close()

    def _unlink(self, name: str) -> None:
        self._file_system.unlink(os.path.join(self._directory, name), missing_ok=True)

    def _base_offset(self, name: str) -> int:
        stem = name.partition(".")[0]
        if len(stem) != 20 or not (stem.isascii() and stem.isdigit()):
            raise LogLoadError(f"{os.path.join(self._directory, name)} is not named by an offset of 20 digits")
        return int(stem)

    def _open_segments(self, listing: list[FileEntry]) -> list[LogSegment]:
        """Open a segment for each ``.log`` file. Index files without one are removed if they can be leftovers;
        otherwise LogLoadError is raised.
        """
        segment_files = [entry for entry in listing if entry.name.endswith(SEGMENT_FILE_SUFFIXES)]
        self._names = frozenset(entry.name for entry in listing)
        self._snapshots = snapshot_offsets_in(self._names) if self._request.clean else None
        logs: dict[int, FileEntry] = {}
        for entry in segment_files:
            if not entry.is_file:
                raise LogLoadError(f"{os.path.join(self._directory, entry.name)} is not a regular file")
            base = self._base_offset(entry.name)
            if entry.name.endswith(LOG_SUFFIX):
                logs[base] = entry
        for entry in segment_files:
            base = self._base_offset(entry.name)
            if base in logs:
                continue
            # Retention (here and in Kafka) can leave an index before the first segment, or below the log start offset.
            # Between segments, an index shows that its record file was removed, or that a power loss removed the name
            # of an unsynced one; in that case recovery cuts the segments after it.
            is_synced = self._request.clean or base < self._request.recovery_point
            next_base = min((other for other in logs if other > base), default=base)
            is_between = bool(logs) and min(logs) < base < next_base
            if is_between and is_synced and next_base > self._request.log_start_offset:
                raise LogLoadError(
                    f"segment {base:020d}.log is missing in {self._directory}: {entry.name} is still there"
                )
            logger.warning("%s: removing %s, which has no record file", self._directory, entry.name)
            self._unlink(entry.name)
        segments = [
            LogSegment(self._directory, base, self._request.config, self._file_system, self._time, size=entry.size)
            for base, entry in sorted(logs.items())
        ]
        note_listed(segments, {entry.name: entry.size for entry in segment_files})
        return segments

    def _check_layout(self, segments: LogSegments) -> int:
        """Check that base offsets fit the contents; return the log's end offset. Raises LogLoadError."""
        previous_end: int | None = None
        for segment in segments:
            first = _first_header(segment)
            where = segment.records.path
            if not segment.size and segment is not segments.active and segment.offset_index.entries:
                raise LogLoadError(f"{where} is empty, but its index has {segment.offset_index.entries} entries")
            if first is not None and not segment.base_offset <= first.base_offset <= segment.base_offset + 0x7FFFFFFF:
                raise LogLoadError(f"{where} begins with offset {first.base_offset}, which does not fit its name")
            if previous_end is not None and segment.base_offset < previous_end:
                raise LogLoadError(f"{where} overlaps the segment before it, which ends at {previous_end}")
            gap = previous_end is not None and segment.base_offset > max(previous_end, self._request.log_start_offset)
            if gap and not (self._was_cleaned_below(segment.base_offset) or _shows_compaction(segments, segment)):
                raise LogLoadError(
                    f"offsets {previous_end} to {segment.base_offset - 1} are missing before {where}, and nothing "
                    f"shows that the log was ever compacted; set cleanup.policy=compact,delete to accept the gap"
                )
            previous_end = _end_of(segment, self._ends)
            if previous_end is None:
                logger.error("%s ends with damaged bytes, which are kept", where)
                self._request.environment.damage.batches += 1
        if previous_end is None:
            raise LogLoadError(f"{where} ends with damaged bytes, and new records would get their offsets")
        return previous_end

    def _was_cleaned_below(self, offset: int) -> bool:
        """Return whether the cleaner may have made gaps below ``offset``: the topic is compacted, or the cleaner's
        checkpoint says that the log was cleaned up to there.
        """
        if self._is_compacted:
            return True
        path = os.path.join(self._request.directory_state.path, CLEANER_OFFSET_FILE)
        try:
            cleaned = read_offset_checkpoint(self._file_system, path)
        except CheckpointCorruptError as error:
            logger.warning("it is not known which logs were compacted before: %s", error)
            return False
        return cleaned.get(self._request.topic_partition, 0) >= offset

    # ---- indices and recovery

    def _check_indices(self, segments: LogSegments, *, every_entry: bool) -> None:
        for segment in segments:
            names = {file_name(segment.base_offset, suffix) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)}
            missing = segment.size > 0 and not names <= self._names
            fault = "missing index" if missing else index_fault(segment, every_entry=every_entry)
            if fault is not None:
                if segment.size == 0 and segment is not segments.active:
                    raise LogLoadError(f"{segment.records.path} is empty, but its index is not: {fault}")
                logger.warning("%s: rebuilding indices of segment %d: %s", self._directory, segment.base_offset, fault)
                self._request.environment.damage.indices += 1
            end = None if fault is not None else end_after_entries(segment, self._interval_bytes)
            if end is None:
                end = rebuild_indices(segment, self._interval_bytes)
                flush_rebuilt(segment)
            self._ends[segment] = end
            self._check_transaction_index(segments, segment)

    def _check_transaction_index(self, segments: LogSegments, segment: LogSegment) -> None:
        """Rebuild an invalid transaction index from the markers in the log. Raises LogLoadError if damage may hide the
        marker of a transaction: readers of committed records would get aborted ones."""
        try:
            segment.transaction_index.sanity_check()
        except KafkaStorageError as error:
            logger.warning("%s: rebuilding %s: %s", self._directory, TXN_INDEX_SUFFIX, error)
            self._request.environment.damage.indices += 1
            state, is_complete = self._state_at(segments, segment.base_offset)
            bases = (one.base_offset for one in segments if one.base_offset > segment.base_offset)
            if not (is_complete and rebuild_transaction_index(segment, state, min(bases, default=2**63 - 1))):
                raise LogLoadError(
                    f"{segment.transaction_index.path} is invalid, and damaged batches may hide which transactions "
                    f"were aborted. Without this file the log is served; then transactions whose markers cannot be "
                    f"read may count as committed"
                ) from error
            flush_rebuilt(segment)
            return
        digests = self._request.index_digests
        is_known = bool(digests) and segment_digest(self._topic_id, segment) in digests
        segment.transaction_index.is_proven = is_known or segment.size == 0

    def _state_at(self, segments: LogSegments, offset: int) -> StateBefore:
        """Rebuild the producer state just before ``offset`` in a separate manager. Unreadable snapshots are removed
        meanwhile."""
        self._snapshots = None
        environment = self._request.environment
        state = ProducerStateManager(
            self._file_system, self._directory, environment.time, environment.producer_id_expiration_ms
        )
        before = LogSegments(segment for segment in segments if segment.base_offset < offset)
        is_complete = rebuild_producer_state(state, before, 0, offset, keep_later_snapshots=True, recalled_bytes=0)
        return StateBefore(state, is_complete)

    def _recover(self, segments: LogSegments) -> LogSegments:
        recovery_point, start = self._request.recovery_point, self._request.log_start_offset
        unflushed = segments.values(recovery_point, 2**63 - 1)
        flushed = LogSegments(segment for segment in segments if segment not in unflushed)
        self._check_indices(flushed, every_entry=True)
        # Snapshots are not synced: a power loss may have damaged any of them, and a truncation may need any of them.
        self._producer_state.remove_unreadable_snapshots()
        if not unflushed:
            return segments
        state = self._state_at(segments, unflushed[0].base_offset).state
        cut = False
        kept = list(flushed)
        end: int | None = None
        for number, segment in enumerate(unflushed, 1):
            # A file can lose its unsynced end exactly between two batches; then the segments after it are cut too.
            gap = end is not None and segment.base_offset > max(end, start) and end >= recovery_point
            # A power loss can bring back a segment that a truncation removed, beside a newer one.
            overlap = end is not None and recovery_point <= segment.base_offset < end
            cut = cut or overlap or (gap and not self._was_cleaned_below(segment.base_offset))
            if cut and end is not None:  # the first segment is never cut
                remove_after_cut(self._directory, segment, end)
                continue
            logger.info(
                "%s: recovering segment %d (%d of %d)", self._directory, segment.base_offset, number, len(unflushed)
            )
            state.end_offset = max(state.end_offset, segment.base_offset)
            recovered = recover_segment(
                segment,
                state,
                self._epochs,
                synced_below=recovery_point,
                interval_bytes=self._interval_bytes,
                progress=self._request.progress,
                damage=self._request.environment.damage,
            )
            cut = recovered.cut_bytes > 0
            write_if_room(state.take_snapshot, f"no producer snapshot was written at offset {state.end_offset}")
            kept.append(segment)
            end = self._ends[segment] = recovered.end_offset
        return LogSegments(kept)

    # ---- state beside the records

    def _load_epochs(self) -> bool:
        try:
            self._epochs.load()
        except CheckpointCorruptError as error:
            logger.warning("leader epochs are read from the records instead: %s", error)
            self._epochs.is_unsaved = True
            return False
        return True

    def _assemble(self, segments: LogSegments, topic_id: bytes | None, end: int, *, epochs_known: bool) -> UnifiedLog:
        request = self._request
        start = max(request.log_start_offset, segments.first.base_offset)
        if not epochs_known or (not self._epochs.entries and _has_epochs(segments)):
            _rebuild_epochs(self._epochs, segments)
        self._epochs.truncate_from_end(end, write=False)
        if self._epochs.entries and self._epochs.entries[0].start_offset < start:
            self._epochs.truncate_from_start(start, write=False)
        if request.saves_epochs:
            self._epochs.save()
        self._load_producers(segments, start, end)
        recovery_point = end if request.clean else min(request.recovery_point, end)
        return UnifiedLog(
            LogParts(
                request.topic_partition,
                topic_id,
                self._directory,
                request.config,
                request.environment,
                request.directory_state,
                segments,
                self._producer_state,
                self._epochs,
                start,
                end,
                recovery_point,
                recovered=not request.clean,
            )
        )

    def _load_producers(self, segments: LogSegments, start: int, end: int) -> None:
        request, snapshots = self._request, self._snapshots
        kept = choose_snapshots(segments, end)
        if snapshots is None or not kept.issuperset(snapshots):
            self._producer_state.remove_snapshots_outside(kept)
            snapshots = None
        needed_recovery = not request.clean and bool(segments.values(request.recovery_point, end))
        recalled_bytes = RECALLED_BYTES if needed_recovery else RECALLED_BYTES_FLUSHED
        rebuild_producer_state(
            self._producer_state, segments, start, end, recalled_bytes=recalled_bytes, snapshots=snapshots
        )


def _end_of(segment: LogSegment, ends: Mapping[LogSegment, int | None]) -> int | None:
    """Return the offset after the segment's last batch; None if the segment ends with damaged bytes. ``ends`` has those
    that were read already."""
    return ends[segment] if segment in ends else segment.read_next_offset()


def _first_header(segment: LogSegment) -> BatchHeader | None:
    """Return the header of the first batch; None if there is none, or if it is damaged."""
    try:
        return next(iter(segment.headers()), None)
    except CorruptMessageError:
        return None


def _rebuild_epochs(epochs: LeaderEpochCache, segments: LogSegments) -> None:
    """Rebuild the leader epochs from the headers of :func:`headers_past_damage`."""
    epochs.clear(write=False)
    for segment in segments:
        for header in headers_past_damage(segment):
            if header.leader_epoch > epochs.latest_epoch:
                epochs.assign(header.leader_epoch, header.base_offset, write=False)


def _has_epochs(segments: LogSegments) -> bool:
    """Return whether the first readable batch has a leader epoch. If so, an empty epoch file shows that a power loss
    took its content.
    """
    header = next((header for segment in segments for header in headers_past_damage(segment)), None)
    return header is not None and header.leader_epoch >= 0


def _shows_compaction(segments: LogSegments, end: LogSegment) -> bool:
    """Return whether, in the segments before ``end``, a batch lacks records or offsets are missing within one file.
    Only a cleaner leaves that, so the log was compacted before, here or by Apache Kafka.
    """
    for segment in segments:
        if segment is end:
            return False
        with contextlib.suppress(CorruptMessageError):  # offsets that are missing after a damaged batch show nothing
            if _is_compacted(segment):
                return True
    return False


def _is_compacted(segment: LogSegment) -> bool:
    next_offset: int | None = segment.base_offset
    for header in segment.headers():
        if header.magic < MAGIC_V2:
            next_offset = None
            continue
        if header.record_count <= header.last_offset_delta or next_offset not in (None, header.base_offset):
            return True
        next_offset = header.last_offset + 1
    return False
