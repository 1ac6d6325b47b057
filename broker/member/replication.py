"""Replication of partitions that other brokers lead: up to ``num.replica.fetchers`` tasks for each leader.

    fetch -> work that the answer brings, on the loop or in threads -> fetch

The next request is sent when all appends of an answer are done. So a slow disk delays only the tasks that wait for it,
and a task has at most one answer in memory (``replica.fetch.response.max.bytes``). Large appends, truncations, and
appends to topics with ``flush.messages`` run in threads, so that the loop waits for no disk. An append that leaves
``flush.messages`` records or more unsynced ends with a sync. So with ``flush.messages=1`` the next fetch's offset tells
the leader which records would survive a power loss of this broker.

An image changes a task's partitions between two answers, never while one is applied. Loop thread only.

Source: ReplicaFetcherManager, ReplicaFetcherThread of Kafka 4.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tidelog.broker.broker import Broker
from tidelog.broker.cluster.fetching.fetcher import LeaderFetcher, Request
from tidelog.broker.cluster.fetching.fetchers import FetcherId, Fetchers, FollowedEpoch
from tidelog.broker.cluster.fetching.session import FetchKey
from tidelog.broker.cluster.fetching.work import Append, FetcherConfig, FollowedPartition, Work
from tidelog.broker.cluster.quorum import Address
from tidelog.broker.member.config import MemberConfig
from tidelog.broker.member.connections.channel import Channel, ChannelError
from tidelog.broker.member.controller import RemoteController
from tidelog.broker.member.nodes import address_on
from tidelog.broker.metadata.image import TopicImage
from tidelog.broker.metrics.registry import Metrics, Sample
from tidelog.broker.replica.opening import open_logs
from tidelog.broker.replica.partition import Partition
from tidelog.broker.replica.replication.following import Following, following_of
from tidelog.broker.replica.replication.quotas import ReplicationQuota
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.manager import LogManager, count_failures
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.errors import CorruptMessageError, KafkaError, KafkaStorageError
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.protocol.messages.list_offsets import ListOffsetsResponse

logger = logging.getLogger(__name__)

IN_THREAD_BYTES = 256 * 1024
"""Size from which records are appended in a thread: checking so many takes 0.1 ms, and the write may wait for dirty
pages.
"""


class ReplicaFetcher:
    """Task of one fetch loop, which fetches from one leader."""

    def __init__(
        self,
        fetcher_id: FetcherId,
        config: FetcherConfig,
        broker: Broker,
        address: Callable[[int], Address],
        quota: ReplicationQuota | None = None,
    ) -> None:
        """``address`` finds a broker's address by its id in the newest image, or raises ChannelError; ``quota``
        throttles the fetches.
        """
        self.state_machine = LeaderFetcher(config)
        """Decides what is fetched next, and what is done with an answer."""
        self.bytes_in = 0
        """Number of bytes of records that were appended."""
        self.corrupt = 0
        """Number of appends that were refused because their records were damaged."""
        self._id = fetcher_id
        self._broker = broker
        self._address = address
        self._quota = quota
        self._partitions: Mapping[FetchKey, FollowedEpoch] = {}
        self._followed: dict[FetchKey, Following] = {}
        """Partitions whose logs could be opened."""
        self._unopened: dict[FetchKey, str] = {}
        """Reasons why partitions are not followed; a reason that stays the same is logged once."""
        self._failures = 0
        """The result of ``count_failures`` when the partitions were looked at last."""
        self._applying = asyncio.Lock()
        """Held while the work of an answer is done, and while the partitions change."""
        self._wanted = asyncio.Event()
        """Set when the partitions have changed."""
        self._is_reachable = True

    async def take(self, partitions: Mapping[FetchKey, FollowedEpoch]) -> None:
        """Fetch these partitions from now on. Waits until the work of the last answer is done."""
        async with self._applying:
            self._partitions = dict(partitions)
            await self._follow_all()

    async def _take_again(self) -> None:
        """Fetch the same partitions from now on, with those whose logs can be opened, without those whose logs have
        failed.
        """
        async with self._applying:
            await self._follow_all()

    async def _follow_all(self) -> None:
        missing = [key for key in self._partitions if key not in self._followed]
        errors = await open_in_thread(self._broker, missing)
        partitions = self._partitions
        self._failures = count_failures(self._broker.log_manager)
        self._unopened = {key: reason for key, reason in self._unopened.items() if key in partitions}
        found = ((key, followed, self._following_of(key, errors.get(key))) for key, followed in partitions.items())
        opened = {key: (followed, following) for key, followed, following in found if following is not None}
        self._followed = {key: following for key, (_, following) in opened.items()}
        self.state_machine.set_partitions(
            {key: FollowedPartition(*followed, following.position) for key, (followed, following) in opened.items()}
        )
        self._wanted.set()

    async def keep(self, partitions: Mapping[FetchKey, FollowedEpoch]) -> None:
        """Stop fetching partitions that are not among these, or have another epoch. Waits until the work of the last
        answer is done.
        """
        await self.take({key: one for key, one in self._partitions.items() if partitions.get(key) == one})

    async def follow_again(self) -> None:
        """Try again to follow partitions whose logs could not be opened: disk space or descriptors may be free by
        now.
        """
        if len(self._followed) < len(self._partitions):
            await self._take_again()

    def _following_of(self, key: FetchKey, error: Exception | None) -> Following | None:
        """Return the follower's side of a partition; None, after logging the reason, if its log cannot be opened or has
        failed. ``error`` is that of an opening just now.
        """
        former = self._followed.get(key)
        if former is not None and former.log.is_serving:
            return former
        try:
            if error is not None:
                raise error
            partition = self._broker.replica_manager.partition_by_id(*key)
            following = following_of(partition, self._write_checkpoints)
        except Exception as error:  # noqa: BLE001 - logged; the leader's other partitions are followed
            self._note_unopened(key, error)
            return None
        self._unopened.pop(key, None)
        return following

    def _write_checkpoints(self, log: UnifiedLog) -> None:
        """Write the checkpoints that a truncation of the log changes, those of the cleaner and of indices included.
        Any thread. Raises KafkaStorageError.
        """
        write_checkpoints(self._broker.log_manager)
        self._broker.services.lower_checkpoints(log)

    def _note_unopened(self, key: FetchKey, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        if self._unopened.get(key) != reason:
            self._unopened[key] = reason
            defect = None if isinstance(error, KafkaError) else error
            name = TopicPartition(self._partitions[key].topic, key.partition)
            logger.error("%s is not followed: %s", name, reason, exc_info=defect)

    @property
    def failed_count(self) -> int:
        """The number of partitions that are not fetched although this broker should follow them."""
        return self.state_machine.failed_count + len(self._unopened)

    # ---- the task

    async def run_on(self, connect: Callable[[], Channel]) -> None:
        """Fetch until cancelled. After an unexpected error, begin again after a pause, at the ends of the logs."""
        while True:
            try:
                await self._run(connect())
            except Exception:
                logger.exception("the fetch loop for leader %d failed, and begins again", self._id.leader)
            await asyncio.sleep(self.state_machine.config.backoff_ms / 1000)
            self.state_machine = LeaderFetcher(self.state_machine.config)
            await self._take_again()

    async def _run(self, channel: Channel) -> None:
        state_machine, time = self.state_machine, self._broker.time
        try:
            while True:
                if self._failures != count_failures(self._broker.log_manager):
                    await self._take_again()  # a fetch would bring a replica whose log has failed back into the ISR
                request = state_machine.next_request(time.monotonic_ms(), self._find_throttled())
                if request is None:
                    await self._wait()
                elif (answer := await self._ask(channel, request)) is None:
                    state_machine.take_failure(time.monotonic_ms())
                else:
                    async with self._applying:
                        await self._apply(state_machine.take_answer(answer, time.monotonic_ms()))
        finally:
            channel.close()

    def _find_throttled(self) -> Iterable[FetchKey]:
        """Return the partitions that the quota keeps from being fetched now (KIP-73). A partition whose ISR has this
        broker is never among them, because producers with acks=all wait for it.
        """
        quota = self._quota
        if quota is None or not quota.is_exceeded(self._broker.time.monotonic_ms()):
            return ()
        named = [key for key, following in self._followed.items() if is_named(quota, key, following)]
        return [key for key in named if not self._is_in_sync(key)]

    def _is_in_sync(self, key: FetchKey) -> bool:
        topic = self._broker.metadata.topic_by_id(key.topic_id)
        return topic is not None and self._broker.node_id in topic.partitions[key.partition].isr

    async def _wait(self) -> None:
        """Wait until the state machine may have a request, or the partitions change."""
        wake_ms = self.state_machine.wake_ms
        self._wanted.clear()
        left_s = None if wake_ms is None else max(0.0, wake_ms - self._broker.time.monotonic_ms()) / 1000
        try:
            async with asyncio.timeout(left_s):
                await self._wanted.wait()
        except TimeoutError:
            return

    async def _ask(self, channel: Channel, request: Request) -> Any:
        """Return the leader's answer, None if it cannot be reached."""
        kind: type[Any] = FetchResponse if isinstance(request, FetchRequest) else ListOffsetsResponse
        try:
            answer = await channel.ask(self._address(self._id.leader), request, kind)
        except ChannelError as error:
            if self._is_reachable:
                logger.warning("cannot fetch from leader %d: %s", self._id.leader, error)
            self._is_reachable = False
            return None
        self._is_reachable = True
        return answer

    # ---- work

    async def _apply(self, works: list[Work]) -> None:
        """Do the work of one answer: large pieces in threads, in parallel."""
        loop, executor = asyncio.get_running_loop(), self._broker.executor
        threads = []
        try:
            for work in works:
                following = self._followed[work.key]
                if _is_quick(work, following):
                    self._do(work, following)
                else:
                    done = loop.run_in_executor(executor, _outcome_of, following, work)
                    threads.append((work, following, done))
        finally:  # also after an error, such as no thread for the next piece: another task may get the partitions then
            await asyncio.gather(*(done for _, _, done in threads), return_exceptions=True)
        for work, following, done in threads:
            self._settle(work, following, done.result())

    def _do(self, work: Work, following: Following) -> None:
        self._settle(work, following, _outcome_of(following, work))

    def _count(self, work: Append, following: Following) -> None:
        self.bytes_in += len(work.records)
        if self._quota is not None and is_named(self._quota, work.key, following):
            self._quota.record(len(work.records), self._broker.time.monotonic_ms())

    def _settle(self, work: Work, following: Following, outcome: bool | Exception) -> None:
        """Report the outcome of a piece of work to the state machine. An unexpected error fails its partition only."""
        key, epoch, position = work.key, work.leader_epoch, following.position
        if outcome is True:
            if isinstance(work, Append):
                self._count(work, following)
            following.note_moved()
            self.state_machine.resume(key, epoch, position)
            return
        name = following.log.topic_partition
        if isinstance(outcome, KafkaStorageError) and not following.log.is_serving:
            logger.error("%s is not followed any more: %s", name, outcome)
            self.state_machine.fail(key, epoch)
            return
        if isinstance(outcome, Exception) and not isinstance(outcome, KafkaError):
            logger.error("%s is not followed any more, until it has another leader", name, exc_info=outcome)
            self.state_machine.fail(key, epoch)
            return
        if isinstance(outcome, CorruptMessageError):
            self.corrupt += 1
        if isinstance(outcome, KafkaError):
            logger.error("%s is fetched again later: %s", name, outcome)
        self.state_machine.delay(key, epoch, position, self._broker.time.monotonic_ms())


async def open_in_thread(broker: Broker, keys: Iterable[FetchKey]) -> dict[FetchKey, Exception]:
    """Open the logs of these partitions that are not open, in one thread; return the errors. The publisher has tried
    to create the logs of new replicas; a full disk, for example, may have prevented that.
    """
    unopened = {key: found for key in keys if (found := unopened_partition(broker, key)) is not None}
    if not unopened:
        return {}
    try:
        return await asyncio.get_running_loop().run_in_executor(broker.executor, open_logs, unopened)
    except (MemoryError, RuntimeError) as error:  # no thread can be started
        return dict.fromkeys(unopened, error)


def unopened_partition(broker: Broker, key: FetchKey) -> Partition | None:
    """Return a partition whose log is not open, None if it is open or not known."""
    try:
        partition = broker.replica_manager.partition_by_id(*key)
    except Exception:  # noqa: BLE001 - ``_following_of`` meets it again, and logs it
        return None
    return partition if partition.is_unopened else None


def is_named(quota: ReplicationQuota, key: FetchKey, following: Following) -> bool:
    """Return whether the topic's config names this replica as throttled."""
    return quota.names(following.log.config.values[quota.key], key.partition)


def write_checkpoints(manager: LogManager) -> None:
    """Write the offset checkpoints, which the next start reads. Any thread. Raises KafkaStorageError."""
    manager.checkpoint_recovery_points()
    manager.checkpoint_log_start_offsets()
    manager.checkpoint_high_watermarks()


def _is_quick(work: Work, following: Following) -> bool:
    """Return whether a piece of work is short enough for the loop."""
    return isinstance(work, Append) and len(work.records) < IN_THREAD_BYTES and not following.is_synced_at_once


def _outcome_of(following: Following, work: Work) -> bool | Exception:
    """Do a piece of work; return the result of ``Following.do``, or the error that it raised. Any thread."""
    try:
        return following.do(work)
    except Exception as error:  # noqa: BLE001 - a defect fails the partition, and is logged with it
        return error


class Replication:
    """All fetch loops of a member."""

    def __init__(
        self,
        broker: Broker,
        controller: RemoteController,
        config: FetcherConfig,
        settings: MemberConfig,
        quota: ReplicationQuota | None = None,
    ) -> None:
        """``quota`` throttles the fetches."""
        self._broker = broker
        self._quota = quota
        self._controller = controller
        self._config = config
        self._fetchers = Fetchers(broker.node_id, settings.replica_fetchers)
        self._tasks: dict[FetcherId, tuple[ReplicaFetcher, asyncio.Task[None]]] = {}
        self._changed: set[FetcherId] = set()
        """Tasks whose partitions have changed since the last ``share_out``."""
        self._sharing = asyncio.Lock()
        self._is_closed = False
        self._bytes_in = self._corrupt = 0
        self._timeout_s = settings.replica_socket_timeout_ms / 1000
        self._security = settings.broker_security

    def take_topic(self, topic: TopicImage) -> None:
        """Note which of a topic's partitions are followed, once their roles are taken; ``share_out`` puts it into
        effect.
        """
        self._changed |= self._fetchers.take_topic(topic.name, topic.topic_id, topic.partitions)

    def remove_topic(self, topic: TopicImage) -> None:
        """Note that a deleted topic is not followed any more; ``share_out`` puts it into effect."""
        self._changed |= self._fetchers.take_topic(topic.name, topic.topic_id, ())

    async def share_out(self) -> None:
        """Hand the noted changes of all topics to the tasks.

        Partitions are first taken from the tasks of their former leaders, when those have ended their work; then other
        tasks get them. A truncation for the former leader that still ran could remove records that the new leader
        counts on. So an error leaves all changes for the next call.
        """
        async with self._sharing:
            changed, self._changed = sorted(self._changed), set()
            if self._is_closed:
                return
            try:
                for fetcher_id in changed:
                    if fetcher_id in self._tasks:
                        await self._tasks[fetcher_id][0].keep(self._fetchers.partitions_of(fetcher_id))
                for fetcher_id in changed:
                    await self._hand(fetcher_id, self._fetchers.partitions_of(fetcher_id))
            except BaseException:
                self._changed.update(changed)
                raise

    async def retry_unopened(self, interval_s: float) -> None:
        """Let the tasks try again at intervals to open logs that could not be opened, until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            async with self._sharing:
                for fetcher, _ in list(self._tasks.values()):
                    await fetcher.follow_again()

    async def _hand(self, fetcher_id: FetcherId, partitions: Mapping[FetchKey, FollowedEpoch]) -> None:
        """Give a task these partitions. The task is started for its first partition, and ended with its last."""
        running = self._tasks.get(fetcher_id)
        if running is None and not partitions:
            return
        if running is None:
            fetcher = ReplicaFetcher(fetcher_id, self._config, self._broker, self._address, self._quota)
            await fetcher.take(partitions)
            self._tasks[fetcher_id] = fetcher, self._broker.loop.create_task(fetcher.run_on(self._channel))
        else:
            await running[0].take(partitions)
            if not partitions:
                self._end(fetcher_id)

    def _end(self, fetcher_id: FetcherId) -> None:
        fetcher, task = self._tasks.pop(fetcher_id)
        self._bytes_in += fetcher.bytes_in
        self._corrupt += fetcher.corrupt
        task.cancel()

    async def close(self) -> None:
        """End all tasks after their present appends. Later images start none, as the logs are closed next."""
        async with self._sharing:
            self._is_closed = True
            for fetcher_id, (fetcher, task) in list(self._tasks.items()):
                await fetcher.take({})
                self._end(fetcher_id)
                await asyncio.gather(task, return_exceptions=True)

    def _channel(self) -> Channel:
        return Channel(self._timeout_s, self._security)

    def _address(self, node_id: int) -> Address:
        broker, listener_name = self._controller.image.brokers.get(node_id), self._security.listener_name
        if broker is None:
            raise ChannelError(f"broker {node_id} is not registered")
        address = address_on(broker, listener_name)
        if address is None:
            raise ChannelError(f"broker {node_id} has no listener {listener_name}, to which this broker connects")
        return address

    # ---- metrics

    def measure(self, metrics: Metrics) -> None:
        """Export the followers' metrics of Kafka's ReplicaFetcherManager and BrokerTopicMetrics."""
        metrics.add_source(self._samples)

    def _samples(self) -> Iterator[Sample]:
        fetchers = [fetcher for fetcher, _ in self._tasks.values()]
        prefix = "kafka_server_replicafetchermanager_"
        yield Sample(f"{prefix}maxlag", "gauge", {}, max((one.state_machine.max_lag for one in fetchers), default=0))
        yield Sample(f"{prefix}failedpartitionscount", "gauge", {}, sum(one.failed_count for one in fetchers))
        topics = "kafka_server_brokertopicmetrics_"
        bytes_in = self._bytes_in + sum(one.bytes_in for one in fetchers)
        yield Sample(f"{topics}replicationbytesin_total", "counter", {}, bytes_in)
        corrupt = self._corrupt + sum(one.corrupt for one in fetchers)
        yield Sample(f"{topics}invalidmessagecrcrecords_total", "counter", {}, corrupt)
