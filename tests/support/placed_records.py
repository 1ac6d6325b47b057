"""Records for fixed partitions and offsets: one client writes them, another must read the same bytes there."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from confluent_kafka import Producer

from tests.support.admin import Admin
from tests.support.readers import Position
from tests.support.real_text import real_lines
from tests.support.seen import Seen
from tests.support.toolchains import Record
from tests.support.writers import record_of

SECONDS = 30.0
PARTITIONS = 3
ODD = [
    Seen(None, b"no key", ()),
    Seen(b"tombstone", None, ()),
    Seen(b"", b"", (("empty", b""), ("bytes", b"\x00\xff"))),
]
"""Records without a key, without a value, with an empty key and value, and with headers of any bytes."""
LINES = 300
COUNT = LINES + len(ODD)
ENDS = {partition: len(range(partition, COUNT, PARTITIONS)) for partition in range(PARTITIONS)}
"""End offset of each partition after all records were sent once."""


@cache
def placed() -> tuple[tuple[int, Seen], ...]:
    """Return each record with its partition, in the order of sending.

    The text of the records is read at the first call: ``apt-cache`` takes a second.
    """
    records = [*map(record_of, real_lines(LINES)), *ODD]
    return tuple((index % PARTITIONS, record) for index, record in enumerate(records))


def ends(times: int) -> dict[int, int]:
    """Compute the end offset of each partition after all records were sent ``times`` times."""
    return {partition: times * end for partition, end in ENDS.items()}


def expected(times: int = 1, *, headers: bool = True) -> dict[Position, Seen]:
    """Map partition and offset to the record, after all records were sent ``times`` times to an empty topic."""
    next_offset = dict.fromkeys(range(PARTITIONS), 0)
    found: dict[Position, Seen] = {}
    for partition, record in times * placed():
        place = (partition, next_offset[partition])
        found[place] = record if headers else bare(record)
        next_offset[partition] += 1
    return found


def bare(record: Seen) -> Seen:
    """Return the record without headers, as formats before 0.11 keep it."""
    return Seen(record.key, record.value, ())


def by_place(records: Iterable[Record]) -> dict[Position, Seen]:
    """Map partition and offset to the record. Raises AssertionError if one offset was read twice."""
    found: dict[Position, Seen] = {}
    for record in records:
        assert (record.partition, record.offset) not in found, f"{record} was read twice"
        found[record.partition, record.offset] = record.seen
    return found


def write_placed(bootstrap: str, topic: str, codecs: Iterable[str] = ("none",)) -> None:
    """Write all records with librdkafka, once for each codec. Raises AssertionError if a record is refused."""
    failures: list[str] = []
    for codec in codecs:
        producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20})
        for partition, record in placed():
            headers: Any = list(record.headers)
            producer.produce(
                topic,
                record.value,
                record.key,
                partition=partition,
                headers=headers,
                on_delivery=lambda error, _: failures.append(str(error)) if error else None,
            )
        assert producer.flush(SECONDS) == 0
    assert not failures, failures[:3]


def committed(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    """Return the group's committed offsets of a topic, by partition."""
    return Admin(bootstrap).committed(group, topic, PARTITIONS)
