"""A disk whose syncs take long, under a real broker: only requests that need a sync wait for it.

While the sync of one request hangs, the requests of other connections are answered.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import raw_client
from tests.support.failing_disk import BrokerOnFailingDisk, FailingDisk
from tests.support.raw_requests import NOW_MS, create, fetch_error, produce
from tidelog.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, EntityData, EntryData, OpData
from tidelog.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidelog.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest
from tidelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.protocol.record.record_batch import Record, build_batch

HANGS_MS = 30_000


def has_answer(connection: socket.socket) -> bool:
    """Return whether bytes have come. Not by ``select``: it takes no descriptor from 1,024 on."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def create_topic() -> bytes:
    body = struct.pack(">ih", 1, 3) + b"new" + struct.pack(">ihiii", 1, 1, 0, 0, 10_000)
    return raw_client.frame(19, 0, 1, body)


def delete_topic() -> bytes:
    return raw_client.frame(20, 0, 1, struct.pack(">ih", 1, 4) + b"gone" + struct.pack(">i", 10_000))


def delete_records() -> bytes:
    topic = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=1)])
    return raw_client.frame(21, 1, 1, DeleteRecordsRequest(topics=[topic], timeout_ms=10_000).encode(1))


def alter_config() -> bytes:
    config = AlterableConfig(name="retention.ms", config_operation=0, value="1000000000")
    resource = AlterConfigsResource(resource_type=2, resource_name="t", configs=[config])
    return raw_client.frame(44, 0, 1, IncrementalAlterConfigsRequest(resources=[resource]).encode(0))


def alter_quota() -> bytes:
    entity = [EntityData(entity_type="user", entity_name="ann")]
    entry = EntryData(entity=entity, ops=[OpData(key="producer_byte_rate", value=1e9, remove=False)])
    return raw_client.frame(49, 0, 1, AlterClientQuotasRequest(entries=[entry]).encode(0))


def init_producer_id() -> bytes:
    return raw_client.frame(22, 0, 1, InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1).encode(0))


def produce_durably() -> bytes:
    batch = build_batch([Record(0, NOW_MS, b"k", b"v")])
    data = [PartitionProduceData(index=0, records=memoryview(batch))]
    topic = TopicProduceData(name="durable", partition_data=data)
    return raw_client.frame(0, 7, 1, ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[topic]).encode(7))


REQUESTS = [
    create_topic,
    delete_topic,
    delete_records,
    alter_config,
    alter_quota,
    init_producer_id,
    produce_durably,
]


@pytest.mark.parametrize("request_of", REQUESTS)
def test_others_do_not_wait_for_a_sync(tmp_path: Path, request_of: Callable[[], bytes]) -> None:
    disk = FailingDisk(tmp_path / "disk")
    logs = tmp_path / "logs"
    with BrokerOnFailingDisk(tmp_path, disk, {"log.dirs": str(logs)}) as broker:
        create(broker.port, "t")
        create(broker.port, "gone")
        create(broker.port, "durable", flush_messages="1")
        for topic in ("t", "t", "durable", "gone"):
            assert produce(broker.port, topic) == 0
        with raw_client.connect(broker.port) as waiting:
            disk.delay(logs, HANGS_MS, "sync")
            waiting.sendall(request_of())
            for _ in range(5):
                assert produce(broker.port, "t") == 0
                assert fetch_error(broker.port, "t", 1) == 0
            assert not has_answer(waiting), "it is answered when its sync has ended"
            disk.heal()
            assert raw_client.receive_frame(waiting)
