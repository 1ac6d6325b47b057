"""The state of a topic ``_schemas`` that takes the place of another one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tidelog.broker.schema_registry.records import RegisteredSchema, schema_record
from tidelog.broker.schema_registry.topic import TOPIC, SchemasTopic


def test_ids_go_on_in_a_topic_that_was_deleted_and_created_again() -> None:
    image = SimpleNamespace(topic_id=b"first", partitions=[SimpleNamespace(leader=1, leader_epoch=3)])
    manager = SimpleNamespace(partition=lambda _topic, _number: None)
    metadata = SimpleNamespace(topics={TOPIC: image})
    topic = SchemasTopic(cast(Any, SimpleNamespace(node_id=1, metadata=metadata, replica_manager=manager)))
    topic._find_led()
    topic.state.replay(*schema_record(RegisteredSchema("s", 1, 7, '"int"')))
    image.topic_id = b"second"
    topic._find_led()
    assert topic.state.subjects(deleted=True) == []
    assert topic.state.last_id == 7


def test_the_topic_is_read_again_by_a_leader_that_was_elected_again() -> None:
    """Another leader may have cut records that were read here, and appended as many others."""
    partition = SimpleNamespace(leader=1, leader_epoch=3)
    image = SimpleNamespace(topic_id=b"id", partitions=[partition])
    manager = SimpleNamespace(partition=lambda _topic, _number: None)
    metadata = SimpleNamespace(topics={TOPIC: image})
    topic = SchemasTopic(cast(Any, SimpleNamespace(node_id=1, metadata=metadata, replica_manager=manager)))
    topic._find_led()
    topic.state.replay(*schema_record(RegisteredSchema("s", 1, 7, '"int"')))
    topic._position = 1
    topic._find_led()
    assert topic.state.subjects() == ["s"]
    partition.leader_epoch = 5
    topic._find_led()
    assert (topic.state.subjects(), topic._position, topic.state.last_id) == ([], 0, 7)
