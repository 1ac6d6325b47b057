"""``tidelog produce``: records from lines, files or JSON into a topic of any Kafka cluster.

The producer is idempotent. It sends its batches when they are full, and when no more input is waiting. So a line that
was typed or piped is in the topic at once.
"""

from __future__ import annotations

import os
import select
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import click

from tidelog.commands.frame.commands import Command
from tidelog.commands.frame.completing import complete_topics
from tidelog.commands.frame.options import (
    ClientSettings,
    client_options,
    encode,
    json_option,
    key_value_pairs,
    standard_input,
)
from tidelog.commands.frame.output import print_json
from tidelog.commands.records.registered import RegisteredValues, registry_options

if TYPE_CHECKING:
    from tidelog.client.records.producer import OutgoingRecord, Producer

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
STANDARD_INPUT = "-"
CHUNK_BYTES = 1 << 18
PROGRESS_BYTES = 1 << 24
"""Size of the smallest file for which a terminal shows a progress bar."""


class Fields(NamedTuple):
    """Options of ``produce`` that turn a line into a record: fields of all records, and the format of lines."""

    format: str
    key: bytes | None
    delimiter: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    partition: int | None
    tombstone: bool
    values: RegisteredValues | None = None


@click.command(cls=Command)
@click.argument("topic", metavar="TOPIC", shell_complete=complete_topics)
@click.argument("files", metavar="[FILE]...", nargs=-1)
@click.option("-k", "--key", metavar="KEY", help="the key of every record")
@click.option(
    "-K", "--key-delimiter", metavar="TEXT", help="each line is KEY, this text and the value, as KEY:VALUE for ':'"
)
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="a header; may be repeated")
@click.option("-p", "--partition", type=click.IntRange(0), metavar="N", help="the partition; default: by key")
@click.option(
    "-z", "--compression", type=click.Choice(CODECS), default="none", show_default=True, help="codec of the batches"
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["lines", "json", "file"]),
    default="lines",
    show_default=True,
    help="what a record is made of: a line; a line's JSON object, as consume --json prints it; or a whole file",
)
@click.option("-Z", "--tombstone", is_flag=True, help="an empty value is sent as null")
@registry_options
@click.option("--value-schema", "schema_path", metavar="FILE", help="register this schema for TOPIC-value, and use it")
@click.option(
    "--value-schema-id",
    "schema_id",
    type=click.IntRange(1),
    metavar="N",
    help="id of the schema; default: the newest of TOPIC-value",
)
@json_option
@client_options()
def command(
    *,
    settings: ClientSettings,
    values: RegisteredValues | None,
    schema_path: str | None,
    schema_id: int | None,
    topic: str,
    files: tuple[str, ...],
    key: str | None,
    key_delimiter: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    compression: str,
    form: str,
    tombstone: bool,
    as_json: bool,
) -> None:
    """Write records to a topic: lines of standard input or of files.

    Records with equal keys go to the same partition, the one that Kafka's own producers choose. The topic is created
    where the broker allows that.
    """
    from tidelog.client.cluster import Cluster
    from tidelog.client.records.producer import Producer

    if key_delimiter is not None and (key is not None or form != "lines" or not key_delimiter):
        raise click.UsageError("--key-delimiter: expected a text, --format lines and no --key")
    choose_schema(values, topic, schema_path, schema_id)
    given = tuple((name, encode(value)) for name, value in key_value_pairs(headers, "--header"))
    fields = Fields(form, encode(key), encode(key_delimiter), given, partition, tombstone, values)
    with Cluster.open(settings) as cluster:
        producer = Producer(cluster, topic, settings.timeout_s, CODECS.index(compression))
        try:
            for path in files or (STANDARD_INPUT,):
                produce_file(path, fields, producer)
            producer.flush()
        finally:
            report(topic, producer, as_json=as_json)


def choose_schema(values: RegisteredValues | None, topic: str, path: str | None, number: int | None) -> None:
    """Choose the schema that values are encoded with. Raises ClientError, OSError, UsageError."""
    if path is not None and number is not None:
        raise click.UsageError("expected one of --value-schema and --value-schema-id")
    if values is not None:
        values.choose(topic, path, number)
    elif path is not None or number is not None:
        raise click.UsageError("--value-schema: expected it with --value-format")


def produce_file(path: str, fields: Fields, producer: Producer) -> None:
    """Send the records of one file. Raises ClientError, KafkaError, OSError."""
    if path == STANDARD_INPUT:
        send_all(standard_input(), "standard input", fields, producer)
        return
    with open(path, "rb") as file:
        state = os.fstat(file.fileno())
        if stat.S_ISREG(state.st_mode) and state.st_size >= PROGRESS_BYTES and sys.stderr.isatty():
            with click.progressbar(length=state.st_size, label=path, file=sys.stderr) as bar:
                send_all(file, path, fields, producer, bar)
        else:
            send_all(file, path, fields, producer)


def send_all(file: BinaryIO, name: str, fields: Fields, producer: Producer, bar: Any = None) -> None:
    """Send the records of a file. Those of lines are flushed whenever no more input is waiting."""
    from tidelog.client import ClientError
    from tidelog.commands.frame.records import RecordFormatError

    contents: Iterable[bytes] = [file.read()] if fields.format == "file" else lines_of(file, producer, bar)
    for number, content in enumerate(contents, 1):
        try:
            record = record_of(content, fields)
        except (RecordFormatError, ClientError) as error:
            producer.flush()  # the records before it are written: a user can correct the line and continue there
            where = name if fields.format == "file" else f"{name} line {number}"
            raise ClientError(f"{where}: {error}") from None
        producer.send(record)


def lines_of(file: BinaryIO, producer: Producer, bar: Any) -> Iterator[bytes]:
    """Yield lines without their ends; before a read that has to wait, the producer is flushed."""
    descriptor = file.fileno()
    # poll, because select does not support descriptors above 1,023. A closed pipe counts as readable too.
    readable = select.poll()
    readable.register(descriptor, select.POLLIN)
    rest = b""
    while True:
        if not producer.is_empty and not readable.poll(0):
            producer.flush()
        chunk = os.read(descriptor, CHUNK_BYTES)
        if bar is not None:
            bar.update(len(chunk))
        if not chunk:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line.removesuffix(b"\r") for line in lines)
    if rest:
        yield rest


def record_of(line: bytes, fields: Fields) -> OutgoingRecord:
    """Build the record of a line. Raises RecordFormatError, ClientError."""
    record = plain_record_of(line, fields)
    if fields.values is None or record.value is None:
        return record
    return record._replace(value=fields.values.write(record.value))


def plain_record_of(line: bytes, fields: Fields) -> OutgoingRecord:
    """Build the record of a line, before its value is encoded by a schema. Raises RecordFormatError."""
    from tidelog.client.records.producer import OutgoingRecord
    from tidelog.commands.frame.records import RecordFormatError, parse_json_record

    now_ms = round(time.time() * 1000)
    if fields.format == "json":
        parsed = parse_json_record(line.decode("utf-8", "replace"), has_json_value=fields.values is not None)
        key = fields.key if parsed.key is None else parsed.key
        partition = fields.partition if fields.partition is not None else parsed.partition
        timestamp = now_ms if parsed.timestamp is None else parsed.timestamp
        content = None if fields.tombstone and not parsed.value else parsed.value
        return OutgoingRecord(content, key, (*parsed.headers, *fields.headers), partition, timestamp)
    key, value = fields.key, line
    if fields.delimiter is not None:
        key, found, value = line.partition(fields.delimiter)
        if not found:
            expected = f"KEY{fields.delimiter.decode('utf-8', 'replace')}VALUE"
            raise RecordFormatError(f"expected {expected}, found {line[:40].decode('utf-8', 'replace')!r}")
    content = None if fields.tombstone and not value else value
    return OutgoingRecord(content, key, fields.headers, fields.partition, now_ms)


def report(topic: str, producer: Producer, *, as_json: bool) -> None:
    """Print the number of records that were appended to each partition, and their offsets."""
    partitions: Sequence[dict[str, int]] = [
        {"partition": number, **appended._asdict()} for number, appended in sorted(producer.appended.items())
    ]
    if as_json:
        print_json({"topic": topic, "records": producer.records, "partitions": partitions})
        return
    for one in partitions:
        last = "" if one["records"] == 1 else f" to {one['last_offset']}"
        noun = "record" if one["records"] == 1 else "records"
        print(f"{topic}-{one['partition']}: {one['records']} {noun}, offset {one['first_offset']}{last}")
