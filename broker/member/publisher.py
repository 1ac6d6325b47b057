"""Publisher of the cluster's images to the parts of this broker: one image at a time, each part in one fixed order.

    ACLs, features, configs, quotas   those of a lone node, by ``broker/publishers.py``
    topics that went away     hidden, then their logs are removed in a thread
    topics that came, changed logs of led partitions are made in a thread, then the topic is shown and roles are taken
    internal topics           coordinators load what this broker leads now, and forget what it does not

Before the first one, at a start, the logs of all topics are opened in several threads.

Source: BrokerMetadataPublisher of Kafka 4.3. Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from tidelog.broker.broker import Broker
from tidelog.broker.member.controller import RemoteController
from tidelog.broker.member.replication import Replication
from tidelog.broker.member.roles import MemberRoles
from tidelog.broker.metadata.delta import MetadataDelta
from tidelog.broker.metadata.image import TopicImage, topic_image
from tidelog.broker.metadata.metadata_image import TOPIC_RESOURCE, MetadataImage, TopicState
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.protocol.errors import KafkaStorageError

logger = logging.getLogger(__name__)

OPENING_THREADS = 4
"""Threads that open logs at a start: most of an opening is waiting for the file system."""
LOGS_AT_A_TIME = 32
"""Partitions of one topic that a thread opens in a row."""

TOPICS_PER_TURN = 100
COORDINATORS = "tidelog.broker.coordinator.coordinators"


class MetadataPublisher:
    """Hands images on to the parts of one broker."""

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
        noting_errors = self._controller.publishers.noting_errors
        for topic_id, topic in delta.topics.changed.items():
            if topic is None:
                with noting_errors(f"deleted topic {delta.topics.old[topic_id].name}", image):
                    await self._remove(topic_id)
        for number, topic_id in enumerate(self._topics_to_show(delta, image)):
            topic = image.topics[topic_id]
            with noting_errors(f"topic {topic.name}", image):
                await self._show(image, topic)
            if number % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
                await asyncio.sleep(0)
        if delta.brokers.changed:
            with noting_errors("roles", image):
                self._roles.take_brokers()

    def _topics_to_show(self, delta: MetadataDelta, image: MetadataImage) -> Iterable[bytes]:
        changed = dict.fromkeys(topic_id for topic_id, topic in delta.topics.changed.items() if topic is not None)
        for kind, name in delta.configs.changed:
            if kind == TOPIC_RESOURCE and (topic_id := image.topic_ids.get(name)) is not None:
                changed[topic_id] = None
        return changed

    # ---- topics

    async def _remove(self, topic_id: bytes) -> None:
        """Forget a topic that was deleted, and remove its logs."""
        shown = self._broker.metadata.topic_by_id(topic_id)
        if shown is None:
            return
        replicas = self._broker.replica_manager
        self._broker.metadata.remove(shown.name)
        await self._replication.remove_topic(shown)
        if await self._in_thread(replicas.remove_logs(shown), f"logs of the deleted topic {shown.name} stay"):
            replicas.topic_deleted(shown)
        self._broker.services.forget_topic(shown)

    async def _show(self, image: MetadataImage, topic: TopicState) -> None:
        """Show a topic that came or changed, and take this broker's roles in it."""
        broker, replicas = self._broker, self._broker.replica_manager
        before = broker.metadata.topics.get(topic.name)
        shown = topic_image(image, topic)
        new = replicas_of(shown, broker.node_id) - (set() if before is None else replicas_of(before, broker.node_id))
        if new:
            await self._in_thread(replicas.make_logs(shown, sorted(new)), f"logs of {topic.name} cannot be made")
        gone = set() if before is None else replicas_of(before, broker.node_id) - replicas_of(shown, broker.node_id)
        broker.metadata.put(shown)
        replicas.take_roles(shown)
        await self._replication.take_topic(shown)
        if gone:
            await self._in_thread(replicas.remove_replicas(shown, sorted(gone)), f"logs of {topic.name} stay")
        if before is None:
            replicas.topic_created(shown, 0)
        elif before.configs != shown.configs:
            replicas.topic_configs_changed(shown)
        if shown.is_internal:
            broker.imports.then(COORDINATORS, lambda: broker.services.coordinators.get().take_roles(topic.name))

    async def _in_thread(self, work: Callable[[], None], complaint: str) -> bool:
        """Do work that waits for the disk; return whether it succeeded."""
        try:
            await self._broker.loop.run_in_executor(self._broker.executor, work)
        except KafkaStorageError as error:
            logger.error("%s: %s", complaint, error)
            return False
        return True


def replicas_of(topic: TopicImage, node_id: int) -> set[int]:
    """Return the partitions that have a replica on a broker."""
    return {index for index, state in enumerate(topic.partitions) if node_id in state.replicas}


async def make_own_logs(broker: Broker, image: MetadataImage, replication: Replication) -> list[TopicPartition]:
    """Open the logs that this broker has by the image, or make them, and take their roles; return which are empty.
    Raises KafkaStorageError."""
    topics = [topic_image(image, topic) for topic in image.topics.values()]
    own = [(shown, indexes) for shown in topics if (indexes := sorted(replicas_of(shown, broker.node_id)))]
    await open_logs(broker, own)
    empty = broker.replica_manager.empty_logs()
    for number, (shown, _) in enumerate(own):
        broker.replica_manager.take_roles(shown)
        if number % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
            await asyncio.sleep(0)
    await replication.take_topics(shown for shown, _ in own)
    return empty


async def open_logs(broker: Broker, own: Iterable[tuple[TopicImage, Sequence[int]]]) -> None:
    """Open these partitions' logs in several threads. Raises KafkaStorageError, when no thread works any more."""
    steps = [
        broker.replica_manager.make_logs(shown, indexes[first : first + LOGS_AT_A_TIME])
        for shown, indexes in own
        for first in range(0, len(indexes), LOGS_AT_A_TIME)
    ]
    parts = [partial(take_steps, steps[number::OPENING_THREADS]) for number in range(OPENING_THREADS)]
    threads = [broker.loop.run_in_executor(broker.executor, part) for part in parts]
    for ended in await asyncio.gather(*threads, return_exceptions=True):
        if ended is not None:
            raise ended


def take_steps(steps: Sequence[Callable[[], None]]) -> None:
    """Take steps one after the other. Any thread."""
    for step in steps:
        step()
