"""Reports of failed log directories, from any thread, and the failures with which a member ends."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidelog.broker.cluster.lifecycle import BrokerLifecycle, BrokerState, Registration
from tidelog.broker.cluster.quorum import Address, QuorumView
from tidelog.broker.member.connections import directories
from tidelog.broker.member.connections.channel import ChannelError
from tidelog.broker.member.connections.directories import DirectoryReports
from tidelog.broker.member.controller import RemoteController
from tidelog.broker.metadata.delta import MetadataDelta
from tidelog.broker.metadata.image import LOST_DIRECTORY
from tidelog.broker.metadata.metadata_image import BrokerRegistration, MetadataImage, PartitionState, TopicState
from tidelog.log.environment import DirectoryState
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.system.time import ManualTime
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest, AssignReplicasToDirsResponse
from tidelog.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from tidelog.protocol.metadata_records.records import ConfigRecord

FIRST, SECOND = b"1" * 16, b"2" * 16
LIMIT_MS = 30_000.0
IMAGE = MetadataImage(
    topics={b"t" * 16: TopicState("t", b"t" * 16, (PartitionState((1,), (1,), 1),))}, topic_ids={"t": b"t" * 16}
)


class Directory:
    """A log directory as the log manager has it."""

    def __init__(self, directory_id: bytes) -> None:
        self.directory_id = directory_id
        self.path = f"/nowhere/{directory_id.decode()}"
        self.state = DirectoryState(self.path)

    @property
    def is_online(self) -> bool:
        return self.state.failure is None


class Controller:
    """A channel that fails once, then ends the test's wait."""

    def __init__(self) -> None:
        self.asked: list[AssignReplicasToDirsRequest] = []
        self.is_done = asyncio.Event()

    async def ask(self, _: Address, request: AssignReplicasToDirsRequest, __: object) -> AssignReplicasToDirsResponse:
        self.asked.append(request)
        if len(self.asked) == 1:
            raise ChannelError("no answer")
        self.is_done.set()
        return AssignReplicasToDirsResponse()


class World:
    """A member with two directories, which serves."""

    def __init__(
        self,
        *directory_ids: bytes,
        placed: bool = True,
        image: MetadataImage = IMAGE,
        empty: tuple[TopicPartition, ...] = (),
    ) -> None:
        self.time = ManualTime()
        self.directories = [Directory(one) for one in directory_ids or (FIRST, SECOND)]
        self.lifecycle = BrokerLifecycle(Registration(1, "cluster", b"i" * 16, (), {}, None, ()), 2000)
        self.lifecycle.state = BrokerState.RUNNING
        self.lifecycle.broker_epoch = 9
        self.beaten = asyncio.Event()
        made = deque([TopicPartition("t", 0)] if placed else [])
        self.logs = SimpleNamespace(
            directories=self.directories,
            placed=made,
            directory_id_of=lambda _: SECOND,
            cordoned=frozenset({self.directories[0].path}),
            environment=SimpleNamespace(service_changes=deque()),
            is_out_of_service=lambda partition: partition in self.out_of_service,
        )
        self.out_of_service: set[TopicPartition] = set()
        self.quorum = RemoteController(image, 1)
        self.news = DirectoryReports(
            cast(Any, self.logs), self.quorum, self.lifecycle, self.time.monotonic_ms, self.beaten.set
        )
        self.news.begin(empty)
        self.controller = Controller()

    async def report(self) -> None:
        """Report to the controller, until cancelled or until this broker cannot continue."""
        await self.news.report(cast(Any, self.controller), QuorumView([Address("a", 1)]), LIMIT_MS)

    def heartbeat(self) -> BrokerHeartbeatRequest:
        request = self.lifecycle.next_question().request
        assert isinstance(request, BrokerHeartbeatRequest)
        return request

    def offline(self) -> list[bytes]:
        return self.heartbeat().offline_log_dirs


async def let_run() -> None:
    """Let the other tasks run a few times."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("world_of", [World, partial(World, SECOND, placed=False)], ids=["a new log", "a new disk"])
async def test_assignments_are_sent_until_the_controller_answers(
    world_of: Callable[[], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that lay on another disk, the only one, is on the new one now: else the broker could not be elected."""
    monkeypatch.setattr(directories, "ROUND_S", 0.0)
    world = world_of()
    task = asyncio.ensure_future(world.report())
    async with asyncio.timeout(60):
        await world.controller.is_done.wait()
    task.cancel()
    assert world.controller.asked[0] == world.controller.asked[1]
    ((assigned,),) = ([(one.id, len(one.topics)) for one in world.controller.asked[0].directories],)
    assert assigned == (SECOND, 1)


@pytest.mark.parametrize("is_empty", [True, False])
async def test_an_empty_disk_is_not_reported_while_it_would_be_elected_over_copies(
    is_empty: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(directories, "ROUND_S", 0.0)
    state = PartitionState((1, 2), (1,), directories=(FIRST, SECOND))
    image = IMAGE._replace(topics={b"t" * 16: TopicState("t", b"t" * 16, (state,))})
    empty = (TopicPartition("t", 0),) if is_empty else ()
    world = World(SECOND, placed=False, image=image, empty=empty)
    task = asyncio.ensure_future(world.report())
    await let_run()
    task.cancel()
    assert (world.controller.asked == []) is is_empty
    assert caplog.text.count("1 logs are empty") == is_empty


async def test_a_log_that_fails_is_reported_as_lost_until_it_is_served_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directories, "ROUND_S", 0.0)
    partition = TopicPartition("t", 0)
    brokers = {2: BrokerRegistration(2, 9, b"i" * 16, (), {}, None, False, False, ())}
    states = [PartitionState((1, 2), (1, 2), 1, directories=(one, FIRST)) for one in (SECOND, LOST_DIRECTORY)]
    topics = [{b"t" * 16: TopicState("t", b"t" * 16, (state,))} for state in states]
    images = [IMAGE._replace(topics=one, brokers=brokers) for one in topics]
    world = World(placed=False, image=images[0])
    task = asyncio.ensure_future(world.report())
    await let_run()
    assert world.controller.asked == []
    for change, shown, reported in (
        (world.out_of_service.add, images[0], LOST_DIRECTORY),
        (world.out_of_service.discard, images[1], SECOND),
    ):
        change(partition)
        world.quorum.image = shown
        world.logs.environment.service_changes.append(partition)
        await let_run()
        assert [one.id for one in world.controller.asked[-1].directories] == [reported]
    task.cancel()


async def test_a_failure_that_another_thread_meets_is_in_the_next_heartbeat() -> None:
    world = World()
    assert world.offline() == []
    await asyncio.to_thread(world.directories[1].state.mark_offline, KafkaStorageError("the disk is gone"))
    async with asyncio.timeout(60):
        await world.beaten.wait()
    assert world.offline() == [SECOND]


async def test_without_a_directory_that_works_the_broker_ends() -> None:
    world = World()
    for one in world.directories:
        one.state.mark_offline(KafkaStorageError("the disk is gone"))
    with pytest.raises(KafkaStorageError, match="no log directory works"):
        await world.report()


@pytest.mark.parametrize("is_told", [True, False])
async def test_a_failure_that_cannot_be_reported_ends_the_broker(
    is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partitions there have no leader as long as the controllers do not know of the failure."""
    monkeypatch.setattr(directories, "ROUND_S", 0.0)
    world = World()
    world.directories[0].state.mark_offline(KafkaStorageError("the disk is gone"))
    async with asyncio.timeout(60):
        await world.beaten.wait()
    if is_told:
        world.offline()
        world.lifecycle.take_answer(BrokerHeartbeatResponse(is_fenced=False), world.time.monotonic_ms())
    world.time.advance(LIMIT_MS + 1)
    if is_told:
        task = asyncio.ensure_future(world.report())
        async with asyncio.timeout(60):
            await world.controller.is_done.wait()
        assert not task.done()
        task.cancel()
    else:
        with pytest.raises(KafkaStorageError, match=r"log\.dir\.failure\.timeout\.ms"):
            await world.report()


async def test_cordoned_directories_and_their_changes_are_in_heartbeats() -> None:
    world = World()
    assert world.heartbeat().cordoned_log_dirs == [FIRST]
    delta = MetadataDelta(IMAGE)
    world.logs.cordoned = frozenset(one.path for one in world.directories)
    world.quorum.publish(delta, IMAGE)
    assert (world.heartbeat().cordoned_log_dirs, world.beaten.is_set()) == ([FIRST], False)
    delta.replay(ConfigRecord(resource_type=4, resource_name="1", name="cordoned.log.dirs", value="*"))
    world.quorum.publish(delta, IMAGE)
    assert (world.heartbeat().cordoned_log_dirs, world.beaten.is_set()) == ([FIRST, SECOND], True)
