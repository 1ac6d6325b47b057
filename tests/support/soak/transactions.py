"""Transactions of the soak: committed, aborted, left open; and a copy that is made exactly once."""

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
from tests.support.soak.reading import committed, numbers_of, read_all, value_of
from tests.support.soak.writers import QUICK, PlainWriter

WAIT_S = 30.0
"""The longest wait for one step of a transaction; what takes longer has an unknown end."""


def transactional(world: World, transactional_id: str, timeout_ms: int) -> Any:
    """Make a producer whose last incarnation was fenced and its open transaction aborted. Raises KafkaException."""
    producer = Producer(
        {
            **QUICK,
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
    """Transactions that write their number into every partition: committed they are in all, aborted in none."""

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
                incarnation = f"{self.topic}-{self.chance.randrange(3)}"
                self.producer = transactional(self.world, incarnation, self.chance.choice([5_000, 60_000]))
                self.counts["producers"] += 1
            self.number += 1
            self._write()
            self._end()
        except KafkaException as error:
            self.counts[f"told {error.args[0].name()}"] += 1
            self.producer = None

    def _write(self) -> None:
        self.producer.begin_transaction()
        for partition in range(self.partitions):
            self.producer.produce(self.topic, value_of(self.number), partition=partition)
        self.producer.flush(WAIT_S)

    def _end(self) -> None:
        what = self.chance.choices(["commit", "abort", "open"], [70, 20, 10])[0]
        if what == "commit":
            self.producer.commit_transaction(WAIT_S)
            self.ends[self.number] = True
        elif what == "abort":
            self.producer.abort_transaction(WAIT_S)
            self.ends[self.number] = False
        else:  # the timeout or the next incarnation aborts it
            self.ends[self.number] = False
            self.producer = None
        self.counts[what] += 1

    def finish(self) -> None:
        for number in range(3):  # what its incarnations left open
            transactional(self.world, f"{self.topic}-{number}", 60_000)

    def check(self) -> None:
        found = read_all(self.world.bootstrap, self.topic)
        counts = Counter(numbers_of(read.value for read in found.values()))
        for number, count in counts.items():
            if count != self.partitions or self.ends.get(number) is False:
                places = [f"{p}@{o}" for (p, o), read in found.items() if read.value == value_of(number)]
                self.faults.append(f"{self.topic}: {number} (committed: {self.ends.get(number)}) is read at {places}")
        for number, is_committed in self.ends.items():
            if is_committed and number not in counts:
                self.faults.append(f"{self.topic}: {number} was committed and is not read")
        self.counts["unknown"] = self.number - len(self.ends)


class Copier(Party):
    """Reads a topic in a group and writes it to another one with aiokafka, offsets and records in one transaction.

    Not librdkafka: its `send_offsets_to_transaction` may never return when the group's coordinator was restarted
    (librdkafka issues 5456 and 5511). Its partitions are assigned by hand: aiokafka commits without a generation, so
    a rebalance beside an open transaction would copy twice. Where to go on is asked of librdkafka: aiokafka takes an
    answer that the coordinator is loading for no offset, as it leaves out the error at the top of OffsetFetch 2 and 3.
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
                self.counts[f"told {type(error).__name__}"] += 1
                await asyncio.sleep(0.2)
            if patience is None and self.world.stopped.is_set():
                patience = Patience()

    async def _incarnation(self) -> bool:
        """Run one producer and one member, for a while; tell whether all is copied."""
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
            await producer.begin_transaction()  # fences the last one and ends its transaction, before offsets are read
            await producer.abort_transaction()
            await consumer.start()
            await self._go_on(consumer)
            self.counts["incarnations"] += 1
            return await self._copy_for_a_while(consumer, producer)
        finally:
            await asyncio.gather(consumer.stop(), producer.stop(), return_exceptions=True)

    async def _copy_for_a_while(self, consumer: Any, producer: Any) -> bool:
        for _ in range(200):
            found = await consumer.getmany(timeout_ms=300, max_records=100)
            if found:
                await self._copy(found, producer)
            elif self.world.stopped.is_set() and not self.source.is_alive():
                return await self._is_done(consumer)
        return False

    async def _copy(self, found: Mapping[Any, list[Any]], producer: Any) -> None:
        async with producer.transaction():
            for records in found.values():
                for record in records:
                    await producer.send(self.copy, record.value, record.key)
            following = {part: records[-1].offset + 1 for part, records in found.items()}
            await producer.send_offsets_to_transaction(following, self.copy)
        self.counts["transactions"] += 1
        self.counts["copied"] += sum(len(records) for records in found.values())

    async def _committed(self) -> dict[int, int]:
        return await asyncio.to_thread(committed, self.world.bootstrap, self.copy, self.source.ledger.topic)

    async def _go_on(self, consumer: Any) -> None:
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
                self.faults.append(f"{self.copy}: {number} was to be copied once and is there {counts[number]} times")
