"""The pages of a topic's records: from an offset or a time on, by key or tag with its indices, and one record in full.

A page shows up to MAX_RECORDS. Without an index, it reads READ_BYTES of a log at a time, at most ROUNDS times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

from tidelog.broker.admin.find import open_logs, parse_bound, parse_position
from tidelog.broker.find.finding import FindRequest, IndexBehindError, plan
from tidelog.client.admin.offsets import READ_COMMITTED, log_ends, log_starts, offsets_from
from tidelog.client.admin.topics import Topic, describe_topics
from tidelog.client.records.fetcher import Fetcher
from tidelog.console.local_client import wait_for
from tidelog.console.schemas import Decode, as_bytes
from tidelog.console.values import AUTO, FORMATS, SCHEMA, ShownText, check_format, show, show_decoded
from tidelog.console.view import Page, View, parse_number
from tidelog.log.find.lookup import MAX_TIME, MIN_TIME, NotIndexedError, Query
from tidelog.log.find.times import parse_time
from tidelog.protocol.errors import OffsetOutOfRangeError, UnknownTopicOrPartitionError
from tidelog.protocol.record.record_batch import Record

PARAMETERS = ("partition", "offset", "time", "key", "tag", "from", "to", "next", "format", "isolation")
MAX_RECORDS = 50
READ_BYTES = 256 * 1024
ROUNDS = 4
KEY_LIMIT, VALUE_LIMIT = 200, 500
"""Limits of a key and a value in a table, in bytes of HTML."""
WHOLE_KEY_LIMIT, WHOLE_VALUE_LIMIT = 8_000, 64_000
"""Limits of a key and a value on the page of one record, in bytes of HTML."""
MAX_HEADERS, HEADER_LIMIT = 20, 300
"""Limits of a record's headers: how many are shown, and bytes of HTML of each value."""
ISOLATIONS = {"read_uncommitted": 0, "read_committed": READ_COMMITTED}


class RecordRow(NamedTuple):
    """A record as a row of the table."""

    partition: int
    offset: int
    timestamp: int
    key: ShownText
    value: ShownText
    headers: int


class FoundRecords(NamedTuple):
    """Records of a page; ``older`` and ``newer`` are where the neighbouring pages begin, None if there is none."""

    rows: list[RecordRow]
    older: str | None = None
    newer: str | None = None
    problem: str | None = None


def browse(view: View) -> Page:
    """Build the model of the message browser. Raises ValueError, ClientError, KafkaError."""
    name = view.path["topic"]
    topic = describe_topic(view, name, view.number("partition") or 0)
    wanted = check_format(view.text("format") or AUTO)
    isolation = view.text("isolation") or "read_uncommitted"
    if isolation not in ISOLATIONS:
        raise ValueError(f"isolation is {isolation[:20]!r}: expected {' or '.join(ISOLATIONS)}")
    by_index = bool(view.text("key") or view.text("tag"))
    found = find_records(view, name, wanted) if by_index else read_records(view, name, wanted, ISOLATIONS[isolation])
    fields = {parameter: view.text(parameter) for parameter in PARAMETERS if parameter != "next"}
    values = {
        "section": "topics", "topic": topic, "found": found, "by_index": by_index, "formats": FORMATS,
        "fields": {**fields, "format": wanted, "isolation": isolation, "partition": fields["partition"] or "0"},
    }  # fmt: skip
    return Page("records.html", f"Records of {name}", values)


def describe_topic(view: View, name: str, partition: int) -> Topic:
    """Describe a topic that has this partition. Raises ClientError, KafkaError if there is none."""
    (topic,) = describe_topics(view.cluster, [name])
    if partition >= len(topic.partitions):
        raise UnknownTopicOrPartitionError(f"topic {name} has {len(topic.partitions)} partitions, no {partition}")
    return topic


def read_records(view: View, topic: str, wanted: str, isolation: int) -> FoundRecords:
    """Read records of a partition from an offset or a time on; by default the last ones below the end that the
    isolation level gives the log."""
    topic_partition = (topic, view.number("partition") or 0)
    start = log_starts(view.cluster, [topic_partition])[topic_partition]
    end = log_ends(view.cluster, [topic_partition], isolation_level=isolation)[topic_partition]
    begin = min(max(first_offset(view, topic_partition, end), start), end)
    try:
        records, following = fetch_from(view, topic_partition, begin, end, isolation)
    except OffsetOutOfRangeError:  # retention deleted the records meanwhile
        records, following = [], end
    rows = [row_of(topic_partition[1], record, wanted, view.decode) for record in records]
    return FoundRecords(
        rows,
        older=str(max(start, begin - MAX_RECORDS)) if begin > start else None,
        newer=str(following) if following < end else None,
    )


def first_offset(view: View, topic_partition: tuple[str, int], end: int) -> int:
    """Find the offset at which a page begins. Raises ValueError, ClientError, KafkaError."""
    if view.text("offset"):
        return parse_number("offset", view.text("offset"))
    if not view.text("time"):
        return end - MAX_RECORDS
    moment = parse_time(view.text("time"), view.sender.broker.time.milliseconds())
    found = offsets_from(view.cluster, [topic_partition], moment)[topic_partition]
    return end if found < 0 else found


def fetch_from(
    view: View, topic_partition: tuple[str, int], begin: int, end: int, isolation: int
) -> tuple[list[Record], int]:
    """Read up to MAX_RECORDS records; return them and the offset of the next page. Raises ClientError, KafkaError.

    A page without records may have a next page, because all ROUNDS may have read only aborted records.
    """
    fetcher = Fetcher(view.cluster, {topic_partition: begin}, isolation, READ_BYTES)
    records: list[Record] = []
    following = begin
    for _ in range(ROUNDS):
        records += [found.record for found in islice(fetcher.fetch(0), MAX_RECORDS - len(records))]
        position = records[-1].offset + 1 if len(records) >= MAX_RECORDS else fetcher.positions[topic_partition]
        has_moved, following = position > following, position
        if len(records) >= MAX_RECORDS or not has_moved or position >= end:
            break
    before_end = [record for record in records if record.offset < end]
    return before_end, following if before_end or following > begin else end


def find_records(view: View, topic: str, wanted: str) -> FoundRecords:
    """Find records by key or tag, newest first. Raises ValueError, ClientError, KafkaError."""
    broker = view.sender.broker
    request = find_request(topic, view.parameters, broker.time.milliseconds())
    wait_for(asyncio.run_coroutine_threadsafe(open_logs(broker, topic), broker.loop))
    try:
        answer = view.sender.run_in_loop(lambda: plan(broker, request))
        rows = [row_of(found.partition, found.record, wanted, view.decode) for found in answer]
    except (NotIndexedError, IndexBehindError) as error:
        return FoundRecords([], problem=str(error))
    return FoundRecords(rows, older=answer.next)


def find_request(topic: str, parameters: Mapping[str, str], now_ms: int) -> FindRequest:
    """Build the search of a form; empty fields are ignored. Raises ValueError."""
    given = {name: text.strip() for name, text in parameters.items() if text.strip()}
    query = Query(
        key=given["key"].encode() if "key" in given else None,
        tag=given["tag"].encode() if "tag" in given else None,
        begin=parse_bound(given, "from", now_ms, MIN_TIME),
        end=parse_bound(given, "to", now_ms, MAX_TIME),
    )
    committed = given.get("isolation") == "read_committed"
    return FindRequest(
        topic=topic,
        query=query,
        max_records=MAX_RECORDS,
        committed=committed,
        below=parse_position(given.get("next", "")),
    )


def row_of(partition: int, record: Record, wanted: str, decode: Decode = as_bytes) -> RecordRow:
    """Build the row of a record."""
    return RecordRow(
        partition, record.offset, record.timestamp, show(record.key, wanted, KEY_LIMIT, indent=None),
        show_value(decode, record.value, wanted, VALUE_LIMIT, indent=None), len(record.headers),
    )  # fmt: skip


def show_value(decode: Decode, content: bytes | None, wanted: str, limit: int, *, indent: int | None = 2) -> ShownText:
    """Format a value, decoded by the schema that it names unless another format is wanted."""
    decoded = decode(bytes(content)) if content is not None and wanted in (AUTO, SCHEMA) else None
    if content is None or decoded is None:
        return show(content, wanted, limit, indent=indent)
    return show_decoded(decoded.value, decoded.schema, len(content), limit, indent=indent)


def one_record(view: View) -> Page:
    """Build the model of one record's page. Raises ValueError, ClientError, KafkaError."""
    topic = view.path["topic"]
    partition, offset = (parse_number(name, view.path[name]) for name in ("partition", "offset"))
    wanted = check_format(view.text("format") or AUTO)
    describe_topic(view, topic, partition)
    record = record_at(view, (topic, partition), offset)
    values = {
        "section": "topics", "topic": topic, "partition": partition, "offset": offset, "format": wanted,
        "formats": FORMATS, "record": None, "key": None, "value": None, "headers": [],
    }  # fmt: skip
    if record is not None:
        values |= {
            "record": record,
            "key": show(record.key, wanted, WHOLE_KEY_LIMIT),
            "value": show_value(view.decode, record.value, wanted, WHOLE_VALUE_LIMIT),
            "headers": [
                (name, show(content, AUTO, HEADER_LIMIT)) for name, content in record.headers[:MAX_HEADERS]
            ],
        }  # fmt: skip
    return Page("record.html", f"{topic}-{partition} at {offset}", values)


def record_at(view: View, topic_partition: tuple[str, int], offset: int) -> Record | None:
    """Fetch the record at an offset; None if there is none. Raises ClientError, KafkaError."""
    try:
        for found in Fetcher(view.cluster, {topic_partition: offset}, 0, READ_BYTES).fetch(0):
            return found.record if found.record.offset == offset else None
    except OffsetOutOfRangeError:
        return None
    return None
