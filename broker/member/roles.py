"""Roles of a member's replicas (leader, follower), and the ISR of each partition with followers that the member leads.

    a new leader epoch in an image   the epoch is noted in the log before the first fetch is answered, and the
                                     partition gets a new ``LeaderState``
    each half of replica.lag.time.max.ms, after an unclean election,
    and when a follower outside the ISR reaches the high watermark
                                     ISR changes are proposed; all proposals that wait go in one request

Loop thread only. Source: ReplicaManager.applyDelta and AlterPartitionManager of Kafka 4.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from functools import partial

from tidelog.broker.cluster.alter_partition import RETRY_MS, AlterPartitions, PartitionKey
from tidelog.broker.cluster.quorum import QuorumView
from tidelog.broker.loop.threads import InThread
from tidelog.broker.loop.timers import TimerQueue
from tidelog.broker.member.connections.channel import Channel, ChannelError
from tidelog.broker.member.controller import RemoteController
from tidelog.broker.metadata.metadata_image import PartitionState
from tidelog.broker.metrics.registry import Metrics, Sample
from tidelog.broker.replica.opening import LogOpener
from tidelog.broker.replica.partition import Partition
from tidelog.broker.replica.replication.leading import LeaderParts, Leading, begin_leading
from tidelog.broker.replica.replication.quotas import ReplicationQuota
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.errors import KafkaError, KafkaStorageError, NotLeaderOrFollowerError
from tidelog.protocol.messages.alter_partition import AlterPartitionResponse

logger = logging.getLogger(__name__)

PREFIX = "kafka_server_replicamanager_"
NOT_OPEN_YET = "its log is being opened"
"""The reason why a partition is not led while a thread opens its log."""
CHECKED_PER_TURN = 1000
"""Number of led partitions whose ISR is checked in one turn of the loop, in 3 ms of CPU."""


class MemberRoles:
    """Decides the roles of this broker's replicas by the newest image."""

    def __init__(
        self,
        controller: RemoteController,
        timers: TimerQueue,
        lag_time_max_ms: int,
        in_thread: InThread,
        quota: ReplicationQuota | None = None,
    ) -> None:
        self._controller = controller
        self._in_thread = in_thread
        self._unsaved: list[UnifiedLog] = []
        """Logs with a new leader epoch that is not written to their checkpoint files yet."""
        self._is_saving = False
        self._timers = timers
        self._lag_time_max_ms = lag_time_max_ms
        self._parts = LeaderParts(timers, lag_time_max_ms, self._propose, self._save_later, quota)
        self._led: dict[PartitionKey, Leading] = {}
        self._unopened: dict[Partition, tuple[PartitionState, str]] = {}
        """Partitions that this broker should lead, with their state and the reason why they are not led yet."""
        self._opener = LogOpener(in_thread, self._end_opening)
        self._proposals = AlterPartitions(controller.node_id)
        self._wanted = asyncio.Event()
        self._shrinks = self._expands = 0

    # ---- roles

    def set_role(self, partition: Partition, state: PartitionState) -> None:
        """Begin or stop leading a partition, as ``state`` of a newer image says."""
        leading = partition.leading
        if state.leader != self._controller.node_id or len(state.replicas) < 2:
            self._unopened.pop(partition, None)
            self._resign(partition, leading)
            if partition.is_leader:
                partition.commit_all()
        elif leading is not None and leading.leader_state.leader_epoch == state.leader_epoch:
            leading.take_image(state, self._controller.image.brokers)
        else:
            self._lead(partition, state)

    def drop(self, partition: Partition) -> None:
        """End the role of this broker in a partition whose log is deleted."""
        self._unopened.pop(partition, None)
        self._resign(partition, partition.leading)

    def take_brokers(self) -> None:
        """Give the image's brokers to the leaders: some were registered, removed, fenced or unfenced."""
        for leading in self._led.values():
            leading.take_brokers(self._controller.image.brokers)

    def _lead(self, partition: Partition, state: PartitionState) -> None:
        """Begin to lead a partition in a new leader epoch, once its log is open; put it off if that fails."""
        partition.is_leader = False  # else records would count as committed before ``leading`` is set
        if partition.is_unopened:  # its log could not be opened before: there was no room, for example
            former = self._unopened.get(partition)
            self._unopened[partition] = state, NOT_OPEN_YET if former is None else former[1]
            self._resign(partition, partition.leading)
            self._opener.open_later(partition)
            return
        try:
            leading = begin_leading(partition, state, self._controller.image.brokers, self._parts)
        except KafkaError as error:
            self._put_off(partition, state, error)
            return
        self._unopened.pop(partition, None)
        partition.is_leader = True
        if partition.leading is not None:
            self._forget(partition.leading)
        self._led[leading.key] = leading
        partition.begin_commits(leading)  # a leader alone in the ISR commits without a fetch
        if leading.leader_state.is_recovering:
            self._propose(leading)

    def _end_opening(self, partition: Partition, error: Exception | None) -> None:
        """Lead a partition whose log is open, if the newest image still says so; put it off after an error."""
        state, _ = self._unopened.get(partition, (None, ""))
        if state is None:
            return
        if error is not None:
            self._put_off(partition, state, error)
        else:
            self._lead(partition, state)

    def _put_off(self, partition: Partition, state: PartitionState, error: Exception) -> None:
        """Note that a partition is to be led later; a reason that stays the same is logged once."""
        former = self._unopened.get(partition)
        defect = None if isinstance(error, KafkaError) else error
        reason = str(error) if defect is None else repr(defect)
        if former is None or former[1] != reason:
            logger.error("%s cannot be led: %s", partition.topic_partition, reason, exc_info=defect)
        self._unopened[partition] = state, reason
        self._resign(partition, partition.leading)

    def lead_again(self) -> None:
        """Try again to lead partitions whose logs could not be opened: disk space or descriptors may be free by now."""
        for partition, (state, _) in list(self._unopened.items()):
            try:
                partition.take_over(state)
            except Exception as error:  # noqa: BLE001 - noted with the partition; the others are led
                self._put_off(partition, state, error)

    def _save_later(self, log: UnifiedLog) -> None:
        """Write the leader epochs of this log in a thread, together with those of other logs that come meanwhile. If a
        crash loses them, a start takes the epochs of the records: clients and followers have not seen others.
        """
        self._unsaved.append(log)
        if not self._is_saving:
            self._save()

    def _save(self) -> None:
        logs, self._unsaved = self._unsaved, []
        self._is_saving = bool(logs)
        if logs:
            self._in_thread(partial(save_epochs, logs)).on_done(lambda _: self._save(), self._end_saving)

    def _end_saving(self, _: Exception) -> None:
        """Note after an unexpected error that no thread saves; the next log starts one for all that are left."""
        self._is_saving = False

    def _resign(self, partition: Partition, leading: Leading | None) -> None:
        """Stop leading a partition."""
        if leading is not None:
            self._forget(leading)
            partition.leading = None

    def _forget(self, leading: Leading) -> None:
        self._led.pop(leading.key, None)
        self._shrinks += leading.leader_state.shrinks_total
        self._expands += leading.leader_state.expands_total
        leading.close(NotLeaderOrFollowerError())

    # ---- the ISR

    def _propose(self, leading: Leading) -> None:
        proposal = leading.propose()
        if proposal is not None:
            self._proposals.submit(leading.key, proposal)
            self._wanted.set()

    async def check_isr(self) -> None:
        """Propose ISR changes at intervals, and try again to lead partitions whose logs could not be opened, until
        cancelled.
        """
        while True:
            await asyncio.sleep(self._lag_time_max_ms / 2000)
            self.lead_again()
            await self.propose_changes()

    async def propose_changes(self) -> None:
        """Propose an ISR for each led partition whose committed ISR is not right, CHECKED_PER_TURN in each turn."""
        for number, (key, leading) in enumerate(list(self._led.items()), 1):
            if self._led.get(key) is leading:  # still, after the turns before
                self._propose(leading)
            if not number % CHECKED_PER_TURN:
                await asyncio.sleep(0)

    async def alter_partitions(self, channel: Channel, quorum: QuorumView, broker_epoch: int) -> None:
        """Send proposals to the active controller, until cancelled."""
        proposals = self._proposals
        while True:
            wake_ms = proposals.wake_ms
            if wake_ms is None:
                self._wanted.clear()
                await self._wanted.wait()
                continue
            if wake_ms > self._timers.monotonic_ms():
                await asyncio.sleep(RETRY_MS / 1000)
            request = proposals.next_request(broker_epoch, self._timers.monotonic_ms())
            if request is None:
                continue
            try:
                answer = await channel.ask(quorum.address, request, AlterPartitionResponse)
            except ChannelError as error:
                logger.info("cannot propose ISR changes, trying again: %s", error)
                proposals.take_failure(self._timers.monotonic_ms())
            else:
                self._take_answer(answer)

    def _take_answer(self, answer: AlterPartitionResponse) -> None:
        if answer.error_code:
            logger.info("cannot propose ISR changes, trying again: error %d", answer.error_code)
        for key, proposal, decided in self._proposals.take_answer(answer, self._timers.monotonic_ms()):
            leading = self._led.get(key)
            if leading is not None:
                leading.take_answer(proposal, decided)

    # ---- metrics

    def measure(self, metrics: Metrics) -> None:
        """Export the leaders' metrics of Kafka's ReplicaManager."""
        metrics.add_source(self._samples)

    def _samples(self) -> Iterator[Sample]:
        states = [leading.leader_state for leading in self._led.values()]
        gauges = {
            "underreplicatedpartitions": sum(len(state.isr) < len(state.replicas) for state in states),
            "underminisrpartitioncount": sum(state.is_under_min_isr for state in states),
            "atminisrpartitioncount": sum(len(state.isr) == state.effective_min_isr for state in states),
        }
        for name, value in gauges.items():
            yield Sample(PREFIX + name, "gauge", {}, value)
        shrinks = self._shrinks + sum(state.shrinks_total for state in states)
        expands = self._expands + sum(state.expands_total for state in states)
        yield Sample(PREFIX + "isrshrinks_total", "counter", {}, shrinks)
        yield Sample(PREFIX + "isrexpands_total", "counter", {}, expands)


def save_epochs(logs: list[UnifiedLog]) -> None:
    """Write the leader epochs of these logs. Any thread."""
    for log in logs:
        try:
            log.leader_epochs.save()
        except KafkaStorageError as error:
            logger.error("cannot write the leader epochs of %s: %s", log.topic_partition, error)
