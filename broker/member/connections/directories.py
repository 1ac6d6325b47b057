"""Reports of a member's log directories to the active controller: what lies in each, which failed, which are cordoned.

    a log was created              assigned to its directory (AssignReplicasToDirs) within half a second; the
                                   controllers assign the only directory of a broker themselves
    a log was found at the start   assigned if the metadata name another directory, because its disk was replaced
    an empty log was found         the same, but not while this replica could be elected and others have copies
    a log fails, its directory works   the replica is assigned to DirectoryId.LOST, if another one can lead
    a directory fails              a heartbeat at once; the controller elects other leaders for its partitions
    no controller confirms that    within ``log.dir.failure.timeout.ms``: the broker ends
    no directory is left           the broker ends
    a directory is cordoned        a heartbeat at once; a broker whose directories are all cordoned gets no replicas

Loop thread only, except ``note_failure``. Source: KIP-858, KIP-1066.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from tidelog.broker.cluster.lifecycle import BrokerLifecycle
from tidelog.broker.cluster.quorum import QuorumView
from tidelog.broker.controller.metadata_controller import Publisher
from tidelog.broker.member.connections.channel import Channel, ChannelError
from tidelog.broker.member.controller import RemoteController
from tidelog.broker.metadata.delta import MetadataDelta
from tidelog.broker.metadata.image import LAST_RESERVED_DIRECTORY, LOST_DIRECTORY
from tidelog.broker.metadata.metadata_image import MetadataImage
from tidelog.broker.replica.replication.replica_directories import ReplicaDirectories
from tidelog.log.environment import DirectoryState
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.manager import LogManager
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.messages.assign_replicas_to_dirs import AssignReplicasToDirsResponse

logger = logging.getLogger(__name__)

ROUND_S = 0.5
"""Interval of assignments in s; those that come meanwhile are sent together."""


class DirectoryReports:
    """Reports about the log directories of one member: assignments of logs, failures, cordoned directories."""

    def __init__(
        self,
        log_manager: LogManager,
        controller: RemoteController,
        lifecycle: BrokerLifecycle,
        now_ms: Callable[[], float],
        beat: Callable[[], None],
    ) -> None:
        """``beat`` makes the next heartbeat leave at once."""
        self._log_manager = log_manager
        self._controller = controller
        self._lifecycle = lifecycle
        self._now_ms = now_ms
        self._beat = beat
        self._replicas = ReplicaDirectories(controller.node_id, self._directory_id_of)
        self._loop = asyncio.get_running_loop()
        self._is_warned = False

    def begin(self, empty: Iterable[TopicPartition] = ()) -> None:
        """Watch the directories, and note all logs for the next report, even if there is one directory only: after its
        disk was replaced, it has another id. ``empty`` are the logs that the start found without a record, or created.
        """
        self._replicas.note_empty(empty)
        for directory in self._log_manager.directories:
            directory.state.add_listener(self.note_failure)
            if not directory.is_online:
                self._fail(directory.state)
        self._note_cordoned()
        self._controller.publishers.subscribe(Publisher("cordoned directories", self._publish))
        for topic in self._controller.image.topics.values():
            self._replicas.note(TopicPartition(topic.name, number) for number in range(len(topic.partitions)))
        self._note_failed()

    def _note_failed(self) -> None:
        """Note the replicas that may lie in failed directories: those that were not found, and those that were found in
        another directory than the metadata name.
        """
        logs = self._log_manager
        working = {one.directory_id for one in logs.directories if one.is_online}
        if len(working) == len(logs.directories):
            return
        for topic in self._controller.image.topics.values():
            for number, state in enumerate(topic.partitions):
                partition, named = TopicPartition(topic.name, number), state.directory_of(self._controller.node_id)
                if named is not None and logs.may_lie_offline(partition):
                    self._replicas.note_lost([partition])
                elif named is not None and named > LAST_RESERVED_DIRECTORY and named not in working:
                    self._replicas.note_displaced([partition])

    def _directory_id_of(self, partition: TopicPartition) -> bytes | None:
        """Return the id of a log's directory, LOST_DIRECTORY if the log cannot be served; None if there is no log."""
        logs = self._log_manager
        return LOST_DIRECTORY if logs.is_out_of_service(partition) else logs.directory_id_of(partition)

    def _publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if delta.configs.changed:
            self._note_cordoned()
            self._beat()

    def _note_cordoned(self) -> None:
        cordoned = self._log_manager.cordoned
        named = (one.directory_id for one in self._log_manager.directories if one.path in cordoned)
        self._lifecycle.note_cordoned(frozenset(one for one in named if one is not None), self._now_ms())

    def note_failure(self, state: DirectoryState) -> None:
        """Report a failed directory to the controller. Any thread."""
        self._loop.call_soon_threadsafe(self._fail, state)

    def _fail(self, state: DirectoryState) -> None:
        for directory in self._log_manager.directories:
            if directory.state is state and directory.directory_id is not None:
                self._lifecycle.note_offline(directory.directory_id, self._now_ms())
        self._beat()

    async def report(self, channel: Channel, quorum: QuorumView, limit_ms: float) -> None:
        """Send assignments, until cancelled. Raises KafkaStorageError when this broker cannot go on: no directory is
        left, or no controller has confirmed a failed one within ``limit_ms``.
        """
        while True:
            self._check(limit_ms)
            for changed in (self._log_manager.placed, self._log_manager.environment.service_changes):
                self._replicas.note(changed.popleft() for _ in range(len(changed)))
            request = self._replicas.next_request(self._controller.image, self._lifecycle.broker_epoch)
            self._warn()
            if request is not None:
                try:
                    answer = await channel.ask(quorum.address, request, AssignReplicasToDirsResponse)
                except ChannelError as error:
                    logger.info("cannot assign replicas to log directories, trying again: %s", error)
                else:
                    if answer.error_code:
                        logger.info(
                            "cannot assign replicas to log directories, trying again: error %d", answer.error_code
                        )
            await asyncio.sleep(ROUND_S)

    def _warn(self) -> None:
        """Log once that some logs are not assigned until another replica leads or the operator elects this one."""
        if self._replicas.held_back and not self._is_warned:
            self._is_warned = True
            logger.warning(
                "%d logs are empty although the cluster's metadata expect records in them, or are in another directory"
                " than the metadata name while a directory has failed: this broker does not report them, as"
                " other replicas may have better copies. Where no other can lead, kafka-leader-election --election-type"
                " unclean elects this one",
                self._replicas.held_back,
            )

    def _check(self, limit_ms: float) -> None:
        if not any(directory.is_online for directory in self._log_manager.directories):
            raise KafkaStorageError("no log directory works")
        if self._lifecycle.has_unconfirmed_failure(self._now_ms() - limit_ms):
            raise KafkaStorageError(
                "no controller confirmed the failure of a log directory within log.dir.failure.timeout.ms"
            )
