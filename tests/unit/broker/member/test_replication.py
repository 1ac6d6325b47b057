"""Fetch loops of a member: what they append to which log, and what ends or delays them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.logs import LogBench, append, batch, read_bytes, values
from tests.unit.broker.data_broker import DataBroker
from tidelog.broker.broker import Broker
from tidelog.broker.cluster.fetching.fetcher import LeaderFetcher
from tidelog.broker.cluster.fetching.fetchers import FetcherId, FollowedEpoch
from tidelog.broker.cluster.fetching.session import FetchKey
from tidelog.broker.cluster.fetching.work import FetcherConfig, TruncateTo, Work
from tidelog.broker.cluster.quorum import Address
from tidelog.broker.loop.threads import run_now
from tidelog.broker.member import replication
from tidelog.broker.member.config import MemberConfig
from tidelog.broker.member.connections.channel import ChannelError
from tidelog.broker.member.connections.security import PeerSecurity
from tidelog.broker.member.controller import RemoteController
from tidelog.broker.member.replication import ReplicaFetcher, Replication
from tidelog.broker.metadata.image import TopicImage
from tidelog.broker.metadata.metadata_image import EMPTY_IMAGE, BrokerRegistration, Endpoint, PartitionState
from tidelog.broker.metrics.rates import Window
from tidelog.broker.replica.partition import Partition
from tidelog.broker.replica.replication.following import Following
from tidelog.broker.replica.replication.quotas import FOLLOWER, ReplicationQuota
from tidelog.log.config import LogConfig
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.system.time import SystemTime
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData

NODE, LEADER, EPOCH = 1, 2, 4
TOPIC_ID = b"t" * 16
FOLLOWED = PartitionState((LEADER, NODE), (LEADER,), LEADER, EPOCH)
CONFIG = FetcherConfig(NODE, 7, backoff_ms=1)
SETTINGS = cast(
    "MemberConfig",
    SimpleNamespace(replica_fetchers=1, replica_socket_timeout_ms=1000, broker_security=PeerSecurity("PLAINTEXT")),
)
NEXT_LEADER = 0
IMAGE = EMPTY_IMAGE._replace(
    brokers={
        node: BrokerRegistration(
            node, 9, b"i" * 16, (Endpoint("PLAINTEXT", host, 9092, 0),), {}, None, False, False, ()
        )
        for node, host in ((LEADER, "leader"), (NEXT_LEADER, "next"))
    }
)


class World:
    """A leader's log, a follower's, and the fetch loops between them. ``spoil`` changes the leader's records."""

    def __init__(self, root: Path) -> None:
        self.leader = LogBench(str(root / "leader")).open()
        self.bench = LogBench(str(root / "follower"))
        self.log: UnifiedLog = self.bench.open()
        self.log.update_high_watermark(0)
        self.asked: list[Address] = []
        self.failures = 0
        self.spoil: Callable[[bytes], bytes] = bytes
        self.threads: set[str] = set()
        self.quota: ReplicationQuota | None = None
        self.isr: tuple[int, ...] = (LEADER,)
        self.unopened: list[Exception] = []
        """Errors of the next openings of the follower's log."""

    def topic(self, *states: PartitionState) -> TopicImage:
        return TopicImage("t", TOPIC_ID, states, {}, False)

    def topic_by_id(self, _topic_id: bytes) -> TopicImage:
        return self.topic(FOLLOWED._replace(isr=self.isr))

    def partition_by_id(self, *_: object) -> SimpleNamespace:
        unopened = bool(self.unopened)
        return SimpleNamespace(local_log=self.log, offsets_moved=bool, is_unopened=unopened, open_files=self.open_files)

    def open_files(self) -> None:
        """Open the follower's log in a thread, or raise the next of ``unopened``."""
        assert threading.current_thread().name.startswith("worker")
        if self.unopened:
            raise self.unopened.pop()

    async def ask(self, address: Address, request: FetchRequest) -> FetchResponse:
        """Answer as the leader: all of the log from the offset on, in a session for each request."""
        await asyncio.sleep(0)
        self.asked.append(address)
        if self.failures:
            self.failures -= 1
            raise ChannelError("cut off")
        (asked,) = request.topics[0].partitions
        end = self.leader.log_end_offset
        records = b"" if asked.fetch_offset == end else read_bytes(self.leader, asked.fetch_offset, 1 << 24)
        answer = PartitionData(partition_index=0, high_watermark=end, records=memoryview(self.spoil(records)))
        return FetchResponse(responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[answer])])

    async def follow(self, until: Callable[[], bool], then: Callable[[Replication], Any] | None = None) -> Replication:
        """Follow the leader until a state is reached."""
        manager = SimpleNamespace(partition_by_id=self.partition_by_id)
        logs = SimpleNamespace(environment=self.log.environment, directories=())
        with ThreadPoolExecutor(2, "worker") as executor:
            broker = SimpleNamespace(
                node_id=NODE, time=SystemTime(), executor=executor, loop=asyncio.get_running_loop(),
                replica_manager=manager, log_manager=logs, metadata=SimpleNamespace(topic_by_id=self.topic_by_id),
            )  # fmt: skip
            loops = Replication(cast("Broker", broker), RemoteController(IMAGE, NODE), CONFIG, SETTINGS, self.quota)
            loops.take_topic(self.topic(FOLLOWED))
            await loops.share_out()
            whole = asyncio.ensure_future(loops.retry_unopened(0.001))
            async with asyncio.timeout(60):
                while not until():  # noqa: ASYNC110 - a state of a log in threads
                    await asyncio.sleep(0)
            if then is not None:
                await then(loops)
            whole.cancel()
            await loops.close()
        return loops


class LeaderChannel:
    """A stub of the connection to the leader of the world in use."""

    world: World

    def __init__(self, timeout_s: float, security: PeerSecurity) -> None:
        assert (timeout_s, security.listener_name) == (1, "PLAINTEXT")

    async def ask(self, address: Address, request: FetchRequest, _: type[FetchResponse]) -> FetchResponse:
        return await self.world.ask(address, request)

    def close(self) -> None:
        """Close nothing: nothing is open."""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = LeaderChannel.world = World(tmp_path)
    monkeypatch.setattr(replication, "Channel", LeaderChannel)
    yield made
    made.leader.close()
    made.log.close()


def sample(loops: Replication, name: str) -> float:
    """Return the value of a metric."""
    return next(one.value for one in loops._samples() if one.name.endswith(name))


async def settled(loops: Replication) -> None:
    """Wait until the partition has failed."""
    async with asyncio.timeout(60):
        while not sample(loops, "failedpartitionscount"):  # noqa: ASYNC110 - a state of a log in threads
            await asyncio.sleep(0)


@pytest.mark.parametrize(("size", "is_in_thread"), [(100, False), (300_000, True)])
def test_records_are_copied_the_large_ones_in_threads(
    world: World, monkeypatch: pytest.MonkeyPatch, size: int, is_in_thread: bool
) -> None:
    work = replication._outcome_of

    def outcome_of(*arguments: Any) -> Any:
        world.threads.add(threading.current_thread().name)
        return work(*arguments)

    monkeypatch.setattr(replication, "_outcome_of", outcome_of)
    append(world.leader, batch(1, value=b"x" * size))
    loops = asyncio.run(world.follow(lambda: world.log.high_watermark == 1))
    assert values(world.log) == values(world.leader)
    assert any(name.startswith("worker") for name in world.threads) is is_in_thread
    assert set(world.asked) == {Address("leader", 9092)}
    assert sample(loops, "replicationbytesin_total") == world.leader.size_bytes
    assert sample(loops, "maxlag") == 0


class Limit:
    """A limit of bytes per second that is used up until the test raises it."""

    def __init__(self, world: World) -> None:
        self.value = 1.0
        self._polls = 0
        self._world = world
        world.quota = ReplicationQuota(FOLLOWER, NODE, Window(11, 1000), lambda: self.value)
        world.quota.record(1 << 40, SystemTime().monotonic_ms())
        world.log.update_config(LogConfig({world.quota.key: f"0:{NODE}"}))
        append(world.leader, batch(1))

    def raise_it(self) -> bool:
        """Raise the limit after a while in which nothing was asked for; return whether the record came."""
        self._polls += 1
        if self._polls == 100:
            assert not self._world.asked
            self.value = 2.0**63
        return self._world.log.log_end_offset == 1


def test_a_throttled_replica_is_not_fetched_beyond_its_limit(world: World) -> None:
    asyncio.run(world.follow(Limit(world).raise_it))
    assert world.asked


def test_a_replica_in_the_isr_is_fetched_beyond_the_limit(world: World) -> None:
    """acks=all waits for it."""
    Limit(world)
    world.isr = (LEADER, NODE)
    asyncio.run(world.follow(lambda: world.log.log_end_offset == 1))
    assert world.quota is not None
    assert world.quota.byte_rate(SystemTime().monotonic_ms()) > 1 << 36


def test_an_unreachable_leader_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.failures = 5
    append(world.leader, batch(1))
    asyncio.run(world.follow(lambda: world.log.log_end_offset == 1))
    assert caplog.text.count("cannot fetch from leader 2: cut off") == 1


def test_damaged_records_are_counted_and_fetched_again(world: World) -> None:
    append(world.leader, batch(1))
    spoils = iter([True, True])
    world.spoil = lambda records: records[:-1] + b"!" if records and next(spoils, False) else records
    loops = asyncio.run(world.follow(lambda: world.log.log_end_offset == 1))
    assert sample(loops, "invalidmessagecrcrecords_total") == 2


@pytest.mark.parametrize("has_records", [True, False])
def test_a_log_out_of_service_is_fetched_no_more(world: World, has_records: bool) -> None:
    """Each fetch would bring a replica that has all records back into the ISR."""

    async def fail(loops: Replication) -> None:
        world.log.take_out_of_service(KafkaStorageError("the disk is gone"))
        if has_records:
            append(world.leader, batch(1))
        await settled(loops)
        before = len(world.asked)
        loops.take_topic(world.topic(FOLLOWED._replace(leader_epoch=EPOCH + 1)))
        await loops.share_out()
        await settled(loops)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(world.asked) == before

    loops = asyncio.run(world.follow(lambda: len(world.asked) == 1, fail))
    assert sample(loops, "failedpartitionscount") == 0, "none is left"


def test_a_partition_that_is_led_here_is_fetched_no_more(world: World) -> None:
    """The task of a leader ends with its last partition."""

    async def lead(loops: Replication) -> None:
        loops.take_topic(world.topic(FOLLOWED._replace(leader=NODE, leader_epoch=EPOCH + 1)))
        await loops.share_out()
        before = len(world.asked)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(world.asked) == before
        assert sample(loops, "replicationbytesin_total") == world.leader.size_bytes

    append(world.leader, batch(1))
    asyncio.run(world.follow(lambda: world.log.log_end_offset == 1, lead))


def test_partitions_that_a_fetch_loop_could_not_take_are_given_to_it_by_the_next_call(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = ReplicaFetcher.take

    async def refuse(_self: ReplicaFetcher, _partitions: Any) -> None:
        raise MemoryError

    async def move(loops: Replication) -> None:
        loops.take_topic(world.topic(FOLLOWED._replace(leader=NEXT_LEADER, leader_epoch=EPOCH + 1)))
        monkeypatch.setattr(ReplicaFetcher, "take", refuse)
        with pytest.raises(MemoryError):
            await loops.share_out()
        monkeypatch.setattr(ReplicaFetcher, "take", take)
        await loops.share_out()
        async with asyncio.timeout(60):
            while Address("next", 9092) not in world.asked:  # noqa: ASYNC110 - a state of a log in threads
                await asyncio.sleep(0)

    append(world.leader, batch(1))
    asyncio.run(world.follow(lambda: world.log.log_end_offset == 1, move))


def test_a_new_leader_is_asked_when_the_work_of_the_last_one_is_done(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cut that still runs would take away records of the new leader, which that one counts on by then."""
    is_begun, may_end = threading.Event(), threading.Event()
    do = Following.do

    def wait_and_do(self: Following, work: Work) -> bool:
        is_begun.set()
        assert may_end.wait(60)
        return do(self, work)

    async def move(loops: Replication) -> None:
        next_state = FOLLOWED._replace(leader=NEXT_LEADER, leader_epoch=EPOCH + 1)
        loops.take_topic(world.topic(next_state))
        moving = asyncio.create_task(loops.share_out())
        for _ in range(50):
            await asyncio.sleep(0)
        asked = set(world.asked)
        may_end.set()
        await moving
        assert asked == {Address("leader", 9092)}
        async with asyncio.timeout(60):
            while Address("next", 9092) not in world.asked:  # noqa: ASYNC110 - a state of a log in threads
                await asyncio.sleep(0)

    monkeypatch.setattr(replication, "IN_THREAD_BYTES", 0)
    monkeypatch.setattr(Following, "do", wait_and_do)
    append(world.leader, batch(1))
    asyncio.run(world.follow(is_begun.is_set, move))
    assert values(world.log) == values(world.leader)


def test_many_topics_that_change_leader_are_looked_at_once_by_each_task(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task looks at all of its partitions: topic by topic that would be the square of their number."""
    looked_at: list[int] = []
    take = ReplicaFetcher.take

    async def note_and_take(self: ReplicaFetcher, partitions: Any) -> None:
        looked_at.append(len(partitions))
        await take(self, partitions)

    def take_all(loops: Replication, leader: int, epoch: int) -> None:
        states = (FOLLOWED._replace(leader=leader, leader_epoch=epoch),)
        for number in range(100):
            loops.take_topic(TopicImage(f"t{number}", number.to_bytes(16), states, {}, False))

    async def move(loops: Replication) -> None:
        for epoch, leader in enumerate((LEADER, NEXT_LEADER)):
            take_all(loops, leader, epoch)
            looked_at.clear()
            await loops.share_out()
            assert 100 <= sum(looked_at) <= 2 * 101, "what a task keeps, and then what it gets"

    world.failures = 1 << 30
    monkeypatch.setattr(ReplicaFetcher, "take", note_and_take)
    asyncio.run(world.follow(lambda: True, move))


def test_an_image_after_the_end_begins_no_task(world: World) -> None:
    """The logs are closed next."""
    loops = asyncio.run(world.follow(lambda: True))
    loops.take_topic(world.topic(FOLLOWED._replace(leader=NEXT_LEADER, leader_epoch=EPOCH + 1)))
    asyncio.run(loops.share_out())
    assert not loops._tasks


def test_a_deleted_topic_is_fetched_no_more(world: World) -> None:
    async def remove(loops: Replication) -> None:
        loops.remove_topic(world.topic(FOLLOWED))
        await loops.share_out()
        before = len(world.asked)
        await asyncio.sleep(0)
        assert len(world.asked) == before

    append(world.leader, batch(1))
    asyncio.run(world.follow(lambda: world.log.log_end_offset == 1, remove))


def test_a_defect_in_a_partitions_work_fails_it_and_is_seen(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr("tidelog.broker.replica.replication.following.Following.do", fail)
    append(world.leader, batch(1))
    asyncio.run(world.follow(lambda: len(world.asked) == 1, settled))
    assert "is not followed any more" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_a_loop_that_a_defect_ends_begins_again(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever method of the state machine fails, at whichever step: the follower gets all the leader has."""
    defects = [0, 2, 3, 7]
    take = LeaderFetcher.take_answer
    calls = iter(range(1000))

    def take_answer(state_machine: LeaderFetcher, *arguments: Any) -> Any:
        if next(calls) in defects:
            raise ZeroDivisionError
        return take(state_machine, *arguments)

    monkeypatch.setattr(LeaderFetcher, "take_answer", take_answer)
    append(world.leader, batch(1))

    def is_past_all() -> bool:
        if world.log.log_end_offset == world.leader.log_end_offset < 10:
            append(world.leader, batch(1))
        return world.log.log_end_offset == 10

    asyncio.run(world.follow(is_past_all))
    assert values(world.log) == values(world.leader)
    assert caplog.text.count("the fetch loop for leader 2 failed, and begins again") == len(defects)


def test_a_log_that_could_not_be_opened_is_followed_once_it_can_be(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A new image may not come for hours, and until then the partition would lack a copy."""
    append(world.leader, batch(1))
    world.unopened = [KafkaStorageError("no room"), MemoryError(), *3 * [KafkaStorageError("no room")]]
    asyncio.run(world.follow(lambda: world.log.log_end_offset == 1))
    assert caplog.text.count("t-0 is not followed") == 3, "a reason that stays is logged once"


async def test_the_loop_opens_no_log_that_is_to_be_followed(tmp_path: Path) -> None:
    """A new replica's log was not created at once, for lack of room; opening it waits for the disk."""
    data = DataBroker(tmp_path)
    is_full = True

    def open_log() -> UnifiedLog:
        if is_full:
            raise KafkaStorageError("no room")
        return data.log_manager.get_or_create_log(partition.topic_partition, TOPIC_ID, LogConfig({}))

    name = TopicPartition("t", 0)
    partition = Partition(
        name, TOPIC_ID, FOLLOWED, node_id=NODE, is_internal=False, purgatory=cast("Any", None), open_log=open_log,
        is_unopened=partial(data.log_manager.is_unopened, name), in_thread=run_now, proofs=cast("Any", None),
    )  # fmt: skip
    with ThreadPoolExecutor(1) as executor:
        broker = SimpleNamespace(
            node_id=NODE, time=SystemTime(), executor=executor, log_manager=data.log_manager,
            replica_manager=SimpleNamespace(partition_by_id=lambda *_: partition),
        )  # fmt: skip
        fetcher = ReplicaFetcher(FetcherId(LEADER, 0), CONFIG, cast("Broker", broker), lambda _: Address("leader", 1))
        await fetcher.take({FetchKey(TOPIC_ID, 0): FollowedEpoch("t", EPOCH)})
        assert fetcher.failed_count == 1
        is_full = False
        await fetcher.follow_again()
        assert fetcher.failed_count == 0
    data.close()


async def test_a_leader_without_an_address_is_named_with_the_reason(world: World) -> None:
    loops = Replication(cast("Broker", SimpleNamespace(node_id=NODE)), RemoteController(IMAGE, NODE), CONFIG, SETTINGS)
    with pytest.raises(ChannelError, match="broker 77 is not registered"):
        loops._address(77)
    plain = IMAGE.brokers[LEADER]._replace(endpoints=())
    elsewhere = RemoteController(IMAGE._replace(brokers={LEADER: plain}), NODE)
    loops = Replication(cast("Broker", SimpleNamespace(node_id=NODE)), elsewhere, CONFIG, SETTINGS)
    with pytest.raises(ChannelError, match="broker 2 has no listener PLAINTEXT"):
        loops._address(LEADER)


class OneThread(Executor):
    """Executor that has one thread, whose work the test ends; it cannot start another."""

    def __init__(self) -> None:
        self.begun: list[Future[Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Note the work, but only the first."""
        if self.begun:
            raise RuntimeError("can't start new thread")
        self.begun.append(Future())
        return self.begun[0]


async def test_work_in_threads_ends_before_an_error_lets_other_loops_have_the_partitions() -> None:
    """A truncation that still ran could remove what the next leader's loop has appended."""
    executor, keys = OneThread(), [FetchKey(TOPIC_ID, number) for number in range(2)]
    broker = cast("Broker", SimpleNamespace(executor=executor))
    loop = ReplicaFetcher(FetcherId(LEADER, 0), CONFIG, broker, lambda _: Address("leader", 1))
    log = SimpleNamespace(topic_partition="t-0", is_serving=True)
    loop._followed = dict.fromkeys(keys, cast("Following", SimpleNamespace(log=log, position=(0, -1, 0))))
    applying = asyncio.ensure_future(loop._apply([TruncateTo(key, EPOCH, 0) for key in keys]))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not applying.done()
    executor.begun[0].set_result(True)
    with pytest.raises(RuntimeError, match="can't start"):
        await applying
