"""Topic ``_schemas``: read into the state, and written by the leader of its one partition.

    settle   wait until all appended records are committed, and replay them     the state is up to date
    write    append one batch, wait until it is committed, replay it            only then is a client answered

Only the leader serves: a follower's state may be older than an answer that a client has got. Records of other programs
(another registry, a tool that copies topics) are replayed like those of this registry. Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tidelog.broker.cleaning import config_of
from tidelog.broker.controller.topic_changes import NewTopic
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.schema_registry import errors
from tidelog.broker.schema_registry.records import (
    MalformedRecordError,
    StoredRecord,
    decode_key,
    decode_value,
    encode_key,
    to_bytes,
)
from tidelog.broker.schema_registry.state import State
from tidelog.log.fetch import FetchIsolation
from tidelog.protocol.errors import (
    KafkaError,
    KafkaStorageError,
    MessageTooLargeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.record_batch import Record, RecordBatch, build_batch
from tidelog.protocol.transferable import TransferableRecords

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.replica.partition import Partition

logger = logging.getLogger(__name__)
T = TypeVar("T")

TOPIC = "_schemas"
CONFIGS = {"cleanup.policy": "compact", "flush.messages": "1"}
"""Configs of the topic. Schemas are few and must not be lost: each is synced to disk before its client is answered."""
CHUNK_BYTES = 1 << 20
REPLAYED_PER_TURN = 500
"""Number of records that are replayed in one turn of the loop."""
TIMEOUT_S = 10.0
POLL_S = 0.02


class Chunk(NamedTuple):
    """Records that were read, and the offset after them."""

    records: list[StoredRecord]
    next_offset: int


class SchemasTopic:
    """The topic, with the state of its records."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._reading = asyncio.Lock()
        self._identity = (b"", -1)
        """Topic id and leader epoch in which the state was read."""
        self._position = 0
        self.state = State()
        """State of the topic's records. Until the broker's next start, ids continue after those of a former topic of
        this name, or of a truncated log. In each leader epoch the topic is read from the beginning: another leader may
        have replaced records at the same offsets."""

    async def read_state(self) -> State:
        """Return the state with all committed records. Raises RegistryError."""
        partition = self._find_led_partition()
        if partition is None:
            return State()
        if partition.is_settling:
            await self._commit_all(partition)
        await self._catch_up(partition)
        return self.state

    async def settle(self) -> State:
        """Return the state with all appended records, and create the topic if it is missing. Nothing is appended until
        the caller awaits again. Raises RegistryError."""
        while True:
            partition = self._find_led_partition() or await self._create()
            self._check_policy()
            await self._commit_all(partition)
            await self._catch_up(partition)
            if self._is_read_to_end():
                return self.state

    async def write(self, records: Sequence[StoredRecord]) -> None:
        """Append records, and replay them once they are committed. After a RegistryError it is not known whether the
        records were written.
        """
        partition = self._find_led_partition()
        assert partition is not None, "settle before write"
        now_ms = self._broker.time.milliseconds()
        batch = build_batch(
            Record(offset, now_ms, encode_key(one.key), None if one.value is None else to_bytes(one.value))
            for offset, one in enumerate(records)
        )
        try:
            info = partition.append_records(memoryview(batch))
        except MessageTooLargeError as error:
            raise errors.RegistryError(42209, f"Schema too large: {error.message}") from error
        except KafkaError as error:
            raise errors.store_failed(error.message) from error
        await self._wait(partition.when_committed(info.last_offset))
        await self._catch_up(partition)

    # ---- the partition

    def _find_led_partition(self) -> Partition | None:
        """Return the partition if this broker leads it, None if there is no topic. Raises RegistryError."""
        image = self._broker.metadata.topics.get(TOPIC)
        if image is None:
            return None
        leader, epoch = image.partitions[0].leader, image.partitions[0].leader_epoch
        if leader != self._broker.node_id:
            raise errors.topic_not_led_here(leader)
        if (image.topic_id, epoch) != self._identity:
            self._identity, self._position, self.state = (image.topic_id, epoch), 0, State(self.state.last_id)
        return self._call_guarded(lambda: self._broker.replica_manager.partition(TOPIC, 0))

    def _is_read_to_end(self) -> bool:
        """Return whether all appended records were read since the last election. Raises RegistryError."""
        partition = self._find_led_partition()  # after an election or a deletion, it resets the position
        return partition is not None and self._position == self._call_guarded(lambda: partition.log_end_offset)

    def _check_policy(self) -> None:
        """Raise RegistryError if retention would delete records, as in a topic that was created without CONFIGS."""
        config = config_of(self._broker, TOPIC)
        if config is not None and (config.delete or not config.compact):
            raise errors.store_failed(
                f"the topic {TOPIC} must have cleanup.policy=compact: retention would delete schemas"
            )

    def _call_guarded(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except KafkaError as error:
            raise errors.store_failed(error.message) from error

    async def _create(self) -> Partition:
        """Create the topic and return its partition. Raises RegistryError."""
        deadline = self._broker.loop.time() + TIMEOUT_S
        while True:
            try:
                change = self._broker.topics.changes.create(NewTopic(TOPIC, 1, configs=CONFIGS))
            except (TopicAlreadyExistsError, UnknownTopicOrPartitionError):
                pass  # it is being created, here or by the controllers
            except KafkaError as error:
                raise errors.store_failed(error.message) from error
            else:
                await self._wait(change.done)
            partition = self._find_led_partition()
            if partition is not None:
                return partition
            if self._broker.loop.time() > deadline:
                raise errors.timed_out()
            await asyncio.sleep(POLL_S)

    async def _commit_all(self, partition: Partition) -> None:
        await self._open(partition)
        end = self._call_guarded(lambda: partition.log_end_offset)
        if partition.high_watermark < end:
            await self._wait(partition.when_committed(end - 1))

    async def _open(self, partition: Partition) -> None:
        opening = partition.when_open()
        if opening is not None:
            await self._wait(opening)

    async def _wait(self, deferred: Deferred[T]) -> T:
        """Wait for a Deferred of the broker, TIMEOUT_S at most. Raises RegistryError."""
        future: asyncio.Future[None] = self._broker.loop.create_future()
        deferred.on_done(lambda _: None if future.done() else future.set_result(None))
        try:
            await asyncio.wait_for(future, TIMEOUT_S)
        except TimeoutError:
            raise errors.timed_out() from None
        try:
            return deferred.result()
        except KafkaError as error:
            raise errors.store_failed(error.message) from error

    # ---- reading

    async def _catch_up(self, partition: Partition) -> None:
        """Replay the records that were committed since the last call."""
        await self._open(partition)
        async with self._reading:
            if not partition.is_wanted():
                raise errors.store_failed("the topic was deleted meanwhile")
            identity = self._identity
            self._position = max(self._position, self._call_guarded(lambda: partition.log_start_offset))
            if (
                self._call_guarded(lambda: partition.log_end_offset) < self._position
            ):  # truncated, as by an unclean election
                self._position, self.state = 0, State(self.state.last_id)
            while self._position < (end := partition.high_watermark):
                read = partial(read_chunk, partition, self._position)
                try:
                    chunk = await self._broker.loop.run_in_executor(self._broker.executor, read)
                except KafkaError as error:
                    raise errors.store_failed(error.message) from error
                self._check_identity(identity)
                for number, one in enumerate(chunk.records, 1):
                    self._replay(one)
                    if not number % REPLAYED_PER_TURN:
                        await asyncio.sleep(0)
                        self._check_identity(identity)
                # if nothing was read, the cleaner has removed the rest
                self._position = chunk.next_offset if chunk.next_offset > self._position else end

    def _check_identity(self, identity: tuple[bytes, int]) -> None:
        """Raise RegistryError unless this is still the topic, and the leader epoch, in which the state is read."""
        if identity != self._identity:
            raise errors.store_failed("the topic was deleted, or another election was held, meanwhile")

    def _replay(self, record: StoredRecord) -> None:
        try:
            self.state.replay(*record)
        except MalformedRecordError as error:
            logger.error("a record of %s is malformed and skipped: %s", TOPIC, error)


def read_chunk(partition: Partition, offset: int) -> Chunk:
    """Read committed records from ``offset`` on; call it in a thread. Raises KafkaError."""
    found_records = partition.read_in_thread(
        offset, CHUNK_BYTES, isolation=FetchIsolation.HIGH_WATERMARK, min_one_message=True
    ).records
    if not isinstance(found_records, TransferableRecords):
        return decode_chunk(found_records, offset)
    try:
        data = os.pread(found_records.file.fileno(), found_records.size, found_records.position)
    except OSError as error:
        raise KafkaStorageError(f"{TOPIC}: {error}") from error
    finally:
        found_records.release()
    return decode_chunk(data, offset)


def decode_chunk(data: bytes | memoryview, offset: int) -> Chunk:
    """Decode complete batches. Any thread."""
    records: list[StoredRecord] = []
    next_offset = offset
    for batch in iter_batches(data):
        next_offset = batch.next_offset
        if isinstance(batch, RecordBatch) and batch.is_control:
            continue
        for record in batch.records():
            if record.offset >= offset and record.key is not None:
                records += decode_record(record)
    return Chunk(records, next_offset)


def decode_record(record: Record) -> list[StoredRecord]:
    """Decode a record; return an empty list for one that is malformed or of an unknown kind."""
    assert record.key is not None
    try:
        key = decode_key(bytes(record.key))
        value = None if record.value is None else bytes(record.value)
        return [] if key is None else [StoredRecord(key, decode_value(value))]
    except MalformedRecordError as error:
        logger.error("the record at offset %d of %s is malformed and skipped: %s", record.offset, TOPIC, error)
        return []
