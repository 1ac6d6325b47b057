"""Publisher of the cluster's images to the parts of this broker: one image at a time, the parts in a fixed order.

    ACLs, features, configs, directories, quotas   as in a lone node, by ``broker/publishers.py``; then the cordoned
                              directories are reported to the controllers
    deleted topics            hidden; fetch loops drop them; then their logs are removed in a thread
    new and changed topics    new logs are created in a thread; then the topic is shown and roles are taken
    fetch loops               each gets the changes of all topics of an image in one call, which looks at all partitions
                              of the loop
    internal topics           coordinators load partitions that this broker leads now, and unload those that it does not
    brokers                   leaders learn which brokers are registered and unfenced

At a start, the logs of all this broker's replicas are opened before the first image is published.

Source: BrokerMetadataPublisher of Kafka 4.3. Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple

from tidelog.broker.broker import Broker
from tidelog.broker.member.controller import RemoteController
from tidelog.broker.member.replication import Replication
from tidelog.broker.member.roles import MemberRoles
from tidelog.broker.metadata.delta import MetadataDelta
from tidelog.broker.metadata.image import TopicImage, topic_image
from tidelog.broker.metadata.metadata_image import TOPIC_RESOURCE, MetadataImage
from tidelog.broker.replica.replica_manager import ReplicaManager
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.protocol.errors import KafkaStorageError

logger = logging.getLogger(__name__)

SAVING_THREADS = 4
"""Number of threads that write leader epochs at a start: they mostly wait for the disk. Logs are opened in one thread:
that is work for the interpreter, for which four threads would take three times as long.
"""

PARTITIONS_PER_TURN = 100
"""Number of partitions after which other tasks of the loop, such as heartbeats and requests, go on."""
COORDINATORS = "tidelog.broker.coordinator.coordinators"


class MetadataPublisher:
    """Publishes images to the parts of one broker."""

    def __init__(
        self, broker: Broker, controller: RemoteController, roles: MemberRoles, replication: Replication
    ) -> None:
        self._broker = broker
        self._controller = controller
        self._roles = roles
        self._replication = replication

    async def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Publish an image, and what changed since the last one."""
        self._controller.publish(delta, image)
        await self._remove_topics(delta, image)
        await self._show_topics(delta, image)
        if delta.brokers.changed:
            with self._note_errors("roles", image):
                self._roles.take_brokers()

    def _note_errors(self, part: str, image: MetadataImage) -> AbstractContextManager[None]:
        """Return a context that logs and counts an exception of a part, so that the other parts go on."""
        return self._controller.publishers.note_errors(part, image)

    async def _share_out(self, image: MetadataImage) -> None:
        """Hand the noted changes of all topics to the fetch loops."""
        with self._note_errors("fetch loops", image):
            await self._replication.share_out()

    # ---- deleted topics

    async def _remove_topics(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Remove deleted topics from the cache, and then their logs."""
        hidden = []
        for topic_id, topic in delta.topics.changed.items():
            shown = self._broker.metadata.topic_by_id(topic_id)
            if topic is None and shown is not None:
                with self._note_errors(f"deleted topic {shown.name}", image):
                    self._remove_from_cache(shown)
                    hidden.append(shown)
        if hidden:
            await self._share_out(image)
        for shown in hidden:
            with self._note_errors(f"deleted topic {shown.name}", image):
                await self._remove_logs(shown)

    def _remove_from_cache(self, shown: TopicImage) -> None:
        self._broker.metadata.remove(shown.name)
        self._replication.remove_topic(shown)

    async def _remove_logs(self, shown: TopicImage) -> None:
        replicas = self._broker.replica_manager
        await self._run_in_thread(replicas.remove_logs(shown), f"cannot remove logs of deleted topic {shown.name}")
        replicas.topic_deleted(shown)
        self._broker.services.forget_topic(shown)

    # ---- new and changed topics

    async def _show_topics(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Show new and changed topics, and take this broker's roles in them; each fetch loop gets all changes at
        once.
        """
        changes = []
        turns = Turns()
        for topic_id in topics_to_show(delta, image):
            topic = image.topics[topic_id]
            change = TopicChange(self._broker.metadata.topics.get(topic.name), topic_image(image, topic))
            with self._note_errors(f"topic {topic.name}", image):
                await self._show(change)
                changes.append(change)
            await turns.end(change.after)
        if changes:
            await self._share_out(image)
        for change in changes:
            with self._note_errors(f"topic {change.after.name}", image):
                await self._end_change(change)
            await turns.end(change.after)

    async def _show(self, change: TopicChange) -> None:
        """Create a topic's new logs on this broker, then show the topic and take its roles."""
        replicas, shown = self._broker.replica_manager, change.after
        new = change.replicas_after(self._broker.node_id) - change.replicas_before(self._broker.node_id)
        if new:
            make = replicas.make_logs(shown, sorted(new), is_coming=True)
            await self._run_in_thread(make, f"cannot create the logs of {shown.name}")
        self._broker.metadata.put(shown)
        await take_roles(replicas, shown)
        self._replication.take_topic(shown)

    async def _end_change(self, change: TopicChange) -> None:
        """Remove logs that are not replicas of this broker any more. Then pass the change to the topic's open logs, the
        indexer and, for an internal topic, its coordinators.
        """
        broker, replicas, (before, shown) = self._broker, self._broker.replica_manager, change
        gone = change.replicas_before(broker.node_id) - change.replicas_after(broker.node_id)
        if gone:
            remove = replicas.remove_replicas(shown, sorted(gone))
            await self._run_in_thread(remove, f"cannot remove logs of {shown.name}")
        if before is not None and before.configs != shown.configs:
            replicas.topic_configs_changed(shown)
        elif before is None or change.replicas_after(broker.node_id) - change.replicas_before(broker.node_id):
            replicas.topic_created(shown, 0)
        if shown.is_internal:
            broker.imports.call_when_loaded(
                COORDINATORS, lambda: broker.services.coordinators.get().take_roles(shown.name)
            )

    async def _run_in_thread(self, work: Callable[[], None], complaint: str) -> None:
        """Do work that waits for the disk in a thread; log its failure."""
        try:
            await self._broker.loop.run_in_executor(self._broker.executor, work)
        except KafkaStorageError as error:
            logger.error("%s: %s", complaint, error)


class TopicChange(NamedTuple):
    """A topic as it was shown (None for a new one), and as the new image has it."""

    before: TopicImage | None
    after: TopicImage

    def replicas_before(self, node_id: int) -> set[int]:
        """Return the partitions that had a replica on a broker."""
        return set() if self.before is None else replicas_of(self.before, node_id)

    def replicas_after(self, node_id: int) -> set[int]:
        """Return the partitions that have a replica on a broker."""
        return replicas_of(self.after, node_id)


class Turns:
    """Counter of partitions in work on many topics: after PARTITIONS_PER_TURN of them, other tasks go on."""

    def __init__(self) -> None:
        self._left = PARTITIONS_PER_TURN

    async def end(self, topic: TopicImage) -> None:
        """Note that the work on a topic is done, and let other tasks go on if it is time."""
        self._left -= max(1, len(topic.partitions))
        if self._left <= 0:
            self._left = PARTITIONS_PER_TURN
            await asyncio.sleep(0)


def topics_to_show(delta: MetadataDelta, image: MetadataImage) -> Iterable[bytes]:
    """Return the ids of new topics, and of those whose partitions or configs changed."""
    changed = dict.fromkeys(topic_id for topic_id, topic in delta.topics.changed.items() if topic is not None)
    for kind, name in delta.configs.changed:
        if kind == TOPIC_RESOURCE and (topic_id := image.topic_ids.get(name)) is not None:
            changed[topic_id] = None
    return changed


def replicas_of(topic: TopicImage, node_id: int) -> set[int]:
    """Return the partitions that have a replica on a broker."""
    return {index for index, state in enumerate(topic.partitions) if node_id in state.replicas}


async def take_roles(replicas: ReplicaManager, topic: TopicImage) -> None:
    """Take this broker's roles in a topic, some in each turn: an election of 10,000 partitions takes 0.13 s of CPU."""
    for first in range(0, topic.partition_count, PARTITIONS_PER_TURN):
        if first:
            await asyncio.sleep(0)
        replicas.take_roles(topic, range(first, min(first + PARTITIONS_PER_TURN, topic.partition_count)))


async def make_own_logs(broker: Broker, image: MetadataImage, replication: Replication) -> list[TopicPartition]:
    """Open or create the logs of this broker's replicas in the image, and take their roles; return the empty ones.
    Raises KafkaStorageError.
    """
    topics = [topic_image(image, topic) for topic in image.topics.values()]
    own = [(shown, indexes) for shown in topics if (indexes := sorted(replicas_of(shown, broker.node_id)))]
    await open_logs(broker, own)
    empty = broker.replica_manager.empty_logs()
    turns = Turns()
    for shown, _ in own:
        await take_roles(broker.replica_manager, shown)
        replication.take_topic(shown)
        await turns.end(shown)
    await replication.share_out()
    return empty


async def open_logs(broker: Broker, own: Iterable[tuple[TopicImage, Sequence[int]]]) -> None:
    """Open these partitions' logs in one thread. Then write, in several threads, the leader epochs that the opening has
    changed. Raises KafkaStorageError after all threads have ended.
    """
    replicas = broker.replica_manager
    opening = [replicas.make_logs(shown, indexes, saves_epochs=False) for shown, indexes in own]
    await run_in_threads(broker, [opening])
    saving = [one.save for one in replicas.unsaved_epochs()]
    await run_in_threads(broker, [saving[number::SAVING_THREADS] for number in range(SAVING_THREADS)])


async def run_in_threads(broker: Broker, parts: Iterable[Sequence[Callable[[], None]]]) -> None:
    """Run the steps of each part in a thread of its own. Raises what one of them raised, after all have ended."""
    threads = [broker.loop.run_in_executor(broker.executor, partial(take_steps, part)) for part in parts if part]
    for ended in await asyncio.gather(*threads, return_exceptions=True):
        if ended is not None:
            raise ended


def take_steps(steps: Sequence[Callable[[], None]]) -> None:
    """Run steps one after the other. Any thread."""
    for step in steps:
        step()
