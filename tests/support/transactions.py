"""Random transactions in a log, the records that they commit, and damages of the log's transaction indices."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from tests.support.pipelines import NOW_MS, end_transaction, write
from tidelog.log.segment.batch_scan import iter_batches
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.record.record_batch import Record, RecordBatch, parse_end_transaction_marker

PRODUCERS = 4
"""Transactional producers whose transactions are interleaved; one more producer has no transactions."""


def write_transactions(log: UnifiedLog, chance: random.Random, steps: int = 110, first_producer_id: int = 0) -> None:
    """Write interleaved transactions of PRODUCERS producers, and batches outside transactions between them.

    Each step writes a batch, or the marker that commits or aborts a transaction. All transactions have ended after the
    last step.
    """
    last = first_producer_id + PRODUCERS
    is_open = dict.fromkeys(range(first_producer_id, last), False)
    sequences = dict.fromkeys(is_open, 0)
    for step in range(steps):
        producer_id = chance.randrange(first_producer_id, last + 1)
        records = [Record(i, NOW_MS + step, b"k%d" % chance.randrange(30), b"v" * chance.randrange(120))
                   for i in range(chance.randrange(1, 4))]  # fmt: skip
        if producer_id == last:
            write(log, records)
        elif is_open[producer_id] and chance.random() < 0.4:
            end_transaction(log, producer_id, commit=chance.random() < 0.5)
            is_open[producer_id] = False
        else:
            write(log, records, producer_id=producer_id, producer_epoch=0, base_sequence=sequences[producer_id],
                  is_transactional=True)  # fmt: skip
            sequences[producer_id] += len(records)
            is_open[producer_id] = True
    for producer_id, still in is_open.items():
        if still:
            end_transaction(log, producer_id, commit=chance.random() < 0.5)


def committed_by_markers(directory: Path) -> list[tuple[int, bytes | None]]:
    """Read the offsets and values of committed records from the segments alone, without transaction indices.

    A commit marker adds the records of its producer's transaction, an abort marker drops them. Records outside
    transactions are included.
    """
    kept: list[tuple[int, bytes | None]] = []
    waiting: dict[int, list[tuple[int, bytes | None]]] = {}
    for path in sorted(directory.glob("*.log")):
        file = OsFileSystem().open_file(str(path), writable=False)
        try:
            for header, data in iter_batches(file, 0, file.size()):
                records = list(RecordBatch(bytes(data)).records())
                if header.is_control:
                    marker = parse_end_transaction_marker(records[0]) if records else None
                    ended = waiting.pop(header.producer_id, [])
                    kept += ended if marker is not None and marker.commit else []
                elif header.is_transactional:
                    waiting.setdefault(header.producer_id, []).extend((r.offset, r.value) for r in records)
                else:
                    kept += [(r.offset, r.value) for r in records]
        finally:
            file.close()
    return sorted(kept)


def indices(directory: Path) -> list[Path]:
    """List the transaction indices of a log, in the order of its segments."""
    return sorted(directory.glob("*.txnindex"))


def remove(directory: Path, chance: random.Random) -> None:
    """Delete one index."""
    chance.choice(indices(directory)).unlink()


def remove_all(directory: Path, chance: random.Random) -> None:
    """Delete all indices."""
    for path in indices(directory):
        path.unlink()


def empty(directory: Path, chance: random.Random) -> None:
    """Truncate one index to no entries."""
    chance.choice(indices(directory)).write_bytes(b"")


def cut_entries(directory: Path, chance: random.Random) -> None:
    """Truncate one index after one of its entries, which have 34 bytes each in Kafka's format."""
    path = chance.choice(indices(directory))
    path.write_bytes(path.read_bytes()[: 34 * chance.randrange(path.stat().st_size // 34)])


def cut_bytes(directory: Path, chance: random.Random) -> None:
    """Truncate one index at any byte."""
    path = chance.choice(indices(directory))
    path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size)])


def flip(directory: Path, chance: random.Random) -> None:
    """Flip one bit of one index."""
    path = chance.choice(indices(directory))
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def swap_segments(directory: Path, chance: random.Random) -> None:
    """Swap the indices of two segments."""
    one, other = chance.sample(indices(directory), 2)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def overlap(directory: Path, chance: random.Random) -> None:
    """Set the first offset of one index's first entry to 0, so that it covers earlier transactions of its producer."""
    path = chance.choice(indices(directory))
    data = bytearray(path.read_bytes())
    data[10:18] = (0).to_bytes(8, "big")
    path.write_bytes(data)


Damage = Callable[[Path, random.Random], None]
DAMAGES: list[Damage] = [remove, remove_all, empty, cut_entries, cut_bytes, flip, swap_segments, overlap]
