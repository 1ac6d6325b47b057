"""A broker with real logs, and members of share groups that send requests to its handlers in the wire form of a
version."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.slices import content_of
from tests.support.topics import create_topic
from tests.unit.broker.data_broker import DataBroker
from tests.unit.broker.handlers.drive import handler_of
from tests.unit.broker.stepping import response_of
from tidelog.broker.coordinator.coordinators import Coordinators, coordinators_of
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.errors import CoordinatorLoadInProgressError, KafkaError
from tidelog.protocol.messages.share_acknowledge import ShareAcknowledgeRequest, ShareAcknowledgeResponse
from tidelog.protocol.messages.share_fetch import (
    AcknowledgementBatch,
    FetchPartition,
    FetchTopic,
    PartitionData,
    ShareFetchRequest,
    ShareFetchResponse,
)
from tidelog.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.schema.fields import Message

#: First offset, last offset, types.
Ack = tuple[int, int, list[int]]


class ShareWorld(DataBroker):
    """The parts of a broker with share groups. ``restarted`` starts new parts on its directory, as after a kill."""

    def __init__(self, directory: Path, texts: Mapping[str, str] | None = None) -> None:
        one = {"share.coordinator.state.topic.num.partitions": "1", "offsets.topic.num.partitions": "1"}
        self.texts = {**one, **(texts or {})}
        super().__init__(directory, self.texts)
        self.directory = directory
        self.make_internal_topics("__consumer_offsets", "__share_group_state")

    @property
    def coordinators(self) -> Coordinators:
        return coordinators_of(self.broker)

    def restarted(self) -> ShareWorld:
        self.broker.controller.close()
        world = ShareWorld(self.directory, self.texts)
        world.coordinators.start()
        for _ in range(200):
            world.loop.run_soon()
        return world

    def advance(self, milliseconds: float) -> None:
        """Let time pass, and a little more: timers never fire early."""
        self.loop.advance(milliseconds + 5)
        self.loop.run_soon()
        self.loop.run_soon()

    def configure(self, group: str, **texts: str) -> None:
        """Set configs of a group; it reads from the earliest record."""
        pairs = {"share.auto.offset.reset": "earliest", **{key.replace("_", "."): text for key, text in texts.items()}}
        self.broker.configs.replace(32, group, pairs, validate_only=False)

    def topic(self, name: str, *batches: int, partitions: int = 1) -> None:
        """Create a topic with batches of so many records each."""
        create_topic(self, name, partitions)
        for size in batches:
            self.append(name, *(b"v%d" % number for number in range(size)))

    def member(self, group: str = "g", topic: str = "t", member_id: str = "m") -> ShareMember:
        """Return a member that has joined."""
        found = ShareMember(self, group, topic, member_id)
        answer = found.beat(0, subscribed_topic_names=[topic])
        while answer.error_code == CoordinatorLoadInProgressError.code and self.loop.soon:
            self.loop.run_soon()  # a thread opens the log of its state
            answer = found.beat(0, subscribed_topic_names=[topic])
        assert answer.error_code == 0, answer
        found.member_epoch = answer.member_epoch
        return found

    def ask(self, context: RequestContext, request: Message, version: int) -> Any:
        """Return the answer, or a Deferred of it."""
        context.api_version = version
        module = handler_of(request)
        received = module.Request.decode(memoryview(request.encode(version)), version)
        try:
            return response_of(module.handle(self.broker, context, received))
        except KafkaError as error:
            return response_of(module.error_response(received, error))


def read_fetched(response: ShareFetchResponse, version: int = 2) -> ShareFetchResponse:
    """Read the response as a client does; its slices are released."""
    data = b"".join(content_of(part) for part in response.encode_parts(version))
    return ShareFetchResponse.decode(memoryview(data), version)


class ShareMember:
    """One member with a connection of its own."""

    def __init__(self, world: ShareWorld, group: str, topic: str, member_id: str) -> None:
        self.world = world
        self.group, self.member_id = group, member_id
        image = world.broker.metadata.topics.get(topic)
        self.topic_id = bytes(16) if image is None else image.topic_id
        self.context = world.context(1)
        self.member_epoch = 0
        self.epoch = 0

    def beat(self, epoch: int, **fields: Any) -> ShareGroupHeartbeatResponse:
        request = ShareGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=epoch, **fields
        )
        answer = self.world.ask(self.context, request, 1)
        assert isinstance(answer, ShareGroupHeartbeatResponse)
        return answer

    def leave(self) -> ShareGroupHeartbeatResponse:
        return self.beat(-1)

    def topics(self, *acks: Ack, partition: int = 0) -> list[FetchTopic]:
        batches = [
            AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
            for first, last, types in acks
        ]
        asked = FetchPartition(partition_index=partition, acknowledgement_batches=batches)
        return [FetchTopic(topic_id=self.topic_id, partitions=[asked])]

    def ask(self, *acks: Ack, **fields: Any) -> ShareFetchResponse | Deferred[ShareFetchResponse]:
        """Send one ShareFetch; by default it does not wait."""
        values: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.member_id,
            "share_session_epoch": self.epoch,
            "max_wait_ms": 0,
            "min_bytes": 1,
            "max_bytes": 1_000_000,
            "max_records": 500,
            "batch_size": 500,
            "topics": self.topics(*acks),
            **fields,
        }
        self.epoch = 1 if self.epoch == 0 else self.epoch + 1
        answer: ShareFetchResponse | Deferred[ShareFetchResponse] = self.world.ask(
            self.context, ShareFetchRequest(**values), 2
        )
        return answer

    def fetch(self, *acks: Ack, **fields: Any) -> ShareFetchResponse:
        """Send a ShareFetch that is answered at once."""
        answer = self.ask(*acks, **fields)
        assert isinstance(answer, ShareFetchResponse)
        return read_fetched(answer)

    def acquired(self, *acks: Ack, **fields: Any) -> list[tuple[int, int, int]]:
        """Fetch and return what was acquired: first offset, last offset, delivery count of each run."""
        return runs(self.fetch(*acks, **fields))

    def acknowledge(self, *acks: Ack, **fields: Any) -> ShareAcknowledgeResponse:
        """Send one ShareAcknowledge."""
        values: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.member_id,
            "share_session_epoch": self.epoch,
            "topics": self.topics(*acks),
            **fields,
        }
        self.epoch += 1
        answer = self.world.ask(self.context, ShareAcknowledgeRequest(**values), 2)
        assert isinstance(answer, ShareAcknowledgeResponse)
        return answer


def partitions(response: ShareFetchResponse) -> list[PartitionData]:
    """List all partitions of a response."""
    return [data for topic in response.responses for data in topic.partitions]


def runs(response: ShareFetchResponse) -> list[tuple[int, int, int]]:
    """List the acquired runs of a partition."""
    return [
        (run.first_offset, run.last_offset, run.delivery_count)
        for data in partitions(response)
        for run in data.acquired_records
    ]


def offsets(response: ShareFetchResponse) -> list[int]:
    """List the offsets of the records that were sent."""
    found = []
    for data in partitions(response):
        assert isinstance(data.records, (bytes, memoryview))
        found += [record.offset for batch in iter_batches(data.records) for record in batch.records()]
    return found
