"""Random logs with everything that a partition's files may hold. The test writes their bytes, so it knows each record.

Formats: old message sets between batches, each codec, append time, control batches of several kinds. Transactions:
several producers at a time, over several segments, some without records. Cleaned logs lack records, batches and
ranges of offsets. Limits: very large offsets and times, logs that begin inside a batch, logs that end in a torn batch.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.pipelines import NOW_MS, TOPIC_ID
from tidelog.log.files.checkpoints import (
    CLEANER_OFFSET_FILE,
    LOG_START_OFFSET_FILE,
    MetaProperties,
    read_offset_checkpoint,
    write_meta_properties,
    write_offset_checkpoint,
    write_partition_metadata,
)
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.system.file_system import OsFileSystem
from tidelog.protocol.record.message_set import MessageSetOptions, build_message_set
from tidelog.protocol.record.record_batch import (
    BatchOptions,
    EndTransactionMarker,
    Record,
    build_batch,
    end_transaction_marker,
)

STARTS = (0, 0, 7, 2**31 - 20, 2**32 + 5, 2**53 + 1, 2**62)
"""First offsets of logs."""
TIMES = (-1, 0, 1, NOW_MS, 253_402_300_800_000)
"""Timestamps of records: no timestamp, the epoch, now and the year 10000."""
PRODUCERS = (3, 4, 2**62)
"""Ids of the producers that write transactions."""
NO_TYPE = -1
"""The ``timestampType`` of records in the message format 0, which has no timestamps."""


@dataclass(slots=True)
class Transaction:
    """One transaction of a producer. ``is_committed`` is None while it is open."""

    is_committed: bool | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """A record that was written, with its transaction (None: it is in no transaction)."""

    topic: str
    partition: int
    record: Record
    timestamp_type: int
    transaction: Transaction | None

    @property
    def offset(self) -> int:
        return self.record.offset

    def row(self) -> dict[str, Any]:
        """Return the row that a reader of all columns gets; its timestamp is in µs."""
        headers = [{"key": key, "value": value} for key, value in self.record.headers]
        return {
            "key": self.record.key, "value": self.record.value, "topic": self.topic, "partition": self.partition,
            "offset": self.offset, "timestamp": self.record.timestamp * 1000, "timestampType": self.timestamp_type,
            "headers": headers or None,
        }  # fmt: skip


@dataclass(slots=True)
class StrangeLog:
    """A log that grows by whole segments. ``is_cleaned``: offsets may be missing anywhere, as after compaction."""

    data: Path
    topic: str
    partition: int
    chance: random.Random
    is_cleaned: bool
    facts: list[Fact] = field(default_factory=list)
    start: int = 0
    end: int = 0
    _open: dict[int, Transaction] = field(default_factory=dict)
    _sequences: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.start = self.end = self.chance.choice(STARTS)
        self.directory.mkdir(parents=True)
        write_partition_metadata(OsFileSystem(), str(self.directory), TOPIC_ID)

    @property
    def directory(self) -> Path:
        return self.data / f"{self.topic}-{self.partition}"

    @property
    def stable_end(self) -> int:
        """The last stable offset."""
        return min((fact.offset for fact in self.facts if self._is_open(fact)), default=self.end)

    def _is_open(self, fact: Fact) -> bool:
        return fact.transaction is not None and fact.transaction.is_committed is None

    def rows(self, *, committed: bool) -> list[dict[str, Any]]:
        """Return the rows of the records from the log's start on; ``committed``: of those that read_committed shows."""
        return [
            fact.row()
            for fact in self.facts
            if fact.offset >= self.start
            and (not committed or (self._is_committed(fact) and fact.offset < self.stable_end))
        ]  # fmt: skip

    @staticmethod
    def _is_committed(fact: Fact) -> bool:
        return fact.transaction is None or fact.transaction.is_committed is True

    # ---- what the log is made of

    def grow(self, segments: int) -> None:
        """Write some more segments of some batches each."""
        kinds: tuple[Callable[[], bytes], ...] = (
            self._messages, self._plain, self._plain, self._of_producer, self._in_transaction, self._in_transaction,
            self._in_transaction, self._marker, self._marker, self._other_control,
            *((self._empty, self._skipped) if self.is_cleaned else ()),
        )  # fmt: skip
        for _ in range(segments):
            begin, content = self.end, b""
            for _ in range(self.chance.randint(1, 12)):
                content += self.chance.choice(kinds)()
            (self.directory / f"{begin:020d}.log").write_bytes(content)
        if self.is_cleaned:
            self._checkpoint(CLEANER_OFFSET_FILE, self.end)

    def tear(self) -> None:
        """Write the beginning of one more batch, as a crash leaves it."""
        newest = max(self.directory.glob("*.log"))
        torn = build_batch([Record(self.end, NOW_MS, b"torn", b"x" * 50)], BatchOptions())
        with newest.open("ab") as file:
            file.write(torn[: self.chance.randrange(1, len(torn))])

    def delete_records(self) -> None:
        """Let the log begin at a random offset below the last stable one, mostly inside a batch."""
        if self.stable_end > self.start:
            self.start = self.chance.randrange(self.start, self.stable_end)
            self._checkpoint(LOG_START_OFFSET_FILE, self.start)

    def _checkpoint(self, name: str, offset: int) -> None:
        path = self.data / name
        system = OsFileSystem()
        entries = dict(read_offset_checkpoint(system, str(path))) if path.exists() else {}
        entries[TopicPartition(self.topic, self.partition)] = offset
        write_offset_checkpoint(system, str(path), entries)

    def _records(self, *, headers: bool) -> list[Record]:
        chance = self.chance
        time = chance.choice(TIMES)
        found = []
        for _ in range(chance.randint(1, 6)):
            found.append(
                Record(
                    self.end,
                    time + chance.randrange(1000) if time > 1 else time,
                    chance.choice((None, b"", b"key-%d" % chance.randrange(6))),
                    chance.choice((None, b"", chance.randbytes(chance.choice((1, 30, 300))))),
                    chance.choice(((), (), (("h", b"1"), ("h", None)), (("", b""), ("é" * 40, b"\xff"))))
                    if headers
                    else (),
                )
            )
            self.end += 1 + (chance.randrange(3) if self.is_cleaned and chance.random() < 0.3 else 0)
        if not self.is_cleaned or chance.random() < 0.5:
            self.end = found[-1].offset + 1
        return found

    def _note(self, records: list[Record], kind: int, transaction: Transaction | None = None) -> None:
        self.facts += [Fact(self.topic, self.partition, record, kind, transaction) for record in records]

    def _messages(self) -> bytes:
        magic = self.chance.choice((0, 1))
        append_time = self.chance.choice((None, NOW_MS + 5)) if magic else None
        records = self._records(headers=False)
        self.end = records[-1].offset + 1  # a message set, unlike a batch, has no offsets after its last message
        codec = self.chance.choice((0, 1, 2, 3))
        content = build_message_set(records, MessageSetOptions(magic, codec, None, append_time))
        times = [-1 if not magic else record.timestamp if append_time is None else append_time for record in records]
        kind = NO_TYPE if not magic else int(append_time is not None)
        self._note([record._replace(timestamp=at) for record, at in zip(records, times, strict=True)], kind)
        return content

    def _batch(self, transaction: Transaction | None = None, **options: Any) -> bytes:
        records = self._records(headers=True)
        first = records[0].offset
        producer = options.get("producer_id")
        if producer is not None:
            options |= {"producer_epoch": 2, "base_sequence": self._sequence(producer, self.end - first)}
        append_time = self.chance.choice((None, None, NOW_MS + 9))
        horizon = NOW_MS if self.is_cleaned and self.chance.random() < 0.2 else None
        content = build_batch(
            records,
            BatchOptions(base_offset=first, last_offset_delta=self.end - 1 - first, log_append_time=append_time,
                         compression=self.chance.choice((0, 0, 1, 2, 3, 4)), delete_horizon_ms=horizon, **options),
        )  # fmt: skip
        if append_time is not None:
            records = [record._replace(timestamp=append_time) for record in records]
        self._note(records, int(append_time is not None), transaction)
        return bytes(content)

    def _sequence(self, producer: int, count: int) -> int:
        """Return a producer's next sequence number, and advance it by ``count`` numbers."""
        first = self._sequences.get(producer, 0)
        self._sequences[producer] = first + count
        return first

    def _plain(self) -> bytes:
        return self._batch()

    def _of_producer(self) -> bytes:
        free = [producer for producer in (*PRODUCERS, 9) if producer not in self._open]
        return self._batch(producer_id=self.chance.choice(free))

    def _in_transaction(self) -> bytes:
        producer = self.chance.choice(PRODUCERS)
        transaction = self._open.setdefault(producer, Transaction())
        return self._batch(transaction, producer_id=producer, is_transactional=True)

    def _marker(self) -> bytes:
        """Build the end of a transaction, which may have had no records."""
        producer, is_commit = self.chance.choice(PRODUCERS), self.chance.random() < 0.5
        marker = end_transaction_marker(
            EndTransactionMarker(is_commit, 0),
            timestamp=NOW_MS,
            producer_id=producer,
            producer_epoch=2,
            offset=self.end,
        )
        if producer in self._open:
            self._open.pop(producer).is_committed = is_commit
        self.end += 1
        return bytes(marker)

    def _other_control(self) -> bytes:
        """Build a control batch that ends no transaction, of a type that KRaft writes."""
        record = Record(self.end, NOW_MS, struct.pack(">hh", 0, self.chance.randint(2, 6)), b"\x00\x00")
        self.end += 1
        return bytes(build_batch([record], BatchOptions(is_control=True)))

    def _empty(self) -> bytes:
        """Build a batch without records, which the cleaner keeps in place of a producer's last batch."""
        count = self.chance.randint(1, 5)
        producer = self.chance.choice([each for each in (*PRODUCERS, 9) if each not in self._open])
        content = build_batch(
            [],
            BatchOptions(base_offset=self.end, last_offset_delta=count - 1, producer_id=producer, producer_epoch=2,
                         base_sequence=self._sequence(producer, count)),
        )  # fmt: skip
        self.end += count
        return bytes(content)

    def _skipped(self) -> bytes:
        """Leave out some offsets, as if the cleaner had removed their batches."""
        self.end += self.chance.randint(1, 9)
        return b""


def new_data(path: Path) -> Path:
    """Make a data directory without logs."""
    path.mkdir()
    write_meta_properties(OsFileSystem(), str(path), MetaProperties("cluster", 1, None))
    return path
