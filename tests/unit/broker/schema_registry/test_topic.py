"""The state read from ``_schemas`` after the topic was created again, or another broker led it in the meantime."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidelog.broker.schema_registry.errors import RegistryError
from tidelog.broker.schema_registry.records import RegisteredSchema, encode_key, schema_record, to_bytes
from tidelog.broker.schema_registry.topic import TOPIC, SchemasTopic
from tidelog.protocol.record.record_batch import Record, build_batch


def test_ids_continue_after_the_topic_was_deleted_and_created_again() -> None:
    image = SimpleNamespace(topic_id=b"first", partitions=[SimpleNamespace(leader=1, leader_epoch=3)])
    manager = SimpleNamespace(partition=lambda _topic, _number: None)
    metadata = SimpleNamespace(topics={TOPIC: image})
    topic = SchemasTopic(cast(Any, SimpleNamespace(node_id=1, metadata=metadata, replica_manager=manager)))
    topic._find_led_partition()
    topic.state.replay(*schema_record(RegisteredSchema("s", 1, 7, '"int"')))
    image.topic_id = b"second"
    topic._find_led_partition()
    assert topic.state.subjects(deleted=True) == []
    assert topic.state.last_id == 7


def test_a_leader_that_is_elected_again_reads_the_topic_from_the_beginning() -> None:
    """Another leader may have truncated records that this broker had read, and appended as many others."""
    partition = SimpleNamespace(leader=1, leader_epoch=3)
    image = SimpleNamespace(topic_id=b"id", partitions=[partition])
    manager = SimpleNamespace(partition=lambda _topic, _number: None)
    metadata = SimpleNamespace(topics={TOPIC: image})
    topic = SchemasTopic(cast(Any, SimpleNamespace(node_id=1, metadata=metadata, replica_manager=manager)))
    topic._find_led_partition()
    topic.state.replay(*schema_record(RegisteredSchema("s", 1, 7, '"int"')))
    topic._position = 1
    topic._find_led_partition()
    assert topic.state.subjects() == ["s"]
    partition.leader_epoch = 5
    topic._find_led_partition()
    assert (topic.state.subjects(), topic._position, topic.state.last_id) == ([], 0, 7)


class ReplacedLog:
    """A partition whose record another leader replaces while it is read for the first time."""

    high_watermark = log_end_offset = 1
    log_start_offset = 0
    is_settling = False
    is_deleted = False

    def __init__(self, leadership: SimpleNamespace) -> None:
        self.leadership = leadership
        self.reads = 0

    def when_open(self) -> None:
        return None

    def is_wanted(self) -> bool:
        return not self.is_deleted

    def read_in_thread(self, offset: int, max_bytes: int, **options: object) -> SimpleNamespace:
        subject = "old" if self.reads == 0 else "new"
        self.reads += 1
        self.leadership.leader_epoch += 2 if self.reads == 1 else 0
        key, value = schema_record(RegisteredSchema(subject, 1, 7, '"int"'))
        assert value is not None
        return SimpleNamespace(records=build_batch([Record(0, 0, encode_key(key), to_bytes(value))]))


async def test_settle_reads_again_if_another_leader_replaced_records(monkeypatch: pytest.MonkeyPatch) -> None:
    leadership = SimpleNamespace(leader=1, leader_epoch=3)
    metadata = SimpleNamespace(topics={TOPIC: SimpleNamespace(topic_id=b"id", partitions=[leadership])})
    log = ReplacedLog(leadership)
    manager = SimpleNamespace(partition=lambda _topic, _number: log)
    broker = SimpleNamespace(
        node_id=1, metadata=metadata, replica_manager=manager, loop=asyncio.get_running_loop(), executor=None
    )
    topic = SchemasTopic(cast(Any, broker))
    monkeypatch.setattr(topic, "_check_policy", lambda: None)
    assert (await topic.settle()).subjects() == ["new"]


class UnreplacedLog(ReplacedLog):
    """A partition with one record, of a topic that is deleted while a reader waits to read it."""

    def read_in_thread(self, offset: int, max_bytes: int, **options: object) -> SimpleNamespace:
        self.reads = 1
        return super().read_in_thread(offset, max_bytes, **options)


async def test_records_of_a_deleted_topic_are_not_read_into_the_state_of_its_successor() -> None:
    leadership = SimpleNamespace(leader=1, leader_epoch=0)
    image = SimpleNamespace(topic_id=b"first", partitions=[leadership])
    logs = [UnreplacedLog(leadership)]
    broker = SimpleNamespace(
        node_id=1,
        metadata=SimpleNamespace(topics={TOPIC: image}),
        replica_manager=SimpleNamespace(partition=lambda _topic, _number: logs[-1]),
        loop=asyncio.get_running_loop(),
        executor=None,
    )
    topic = SchemasTopic(cast(Any, broker))
    await topic._reading.acquire()  # another request reads
    reader = asyncio.create_task(topic.read_state())
    await asyncio.sleep(0)
    image.topic_id, logs[0].is_deleted = b"second", True
    logs.append(UnreplacedLog(leadership))
    topic._find_led_partition()
    topic._reading.release()
    with pytest.raises(RegistryError):
        await reader
    assert topic.state.subjects() == []
