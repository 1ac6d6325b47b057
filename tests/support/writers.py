"""librdkafka as a producer that remembers each acknowledged record with its partition and offset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import confluent_kafka

from tests.support.readers import Position
from tests.support.real_text import Line
from tests.support.seen import Seen

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
FLUSH_TIMEOUT_S = 120.0
Settings = Mapping[str, str | int | bool]
"""librdkafka's configuration."""


def record_of(line: Line) -> Seen:
    """Build the record of a line of text: the section is its key, and a header has the line's number."""
    return Seen(line.section, line.text, (("line", b"%d" % line.number), ("kind", b"real text")))


@dataclass(slots=True)
class Acknowledged:
    """Results of delivery reports: acknowledged records by partition and offset, and texts of errors."""

    records: dict[Position, Seen] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def ends(self) -> dict[int, int]:
        """Return the offset after the last acknowledged record of each partition."""
        found: dict[int, int] = {}
        for partition, offset in self.records:
            found[partition] = max(found.get(partition, 0), offset + 1)
        return found


class Writer:
    """A producer on one topic, with ``acks=all`` unless ``settings`` have other acks. Call `flush` at the end."""

    def __init__(self, bootstrap: str, topic: str, settings: Settings | None = None) -> None:
        self.topic = topic
        self.acknowledged = Acknowledged()
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0, **(settings or {})}
        )

    def send(self, record: Seen) -> None:
        """Queue a record; wait while librdkafka's queue is full."""

        def report(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
            if error is not None:
                self.acknowledged.failures.append(str(error))
                return
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            place = (partition, offset)
            assert place not in self.acknowledged.records, f"two acknowledgements for {place}"
            self.acknowledged.records[place] = record

        while True:
            try:
                self._producer.produce(
                    self.topic, record.value, record.key, headers=list(record.headers), on_delivery=report
                )
            except BufferError:
                self._producer.poll(0.1)
            else:
                self._producer.poll(0)
                return

    def poll(self, seconds: float) -> None:
        """Handle delivery reports; wait up to ``seconds`` for the first."""
        self._producer.poll(seconds)

    def flush(self) -> None:
        """Wait until each queued record is acknowledged or has failed, FLUSH_TIMEOUT_S at most."""
        left = self._producer.flush(FLUSH_TIMEOUT_S)
        assert left == 0, f"{left} records were neither acknowledged nor failed"


def write_lines(bootstrap: str, topic: str, lines: Iterable[Line], settings: Settings | None = None) -> Acknowledged:
    """Send lines as records, wait until all are acknowledged, and return the acknowledgements."""
    writer = Writer(bootstrap, topic, settings)
    for line in lines:
        writer.send(record_of(line))
    writer.flush()
    assert not writer.acknowledged.failures, writer.acknowledged.failures[:3]
    return writer.acknowledged
