"""``tidelog dump-log FILES``: print batches, records and index entries, in the form of Kafka's DumpLogSegments."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NamedTuple

import click

from tidelog.commands.frame.commands import Command

if TYPE_CHECKING:
    from tidelog.log.segment.batch_scan import BatchHeader
    from tidelog.log.system.file_system import OpenFile

_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class Shown(NamedTuple):
    """Choice of what is printed: keys and values, every record, or only whether indices fit their segment."""

    print_data_log: bool
    deep_iteration: bool
    index_sanity_check: bool


@click.command(cls=Command)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--print-data-log", is_flag=True, help="print keys and values too")
@click.option("--deep-iteration", is_flag=True, help="print every record, not only batches")
@click.option("--index-sanity-check", is_flag=True, help="only check indices against their segment, print no entries")
def command(*, files: tuple[str, ...], print_data_log: bool, deep_iteration: bool, index_sanity_check: bool) -> int:
    """Print segment files: batches, records, index entries.

    The form is that of Kafka's DumpLogSegments, for .log, .index, .timeindex, .txnindex and .snapshot files.
    """
    shown = Shown(print_data_log, deep_iteration, index_sanity_check)
    complaints = 0
    for path in files:
        print(f"Dumping {path}")
        complaints += _dump(path, shown)
    return 1 if complaints else 0


def _dump(path: str, shown: Shown) -> int:
    name, suffix = os.path.splitext(os.path.basename(path))
    if not (len(name) == 20 and name.isdigit()) or suffix not in (
        ".log",
        ".index",
        ".timeindex",
        ".txnindex",
        ".snapshot",
    ):
        reason = "not named as a segment file" if os.path.exists(path) else "no such file"
        print(f"tidelog dump-log: {path}: {reason}", file=sys.stderr)
        return 1
    if suffix == ".log":
        return _dump_log(path, int(name), shown)
    if suffix == ".snapshot":
        return _dump_snapshot(path)
    if suffix == ".txnindex":
        return _dump_transactions(path, int(name))
    return _dump_index(path, int(name), shown)


def _open(path: str) -> OpenFile:
    from tidelog.log.system.file_system import OsFileSystem

    return OsFileSystem().open_file(path, writable=False)


def _dump_log(path: str, base_offset: int, shown: Shown) -> int:
    from tidelog.log.segment.batch_scan import crc_matches, iter_batches

    print(f"Log starting offset: {base_offset}")
    file = _open(path)
    size, valid, damaged = file.size(), 0, 0
    for header, batch in iter_batches(file, 0, size):
        is_valid = crc_matches(header, batch)
        damaged += not is_valid
        _print_batch(header, batch, is_valid=is_valid)
        if is_valid and (shown.deep_iteration or shown.print_data_log):
            _print_records(batch, with_data=shown.print_data_log)
        valid = header.position + header.size
    file.close()
    if valid < size:
        print(f"Found {size - valid} invalid bytes at the end of {path}")
    return damaged + (valid < size)


def _print_batch(header: BatchHeader, batch: memoryview, *, is_valid: bool) -> None:
    from tidelog.protocol.record.record_batch import RecordBatch

    codec = _CODECS[header.attributes & 7] if header.attributes & 7 < len(_CODECS) else "unknown"
    if header.magic == 2:
        parsed = RecordBatch(batch)
        horizon = parsed.delete_horizon_ms
        print(
            f"baseOffset: {header.base_offset} lastOffset: {header.last_offset} count: {header.record_count} "
            f"baseSequence: {header.base_sequence} lastSequence: {parsed.last_sequence} "
            f"producerId: {header.producer_id} producerEpoch: {header.producer_epoch} "
            f"partitionLeaderEpoch: {header.leader_epoch} isTransactional: {_text(header.is_transactional)} "
            f"isControl: {_text(header.is_control)} "
            f"deleteHorizonMs: {'OptionalLong.empty' if horizon is None else f'OptionalLong[{horizon}]'}",
            end=" ",
        )
    else:
        print(f"offset: {header.last_offset}", end=" ")
    print(
        f"position: {header.position} {_time_name(header)}: {header.max_timestamp} size: {header.size} "
        f"magic: {header.magic} compresscodec: {codec} isvalid: {_text(is_valid)}"
    )


def _time_name(header: BatchHeader) -> str:
    if header.magic == 0:
        return "NoTimestampType"
    return "LogAppendTime" if header.attributes & 8 else "CreateTime"


def _text(value: bool) -> str:
    return "true" if value else "false"


def _print_records(batch: memoryview, *, with_data: bool) -> None:
    from tidelog.protocol.record.record_batch import iter_batches

    for entry in iter_batches(batch):
        time_name = "LogAppendTime" if entry.timestamp_type else "CreateTime"
        for record in entry.records():
            line = (
                f"| offset: {record.offset} {time_name}: {record.timestamp} "
                f"keySize: {-1 if record.key is None else len(record.key)} "
                f"valueSize: {-1 if record.value is None else len(record.value)}"
            )
            if entry.magic == 2:
                line += f" sequence: {record.sequence} headerKeys: [{','.join(name for name, _ in record.headers)}]"
            if with_data:
                line += f" key: {_shown(record.key)} payload: {_shown(record.value)}"
            print(line)


def _shown(data: bytes | None) -> str:
    return "null" if data is None else bytes(data).decode(errors="backslashreplace")


def _dump_snapshot(path: str) -> int:
    from tidelog.log.producer.snapshot import decode_snapshot
    from tidelog.log.system.file_system import OsFileSystem

    for entry in decode_snapshot(OsFileSystem().read_file(path), path):
        line = (
            f"producerId: {entry.producer_id} producerEpoch: {entry.producer_epoch} "
            f"coordinatorEpoch: {entry.coordinator_epoch} "
            f"currentTxnFirstOffset: {_optional(entry.current_txn_first_offset)} lastTimestamp: {entry.timestamp}"
        )
        if entry.last_offset >= 0:
            line += (
                f" lastSequence: {entry.last_sequence} lastOffset: {entry.last_offset} "
                f"offsetDelta: {entry.offset_delta} timestamp: {entry.timestamp}"
            )
        print(line)
    return 0


def _optional(value: int) -> str:
    return "OptionalLong.empty" if value < 0 else f"OptionalLong[{value}]"


def _dump_transactions(path: str, base_offset: int) -> int:
    from tidelog.log.index.transaction_index import TransactionIndex
    from tidelog.log.system.file_system import OsFileSystem

    index = TransactionIndex(OsFileSystem(), path, base_offset)
    for entry in index:
        print(
            f"version: 0 producerId: {entry.producer_id} firstOffset: {entry.first_offset} "
            f"lastOffset: {entry.last_offset} lastStableOffset: {entry.last_stable_offset}"
        )
    index.close()
    return 0


def _dump_index(path: str, base_offset: int, shown: Shown) -> int:
    from tidelog.log.check import check_directory
    from tidelog.log.system.file_system import OsFileSystem

    findings = [f for f in check_directory(OsFileSystem(), os.path.dirname(os.path.abspath(path)))
                if os.path.basename(f.path) == os.path.basename(path)]  # fmt: skip
    for finding in findings:
        print(finding, file=sys.stderr)
    if shown.index_sanity_check:
        if not findings:
            print(f"{path} passed sanity check.")
        return len(findings)
    _print_index(path, base_offset)
    return len(findings)


def _print_index(path: str, base_offset: int) -> None:
    from tidelog.log.index.offset_index import OffsetIndex
    from tidelog.log.index.time_index import TimeIndex

    file = _open(path)
    data = file.read_at(0, file.size())
    file.close()
    is_time = path.endswith(".timeindex")
    entry = TimeIndex.ENTRY if is_time else OffsetIndex.ENTRY
    whole = len(data) // entry.size * entry.size
    if not whole:
        print(f"{path} is empty.")
    for slot, (first, second) in enumerate(entry.iter_unpack(data[:whole])):
        if slot and (second if is_time else first) == 0:
            break  # the hole after the entries of a log that was not closed
        if is_time:
            print(f"timestamp: {first} offset: {base_offset + second}")
        else:
            print(f"offset: {base_offset + first} position: {second}")
