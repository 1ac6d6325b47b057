"""Sizes of answers: they grow with the request and with the different things it names; a thing that is named often is
answered once.

A request of each API names one thing that has much to tell, once and many times over, in each array. Its answer may
grow by ANSWER_PER_BYTE for each byte that the request grows. The state behind it: a topic of PARTITIONS partitions with
offsets, metadata, producers and a transaction, and a group of the kind the API is about. What is longer nevertheless is
given up while it is encoded: ``tests/unit/broker/requests/test_route.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import long_requests
from tests.support.long_requests import WIDE_TOPIC, Case, Naming, all_cases, frame, frame_of, most_legal
from tests.support.topics import create_topic
from tests.unit.broker.data_broker import TIMESTAMP_MS, DataBroker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.loop.thread_rule import suspended
from tidelog.broker.requests.dispatch import Dispatcher
from tidelog.broker.requests.registry import REGISTRY
from tidelog.broker.requests.route import Pending
from tidelog.protocol.api_keys import ApiKey, response_header_version
from tidelog.protocol.messages import initialize_share_group_state as initialization
from tidelog.protocol.messages import write_share_group_state as writing
from tidelog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from tidelog.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from tidelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidelog.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from tidelog.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    Topology,
)
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch
from tidelog.protocol.schema.fields import Message
from tidelog.protocol.transferable import release_slices

PARTITIONS = 40
PRODUCERS = 40
ELEMENTS = 300
ANSWER_PER_BYTE = 20
"""The words of an error, to a partition's four bytes, are the most there is."""
RECORD_BYTES = 1 << 20
"""Records that a fetch asks for in ``long_requests``: its own limit holds for those."""
METADATA = "m" * 4000
TEXTS = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}
GROUP, MEMBER = WIDE_TOPIC, "member"
"""Strings of arrays are the topic's name, and so the group's and the transaction's."""


class World:
    """A broker with topics, groups, share states and transactions, about which all APIs can be asked."""

    def __init__(self, directory: Path, api_key: int) -> None:
        self.data = DataBroker(directory, TEXTS)
        self.topic_id = create_topic(self.data, WIDE_TOPIC, PARTITIONS).topic_id
        coordinators_of(self.data.broker).start()
        self.dispatcher = Dispatcher(self.data.broker)
        self.commit("g")
        self.make_share_state()
        self.make_transaction()
        self.make_producers()
        self.make_group(ApiKey(api_key).name)

    def answer(self, sent: bytes) -> bytes:
        """Return the frame that answers a request, without records that are sent from files."""
        answers: list[Any] = []
        answer = self.dispatcher.dispatch(self.data.context(0), memoryview(bytearray(sent)))
        if isinstance(answer, Pending):
            answer.on_answer(answers.append)
            answer.hurry()
        else:
            answers.append(answer)
        while not answers:
            if not self.data.loop.soon:
                self.data.loop.advance(1000)
            self.data.loop.run_soon()
        (found,) = answers
        assert found is not None, "the connection was closed"
        parts = [found] if isinstance(found, bytes) else found
        joined = b"".join(part if isinstance(part, bytes | memoryview) else bytes(len(part)) for part in parts)
        release_slices(found)
        return joined

    def ask(self, request: Message, version: int, response: type[Message]) -> Any:
        """Return the answer, decoded."""
        skipped = 8 + (response_header_version(ApiKey(request.API_KEY), version) >= 1)
        return response.decode(memoryview(self.answer(frame(request, version)))[skipped:], version)

    def commit(self, group: str) -> None:
        """Commit an offset with long metadata for each partition."""
        partitions = [
            OffsetCommitRequestPartition(partition_index=index, committed_offset=1, committed_metadata=METADATA)
            for index in range(PARTITIONS)
        ]
        topic = OffsetCommitRequestTopic(name=WIDE_TOPIC, partitions=partitions)
        request = OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, topics=[topic])
        assert self.ask(request, 8, OffsetCommitResponse).topics[0].partitions[0].error_code == 0

    def make_share_state(self) -> None:
        """Create a share state with many batches."""
        first = initialization.PartitionData(partition=0, start_offset=0)
        topic = initialization.InitializeStateData(topic_id=self.topic_id, partitions=[first])
        asked = initialization.InitializeShareGroupStateRequest(group_id="g", topics=[topic])
        made = self.ask(asked, 0, initialization.InitializeShareGroupStateResponse)
        assert made.results[0].partitions[0].error_code == 0
        batches = [
            writing.StateBatch(first_offset=2 * n, last_offset=2 * n, delivery_state=2, delivery_count=1)
            for n in range(200)
        ]
        change = writing.PartitionData(partition=0, start_offset=0, state_batches=batches)
        update = writing.WriteStateData(topic_id=self.topic_id, partitions=[change])
        written = self.ask(
            writing.WriteShareGroupStateRequest(group_id="g", topics=[update]), 0, writing.WriteShareGroupStateResponse
        )
        assert written.results[0].partitions[0].error_code == 0

    def make_transaction(self) -> None:
        """Begin a transaction with all partitions."""
        asked = InitProducerIdRequest(transactional_id=WIDE_TOPIC, transaction_timeout_ms=600_000)
        given = self.ask(asked, 4, InitProducerIdResponse)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=WIDE_TOPIC,
            v3_and_below_producer_id=given.producer_id,
            v3_and_below_producer_epoch=given.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=WIDE_TOPIC, partitions=list(range(PARTITIONS)))],
        )
        added = self.ask(request, 3, AddPartitionsToTxnResponse)
        assert added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0

    def make_producers(self) -> None:
        """Append a batch of each of many producers to one partition."""
        for number in range(PRODUCERS):
            options = BatchOptions(producer_id=9000 + number, producer_epoch=0, base_sequence=0)
            batch = build_batch([Record(0, TIMESTAMP_MS, None, b"value")], options)
            self.data.replica_manager.partition(WIDE_TOPIC, 0).append_records(memoryview(batch))

    def make_group(self, api: str) -> None:
        """Create a group of the type that the API describes."""
        if api.startswith(("SHARE_", "DESCRIBE_SHARE")):
            share = ShareGroupHeartbeatRequest(
                group_id=GROUP, member_id=MEMBER, member_epoch=0, subscribed_topic_names=[WIDE_TOPIC]
            )
            assert self.ask(share, 1, ShareGroupHeartbeatResponse).error_code == 0
        elif api.startswith("STREAMS_"):
            topology = Topology(epoch=1, subtopologies=[Subtopology(subtopology_id="a", source_topics=[WIDE_TOPIC])])
            streams = StreamsGroupHeartbeatRequest(
                group_id=GROUP, member_id=MEMBER, member_epoch=0, rebalance_timeout_ms=1000, topology=topology,
                active_tasks=[], standby_tasks=[], warmup_tasks=[], process_id="p", client_tags=[],
            )  # fmt: skip
            assert self.ask(streams, 0, StreamsGroupHeartbeatResponse).error_code == 0
        elif api.startswith("CONSUMER_"):
            consumer = ConsumerGroupHeartbeatRequest(
                group_id=GROUP, member_id=MEMBER, member_epoch=0, rebalance_timeout_ms=1000,
                subscribed_topic_names=[WIDE_TOPIC], topic_partitions=[],
            )  # fmt: skip
            assert self.ask(consumer, 1, ConsumerGroupHeartbeatResponse).error_code == 0
        else:
            self.commit(GROUP)
            protocol = JoinGroupRequestProtocol(name="range", metadata=b"m" * 20_000)
            join = JoinGroupRequest(
                group_id=GROUP, session_timeout_ms=300_000, rebalance_timeout_ms=10_000, protocol_type="consumer",
                protocols=[protocol],
            )  # fmt: skip
            assert self.ask(join, 3, JoinGroupResponse).error_code == 0


@pytest.fixture(autouse=True)
def _steps_run_where_the_test_does() -> Iterator[None]:
    with suspended():
        yield


def excess(world: World, case: Case) -> str | None:
    """Return how long the answer to many elements is, where that is more than it may be."""
    count = min(ELEMENTS, most_legal(case))
    once, often = frame_of(case, 1), frame_of(case, count)
    once_bytes, answer = len(world.answer(once)), len(world.answer(often))
    things = PARTITIONS if case.naming is Naming.PARTITIONS else 1
    records = RECORD_BYTES if case.api_key in (ApiKey.FETCH, ApiKey.SHARE_FETCH) else 0
    if answer <= things * once_bytes + records + ANSWER_PER_BYTE * (len(often) - len(once)):
        return None
    return f"{case}: {len(once)} bytes get {once_bytes}, {len(often)} get {answer}"


@pytest.mark.parametrize("api_key", list(REGISTRY), ids=lambda key: ApiKey(key).name)
def test_a_repeated_resource_of_a_request_is_answered_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api_key: int
) -> None:
    world = World(tmp_path, api_key)
    monkeypatch.setattr(long_requests, "TOPIC_ID", world.topic_id)
    cases = [case for case in all_cases(api_key) if case.naming is not Naming.UNKNOWN]
    assert [found for case in cases if (found := excess(world, case))] == []
    world.data.close()
