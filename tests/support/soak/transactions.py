"""Two parties of the soak: a writer of transactions, committed, aborted or left open; and an exactly-once copier."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaException, Producer

from tests.support.admin import Admin
from tests.support.aiokafka_client import aiokafka
from tests.support.soak.party import Party, World
from tests.support.soak.patience import Patience
from tests.support.soak.reading import committed_offsets, numbers_of, read_all, value_of
from tests.support.soak.writers import FAST_RECONNECT, PlainWriter

WAIT_S = 30.0
"""Seconds that one step of a transaction may take; after that it is unknown whether the transaction was committed."""


def make_transactional_producer(world: World, transactional_id: str, timeout_ms: int) -> Any:
    """Make a producer. Its start fences the former one of this id and aborts its transaction. Raises KafkaException."""
    producer = Producer(
        {
            **FAST_RECONNECT,
            "bootstrap.servers": world.bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "message.timeout.ms": timeout_ms,
            "linger.ms": 0,
        }
    )
    producer.init_transactions(WAIT_S)
    return producer


class Transactions(Party):
    """Writes transactions, each with its number in every partition: committed it is read in all, aborted in none.

    ``ends`` has whether each was committed; a transaction that is not in it had an unknown end.
    """

    partitions = 4

    def __init__(self, world: World, topic: str, configs: Mapping[str, str]) -> None:
        super().__init__(world, f"transactions of {topic}")
        self.topic = topic
        self.number = 0
        self.ends: dict[int, bool] = {}
        self.producer: Any = None
        Admin(world.bootstrap).create(topic, self.partitions, configs)

    def turn(self) -> None:
        try:
            if self.producer is None:
                transactional_id, timeout_ms = (
                    f"{self.topic}-{self.chance.randrange(3)}",
                    self.chance.choice([5_000, 60_000]),
                )
                self.producer = make_transactional_producer(self.world, transactional_id, timeout_ms)
                self.counts["producers"] += 1
            self.number += 1
            self._write()
            self._end()
        except KafkaException as error:
            self.counts[f"got {error.args[0].name()}"] += 1
            self.producer = None

    def _write(self) -> None:
        self.producer.begin_transaction()
        for partition in range(self.partitions):
            self.producer.produce(self.topic, value_of(self.number), partition=partition)
        self.producer.flush(WAIT_S)

    def _end(self) -> None:
        end = self.chance.choices(["commit", "abort", "open"], [70, 20, 10])[0]
        if end == "commit":
            self.producer.commit_transaction(WAIT_S)
            self.ends[self.number] = True
        elif end == "abort":
            self.producer.abort_transaction(WAIT_S)
            self.ends[self.number] = False
        else:  # its timeout, or the next producer of this transactional id, aborts it
            self.ends[self.number] = False
            self.producer = None
        self.counts[end] += 1

    def finish(self) -> None:
        for number in range(3):  # the start of each producer aborts the transaction that its id left open
            make_transactional_producer(self.world, f"{self.topic}-{number}", 60_000)

    def check(self) -> None:
        found = read_all(self.world.bootstrap, self.topic)
        counts = Counter(numbers_of(read.value for read in found.values()))
        for number, count in counts.items():
            if count != self.partitions or self.ends.get(number) is False:
                positions = [f"{p}@{o}" for (p, o), read in found.items() if read.value == value_of(number)]
                self.faults.append(
                    f"{self.topic}: {number} (committed: {self.ends.get(number)}) is read at {positions}"
                )
        for number, is_committed in self.ends.items():
            if is_committed and number not in counts:
                self.faults.append(f"{self.topic}: {number} was committed and is not read")
        self.counts["unknown"] = self.number - len(self.ends)


class Copier(Party):
    """Copies a topic with aiokafka; each transaction has records of the copy and the next offsets to copy from.

    The client is not librdkafka: its ``send_offsets_to_transaction`` may never return when the group's coordinator was
    restarted (librdkafka issues 5456 and 5511). The source's partitions are assigned by hand: aiokafka commits without
    a generation, so records would be copied twice after a rebalance beside an open transaction. The committed offsets
    are read with librdkafka. aiokafka ignores the top-level error of OffsetFetch 2 and 3: if the coordinator is
    loading, it takes the answer as "no offset committed".
    """

    def __init__(self, world: World, source: PlainWriter, copy: str, configs: Mapping[str, str]) -> None:
        super().__init__(world, f"copier to {copy}")
        self.source = source
        self.copy = copy
        Admin(world.bootstrap).create(copy, 2, configs)

    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        patience = None
        while patience is None or not patience.is_over(self.counts["copied"]):
            try:
                if await self._incarnation():
                    return
            except (aiokafka.errors.KafkaError, KafkaException) as error:
                self.counts[f"got {type(error).__name__}"] += 1
                await asyncio.sleep(0.2)
            if patience is None and self.world.stopped.is_set():
                patience = Patience()

    async def _incarnation(self) -> bool:
        """Copy with one consumer and one producer for a while; return whether all records are copied."""
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self.world.bootstrap,
            auto_offset_reset="none",
            enable_auto_commit=False,
            isolation_level="read_committed",
        )
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self.world.bootstrap,
            transactional_id=self.copy,
            transaction_timeout_ms=60_000,
            request_timeout_ms=20_000,
        )
        try:
            await producer.start()
            await producer.begin_transaction()  # fences the last producer: its transaction ends before offsets are read
            await producer.abort_transaction()
            await consumer.start()
            await self._seek_to_committed(consumer)
            self.counts["incarnations"] += 1
            return await self._copy_for_a_while(consumer, producer)
        finally:
            await asyncio.gather(consumer.stop(), producer.stop(), return_exceptions=True)

    async def _copy_for_a_while(self, consumer: Any, producer: Any) -> bool:
        for _ in range(200):
            found = await consumer.getmany(timeout_ms=300, max_records=100)
            if found:
                await self._copy(found, producer)
            elif self.world.stopped.is_set() and not self.source.thread.is_alive():
                return await self._is_done(consumer)
        return False

    async def _copy(self, found: Mapping[Any, list[Any]], producer: Any) -> None:
        async with producer.transaction():
            for records in found.values():
                for record in records:
                    await producer.send(self.copy, record.value, record.key)
            next_offsets = {part: records[-1].offset + 1 for part, records in found.items()}
            await producer.send_offsets_to_transaction(next_offsets, self.copy)
        self.counts["transactions"] += 1
        self.counts["copied"] += sum(len(records) for records in found.values())

    async def _committed(self) -> dict[int, int]:
        return await asyncio.to_thread(committed_offsets, self.world.bootstrap, self.copy, self.source.ledger.topic)

    async def _seek_to_committed(self, consumer: Any) -> None:
        """Assign the source's partitions, of which there may be more than before; seek to the committed offsets."""
        parts = {
            aiokafka.TopicPartition(self.source.ledger.topic, number): offset
            for number, offset in (await self._committed()).items()
        }
        consumer.assign(list(parts))
        for part, offset in parts.items():
            consumer.seek(part, offset)

    async def _is_done(self, consumer: Any) -> bool:
        ends = await consumer.end_offsets(list(consumer.assignment()))
        offsets = await self._committed()
        return len(offsets) == len(ends) and all(offsets[part.partition] >= end for part, end in ends.items())

    def check(self) -> None:
        counts = Counter(numbers_of(read.value for read in read_all(self.world.bootstrap, self.copy).values()))
        for number in range(self.source.ledger.sent):
            if counts[number] != 1:
                self.faults.append(f"{self.copy}: {number} was sent once and is in the copy {counts[number]} times")
