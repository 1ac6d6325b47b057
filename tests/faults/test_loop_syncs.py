"""No request waits for the disk on the loop: every sync is done in a thread, whichever API asks for it.

A sync of a slow disk takes seconds. On the loop it would hold every other connection for as long.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.faulty_file_system import FaultyFileSystem
from tests.support.topics import create_topic
from tests.unit.broker.data_broker import DataBroker
from tests.unit.broker.handlers.drive import handler_of
from tests.unit.broker.stepping import response_of
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.requests.registry import REGISTRY
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages import alter_client_quotas as quotas
from tidelog.protocol.messages import alter_configs, incremental_alter_configs
from tidelog.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from tidelog.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tidelog.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from tidelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tidelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest
from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from tidelog.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    Subtopology,
    Topology,
)
from tidelog.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

TEXTS = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}


class WatchedDisk(FaultyFileSystem):
    """A disk that keeps the paths of syncs, apart for the loop's thread and for other threads."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.in_thread = False
        self.on_loop: list[str] = []
        self.in_threads: list[str] = []

    def step(self, operation: str, path: str, partly: Any = None) -> None:
        if operation == "sync":
            (self.in_threads if self.in_thread else self.on_loop).append(os.path.relpath(path, self._root))
        super().step(operation, path, partly)


class World:
    """A broker on a watched disk."""

    def __init__(self, directory: Path) -> None:
        self.disk = WatchedDisk(str(directory))
        self.data = DataBroker(directory, TEXTS, self.disk)
        run = self.data.loop.run_in_executor

        def run_in_executor(executor: object, work: Any, *arguments: Any) -> Any:
            self.disk.in_thread = True
            try:
                return run(executor, work, *arguments)
            finally:
                self.disk.in_thread = False

        self.data.loop.run_in_executor = run_in_executor  # type: ignore[method-assign]
        create_topic(self.data, "t", 1)
        self.disk.on_loop.clear()

    def ask(self, request: Any, version: int) -> Any:
        """Send a request in the wire form of its version, and turn the loop until it is answered."""
        module = handler_of(request)
        received = module.Request.decode(memoryview(request.encode(version)), version)
        try:
            answer = response_of(module.handle(self.data.broker, self.data.context(version), received))
        except KafkaError as error:
            return module.error_response(received, error)
        for _ in range(100):
            if not isinstance(answer, Deferred) or answer.done:
                break
            self.data.loop.run_soon()
        while self.data.loop.soon:
            self.data.loop.run_soon()
        return answer


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.data.close()


def incremental(kind: int, name: str, key: str, value: str) -> incremental_alter_configs.IncrementalAlterConfigsRequest:
    config = incremental_alter_configs.AlterableConfig(name=key, config_operation=0, value=value)
    resource = incremental_alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])
    return incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])


def whole(kind: int, name: str, key: str, value: str) -> alter_configs.AlterConfigsRequest:
    config = alter_configs.AlterableConfig(name=key, value=value)
    resource = alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])
    return alter_configs.AlterConfigsRequest(resources=[resource])


def quota(value: float | None) -> quotas.AlterClientQuotasRequest:
    op = quotas.OpData(key="producer_byte_rate", value=value or 0.0, remove=value is None)
    entity = quotas.EntityData(entity_type="user", entity_name="ann")
    return quotas.AlterClientQuotasRequest(entries=[quotas.EntryData(entity=[entity], ops=[op])])


UPSERT = AlterUserScramCredentialsRequest(
    upsertions=[
        ScramCredentialUpsertion(name="ann", mechanism=1, iterations=4096, salt=b"s", salted_password=b"p" * 32)
    ]
)
REMOVAL = AlterUserScramCredentialsRequest(deletions=[ScramCredentialDeletion(name="ann", mechanism=1)])
COMMIT = OffsetCommitRequest(
    group_id="g",
    generation_id_or_member_epoch=-1,
    topics=[OffsetCommitRequestTopic(name="t", partitions=[OffsetCommitRequestPartition(committed_offset=5)])],
)
JOIN = JoinGroupRequest(
    group_id="j",
    session_timeout_ms=10_000,
    rebalance_timeout_ms=10_000,
    protocol_type="consumer",
    protocols=[JoinGroupRequestProtocol(name="range", metadata=b"m")],
)
STREAMS = StreamsGroupHeartbeatRequest(
    group_id="s",
    member_id="m",
    rebalance_timeout_ms=1_000,
    process_id="p",
    topology=Topology(epoch=0, subtopologies=[Subtopology(subtopology_id="0", source_topics=["t"])]),
    active_tasks=[],
    standby_tasks=[],
    warmup_tasks=[],
)

CREATION = CreateTopicsRequest(topics=[CreatableTopic(name="n", num_partitions=2, replication_factor=1)])
WIDENING = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="t", count=3, assignments=None)])
UPDATE = FeatureUpdateKey(feature="metadata.version", max_version_level=26, upgrade_type=1)
CONSUMER = ConsumerGroupHeartbeatRequest(
    group_id="c", member_id="m", rebalance_timeout_ms=1000, subscribed_topic_names=["t"], topic_partitions=[]
)
WRITES: dict[str, list[tuple[Any, int]]] = {
    "CreateTopics": [(CREATION, 5)],
    "CreatePartitions": [(WIDENING, 3)],
    "DeleteTopics": [(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")]), 6)],
    "auto-created": [(MetadataRequest(topics=[MetadataRequestTopic(name="n")], allow_auto_topic_creation=True), 12)],
    "auto-created internal": [(MetadataRequest(topics=[MetadataRequestTopic(name="__consumer_offsets")]), 12)],
    "topic config": [(incremental(2, "t", "retention.ms", "5"), 1)],
    "broker config": [(whole(4, "1", "log.retention.ms", "5"), 2)],
    "group config": [(incremental(32, "g", "consumer.session.timeout.ms", "46000"), 1)],
    "client metrics": [(incremental(16, "s", "interval.ms", "5000"), 1)],
    "quotas": [(quota(1024.0), 1), (quota(None), 1)],
    "SCRAM": [(UPSERT, 0), (REMOVAL, 0)],
    "features": [(UpdateFeaturesRequest(feature_updates=[UPDATE]), 1)],
    "producer id": [(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 4)],
    "transactional id": [(InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000), 4)],
    "first commit of an offset": [(COMMIT, 8)],
    "first member of a group": [(JOIN, 3)],
    "first consumer group": [(CONSUMER, 1)],
    "first share group": [(ShareGroupHeartbeatRequest(group_id="h", member_id="m", subscribed_topic_names=["t"]), 1)],
    "first streams group": [(STREAMS, 0)],
}


@pytest.mark.parametrize("name", WRITES)
def test_a_change_of_metadata_is_synced_in_a_thread_before_its_answer(world: World, name: str) -> None:
    for request, version in WRITES[name]:
        before = world.data.broker.controller.end_offset
        world.disk.in_threads.clear()
        answer = world.ask(request, version)
        assert world.data.broker.controller.end_offset > before, answer
        assert world.disk.on_loop == []
        assert any(path.startswith("__cluster_metadata-0") for path in world.disk.in_threads)


@pytest.mark.parametrize("key", sorted(REGISTRY))
def test_no_api_syncs_on_the_loop(world: World, key: int) -> None:
    entry = REGISTRY[key]
    request = __import__(entry.module, fromlist=["Request"]).Request()
    world.ask(request, entry.max_version)
    assert world.disk.on_loop == []
