"""``tidelog consume``: records of topics of any Kafka cluster, by offset or time, alone or as a member of a group."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from tidelog.client.connection import ClientError
from tidelog.commands.frame.commands import Command
from tidelog.commands.frame.completing import complete_topics
from tidelog.commands.frame.exit_codes import EXIT_TERMINATED
from tidelog.commands.frame.options import ClientSettings, Moment, check_order, client_options, json_option
from tidelog.commands.frame.records import hex_line, json_line, json_line_of, text_line
from tidelog.commands.records.registered import RegisteredValues, registry_options

if TYPE_CHECKING:
    from tidelog.client.admin.offsets import TopicPartition
    from tidelog.client.cluster import Cluster
    from tidelog.client.records.reading import Range
    from tidelog.find import FoundRecord
    from tidelog.protocol.errors import KafkaError

ISOLATION = {"read_uncommitted": 0, "read_committed": 1}
LINES: dict[str, Callable[[FoundRecord], str]] = {"text": text_line, "hex": hex_line, "json": json_line}
OFFSET_WORDS = {"start": "start", "beginning": "start", "earliest": "start", "end": "end", "latest": "end"}
"""Words for --offset -> start or end of a log; some are those of kcat and of Kafka's consumers."""


@click.command(cls=Command)
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topics)
@click.option("-o", "--offset", metavar="WHERE", help="start, end, an offset, or -N for the last N of each partition")
@click.option("--from-beginning", is_flag=True, help="as --offset start, which is the default without a group")
@click.option("--from", "begin", type=Moment(), metavar="TIME",
              help="only records of this time or later: ms, ISO 8601, 09:00, or 15m for 15 minutes ago")  # fmt: skip
@click.option("--to", "end", type=Moment(), metavar="TIME",
              help="only records of this time or earlier: each partition ends at its first later one")  # fmt: skip
@click.option("-p", "--partition", "partitions", type=click.IntRange(0), multiple=True, metavar="N",
              help="this partition alone; may be repeated")  # fmt: skip
@click.option(
    "-n", "--max", "--max-messages", "max_records", type=click.IntRange(1), metavar="N", help="at most N records"
)
@click.option("-f", "--follow", is_flag=True, help="go on with new records; else reading ends where logs end now")
@click.option(
    "-g", "--group", metavar="GROUP", help="read as a member of this group: from its committed offsets on, and commit"
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "value", "hex", "json"]),
    default="text",
    show_default=True,
    help="text: position, time, key and value; value: the value alone; hex: key and value as hex; json: one line each",
)
@click.option(
    "--isolation",
    type=click.Choice(list(ISOLATION)),
    default="read_uncommitted",
    show_default=True,
    help="read_committed leaves out records of open and aborted transactions",
)
@registry_options
@json_option
@client_options()
def command(
    *,
    settings: ClientSettings,
    values: RegisteredValues | None,
    topics: tuple[str, ...],
    offset: str | None,
    from_beginning: bool,
    begin: int | None,
    end: int | None,
    partitions: tuple[int, ...],
    max_records: int | None,
    follow: bool,
    group: str | None,
    form: str,
    isolation: str,
    as_json: bool,
) -> None:
    """Read records of topics."""
    from tidelog.client.cluster import Cluster
    from tidelog.client.records.reading import MemberReading, read_partitions

    if sum((offset is not None, from_beginning, begin is not None)) > 1:
        raise click.UsageError("expected one of --offset, --from-beginning and --from")
    if values is not None and form == "hex":
        raise click.UsageError("--value-format: values are printed as JSON; expected it without --format hex")
    if group is not None and partitions:
        raise click.UsageError("--partition: a group assigns the partitions; expected it without --group")
    start = checked_offset("start" if from_beginning else offset)
    wanted = range_of(start, begin, end, follow=follow, isolation=isolation)
    with ended_by_sigterm(), Cluster.open(settings) as cluster:
        line = line_maker("json" if as_json else form, values)
        if group is None:
            show(read_partitions(cluster, list_partitions(cluster, topics, partitions), wanted), line, max_records)
        else:
            with MemberReading(cluster, group, topics, wanted, tell) as member:
                show(member.records(), line, max_records, member.note_written)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the command as Ctrl-C does: a member commits what was printed, and leaves its group."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: object) -> None:
        raise SystemExit(EXIT_TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def range_of(offset: str | None, begin_ms: int | None, end_ms: int | None, *, follow: bool, isolation: str) -> Range:
    """Build the range of each partition. Raises UsageError when it ends before it begins."""
    from tidelog.client.records.reading import Range

    check_order(begin_ms, end_ms)
    return Range(offset, begin_ms, end_ms, follow, ISOLATION[isolation])


def checked_offset(text: str | None) -> str | None:
    """Return ``start``, ``end`` or the number as text. Raises UsageError for any other text."""
    if text is None or text.removeprefix("-").isdecimal():
        return text
    if text not in OFFSET_WORDS:
        raise click.UsageError(f"--offset {text!r}: expected start, end, an offset, or -N for the last N")
    return OFFSET_WORDS[text]


def line_maker(form: str, values: RegisteredValues | None) -> Callable[[FoundRecord], bytes]:
    """Return the function from a record to its line; it raises ClientError for a value that cannot be decoded."""

    def line(record: FoundRecord) -> bytes:
        if form == "value":
            return record.value or b""
        # decoded JSON may have a lone surrogate, which UTF-8 cannot encode: it is written as \uXXXX
        return LINES[form](record).encode("utf-8", "backslashreplace")

    def decoded_line(record: FoundRecord) -> bytes:
        assert values is not None
        if record.value is None:
            return line(record)
        try:
            value = values.read(record.value)
        except ClientError as error:
            raise ClientError(f"{record.topic}-{record.partition}@{record.offset}: the value: {error}") from error
        if form == "json":
            return json_line_of(record, value).encode("utf-8", "backslashreplace")
        return line(record._replace(value=json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace")))

    return line if values is None else decoded_line


def show(
    records: Iterator[FoundRecord | None],
    line: Callable[[FoundRecord], bytes],
    max_records: int | None,
    note_written: Callable[[dict[TopicPartition, int]], None] = lambda _offsets: None,
) -> None:
    """Print records, up to ``max_records``.

    None among them flushes the output, because the next round may have to wait. After a flush ``note_written`` gets, by
    partition, the offset after the last printed record. Raises ClientError, KafkaError, OSError.
    """
    printed: dict[TopicPartition, int] = {}

    def flush() -> None:
        sys.stdout.flush()
        note_written(printed)
        printed.clear()

    shown = 0
    try:
        for record in records:
            if record is None:
                flush()
                continue
            sys.stdout.buffer.write(line(record) + b"\n")
            printed[record.topic, record.partition] = record.offset + 1
            shown += 1
            if shown == max_records:
                return
    finally:
        flush()


def tell(error: KafkaError) -> None:
    """Print the error of a commit, which does not end reading."""
    print(f"tidelog consume: {error}", file=sys.stderr)


def list_partitions(cluster: Cluster, topics: tuple[str, ...], partitions: tuple[int, ...]) -> list[TopicPartition]:
    """List the partitions that are read, with and without leaders. Raises ClientError, KafkaError."""
    from tidelog.client.admin.offsets import partitions_of
    from tidelog.client.cluster import ensure_partition

    if not partitions:
        return [topic_partition for topic in topics for topic_partition in partitions_of(cluster, topic)]
    named = [(topic, number) for topic in topics for number in partitions]
    for topic, number in named:
        ensure_partition(cluster, topic, number)
    return named
