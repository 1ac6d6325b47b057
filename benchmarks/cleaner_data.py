"""Logs for the cleaner's benchmark: segment files written by numpy, the same bytes for every cleaner."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tidelog.protocol.record.compression import CompressionType, compress
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch, set_crc

KEY_DIGITS = 12
RECORDS_PER_BATCH = 150
STEP_RECORDS = 600_000
SEGMENT_BYTES = 1 << 30
TIMESTAMP_MS = 1_700_000_000_000

Digits = np.ndarray[Any, np.dtype[np.uint8]]
Numbers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class DataSet:
    """``records`` of about ``record_bytes`` over ``keys`` keys, drawn at random or ``in_turn``: then the first ``keys``
    records have a key each, and those after them supersede the first ones.
    """

    name: str
    title: str
    records: int
    record_bytes: int
    keys: int
    codec: CompressionType = CompressionType.NONE
    map_bytes: int = 128 * 1024 * 1024
    in_turn: bool = False

    def key_numbers(self, first: int, count: int) -> Numbers:
        """Return the keys of records ``first`` and following."""
        if self.in_turn:
            turns = np.arange(first, first + count, dtype=np.uint64) % np.uint64(self.keys)
            # A permutation: multiplication by an odd number modulo a power of two.
            numbers = turns * np.uint64(0x9E3779B1)
            return (numbers & np.uint64((1 << 36) - 1)).astype(np.int64)
        return np.random.default_rng(first).integers(0, self.keys, count)


FIRST = DataSet("first", "5 M x 100 B over 1 M keys", 5_000_000, 100, 1_000_000)
MANY: dict[str, Any] = {"map_bytes": 64 << 20, "in_turn": True}
DATA_SETS = {
    data.name: data
    for data in (
        FIRST,
        DataSet("few-keys", "1 M x 115 B over 1,000 keys", 1_000_000, 115, 1_000),
        DataSet("large-records", "4,000 x 100 KB over 100 keys", 4_000, 100_000, 100),
        replace(FIRST, name="first-lz4", title="the first in lz4", codec=CompressionType.LZ4),
        replace(FIRST, name="first-zstd", title="the first in zstd", codec=CompressionType.ZSTD),
        DataSet("many-keys", "21 M x 100 B over 20 M keys, map of 64 MiB", 21_000_000, 100, 20_000_000, **MANY),
        DataSet("100m-keys", "105 M x 100 B over 100 M keys, map of 64 MiB", 105_000_000, 100, 100_000_000, **MANY),
    )
}
DEFAULT = [name for name, data in DATA_SETS.items() if not data.in_turn]
CONFIG = {"cleanup.policy": "compact", "segment.bytes": str(SEGMENT_BYTES), "min.cleanable.dirty.ratio": "0.01"}


class Template:
    """A batch whose keys and base offset are filled in: 40 times faster than building each."""

    def __init__(self, data: DataSet, records: int) -> None:
        payload = os.urandom(max(data.record_bytes - KEY_DIGITS - 12, 1))
        made = [Record(n, TIMESTAMP_MS + n, b"#" * KEY_DIGITS, payload) for n in range(records)]
        self.records = records
        self.codec = data.codec
        self.bytes = np.frombuffer(bytes(build_batch(made, BatchOptions())), np.uint8)
        raw = self.bytes.tobytes()
        self.key_positions: list[int] = []
        position = raw.find(b"#" * KEY_DIGITS)
        while position >= 0 and len(self.key_positions) < records:
            self.key_positions.append(position)
            position = raw.find(b"#" * KEY_DIGITS, position + len(payload))

    def fill(self, base_offset: int, keys: Numbers) -> Iterator[bytes]:
        """Yield batches with these keys, whole batches only."""
        count = len(keys) // self.records
        batches = np.tile(self.bytes, (count, 1))
        digits = digits_of(keys[: count * self.records]).reshape(count, self.records, KEY_DIGITS)
        for number, position in enumerate(self.key_positions):
            batches[:, position : position + KEY_DIGITS] = digits[:, number]
        for number in range(count):
            yield self._finish(batches[number].tobytes(), base_offset + number * self.records)

    def _finish(self, batch: bytes, base_offset: int) -> bytes:
        finished = bytearray(batch[:61])
        finished += compress(memoryview(batch)[61:], self.codec) if self.codec else memoryview(batch)[61:]
        finished[0:8] = base_offset.to_bytes(8, "big")
        finished[8:12] = (len(finished) - 12).to_bytes(4, "big")
        finished[22] = self.codec
        set_crc(finished, 0, len(finished))
        return bytes(finished)


def digits_of(numbers: Numbers) -> Digits:
    """Compute decimal digits, one row per number."""
    powers = 10 ** np.arange(KEY_DIGITS - 1, -1, -1)
    return (numbers[:, None] // powers % 10 + ord("0")).astype(np.uint8)


def make(data: DataSet, directory: Path) -> Path:
    """Make the data set's closed segments and its empty active one in ``directory``/name, once. Returns that path."""
    path = directory / data.name
    if (path / "done").exists():
        return path
    path.mkdir(parents=True, exist_ok=True)
    per_batch = max(1, min(RECORDS_PER_BATCH, 200_000 // data.record_bytes))
    template = Template(data, per_batch)
    step = max(per_batch, min(STEP_RECORDS, 200_000_000 // data.record_bytes) // per_batch * per_batch)
    offset, size, file = 0, 0, (path / segment_name(0)).open("wb")
    for first in range(0, data.records, step):
        keys = data.key_numbers(first, min(step, data.records - first) // per_batch * per_batch)
        for batch in template.fill(offset, keys):
            if size + len(batch) > SEGMENT_BYTES:
                file.close()
                size, file = 0, (path / segment_name(offset)).open("wb")
            file.write(batch)
            size += len(batch)
            offset += per_batch
    file.close()
    (path / segment_name(offset)).touch()
    (path / "done").touch()
    return path


def segment_name(base_offset: int) -> str:
    """Name the record file of a segment."""
    return f"{base_offset:020d}.log"


def replace_log(made: Path, partition: Path) -> int:
    """Replace the files of a partition's log by a data set; return the data set's bytes."""
    partition.mkdir(parents=True, exist_ok=True)
    for path in partition.iterdir():
        if path.suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".deleted"):
            path.unlink()
    size = 0
    for path in made.glob("*.log"):
        if path.stat().st_size:
            os.link(path, partition / path.name)
        else:
            (partition / path.name).touch()
        size += path.stat().st_size
    return size
