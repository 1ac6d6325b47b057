"""A follower's log under the recorder: appends, truncations of every kind, checkpoints, retention, restarts.

``python -m tests.support.power.follower DIRECTORY TRACE SEED DURABLE`` is the recorded process; :func:`record` runs it.
It writes notes into the trace: before a step what the step may change, after it what has changed. From these notes
:class:`FollowerStory` computes what a power loss may leave; :func:`examine` checks it after a start on a crashed disk.
"""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.logs import NOW_MS, values
from tests.support.power.recording import recording
from tests.support.power.trace import Step, append_note, read_trace
from tidelog.broker.cluster.fetching.work import Append, StartAt, TruncateTo, TruncateToEpochEnd, Work
from tidelog.broker.member.replication import write_checkpoints
from tidelog.broker.replica.replication.following import Following
from tidelog.log.check import check_directory
from tidelog.log.config import LogConfig
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.manager import LogManager
from tidelog.log.segment.segment import LOG_SUFFIX, SNAPSHOT_SUFFIX
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.time import ManualTime
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.record.record_batch import Record, build_batch

REPOSITORY = Path(__file__).parents[3]
PARTITION = TopicPartition("t", 0)
TOPIC_ID = bytes(range(16))
KEY: Any = (b"", 0)
MAX_RECORDS = 3
"""Limit of a batch's records: a truncation within a batch removes the whole batch."""
STEPS = 60
SMALL = {"segment.bytes": 500, "index.interval.bytes": 100, "file.delete.delay.ms": 0}
NO_ROOM_KEPT = 0


def config_of(*, durable: bool) -> LogConfig:
    return LogConfig({**SMALL, **({"flush.messages": 1} if durable else {})})


class BusyManager(LogManager):
    """A log manager that calls ``meanwhile`` after each write of log start offsets, as if another thread ran then."""

    meanwhile: Callable[[], object] = bool

    def checkpoint_log_start_offsets(self) -> None:
        super().checkpoint_log_start_offsets()
        self.meanwhile()


def new_manager(directory: Path, config: LogConfig) -> BusyManager:
    manager = BusyManager([str(directory)], OsFileSystem(), ManualTime(NOW_MS), config, reserve_bytes=NO_ROOM_KEPT)
    manager.startup(topic_ids={PARTITION.topic: TOPIC_ID})
    OsFileSystem().sync_directory(str(directory.parent))  # as a broker does before it serves
    return manager


class SlowFlush(threading.Thread):
    """A flush in a thread of its own that pauses after ``syncs`` of its syncs, until ``finish``."""

    def __init__(self, log: UnifiedLog, syncs: int) -> None:
        super().__init__(daemon=True)
        self._log = log
        self._syncs_left = syncs
        self._may_go_on = threading.Event()
        self._has_paused = threading.Event()

    def run(self) -> None:
        try:
            self._log.flush()
        finally:
            self._has_paused.set()

    def begin(self) -> None:
        """Start the flush, and wait until it has paused or ended."""
        self.start()
        self._has_paused.wait()

    def synced(self) -> None:
        """Count a finished sync of records, and pause after the last one."""
        self._syncs_left -= 1
        if self._syncs_left == 0:
            self._has_paused.set()
            self._may_go_on.wait()

    def finish(self) -> None:
        self._may_go_on.set()
        self.join()


def stop_flushes() -> None:
    """Let each :class:`SlowFlush` of this process count its syncs of record files, which hold no lock."""
    sync = os.fdatasync

    def count(descriptor: int) -> None:
        sync(descriptor)
        thread = threading.current_thread()
        if isinstance(thread, SlowFlush) and os.readlink(f"/proc/self/fd/{descriptor}").endswith(LOG_SUFFIX):
            thread.synced()

    os.fdatasync = count  # type: ignore[assignment]


class Follower:
    """One follower in the recorded process, whose steps are drawn from a seed."""

    def __init__(self, directory: Path, trace: Path, seed: int, *, durable: bool) -> None:
        self._directory = directory
        self._trace = trace
        self._chance = random.Random(seed)
        self._durable = durable
        self._config = config_of(durable=durable)
        self._epoch = 0
        self._serial = 0
        self._flush: SlowFlush | None = None
        stop_flushes()
        self._open()

    def _open(self) -> None:
        self._manager = new_manager(self._directory, self._config)
        self._log = self._manager.get_or_create_log(PARTITION, TOPIC_ID, self._config)
        self._following = Following(self._log, self._write_checkpoints)

    def _note(self, what: str, **arguments: Any) -> None:
        append_note(self._trace, {"what": what, **arguments})

    def run(self) -> None:
        steps: list[Callable[[], None]] = [
            *[self.append] * 6, *[self.cut] * 3, self.start_elsewhere, self.flush, self.checkpoint, self.delete_records,
            self.restart, *[self.begin_flush] * 3,
        ]  # fmt: skip
        for _ in range(STEPS):
            self._chance.choice(steps)()
        self._stop()

    def _stop(self) -> None:
        self._finish_flush()
        self._manager.shutdown()
        self._note("synced")

    # ---- other threads

    def begin_flush(self) -> None:
        """Begin a flush that ends during a later step."""
        self._finish_flush()
        self._flush = SlowFlush(self._log, self._chance.randrange(1, 4))
        self._flush.begin()

    def _finish_flush(self) -> None:
        if self._flush is not None:
            self._flush.finish()
        self._flush = None

    def _write_checkpoints(self) -> None:
        """Write the checkpoints for a truncation; then, as other threads might, flush and write them again."""
        write_checkpoints(self._manager)
        work: list[Callable[[], object]] = [bool, bool, self._finish_flush, self._log.flush]
        for _ in range(2):
            self._chance.choice(work)()
            if self._chance.random() < 0.5:
                write_checkpoints(self._manager)

    # ---- steps

    def append(self) -> None:
        for _ in range(self._chance.randrange(1, 8)):
            self._append_batch()

    def _append_batch(self) -> None:
        self._epoch += self._chance.random() < 0.2
        first, count = self._log.log_end_offset, self._chance.randrange(1, MAX_RECORDS + 1)
        texts = [f"{self._serial}:{offset}".ljust(60, ".") for offset in range(first, first + count)]
        self._serial += 1
        self._note("append", first=first, values=texts)
        batch = build_batch([Record(i, NOW_MS + i, b"key", text.encode()) for i, text in enumerate(texts)])
        struct.pack_into(">q", batch, 0, first)
        struct.pack_into(">i", batch, 12, self._epoch)
        assert self._do(Append(KEY, self._epoch, first, memoryview(batch), first, -1))
        self._note("appended", first=first, values=texts, synced=self._durable)

    def cut(self) -> None:
        start, end = self._log.log_start_offset, self._log.log_end_offset
        offset = self._chance.randrange(max(start, end - 60), end + 1)
        by_epoch = self._chance.random() < 0.5
        epoch = self._log.leader_epochs.epoch_for_offset(offset)
        self._note("cut", offset=offset)
        if by_epoch:
            _, own_end = self._log.leader_epochs.end_offset_for(epoch, end)
            self._note("cut", offset=min(offset, own_end))
            self._do(TruncateToEpochEnd(KEY, self._epoch, epoch, offset))
        else:
            self._do(TruncateTo(KEY, self._epoch, offset))
        self._note("was cut", start=self._log.log_start_offset, end=self._log.log_end_offset)

    def start_elsewhere(self) -> None:
        """Start the log at another offset: the leader's log begins after this log's end, or ends before its start."""
        start, end = self._log.log_start_offset, self._log.log_end_offset
        offset = self._chance.choice([end + 20, end, max(start - 20, 0), start, (start + end) // 2])
        self._note("cut", offset=0)
        self._do(StartAt(KEY, self._epoch, offset))
        self._note("was cut", start=offset, end=offset)

    def _do(self, work: Work) -> bool:
        return self._following.do(work)

    def flush(self) -> None:
        self._log.flush()
        self._note("synced")

    def checkpoint(self) -> None:
        write_checkpoints(self._manager)

    def delete_records(self) -> None:
        """Adopt a later log start offset of the leader, and let retention remove the segments below it."""
        end = self._log.log_end_offset
        offset = self._chance.randrange(self._log.log_start_offset, end + 1)
        later = self._chance.randrange(offset, end + 1)
        self._note("starts at", offset=later)
        self._start_at(offset)
        self._manager.meanwhile = partial(self._start_at, later)  # the leader's start moves on while retention works
        self._manager.run_retention(NOW_MS)
        self._manager.meanwhile = bool

    def _start_at(self, offset: int) -> None:
        end = self._log.log_end_offset
        self._do(Append(KEY, self._epoch, end, memoryview(b""), end, offset))

    def restart(self) -> None:
        self._stop()
        self._open()


# ---- what a power loss may leave


@dataclass
class FollowerStory:
    """The records of the log, those that must survive a power loss, and those that may."""

    log: dict[int, str] = field(default_factory=dict)
    must: dict[int, str] = field(default_factory=dict)
    may: dict[int, set[str]] = field(default_factory=dict)

    def take(self, note: dict[str, Any]) -> None:
        getattr(self, "_" + note["what"].replace(" ", "_"))(note)

    def _append(self, note: dict[str, Any]) -> None:
        for offset, value in enumerate(note["values"], note["first"]):
            self.may.setdefault(offset, set()).add(value)

    def _appended(self, note: dict[str, Any]) -> None:
        self.log |= dict(enumerate(note["values"], note["first"]))
        if note["synced"]:
            self.must = dict(self.log)

    def _synced(self, _: dict[str, Any]) -> None:
        self.must = dict(self.log)

    def _cut(self, note: dict[str, Any]) -> None:
        lowest = note["offset"] - MAX_RECORDS + 1
        self.must = {offset: value for offset, value in self.must.items() if offset < lowest}

    def _was_cut(self, note: dict[str, Any]) -> None:
        """Remove the truncated records, which must not reappear: other records may have their offsets."""
        start, end = note["start"], note["end"]
        for offset in [offset for offset in self.may if not (offset < end and start < end)]:
            del self.may[offset]
        self.log = {offset: value for offset, value in self.log.items() if start <= offset < end}

    def _starts_at(self, note: dict[str, Any]) -> None:
        for kept in (self.log, self.must):
            for offset in [offset for offset in kept if offset < note["offset"]]:
                del kept[offset]


def examine(directory: Path, story: FollowerStory, *, durable: bool) -> None:
    """Check a crashed disk: open its log, compare the records, append, stop cleanly. Raises AssertionError."""
    manager = new_manager(directory, config_of(durable=durable))
    assert not manager.refused, manager.refused
    log = manager.get_or_create_log(PARTITION, TOPIC_ID, manager.default_config)
    check_records(log, story)
    append_next(log)
    manager.shutdown()
    found = check_directory(OsFileSystem(), os.path.join(directory, PARTITION.directory_name))
    # A torn snapshot of an earlier clean stop stays until it is needed; its checksum shows that it is invalid.
    assert [finding for finding in found if not finding.path.endswith(SNAPSHOT_SUFFIX)] == []


def check_records(log: UnifiedLog, story: FollowerStory) -> None:
    found = {offset: (value or b"").decode() for offset, value in values(log, log.log_start_offset).items()}
    assert list(found) == list(range(log.log_start_offset, log.log_end_offset)), f"a gap: {list(found)}"
    strange = {offset: value for offset, value in found.items() if value not in story.may.get(offset, ())}
    assert not strange, f"these were cut, or never written: {strange}"
    lost = sorted(story.must.keys() - found.keys())
    assert not lost, f"synced and lost: {lost} (there: {log.log_start_offset} to {log.log_end_offset})"
    assert log.high_watermark <= log.log_end_offset


def append_next(log: UnifiedLog) -> None:
    batch = build_batch([Record(0, NOW_MS, b"key", b"next")])
    end = log.log_end_offset
    epoch = max(log.leader_epochs.latest_epoch, 0)
    assert log.append_as_leader(memoryview(batch), leader_epoch=epoch).first_offset == end
    log.flush()


def record(directory: Path, seed: int, *, durable: bool) -> list[Step]:
    """Run a follower under the recorder."""
    root, trace = directory / "disk", directory / "trace"
    root.mkdir(parents=True)
    trace.touch()
    command = [sys.executable, "-m", __name__, str(root / "data"), str(trace), str(seed), str(int(durable))]
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env={**os.environ, **recording(root, trace)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return read_trace(trace, root)


def story_of(steps: Iterable[Step]) -> FollowerStory:
    """Build the story from the notes among a trace's records."""
    story = FollowerStory()
    for step in steps:
        if step.operation == "N":
            story.take(step.note)
    return story


if __name__ == "__main__":
    data, trace_path, chosen_seed, is_durable = sys.argv[1:]
    Follower(Path(data), Path(trace_path), int(chosen_seed), durable=is_durable == "1").run()
