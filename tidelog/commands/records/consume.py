"""``tidelog consume``: records of topics of any Kafka cluster, by offset or time, alone or as a member of a group."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import click

from tidelog.commands.frame.commands import Command
from tidelog.commands.frame.completing import complete_topics
from tidelog.commands.frame.options import ClientSettings, client_options, json_option
from tidelog.commands.frame.records import hex_line, json_line, text_line

if TYPE_CHECKING:
    from tidelog.client.admin.offsets import TopicPartition
    from tidelog.client.cluster import Cluster
    from tidelog.client.connection import ClientError
    from tidelog.client.records.fetcher import Fetcher
    from tidelog.find import FoundRecord
    from tidelog.protocol.errors import KafkaError

WAIT_MS = 500
RETRY_S = 30.0
"""How long a leader may be missing: a controller fences a silent broker after 9 s, and then elects another."""
PAUSE_S = 0.1
VACANT_ROUNDS = 3
"""Answers without records until a partition is taken as read to its end: compaction leaves offsets without records."""
COMMIT_S = 5.0
ISOLATION = {"read_uncommitted": 0, "read_committed": 1}
LINES: dict[str, Callable[[FoundRecord], str]] = {"text": text_line, "hex": hex_line, "json": json_line}


class Range(NamedTuple):
    """The records that are wanted: where reading begins and ends, in words of the command line."""

    offset: str | None
    begin_ms: int | None
    end_ms: int | None
    follow: bool
    isolation_level: int


class Reading:
    """Rounds of a fetcher up to given ends. A leader that moves or is away is asked again, for RETRY_S."""

    def __init__(self, cluster: Cluster, fetcher: Fetcher) -> None:
        self._cluster = cluster
        self._fetcher = fetcher
        self._ends: dict[TopicPartition, int] = {}
        self._vacant: dict[TopicPartition, int] = {}
        self._failing_since: float | None = None

    def begin(self, positions: dict[TopicPartition, int], ends: dict[TopicPartition, int]) -> None:
        """Read from these positions on, up to the ends; on and on where a partition has none."""
        self._fetcher.positions = positions
        self._ends = ends
        self._vacant = {}

    def drop_finished(self) -> bool:
        """Give up partitions that are read to their end; return whether any is left."""
        positions = self._fetcher.positions
        for place, end in self._ends.items():
            if positions.get(place, -1) >= end or self._vacant.get(place, 0) >= VACANT_ROUNDS:
                positions.pop(place, None)
        return bool(positions)

    def next_round(self) -> Iterator[FoundRecord]:
        """Yield the records of one fetch that lie before the ends. Raises ClientError, KafkaError."""
        from tidelog.client.cluster import Trouble

        if not self._fetcher.positions:
            time.sleep(WAIT_MS / 1000)
        try:
            yield from self._records()
            self._count_vacant()
        except Trouble as error:
            self.pause_after(error)
        else:
            self._failing_since = None

    def pause_after(self, error: ClientError | KafkaError) -> None:
        """Wait for another leader or coordinator. Raises the error if that cannot help, or has not for RETRY_S."""
        from tidelog.client.cluster import is_passing

        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        if not is_passing(error) or now - self._failing_since > RETRY_S:
            raise error
        self._cluster.forget_leaders()
        time.sleep(PAUSE_S)

    def _records(self) -> Iterator[FoundRecord]:
        from tidelog.find import FoundRecord

        for topic, partition, record in self._fetcher.fetch(WAIT_MS):
            end = self._ends.get((topic, partition))
            if end is None or record.offset < end:
                yield FoundRecord(
                    topic, partition, record.offset, record.timestamp, record.key, record.value, tuple(record.headers)
                )

    def _count_vacant(self) -> None:
        """Count answers without records. Raises ClientError where a leader's log ends before the end."""
        from tidelog.client.connection import ClientError

        vacant = {place: seen for place, seen in self._fetcher.vacant.items() if place in self._ends}
        self._vacant = {
            place: self._vacant.get(place, 0) + 1 for place, seen in vacant.items() if seen >= self._ends[place]
        }
        for place, seen in vacant.items():
            if seen < self._ends[place]:
                raise ClientError(f"{place[0]}-{place[1]} ends at {seen} now, it ended at {self._ends[place]} before")


@click.command(cls=Command)
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topics)
@click.option("-o", "--offset", metavar="WHERE", help="start, end, an offset, or -N for the last N of each partition")
@click.option("--from-beginning", is_flag=True, help="as --offset start, which is the default without a group")
@click.option("--from", "begin", metavar="TIME", help="not older; ms, ISO 8601, 09:00, or 15m ago")
@click.option("--to", "end", metavar="TIME", help="not newer")
@click.option("-p", "--partition", "partitions", type=click.IntRange(0), multiple=True, metavar="N",
              help="this partition alone; may be repeated")  # fmt: skip
@click.option("-n", "--max", "--max-messages", "most", type=click.IntRange(1), metavar="N", help="at most N records")
@click.option("-f", "--follow", is_flag=True, help="go on with new records; else reading ends where logs end now")
@click.option("-g", "--group", metavar="GROUP", help="as a member of this group, from its offsets on, which it commits")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "value", "hex", "json"]),
    default="text",
    show_default=True,
    help="place, time, key and value; the value alone; key and value in hexadecimal; a JSON object a line",
)
@click.option(
    "--isolation",
    type=click.Choice(list(ISOLATION)),
    default="read_uncommitted",
    show_default=True,
    help="read_committed leaves out records of open and aborted transactions",
)
@json_option
@client_options()
def command(
    *,
    settings: ClientSettings,
    topics: tuple[str, ...],
    offset: str | None,
    from_beginning: bool,
    begin: str | None,
    end: str | None,
    partitions: tuple[int, ...],
    most: int | None,
    follow: bool,
    group: str | None,
    form: str,
    isolation: str,
    as_json: bool,
) -> None:
    """Read records of topics."""
    from tidelog.client.cluster import Cluster
    from tidelog.find import in_ms

    if sum((offset is not None, from_beginning, begin is not None)) > 1:
        raise click.UsageError("expected one of --offset, --from-beginning and --from")
    if group is not None and partitions:
        raise click.UsageError("--partition: a group assigns the partitions; expected no --group with it")
    wanted = Range(
        checked_offset("start" if from_beginning else offset),
        None if begin is None else in_ms(begin),
        None if end is None else in_ms(end),
        follow,
        ISOLATION[isolation],
    )
    if wanted.begin_ms is not None and wanted.end_ms is not None and wanted.begin_ms > wanted.end_ms:
        raise click.UsageError(f"--from {begin} is after --to {end}")
    with Cluster.open(settings) as cluster:
        if group is None:
            records = read_partitions(cluster, chosen(cluster, topics, partitions), wanted)
        else:
            records = read_as_member(cluster, group, topics, wanted)
        show(records, "json" if as_json else form, most)


def checked_offset(text: str | None) -> str | None:
    """Return the text. Raises UsageError when it is no offset."""
    if text is not None and text not in ("start", "end") and not text.removeprefix("-").isdecimal():
        raise click.UsageError(f"--offset {text!r}: expected start, end, an offset, or -N for the last N")
    return text


def show(records: Iterator[FoundRecord | None], form: str, most: int | None) -> None:
    """Print records, up to ``most``; None says that no more are there for the moment."""
    shown = 0
    try:
        for record in records:
            if record is None:
                sys.stdout.flush()
                continue
            if form == "value":
                sys.stdout.buffer.write((record.value or b"") + b"\n")
            else:
                print(LINES[form](record))
            shown += 1
            if shown == most:
                return
    finally:
        getattr(records, "close")()  # noqa: B009  (a generator: its end leaves the group)


def chosen(cluster: Cluster, topics: tuple[str, ...], partitions: tuple[int, ...]) -> list[TopicPartition]:
    """List the partitions that are read. Raises ClientError, KafkaError."""
    from tidelog.client.admin.offsets import partitions_of

    if not partitions:
        return [place for topic in topics for place in partitions_of(cluster, topic)]
    places = [(topic, number) for topic in topics for number in partitions]
    for place in places:
        cluster.leader(*place)
    return places


def read_partitions(cluster: Cluster, places: list[TopicPartition], wanted: Range) -> Iterator[FoundRecord | None]:
    """Yield records of these partitions. Raises ClientError, KafkaError."""
    from tidelog.client.records.fetcher import Fetcher

    reading = Reading(cluster, Fetcher(cluster, {}, wanted.isolation_level))
    reading.begin(first_positions(cluster, places, wanted), last_positions(cluster, places, wanted))
    while reading.drop_finished():
        yield from reading.next_round()
        yield None


def read_as_member(
    cluster: Cluster, group: str, topics: tuple[str, ...], wanted: Range
) -> Iterator[FoundRecord | None]:
    """Yield records of the partitions that the group assigns, and commit them. Raises ClientError, KafkaError."""
    from tidelog.client.admin.groups import committed_offsets
    from tidelog.client.cluster import Trouble
    from tidelog.client.records.fetcher import Fetcher
    from tidelog.client.records.member import GroupMember
    from tidelog.protocol.errors import KafkaError

    reading = Reading(cluster, Fetcher(cluster, {}, wanted.isolation_level))
    read: dict[TopicPartition, int] = {}

    def commit() -> None:
        member.commit(read)
        read.clear()

    def commit_if_possible() -> None:
        try:
            commit()
        except KafkaError as error:
            print(f"tidelog consume: {error}", file=sys.stderr)

    member = GroupMember(cluster, group, topics, commit_if_possible)
    next_commit = time.monotonic() + COMMIT_S
    try:
        while True:
            try:
                is_assigned = member.poll()
            except Trouble as error:  # its coordinator has moved
                reading.pause_after(error)
                continue
            if is_assigned:
                read.clear()
                places = member.assignment
                committed = {} if wanted.offset or wanted.begin_ms else committed_offsets(cluster, group, places)
                positions = {**first_positions(cluster, places, wanted), **committed}
                reading.begin(positions, last_positions(cluster, places, wanted))
            if not reading.drop_finished() and not wanted.follow:
                return
            for record in reading.next_round():
                read[record.topic, record.partition] = record.offset + 1
                yield record
            yield None
            if time.monotonic() >= next_commit:
                commit()
                next_commit = time.monotonic() + COMMIT_S
    finally:
        commit_if_possible()
        member.leave()


def first_positions(cluster: Cluster, places: list[TopicPartition], wanted: Range) -> dict[TopicPartition, int]:
    """Find the offsets at which reading begins. Raises ClientError, KafkaError."""
    from tidelog.client.admin.offsets import list_offsets, log_ends, log_starts

    starts = log_starts(cluster, places)
    if wanted.offset in (None, "start") and wanted.begin_ms is None:
        return starts
    ends = log_ends(cluster, places, isolation_level=wanted.isolation_level)
    if wanted.begin_ms is not None:
        found = list_offsets(cluster, dict.fromkeys(places, wanted.begin_ms))
        return {place: ends[place] if found[place] < 0 else found[place] for place in places}
    if wanted.offset == "end":
        return ends
    number = int(wanted.offset or 0)
    from_end = (wanted.offset or "").startswith("-")
    return {
        place: min(max(ends[place] + number if from_end else number, starts[place]), ends[place]) for place in places
    }


def last_positions(cluster: Cluster, places: list[TopicPartition], wanted: Range) -> dict[TopicPartition, int]:
    """Find the offsets at which reading ends; none where it goes on. Raises ClientError, KafkaError."""
    from tidelog.client.admin.offsets import list_offsets, log_ends

    later: dict[TopicPartition, int] = {}
    if wanted.end_ms is not None:
        found = list_offsets(cluster, dict.fromkeys(places, wanted.end_ms + 1))
        later = {place: offset for place, offset in found.items() if offset >= 0}
    if wanted.follow:
        return later
    ends = log_ends(cluster, places, isolation_level=wanted.isolation_level)
    return {place: min(ends[place], later.get(place, ends[place])) for place in places}
