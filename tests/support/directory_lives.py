"""Model of a cluster of two brokers, one of which has real log directories that fail, work again and are replaced.

That broker ("own") runs the real code for directories: locks, logs, and reports to the controllers. The controllers are
a model with Kafka's rules (ELR, elections of brokers whose directory is online). Of the other broker only the records
of its logs are modelled. A record is committed when all replicas have it: both brokers, or the only replica.
"""

from __future__ import annotations

import asyncio
import gc
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from tests.support.failed_directories import READ_ONLY, UNREADABLE, FailedDirectories
from tests.support.logs import batch, values
from tidelog.broker.cluster.lifecycle import BrokerLifecycle, BrokerState, Registration
from tidelog.broker.cluster.quorum import Address, QuorumView
from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.errors import StartError
from tidelog.broker.member.connections.directories import DirectoryReports
from tidelog.broker.member.controller import RemoteController
from tidelog.broker.member.directories import claim_member_directories, clean_stop_of, move_strays
from tidelog.broker.metadata.image import (
    MIGRATING_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    MetadataCache,
    topic_image,
)
from tidelog.broker.metadata.metadata_image import (
    NO_LEADER,
    BrokerRegistration,
    MetadataImage,
    PartitionState,
    TopicState,
)
from tidelog.broker.replica.replica_manager import ReplicaManager
from tidelog.broker.startup import log_manager_of
from tidelog.log.config import LogConfig
from tidelog.log.files.checkpoints import MetaProperties, write_meta_properties
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.manager import LogManager
from tidelog.log.system.time import ManualTime
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest, AssignReplicasToDirsResponse
from tidelog.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse

OWN, OTHER = 1, 2
CLUSTER = "5L6g3nShT-eMCtK--X86sw"
OTHERS_DIRECTORY = b"o" * 16
SHARED, ALONE = "shared", "alone"
COUNTS = {SHARED: 4, ALONE: 3}
TURNS = 30


class Cluster:
    """Model of the controllers for two topics; ``other`` has the records of the other broker's logs."""

    def __init__(self, *, has_elr: bool) -> None:
        self.has_elr = has_elr
        self.states = {
            TopicPartition(topic, number): PartitionState(
                replicas, replicas, directories=(UNASSIGNED_DIRECTORY, OTHERS_DIRECTORY)[: len(replicas)]
            )
            for topic, replicas in ((SHARED, (OWN, OTHER)), (ALONE, (OWN,)))
            for number in range(COUNTS[topic])
        }
        self.other: dict[TopicPartition, list[bytes]] = {one: [] for one in self.states}
        self.active = {OTHER}
        self.directories: frozenset[bytes] = frozenset()
        self.epoch = 0
        self.elections = 0
        self.remote = RemoteController(self.image(), OWN)

    def image(self) -> MetadataImage:
        """Build the current metadata image."""
        topics = {}
        for name, count in COUNTS.items():
            states = tuple(self.states[TopicPartition(name, number)] for number in range(count))
            topics[name.encode().ljust(16)] = TopicState(name, name.encode().ljust(16), states)
        own = BrokerRegistration(OWN, self.epoch, b"i" * 16, (), {}, None, True, False, tuple(self.directories))
        other = own._replace(broker_id=OTHER, is_fenced=OTHER not in self.active, directories=(OTHERS_DIRECTORY,))
        ids = {topic.name: topic_id for topic_id, topic in topics.items()}
        return MetadataImage(offset=self.epoch, topics=topics, topic_ids=ids, brokers={OWN: own, OTHER: other})

    def _change(self, partition: TopicPartition, **changes: Any) -> None:
        self.states[partition] = self.states[partition]._replace(**changes)
        self.remote.image = self.image()

    # ---- decisions of the controllers

    def register(self, directories: tuple[bytes, ...], previous_epoch: int) -> None:
        """Register the next process of this broker, which is fenced at first."""
        is_clean = previous_epoch == self.epoch
        self.epoch += 1
        self.directories = frozenset(directories)
        for partition in self.states:
            self.shrink(partition, OWN, is_clean=is_clean)

    def fence(self, broker: int) -> None:
        """Remove a broker as leader and from the ISR of all partitions."""
        self.active.discard(broker)
        for partition in self.states:
            self.shrink(partition, broker)
        self.remote.image = self.image()

    def unfence(self, broker: int) -> None:
        """Elect a broker for partitions without a leader."""
        self.active.add(broker)
        for partition in self.states:
            self.elect(partition)
        self.remote.image = self.image()

    def shrink(self, partition: TopicPartition, broker: int, *, is_clean: bool = True) -> None:
        """Remove a broker from the ISR. Below min ISR it stays eligible unless it stopped uncleanly (KIP-966);
        without ELR the last broker stays in the ISR."""
        state = self.states[partition]
        if broker in state.replicas:
            isr = tuple(one for one in state.isr if one != broker)
            kept = [one for one in (*state.elr, *state.isr) if one not in isr and (is_clean or one != broker)]
            elr = tuple(dict.fromkeys(kept)) if self.has_elr and len(isr) < len(state.replicas) else ()
            isr = isr if self.has_elr else isr or state.isr
            last = () if isr or elr else (state.last_known_elr or (broker,))
            leader = state.leader if state.leader != broker else NO_LEADER
            self._change(partition, isr=isr, elr=elr, last_known_elr=last, leader=leader)
            self.elect(partition)

    def elect(self, partition: TopicPartition) -> None:
        """Elect a leader of a partition without one: from the ISR, the ELR, or the last known ELR."""
        state = self.states[partition]
        if state.leader == NO_LEADER:
            last = () if state.isr or state.elr else state.last_known_elr
            able = [one for one in (*state.isr, *state.elr, *last) if self._can_lead(state, one)]
            if able:
                self.elections += 1
                isr = state.isr if able[0] in state.isr else (able[0],)
                elr = tuple(one for one in state.elr if one not in isr)
                self._change(
                    partition, leader=able[0], leader_epoch=state.leader_epoch + 1, isr=isr, elr=elr, last_known_elr=()
                )

    def _can_lead(self, state: PartitionState, broker: int) -> bool:
        directory = state.directory_of(broker)
        reserved = (UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY)
        return broker in self.active and (broker == OTHER or directory in reserved or directory in self.directories)

    def join_isr(self, partition: TopicPartition) -> None:
        """Add the follower to the ISR, because it has all records of the leader."""
        self._change(partition, isr=self.states[partition].replicas, elr=(), last_known_elr=())

    def fail_directories(self, directories: frozenset[bytes]) -> None:
        """Handle the report of failed directories: their replicas leave the ISR."""
        self.directories -= directories
        for partition, state in self.states.items():
            if state.directory_of(OWN) in directories:
                self.shrink(partition, OWN)

    async def ask(self, _: Address, request: AssignReplicasToDirsRequest, __: object) -> AssignReplicasToDirsResponse:
        """Handle AssignReplicasToDirs, which reports in which directory each replica is."""
        names = {topic_id: topic.name for topic_id, topic in self.image().topics.items()}
        for one in request.directories:
            for topic in one.topics:
                for found in topic.partitions:
                    self._assign(TopicPartition(names[topic.topic_id], found.partition_index), one.id)
        return AssignReplicasToDirsResponse()

    def _assign(self, partition: TopicPartition, directory: bytes) -> None:
        state = self.states[partition]
        self._change(partition, directories=(directory, *state.directories[1:]))
        if directory not in self.directories:
            self.shrink(partition, OWN)
        self.elect(partition)


class Lives:
    """The own broker: its processes, one after the other, and the failures and changes of its directories."""

    def __init__(self, root: Path, seed: int) -> None:
        gc.collect()  # of an earlier life: frozen garbage would keep its files open
        gc.freeze()  # each start collects garbage, and would traverse all older objects
        self.random = random.Random(seed)
        self.disk = FailedDirectories()
        self.cluster = Cluster(has_elr=self.random.random() < 0.5)
        self.loop = asyncio.new_event_loop()
        self.paths = [str(root / name) for name in "abc"]
        self.configured = list(self.paths)
        self.ids: dict[str, bytes] = {}
        self.formats = 0
        for path in self.paths:
            self.format(path)
        self.manager: LogManager | None = None
        self.locks: list[Any] = []
        self.lifecycle: BrokerLifecycle | None = None
        self.committed: dict[TopicPartition, list[bytes]] = {one: [] for one in self.cluster.states}
        self.written = 0
        """Number of values that were written to leaders."""
        self.commits = 0
        """Number of these that were committed."""
        self.events: list[str] = []

    def format(self, path: str) -> None:
        """Replace the directory by an empty, formatted one."""
        shutil.rmtree(path, ignore_errors=True)
        Path(path).mkdir(parents=True)
        self.formats += 1
        self.ids[path] = self.formats.to_bytes(2, "big") * 8
        write_meta_properties(FailedDirectories(), path, MetaProperties(CLUSTER, OWN, self.ids[path]))

    def close(self) -> None:
        """End the last process."""
        self.stop(is_clean=True)
        self.loop.close()

    # ---- the process

    def start(self) -> None:
        """Start a process, if the directories allow it."""
        config = BrokerConfig({"process.roles": "broker", "node.id": str(OWN), "log.dirs": ",".join(self.configured)})
        gc.collect()  # closes the locks of a refused start, which a real process would close by ending
        try:
            claimed = claim_member_directories(self.disk, config)
        except StartError:
            assert self.configured[0] in self.disk.failed
            return
        assert self.configured[0] not in self.disk.failed
        online = {self.ids[one] for one in self.configured if one not in self.disk.failed}
        assert set(claimed.ids) == online
        cluster = self.cluster
        cluster.register(claimed.ids, clean_stop_of(claimed, cluster.image().brokers[OWN]))
        image = cluster.image()
        self.manager = manager = log_manager_of(config, self.disk, ManualTime(), claimed.claimed)
        self.locks = claimed.claimed.locks
        move_strays(manager, OWN, image)
        manager.startup(None, {}, image.topic_ids)
        assert all(one.is_online for one in manager.directories if one.path not in self.disk.failed)
        before = {one: self.log_of(one) is not None for one in cluster.states}
        replicas = replica_manager(manager)
        for topic in image.topics.values():
            replicas.make_logs(topic_image(image, topic), range(len(topic.partitions)), saves_epochs=False)()
        self._check_made(before, online)
        self.lifecycle = BrokerLifecycle(Registration(OWN, CLUSTER, b"i" * 16, (), {}, None, claimed.ids), 2000)
        self.lifecycle.state, self.lifecycle.broker_epoch = BrokerState.RUNNING, cluster.epoch
        self.loop.run_until_complete(self._begin_news(manager, replicas.empty_logs()))
        self._excuse(online)
        if len(online) < len(self.configured) or self.random.random() < 0.5:
            self.tell()
        cluster.unfence(OWN)

    async def _begin_news(self, manager: LogManager, empty: list[TopicPartition]) -> None:
        assert self.lifecycle is not None
        self.news = DirectoryReports(manager, self.cluster.remote, self.lifecycle, lambda: 0.0, lambda: None)
        self.news.begin(empty)

    def _check_made(self, before: dict[TopicPartition, bool], online: set[bytes]) -> None:
        """Check that no log was created of a partition that may be in a failed directory."""
        if len(online) == len(self.configured):
            return
        for partition, was_there in before.items():
            directory = self.cluster.states[partition].directory_of(OWN)
            if not was_there and self.log_of(partition) is not None:
                assert directory in online, f"{partition} is created again, and may be in a directory that failed"

    def _excuse(self, online: set[bytes]) -> None:
        """Expect no records that an operator has removed, with the directory of a partition's only replica."""
        failed = {self.ids[one] for one in self.configured if one in self.disk.failed}
        for partition, state in self.cluster.states.items():
            directory = state.directory_of(OWN)
            is_gone = directory not in online | failed and is_known(directory)
            if partition.topic == ALONE and is_gone and self.log_of(partition) is not None:
                self.committed[partition] = self.content(partition)

    def tell(self) -> None:
        """Send the controllers the pending reports of this broker."""
        self.loop.run_until_complete(self._tell())

    async def _tell(self) -> None:
        assert self.lifecycle is not None
        channel = cast("Any", self.cluster)
        task = asyncio.ensure_future(self.news.report(channel, QuorumView([Address("a", 1)]), 1e9))
        for _ in range(TURNS):
            await asyncio.sleep(0)
        if not task.done():
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        beat = self.lifecycle.next_question().request
        assert isinstance(beat, BrokerHeartbeatRequest)
        self.cluster.fail_directories(frozenset(beat.offline_log_dirs) & self.cluster.directories)
        self.lifecycle.take_answer(BrokerHeartbeatResponse(is_fenced=False), 0.0)

    def stop(self, *, is_clean: bool) -> None:
        """End the process."""
        manager = self.manager
        if manager is not None:
            self.cluster.fence(OWN)
            if is_clean:
                manager.shutdown(self.cluster.epoch)
            for entry in self.opened():
                try:
                    entry.close()
                except KafkaStorageError:
                    continue
            for lock in self.locks:
                lock.close()
            self.manager = None

    # ---- logs

    def opened(self) -> Iterator[UnifiedLog]:
        """Yield the logs of online directories."""
        assert self.manager is not None
        return self.manager.open_logs()

    def log_of(self, partition: TopicPartition) -> UnifiedLog | None:
        """Return this broker's log of a partition, None if there is none or it is offline."""
        if self.manager is None:
            return None
        try:
            log = self.manager.get_log(partition)
        except KafkaStorageError:
            return None
        return log if log is not None and log.is_serving else None

    def content(self, partition: TopicPartition) -> list[bytes]:
        """Return the records of this broker's log."""
        log = self.log_of(partition)
        assert log is not None
        return [value or b"" for value in values(log).values()]

    # ---- events

    def step(self) -> None:
        """Do one random thing, and check the result."""
        acts = [self.produce, self.produce, self.replicate, self.replicate, self.turn_other]
        acts += (
            [self.fail_running, self.fail_log, self.end]
            if self.manager is not None
            else [self.change_disks, self.change_disks, self.start]
        )
        act = self.random.choice(acts)
        self.events.append(act.__name__)
        act()
        is_told = self.manager is not None and act != self.start and self.random.random() < 0.7
        if is_told:
            self.tell()
        self.check(is_told=is_told)

    def check(self, *, is_told: bool) -> None:
        """Check that this broker has all committed records of partitions that it leads.

        ``is_told``: the controllers know the state of the directories, so each such partition must have a log, or no
        other replica that could lead.
        """
        for partition, state in self.cluster.states.items():
            if self._has_failed_alone(partition, state):
                continue
            if state.leader == OWN and (is_told or self.log_of(partition) is not None):
                assert self.log_of(partition) is not None, f"{partition} is led without a log: {self.events}"
                count = len(self.committed[partition])
                assert self.content(partition)[:count] == self.committed[partition], f"{partition}: {self.events}"

    def _has_failed_alone(self, partition: TopicPartition, state: PartitionState) -> bool:
        """Return whether a partition's log here has failed, and the other broker cannot lead."""
        can_turn = OTHER in self.cluster.active and OTHER in (*state.isr, *state.elr)
        return self.manager is not None and self.manager.is_out_of_service(partition) and not can_turn

    def produce(self) -> None:
        """Write a record to each leader; the record is committed if all replicas are in the ISR."""
        for partition, state in self.cluster.states.items():
            log = self.log_of(partition)
            if state.leader == NO_LEADER or (state.leader == OWN and log is None):
                continue
            self.written += 1
            value = b"%d" % self.written
            if OWN in state.isr and log is not None:
                log.append_as_leader(memoryview(batch(value=value)), state.leader_epoch)
            if OTHER in state.isr:
                self.cluster.other[partition].append(value)
            # If its directory was never reported, no broker can see that a disk with the only replica was removed.
            is_reported = OTHER in state.replicas or is_known(state.directory_of(OWN))
            if set(state.isr) == set(state.replicas) and is_reported:
                self.commits += 1
                others = self.cluster.other[partition]
                self.committed[partition] = list(others) if state.leader == OTHER else self.content(partition)

    def replicate(self) -> None:
        """Let followers catch up: they truncate records that the leader lacks, copy the others, and join the ISR."""
        for partition, state in self.cluster.states.items():
            log, others = self.log_of(partition), self.cluster.other[partition]
            if partition.topic != SHARED or log is None or self.cluster.active != {OWN, OTHER}:
                continue
            own = self.content(partition)
            if state.leader == OWN:
                others[:] = own
            elif state.leader == OTHER:
                same = next(
                    (n for n, (a, b) in enumerate(zip(own, others, strict=False)) if a != b), min(len(own), len(others))
                )
                if same < len(own):
                    log.truncate_to(same)
                for value in others[same:]:
                    log.append_as_leader(memoryview(batch(value=value)), state.leader_epoch)
            if state.leader != NO_LEADER:
                self.cluster.join_isr(partition)

    def turn_other(self) -> None:
        """Stop or start the other broker, whose records stay."""
        if OTHER in self.cluster.active:
            self.cluster.fence(OTHER)
        else:
            self.cluster.unfence(OTHER)

    def fail_running(self) -> None:
        """Let a directory of the running broker fail; without an online directory the broker ends."""
        assert self.manager is not None
        directory = self.random.choice(self.manager.directories)
        self.disk.failed[directory.path] = self.random.choice([UNREADABLE, READ_ONLY])
        directory.state.mark_offline(KafkaStorageError("the disk is gone"))
        if not any(one.is_online for one in self.manager.directories):
            self.stop(is_clean=False)

    def fail_log(self) -> None:
        """Let one log of the running broker fail, whose directory works."""
        logs = list(self.opened())
        if logs:
            log = self.random.choice(logs)
            log.take_out_of_service(KafkaStorageError("a bad sector"))

    def end(self) -> None:
        """Stop or kill the broker."""
        self.stop(is_clean=self.random.random() < 0.6)

    def mend(self) -> None:
        """Let all directories work again, restart the broker, write records, and check the result."""
        self.stop(is_clean=False)
        self.disk.failed.clear()
        self.configured = list(self.paths)
        self.start()
        self.cluster.unfence(OTHER)
        for _ in range(2):
            self.tell()
            self.replicate()
            self.produce()
            self.check(is_told=True)

    def change_disks(self) -> None:
        """Let directories fail or work again, replace them, remove them from log.dirs or add them."""
        for _ in range(self.random.randint(1, 3)):
            self._change_disk(self.random.choice(self.paths))

    def _change_disk(self, path: str) -> None:
        act = self.random.choice(["fail", "heal", "heal", "replace", "configure", "configure"])
        self.events.append(f"{act} {path[-1]}")
        if act == "fail":
            self.disk.failed[path] = self.random.choice([UNREADABLE, READ_ONLY])
        elif act == "heal":
            self.disk.failed.pop(path, None)
        elif act == "replace":
            self.disk.failed.pop(path, None)
            self.format(path)
        elif path in self.configured and len(self.configured) > 1:
            self.configured.remove(path)
        else:
            self.configured = [one for one in self.paths if one in (*self.configured, path)]


def is_known(directory: bytes | None) -> bool:
    """Return whether a replica's directory id in the metadata is that of a directory, not a reserved id."""
    return directory not in (None, UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY)


def replica_manager(manager: LogManager) -> ReplicaManager:
    """Build the replica manager, which creates a member's logs."""
    nothing: Any = lambda *_: None  # noqa: E731 - one for all
    return ReplicaManager(
        metadata=MetadataCache(), log_manager=manager, purgatory=nothing, log_config=lambda _: LogConfig({}),
        in_thread=nothing, node_id=OWN, make_way=nothing, on_log_deleted=nothing, on_index_configs=nothing,
        virtual_partition=nothing,
    )  # fmt: skip
