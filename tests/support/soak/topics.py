"""Parties of the soak that create, widen and delete topics.

Incarnations  has one topic of its own and knows each record in it
Stranger      sends random requests about topics that other strangers change, too
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.support.soak.party import Party, World
from tests.support.storm import EXPECTED, Asker
from tidelog.protocol.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError
from tidelog.protocol.messages import create_partitions, create_topics, delete_topics
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.record_batch import Record, build_batch

CONNECTION_LOST = (OSError, EOFError)
"""What a request raises while the broker is not running, or when it is killed."""


class RawParty(Party):
    """A party that encodes its requests itself, and connects again after the broker was restarted."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.asker: Asker | None = None

    def connect(self) -> Asker:
        """Return the connection; open one if there is none. Raises OSError."""
        self.asker = self.asker or Asker(self.world.port, self.chance)
        return self.asker

    def turn(self) -> None:
        try:
            self.act()
        except CONNECTION_LOST:
            self.counts["lost the broker"] += 1
            self.disconnect()

    def act(self) -> None:
        """Send requests of one turn. Raises OSError, EOFError."""

    def disconnect(self) -> None:
        """Close the connection."""
        if self.asker is not None:
            self.asker.close()
        self.asker = None

    def work(self) -> None:
        try:
            super().work()
        finally:
            self.disconnect()


class Stranger(RawParty):
    """Sends random requests about topics that others create, delete and widen; no answer has an unexpected error."""

    def act(self) -> None:
        name, code = self.connect().act()
        self.counts[name] += not code
        if code not in EXPECTED:
            self.faults.append(f"{name} was answered with error {code}")


class Incarnations(RawParty):
    """Creates, fills, widens, reads and deletes a topic of one name, again and again.

    Each incarnation has every record acknowledged for it, and none of an earlier one. A request whose answer was lost
    with the broker is sent again, but not a Produce, which could write its record twice.
    """

    batches = 30

    def __init__(self, world: World, topic: str) -> None:
        super().__init__(world, f"incarnations of {topic}")
        self.topic = topic
        self.number = 0
        self.steps = self._steps()
        self.waiting: Callable[[], None] | None = None
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.sent: set[bytes] = set()
        self.width = 0

    def act(self) -> None:
        self.waiting = self.waiting or next(self.steps)
        self.waiting()
        self.waiting = None

    def _steps(self) -> Iterator[Callable[[], None]]:
        while True:
            self.number += 1
            self.width, self.acknowledged, self.sent = self.chance.randint(1, 3), {}, set()
            yield self._create
            for _ in range(self.chance.randrange(self.batches)):
                yield self.chance.choices([self._produce, self._read, self._widen], [20, 1, 1])[0]
            yield self._read
            yield self._delete

    def finish(self) -> None:
        """Read the acknowledged records once more."""
        while self.acknowledged:
            try:
                self._read()
            except CONNECTION_LOST:
                self.disconnect()
            else:
                break

    def _expect(self, what: str, code: int, *others: int) -> None:
        if code and code not in others:
            self.faults.append(f"{self.topic}, incarnation {self.number}: {what} was answered with error {code}")

    def _create(self) -> None:
        topic = create_topics.CreatableTopic(
            name=self.topic, num_partitions=self.width, replication_factor=1, configs=[]
        )
        asked = create_topics.CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
        code = self.connect().ask(asked, 2, create_topics.CreateTopicsResponse).topics[0].error_code
        self._expect("creation", code, TopicAlreadyExistsError.code)
        self.counts["created"] += 1

    def _widen(self) -> None:
        topic = create_partitions.CreatePartitionsTopic(name=self.topic, count=self.width + 1, assignments=None)
        asked = create_partitions.CreatePartitionsRequest(topics=[topic], timeout_ms=10_000)
        answer = self.connect().ask(asked, 0, create_partitions.CreatePartitionsResponse)
        if not answer.results[0].error_code:
            self.width += 1
            self.counts["widened"] += 1

    def _delete(self) -> None:
        asked = delete_topics.DeleteTopicsRequest(topic_names=[self.topic], timeout_ms=10_000)
        code = self.connect().ask(asked, 1, delete_topics.DeleteTopicsResponse).responses[0].error_code
        self._expect("deletion", code, UnknownTopicOrPartitionError.code)
        self.acknowledged = {}
        self.counts["deleted"] += 1

    def _produce(self) -> None:
        partition = self.chance.randrange(self.width)
        value = b"%d/%d/" % (self.number, len(self.sent)) + bytes(self.chance.randrange(300))
        self.sent.add(value)
        batch = memoryview(build_batch([Record(0, int(time.time() * 1000), None, value)]))
        data = [
            TopicProduceData(name=self.topic, partition_data=[PartitionProduceData(index=partition, records=batch)])
        ]
        asked = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=data)
        self.waiting = None  # not to be sent again: that could write the record twice
        answer = self.connect().ask(asked, 7, ProduceResponse).responses[0].partition_responses[0]
        self._expect(f"a produce to partition {partition}", answer.error_code)
        if not answer.error_code:
            self.acknowledged[partition, answer.base_offset] = value
            self.counts["produced"] += 1

    def _read(self) -> None:
        found = {position: value for number in range(self.width) for position, value in self._records(number)}
        for position, value in self.acknowledged.items():
            if found.get(position) != value:
                self.faults.append(
                    f"{self.topic}-{position[0]}@{position[1]}, incarnation {self.number}: "
                    f"{value[:20]!r} was acknowledged, {found.get(position, b'nothing')[:20]!r} is read"
                )
        values = sorted(found.values())
        if len(values) != len(set(values)) or not self.sent.issuperset(values):
            self.faults.append(
                f"{self.topic}, incarnation {self.number}: records of another incarnation, or twice: {values}"[:400]
            )
        self.counts["read"] += 1

    def _records(self, partition: int) -> Iterator[tuple[tuple[int, int], bytes]]:
        offset = 0
        while True:
            data = self._fetched(partition, offset)
            before = offset
            for batch in iter_batches(data):
                batch.ensure_valid()
                for record in batch.records():
                    yield (partition, record.offset), bytes(record.value or b"")
                    offset = record.offset + 1
            if offset == before:
                return

    def _fetched(self, partition: int, offset: int) -> Any:
        wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        topics = [FetchTopic(topic=self.topic, partitions=[wanted])]
        asked = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 22, session_epoch=-1, topics=topics)
        answer = self.connect().ask(asked, 7, FetchResponse).responses[0].partitions[0]
        self._expect(f"a fetch of partition {partition}", answer.error_code)
        return answer.records or b""
