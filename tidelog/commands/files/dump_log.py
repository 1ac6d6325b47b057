"""``tidelog dump-log FILES``: batches, records and index entries, in the form of Kafka's DumpLogSegments or as JSON.

Each printed line is an ``Entry``, whose fields have Kafka's names; as text, ``Dumping FILE`` precedes a file's entries.
As text a line has the fields one after the other; as JSON it is an object with the fields, the file and the kind of the
entry. As text, control characters are escaped, because keys, values and header names may have line breaks. Kafka's tool
prints control characters as they are.

Damage does not end the output. A line on standard error names the file, and the byte in a record file or the number of
the entry in an index. The output goes on at the next batch that can be found, and with the next file.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tidelog.commands.frame.commands import Command
from tidelog.commands.frame.options import json_option

if TYPE_CHECKING:
    from tidelog.log.check import IndexFindings
    from tidelog.log.segment.batch_scan import BatchHeader
    from tidelog.log.system.file_system import OpenFile
    from tidelog.protocol.record.message_set import LegacyRecordBatch
    from tidelog.protocol.record.record_batch import Record

_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
_CONTROL_TYPES = {2: "LEADER_CHANGE", 3: "SNAPSHOT_HEADER", 4: "SNAPSHOT_FOOTER", 5: "KRAFT_VERSION", 6: "KRAFT_VOTERS"}
_CONTROL_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Characters that would end or hide a line, and bytes of a path that are not UTF-8."""
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


class IndexChecks:
    """Findings of the indices of segments: each segment is read once, for both of its indices."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], IndexFindings] = {}

    def check(self, path: str, base_offset: int) -> IndexFindings:
        """Return the findings of one index. Raises KafkaStorageError."""
        from tidelog.log.check import IndexFindings, check_indices
        from tidelog.log.system.file_system import OsFileSystem

        segment = (os.path.dirname(os.path.abspath(path)), base_offset)
        if segment not in self._found:
            self._found[segment] = check_indices(OsFileSystem(), *segment)
        name = os.path.basename(path)
        wrong, unchecked = (
            [finding._replace(path=path) for finding in findings if os.path.basename(finding.path) == name]
            for findings in self._found[segment]
        )
        return IndexFindings(wrong, unchecked)


class Dump:
    """The printed output for one file. ``complaints`` is the number of faults in the file."""

    def __init__(self, path: str, *, as_json: bool, checks: IndexChecks) -> None:
        self.path = path
        self._as_json = as_json
        self.checks = checks
        self.complaints = 0

    def say(self, entry: Entry) -> None:
        """Print an entry."""
        if self._as_json:
            print(json.dumps({"file": self.path, "type": entry.kind, **as_json_fields(entry.fields)}))
        else:
            prefix = "| " if entry.kind == "record" else ""
            print(one_line(prefix + (as_text(entry.fields) if entry.text is None else entry.text)))

    def complain(self, text: str) -> None:
        """Print a fault."""
        self.complaints += 1
        print(one_line(text), file=sys.stderr)

    def complain_at(self, position: int, text: str) -> None:
        """Print a fault at a byte of a record file, or at an entry of another file."""
        from tidelog.log.check import Finding

        self.complain(str(Finding(self.path, position, text)))


def one_line(text: str) -> str:
    """Escape the characters that would end or hide a line."""
    if text.isprintable():
        return text
    return _CONTROL_CHARACTERS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


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
    --json an object a line, with Kafka's names. Control characters are escaped. Damage is named by file and byte (in
    an index: entry) on standard error, the next batch or file is printed, and the exit code is 1.
    """
    from tidelog.protocol.errors import KafkaError

    shown = DumpOptions(print_data_log, deep_iteration, index_sanity_check)
    complaints = 0
    checks = IndexChecks()
    for path in files:
        if not as_json:
            print(one_line(f"Dumping {path}"))
        dump = Dump(path, as_json=as_json, checks=checks)
        try:
            _dump(dump, shown)
        except KafkaError as error:
            dump.complain(f"{path}: {str(error).removeprefix(path).lstrip()}")
        complaints += dump.complaints
    return 1 if complaints else 0


def _dump(dump: Dump, shown: DumpOptions) -> None:
    from tidelog.log.files.segment_names import OFFSET_DIGITS, base_offset_of

    path = dump.path
    name = os.path.basename(path)
    base_offset, suffix = base_offset_of(name), name[OFFSET_DIGITS:]
    if base_offset is None or suffix not in _SUFFIXES:
        reason = "not named as a segment file" if os.path.exists(path) else "no such file"
        dump.complain(f"tidelog dump-log: {path}: {reason}")
    elif suffix == ".log":
        _dump_log(dump, base_offset, shown)
    elif suffix == ".snapshot":
        _dump_snapshot(dump)
    elif suffix == ".txnindex":
        _dump_transactions(dump)
    else:
        _dump_index(dump, base_offset, shown)


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
    """Print a record file. After damage the output goes on where readers, audits and checks go on."""
    from tidelog.log.check import iter_indexed_batches
    from tidelog.log.segment.resync import find_resume_position
    from tidelog.log.system.file_system import OsFileSystem

    dump.say(Entry("segment", {"startOffset": base_offset}, f"Log starting offset: {base_offset}"))
    file = _open(dump.path)
    directory = os.path.dirname(os.path.abspath(dump.path))
    size, position = file.size(), 0
    try:
        while position < size:
            position, end = _dump_batches(dump, file, position, shown)
            if position < size:
                indexed = iter_indexed_batches(OsFileSystem(), directory, base_offset)
                resume = find_resume_position(file, position, size, indexed)
                if resume != end:
                    _say_invalid(dump, position, resume, size)
                position = resume
    finally:
        file.close()


def _dump_batches(dump: Dump, file: OpenFile, position: int, shown: DumpOptions) -> tuple[int, int]:
    """Print batches up to the first damaged or incomplete one. Return its position, and its end if only its CRC is
    wrong, otherwise -1; both are the file's size if there is none."""
    from tidelog.log.segment.batch_scan import crc_matches, iter_batches
    from tidelog.protocol.errors import CorruptMessageError

    size = file.size()
    try:
        for header, batch in iter_batches(file, position, size):
            position = header.position
            is_valid = crc_matches(header, batch)
            dump.say(Entry("batch", _batch_fields(header, batch, is_valid=is_valid)))
            if not is_valid:
                dump.complain_at(position, f"wrong CRC in the batch of offset {header.base_offset}")
                return position, position + header.size
            if shown.deep_iteration or shown.print_data_log:
                _dump_records(dump, header, batch, with_data=shown.print_data_log)
            position += header.size
    except CorruptMessageError as error:
        dump.complain_at(position, str(error))
        return position, -1
    if position < size:
        dump.complain_at(position, f"{size - position} bytes of an incomplete last batch")
        return position, -1
    return size, size


def _say_invalid(dump: Dump, position: int, resume: int, size: int) -> None:
    """Print how many bytes are left out after a damaged batch's begin."""
    where = f"at the end of {dump.path}" if resume == size else f"at byte {position} of {dump.path}"
    fields = {"bytes": resume - position, "position": position}
    dump.say(Entry("invalid", fields, f"Found {resume - position} invalid bytes {where}"))


def _dump_records(dump: Dump, header: BatchHeader, batch: memoryview, *, with_data: bool) -> None:
    from tidelog.protocol.errors import KafkaError

    try:
        for fields in _record_fields(batch, with_data=with_data):
            text = {name: value for name, value in fields.items() if value is not None}
            if header.is_control:
                text = {name: value for name, value in text.items() if name not in ("key", "payload")}
            dump.say(Entry("record", fields, as_text(text)))
    except (KafkaError, ValueError) as error:  # ValueError: the name of a header is not UTF-8
        dump.complain_at(header.position, f"the records of offset {header.base_offset} on cannot be read: {error}")


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
        "crc": int.from_bytes(batch[17:21] if header.magic == 2 else batch[12:16], "big"),
        "isvalid": is_valid,
    }


def _time_name(header: BatchHeader) -> str:
    if header.magic == 0:
        return "NoTimestampType"
    return "LogAppendTime" if header.attributes & 8 else "CreateTime"


def _record_fields(batch: memoryview, *, with_data: bool) -> Iterator[Fields]:
    from tidelog.protocol.record.batches import iter_batches
    from tidelog.protocol.record.record_batch import RecordBatch

    for entry in iter_batches(batch):
        found: Iterator[tuple[Record, Fields]]
        if isinstance(entry, RecordBatch):
            found = ((record, _fields_of_magic_2(record, is_control=entry.is_control)) for record in entry.records())
        else:
            found = _iter_messages(entry)
        time_name = ("CreateTime", "LogAppendTime")[entry.timestamp_type] if entry.magic else "NoTimestampType"
        for record, more in found:
            fields: Fields = {
                "offset": record.offset,
                time_name: record.timestamp,
                "keySize": -1 if record.key is None else len(record.key),
                "valueSize": -1 if record.value is None else len(record.value),
                **more,
            }
            yield {**fields, **_data_of(record)} if with_data else fields


def _fields_of_magic_2(record: Record, *, is_control: bool) -> Fields:
    from tidelog.protocol.record.record_batch import control_record_type, parse_end_transaction_marker

    fields: Fields = {"sequence": record.sequence, "headerKeys": [name for name, _ in record.headers]}
    if is_control:
        marker = parse_end_transaction_marker(record)
        if marker is None:
            number = control_record_type(record.key)
            fields["controlType"] = f"{_CONTROL_TYPES.get(number, 'UNKNOWN')}({number})"
        else:
            fields["endTxnMarker"] = "COMMIT" if marker.commit else "ABORT"
            fields["coordinatorEpoch"] = marker.coordinator_epoch
    return fields


def _iter_messages(entry: LegacyRecordBatch) -> Iterator[tuple[Record, Fields]]:
    """Yield the records of a message of magic 0 or 1, and the checksum that each message has of its own."""
    messages = entry.inner_messages() if entry.is_compressed else [entry]
    records = entry.effective_records(messages) if entry.is_compressed else entry.records()
    for message, record in zip(messages, records, strict=True):
        yield record, {"isValid": message.is_valid(), "crc": message.checksum}


def _data_of(record: Record) -> Fields:
    return {
        name: None if content is None else bytes(content)
        for name, content in (("key", record.key), ("payload", record.value))
    }


def _dump_snapshot(dump: Dump) -> None:
    from tidelog.log.producer.snapshot import decode_snapshot
    from tidelog.log.system.file_system import OsFileSystem
    from tidelog.protocol.record.record_batch import increment_sequence

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
                "firstSequence": increment_sequence(entry.last_sequence, -entry.offset_delta),
                "lastSequence": entry.last_sequence,
                "lastOffset": entry.last_offset,
                "offsetDelta": entry.offset_delta,
                "timestamp": entry.timestamp,
            }
        dump.say(Entry("producer", fields))


def _dump_transactions(dump: Dump) -> None:
    from tidelog.log.index.transaction_index import ENTRY
    from tidelog.log.system.file_system import OsFileSystem

    data = OsFileSystem().read_file(dump.path)
    complete_bytes = len(data) // ENTRY.size * ENTRY.size
    for slot, (version, *values) in enumerate(ENTRY.iter_unpack(data[:complete_bytes])):
        names = ("producerId", "firstOffset", "lastOffset", "lastStableOffset")
        dump.say(Entry("aborted", {"version": version, **dict(zip(names, values, strict=True))}))
        if version != 0:
            dump.complain_at(slot, f"an entry has the unknown version {version}")
    if complete_bytes < len(data):
        dump.complain(f"{dump.path}: {len(data)} bytes are not a multiple of an entry's {ENTRY.size}")


def _dump_index(dump: Dump, base_offset: int, shown: DumpOptions) -> None:
    if not os.path.lexists(dump.path):
        dump.complain(f"tidelog dump-log: {dump.path}: no such file")
        return
    findings = dump.checks.check(dump.path, base_offset)
    for finding in findings.wrong:
        dump.complain(str(finding))
    if not shown.index_sanity_check:
        _dump_entries(dump, base_offset)
        return
    for finding in findings.unchecked:
        dump.complain(str(finding))
    if not dump.complaints:
        dump.say(Entry("sane", {}, f"{dump.path} passed sanity check."))


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
