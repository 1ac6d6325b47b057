"""Producer snapshots (``<offset>.snapshot``): the producer state of a log just before the offset in the name.

File, big-endian, version 1 (Kafka's ``ProducerSnapshot.json``)::

    version 2 (1) | crc 4 (CRC-32C over all that follows) | count 4 | entry*
    entry = producer id 8 | epoch 2 | last sequence 4 | last offset 8 | offset delta 4 | timestamp 8
            | coordinator epoch 4 | first offset of the open transaction 8 (-1: none)            46 bytes

Only the last batch of a producer is kept; its last offset is -1 if there was none.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from tidelog.log.files.checkpoints import CheckpointCorruptError
from tidelog.protocol.record.crc import crc32c

_VERSION = 1
_HEAD = Struct(">hI")
_COUNT = Struct(">i")
_ENTRY = Struct(">qhiqiqiq")
HEAD_SIZE, ENTRY_SIZE = _HEAD.size + _COUNT.size, _ENTRY.size


class SnapshotEntry(NamedTuple):
    """One producer as the file has it."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int


def seal_snapshot(data: bytearray) -> None:
    """Write version, checksum and count into ``data``, which has the snapshot's entries from byte HEAD_SIZE on."""
    _COUNT.pack_into(data, _HEAD.size, (len(data) - HEAD_SIZE) // ENTRY_SIZE)
    _HEAD.pack_into(data, 0, _VERSION, crc32c(memoryview(data)[_HEAD.size :]))


def decode_snapshot(data: bytes, path: str) -> list[SnapshotEntry]:
    """Decode the entries of a snapshot file. Raises CheckpointCorruptError."""
    if len(data) < HEAD_SIZE:
        raise CheckpointCorruptError(f"{path} is too short for a producer snapshot: {len(data)} bytes")
    version, crc = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise CheckpointCorruptError(f"{path} has unknown snapshot version {version}")
    if crc != crc32c(memoryview(data)[_HEAD.size :]):
        raise CheckpointCorruptError(f"{path} fails its checksum")
    (count,) = _COUNT.unpack_from(data, _HEAD.size)
    body = memoryview(data)[HEAD_SIZE:]
    if count < 0 or len(body) != count * _ENTRY.size:
        raise CheckpointCorruptError(f"{path} promises {count} producers in {len(body)} bytes")
    return [SnapshotEntry(*fields) for fields in _ENTRY.iter_unpack(body)]
