"""Offsets by topic and partition in the JSON of Spark's Kafka source: ``{"topic":{"0":123,"1":-1}}``.

-1 stands for latest, -2 for earliest. The JSON is written as Spark writes it, without spaces and with ascending topics
and partitions.
"""

from __future__ import annotations

import json

from tidelog.pipeline.errors import OptionError
from tidelog.protocol.foreign_text import decode_json

PartitionOffsets = dict[str, dict[int, int]]

LATEST = -1
EARLIEST = -2


def to_json(offsets: PartitionOffsets) -> str:
    """Write ``offsets`` as Spark's Kafka source does."""
    ordered = {topic: {str(p): offsets[topic][p] for p in sorted(offsets[topic])} for topic in sorted(offsets)}
    return json.dumps(ordered, separators=(",", ":"))


def from_json(text: str, option: str = "offsets", *, smallest: int = EARLIEST) -> PartitionOffsets:
    """Parse offsets by topic and partition. ``option`` is the option's name, for errors; ``smallest`` is the smallest
    offset allowed.

    Raises OptionError.
    """
    try:
        parsed = decode_json(text)
        offsets = {
            str(topic): {int(number): _integer(offset) for number, offset in partitions.items()}
            for topic, partitions in parsed.items()
        }
    except (ValueError, TypeError, AttributeError):
        raise OptionError(f'{option}={text}: expected JSON such as {{"topic":{{"0":123,"1":-1}}}}') from None
    for topic, partitions in offsets.items():
        for partition, offset in partitions.items():
            if partition < 0:
                raise OptionError(f"{option}: partition {partition} of {topic}: expected 0 or more")
            if offset < smallest:
                raise OptionError(f"{option}: {topic}-{partition} has {offset}: expected {smallest} or more")
    return offsets


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError
    return value
