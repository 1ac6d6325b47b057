"""``tidelog dump-log FILES``: batches, records and index entries, in the form of Kafka's DumpLogSegments or as JSON.

Each line that is printed is an ``Entry``, whose fields have Kafka's names. As text the line has the fields one after
the other; as JSON it is an object with the fields, the file and the kind of the entry.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tidelog.commands.frame.commands import Command
from tidelog.commands.frame.options import json_option

if TYPE_CHECKING:
    from tidelog.log.segment.batch_scan import BatchHeader
    from tidelog.log.system.file_system import OpenFile
    from tidelog.protocol.record.record_batch import Record

_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
Fields = dict[str, Any]


class DumpOptions(NamedTuple):
    """The options that choose what is printed: keys and values, every record, or only whether indices fit their
    segment."""

    print_data_log: bool
    deep_iteration: bool
    index_sanity_check: bool


class Entry(NamedTuple):
    """A batch, a record or another entry of a file; ``text`` replaces the line that would be made of the fields."""

    kind: str
    fields: Fields
    text: str | None = None


class Dump:
    """The printed output for one file. ``complaints`` is the number of faults in the file."""

    def __init__(self, path: str, *, as_json: bool) -> None:
        self.path = path
        self._as_json = as_json
        self.complaints = 0

    def say(self, entry: Entry) -> None:
        """Print an entry."""
        if self._as_json:
            print(json.dumps({"file": self.path, "type": entry.kind, **as_json_fields(entry.fields)}))
        else:
            prefix = "| " if entry.kind == "record" else ""
            print(prefix + (as_text(entry.fields) if entry.text is None else entry.text))

    def complain(self, text: str) -> None:
        """Print a fault."""
        self.complaints += 1
        print(text, file=sys.stderr)


@click.command(cls=Command)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--print-data-log", is_flag=True, help="print keys and values too")
@click.option("--deep-iteration", is_flag=True, help="print every record, not only batches")
@click.option("--index-sanity-check", is_flag=True, help="only check indices against their segment, print no entries")
@json_option
def command(
    *, files: tuple[str, ...], print_data_log: bool, deep_iteration: bool, index_sanity_check: bool, as_json: bool
) -> int:
    """Print segment files: batches, records, index entries.

    The form is that of Kafka's DumpLogSegments, for .log, .index, .timeindex, .txnindex and .snapshot files; with
    --json an object a line, with Kafka's names.
    """
    shown = DumpOptions(print_data_log, deep_iteration, index_sanity_check)
    complaints = 0
    for path in files:
        if not as_json:
            print(f"Dumping {path}")
        dump = Dump(path, as_json=as_json)
        _dump(dump, shown)
        complaints += dump.complaints
    return 1 if complaints else 0


def _dump(dump: Dump, shown: DumpOptions) -> None:
    path = dump.path
    name, suffix = os.path.splitext(os.path.basename(path))
    if not (len(name) == 20 and name.isdigit()) or suffix not in _SUFFIXES:
        reason = "not named as a segment file" if os.path.exists(path) else "no such file"
        dump.complain(f"tidelog dump-log: {path}: {reason}")
    elif suffix == ".log":
        _dump_log(dump, int(name), shown)
    elif suffix == ".snapshot":
        _dump_snapshot(dump)
    elif suffix == ".txnindex":
        _dump_transactions(dump, int(name))
    else:
        _dump_index(dump, int(name), shown)


def as_text(fields: Fields) -> str:
    """Write fields in one line, as Kafka's tool does."""
    return " ".join(f"{name}: {_text(name, value)}" for name, value in fields.items())


_OPTIONAL = ("deleteHorizonMs", "currentTxnFirstOffset")
"""Fields that Kafka's tool prints as Java's OptionalLong."""


def _text(name: str, value: Any) -> str:
    if name in _OPTIONAL:
        return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{','.join(value)}]"
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


def as_json_fields(fields: Fields) -> Fields:
    """Replace bytes that are not UTF-8 by base64, under the name ``<name>_base64``, as the commands on records do."""
    from tidelog.commands.frame.records import content_field

    found: Fields = {}
    for name, value in fields.items():
        found |= content_field(name, value) if isinstance(value, bytes) else {name: value}
    return found


def _open(path: str) -> OpenFile:
    from tidelog.log.system.file_system import OsFileSystem

    return OsFileSystem().open_file(path, writable=False)


def _dump_log(dump: Dump, base_offset: int, shown: DumpOptions) -> None:
    from tidelog.log.segment.batch_scan import crc_matches, iter_batches

    dump.say(Entry("segment", {"startOffset": base_offset}, f"Log starting offset: {base_offset}"))
    file = _open(dump.path)
    size, batches_end = file.size(), 0
    for header, batch in iter_batches(file, 0, size):
        is_valid = crc_matches(header, batch)
        dump.complaints += not is_valid
        dump.say(Entry("batch", _batch_fields(header, batch, is_valid=is_valid)))
        if is_valid and (shown.deep_iteration or shown.print_data_log):
            for fields in _record_fields(batch, with_data=shown.print_data_log):
                dump.say(Entry("record", fields))
        batches_end = header.position + header.size
    file.close()
    if batches_end < size:
        rest = size - batches_end
        dump.complaints += 1
        dump.say(Entry("invalid", {"bytes": rest}, f"Found {rest} invalid bytes at the end of {dump.path}"))


def _batch_fields(header: BatchHeader, batch: memoryview, *, is_valid: bool) -> Fields:
    from tidelog.protocol.record.record_batch import RecordBatch

    codec = _CODECS[header.attributes & 7] if header.attributes & 7 < len(_CODECS) else "unknown"
    first: Fields = {"offset": header.last_offset}
    if header.magic == 2:
        parsed = RecordBatch(batch)
        first = {
            "baseOffset": header.base_offset,
            "lastOffset": header.last_offset,
            "count": header.record_count,
            "baseSequence": header.base_sequence,
            "lastSequence": parsed.last_sequence,
            "producerId": header.producer_id,
            "producerEpoch": header.producer_epoch,
            "partitionLeaderEpoch": header.leader_epoch,
            "isTransactional": header.is_transactional,
            "isControl": header.is_control,
            "deleteHorizonMs": parsed.delete_horizon_ms,
        }
    return {
        **first,
        "position": header.position,
        _time_name(header): header.max_timestamp,
        "size": header.size,
        "magic": header.magic,
        "compresscodec": codec,
        "isvalid": is_valid,
    }


def _time_name(header: BatchHeader) -> str:
    if header.magic == 0:
        return "NoTimestampType"
    return "LogAppendTime" if header.attributes & 8 else "CreateTime"


def _record_fields(batch: memoryview, *, with_data: bool) -> Iterator[Fields]:
    from tidelog.protocol.record.batches import iter_batches

    for entry in iter_batches(batch):
        time_name = "LogAppendTime" if entry.timestamp_type else "CreateTime"
        for record in entry.records():
            fields: Fields = {
                "offset": record.offset,
                time_name: record.timestamp,
                "keySize": -1 if record.key is None else len(record.key),
                "valueSize": -1 if record.value is None else len(record.value),
            }
            if entry.magic == 2:
                fields |= {"sequence": record.sequence, "headerKeys": [name for name, _ in record.headers]}
            yield {**fields, **_data_of(record)} if with_data else fields


def _data_of(record: Record) -> Fields:
    return {
        name: None if content is None else bytes(content)
        for name, content in (("key", record.key), ("payload", record.value))
    }


def _dump_snapshot(dump: Dump) -> None:
    from tidelog.log.producer.snapshot import decode_snapshot
    from tidelog.log.system.file_system import OsFileSystem

    for entry in decode_snapshot(OsFileSystem().read_file(dump.path), dump.path):
        open_since = entry.current_txn_first_offset
        fields: Fields = {
            "producerId": entry.producer_id,
            "producerEpoch": entry.producer_epoch,
            "coordinatorEpoch": entry.coordinator_epoch,
            "currentTxnFirstOffset": None if open_since < 0 else open_since,
            "lastTimestamp": entry.timestamp,
        }
        if entry.last_offset >= 0:
            fields |= {
                "lastSequence": entry.last_sequence,
                "lastOffset": entry.last_offset,
                "offsetDelta": entry.offset_delta,
                "timestamp": entry.timestamp,
            }
        dump.say(Entry("producer", fields))


def _dump_transactions(dump: Dump, base_offset: int) -> None:
    from tidelog.log.index.transaction_index import TransactionIndex
    from tidelog.log.system.file_system import OsFileSystem

    index = TransactionIndex(OsFileSystem(), dump.path, base_offset)
    for entry in index:
        fields: Fields = {
            "version": 0,
            "producerId": entry.producer_id,
            "firstOffset": entry.first_offset,
            "lastOffset": entry.last_offset,
            "lastStableOffset": entry.last_stable_offset,
        }
        dump.say(Entry("aborted", fields))
    index.close()


def _dump_index(dump: Dump, base_offset: int, shown: DumpOptions) -> None:
    from tidelog.log.check import check_directory
    from tidelog.log.system.file_system import OsFileSystem

    path = dump.path
    findings = [f for f in check_directory(OsFileSystem(), os.path.dirname(os.path.abspath(path)))
                if os.path.basename(f.path) == os.path.basename(path)]  # fmt: skip
    for finding in findings:
        dump.complain(str(finding))
    if not shown.index_sanity_check:
        _dump_entries(dump, base_offset)
    elif not findings:
        dump.say(Entry("sane", {}, f"{path} passed sanity check."))


def _dump_entries(dump: Dump, base_offset: int) -> None:
    from tidelog.log.index.offset_index import OffsetIndex
    from tidelog.log.index.time_index import TimeIndex

    file = _open(dump.path)
    data = file.read_at(0, file.size())
    file.close()
    is_time = dump.path.endswith(".timeindex")
    entry = TimeIndex.ENTRY if is_time else OffsetIndex.ENTRY
    complete_bytes = len(data) // entry.size * entry.size
    if not complete_bytes:
        dump.say(Entry("empty", {}, f"{dump.path} is empty."))
    for slot, (first, second) in enumerate(entry.iter_unpack(data[:complete_bytes])):
        if slot and (second if is_time else first) == 0:
            break  # zeros after the entries of a log that was not closed
        fields = (
            {"timestamp": first, "offset": base_offset + second}
            if is_time
            else {"offset": base_offset + first, "position": second}
        )
        dump.say(Entry("entry", fields))
