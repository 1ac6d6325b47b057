"""Publisher of the cluster's images to the parts of this broker: one image at a time, each part in one fixed order.

    ACLs, features, configs, quotas   those of a lone node, by ``broker/publishers.py``
    topics that went away     hidden, the fetch loops let them go, then their logs are removed in a thread
    topics that came, changed logs of led partitions are made in a thread, then the topic is shown and roles are taken
    fetch loops               each is told once an image what changed in all topics: it looks at all its partitions
    internal topics           coordinators load what this broker leads now, and forget what it does not

Before the first one, at a start, the logs of all topics are opened.

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
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.protocol.errors import KafkaStorageError

logger = logging.getLogger(__name__)

SAVING_THREADS = 4
"""Threads that write leader epochs at a start: nearly all of that is waiting for the disk. Opening a log is work: four
threads would take each other's turns at the interpreter, and three times as long as one."""

PARTITIONS_PER_TURN = 100
"""Partitions after which heartbeats, requests and fetches get their turn on the loop."""
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
        await self._remove_topics(delta, image)
        await self._show_topics(delta, image)
        if delta.brokers.changed:
            with self._noting_errors("roles", image):
                self._roles.take_brokers()

    def _noting_errors(self, part: str, image: MetadataImage) -> AbstractContextManager[None]:
        """Return a context that logs and counts what a part raises: the others go on."""
        return self._controller.publishers.noting_errors(part, image)

    async def _share_out(self, image: MetadataImage) -> None:
        """Have the fetch loops follow what was noted of all topics of an image."""
        with self._noting_errors("fetch loops", image):
            await self._replication.share_out()

    # ---- topics that went away

    async def _remove_topics(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Forget topics that were deleted, and remove their logs."""
        hidden = []
        for topic_id, topic in delta.topics.changed.items():
            shown = self._broker.metadata.topic_by_id(topic_id)
            if topic is None and shown is not None:
                with self._noting_errors(f"deleted topic {shown.name}", image):
                    self._hide(shown)
                    hidden.append(shown)
        if hidden:
            await self._share_out(image)
        for shown in hidden:
            with self._noting_errors(f"deleted topic {shown.name}", image):
                await self._remove_logs(shown)

    def _hide(self, shown: TopicImage) -> None:
        self._broker.metadata.remove(shown.name)
        self._replication.remove_topic(shown)

    async def _remove_logs(self, shown: TopicImage) -> None:
        replicas = self._broker.replica_manager
        if await self._in_thread(replicas.remove_logs(shown), f"logs of the deleted topic {shown.name} stay"):
            replicas.topic_deleted(shown)
        self._broker.services.forget_topic(shown)

    # ---- topics that came or changed

    async def _show_topics(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Show topics that came or changed, and take this broker's roles in them: each fetch loop is told once."""
        changes = []
        turns = Turns()
        for topic_id in topics_to_show(delta, image):
            topic = image.topics[topic_id]
            change = TopicChange(self._broker.metadata.topics.get(topic.name), topic_image(image, topic))
            with self._noting_errors(f"topic {topic.name}", image):
                await self._show(change)
                changes.append(change)
            await turns.end(change.after)
        if changes:
            await self._share_out(image)
        for change in changes:
            with self._noting_errors(f"topic {change.after.name}", image):
                await self._end_change(change)
            await turns.end(change.after)

    async def _show(self, change: TopicChange) -> None:
        """Show a topic with the logs that it has here now, and take its roles."""
        replicas, shown = self._broker.replica_manager, change.after
        new = change.replicas_after(self._broker.node_id) - change.replicas_before(self._broker.node_id)
        if new:
            make = replicas.make_logs(shown, sorted(new), is_coming=True)
            await self._in_thread(make, f"logs of {shown.name} cannot be made")
        self._broker.metadata.put(shown)
        replicas.take_roles(shown)
        self._replication.take_topic(shown)

    async def _end_change(self, change: TopicChange) -> None:
        """Remove logs that are not followed any more, and tell those who wait for the topic."""
        broker, replicas, (before, shown) = self._broker, self._broker.replica_manager, change
        gone = change.replicas_before(broker.node_id) - change.replicas_after(broker.node_id)
        if gone:
            await self._in_thread(replicas.remove_replicas(shown, sorted(gone)), f"logs of {shown.name} stay")
        if before is None:
            replicas.topic_created(shown, 0)
        elif before.configs != shown.configs:
            replicas.topic_configs_changed(shown)
        if shown.is_internal:
            broker.imports.then(COORDINATORS, lambda: broker.services.coordinators.get().take_roles(shown.name))

    async def _in_thread(self, work: Callable[[], None], complaint: str) -> bool:
        """Do work that waits for the disk; return whether it succeeded."""
        try:
            await self._broker.loop.run_in_executor(self._broker.executor, work)
        except KafkaStorageError as error:
            logger.error("%s: %s", complaint, error)
            return False
        return True


class TopicChange(NamedTuple):
    """A topic as it was shown, None for a new one, and as it is by the image."""

    before: TopicImage | None
    after: TopicImage

    def replicas_before(self, node_id: int) -> set[int]:
        """Return the partitions that had a replica on a broker."""
        return set() if self.before is None else replicas_of(self.before, node_id)

    def replicas_after(self, node_id: int) -> set[int]:
        """Return the partitions that have a replica on a broker."""
        return replicas_of(self.after, node_id)


class Turns:
    """The turns of work on many topics: after some partitions others go on."""

    def __init__(self) -> None:
        self._left = PARTITIONS_PER_TURN

    async def end(self, topic: TopicImage) -> None:
        """Note that the work on a topic is done."""
        self._left -= max(1, len(topic.partitions))
        if self._left <= 0:
            self._left = PARTITIONS_PER_TURN
            await asyncio.sleep(0)


def topics_to_show(delta: MetadataDelta, image: MetadataImage) -> Iterable[bytes]:
    """Return the ids of topics that came, or have other partitions or configs."""
    changed = dict.fromkeys(topic_id for topic_id, topic in delta.topics.changed.items() if topic is not None)
    for kind, name in delta.configs.changed:
        if kind == TOPIC_RESOURCE and (topic_id := image.topic_ids.get(name)) is not None:
            changed[topic_id] = None
    return changed


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
    turns = Turns()
    for shown, _ in own:
        broker.replica_manager.take_roles(shown)
        replication.take_topic(shown)
        await turns.end(shown)
    await replication.share_out()
    return empty


async def open_logs(broker: Broker, own: Iterable[tuple[TopicImage, Sequence[int]]]) -> None:
    """Open these partitions' logs in one thread, then write the leader epochs that this cut, in several. Raises
    KafkaStorageError, when no thread works any more.
    """
    replicas = broker.replica_manager
    opening = [replicas.make_logs(shown, indexes, saves_epochs=False) for shown, indexes in own]
    await in_threads(broker, [opening])
    saving = [one.save for one in replicas.unsaved_epochs()]
    await in_threads(broker, [saving[number::SAVING_THREADS] for number in range(SAVING_THREADS)])


async def in_threads(broker: Broker, parts: Iterable[Sequence[Callable[[], None]]]) -> None:
    """Take the steps of each part in a thread. Raises what one of them raised, when no thread works any more."""
    threads = [broker.loop.run_in_executor(broker.executor, partial(take_steps, part)) for part in parts if part]
    for ended in await asyncio.gather(*threads, return_exceptions=True):
        if ended is not None:
            raise ended


def take_steps(steps: Sequence[Callable[[], None]]) -> None:
    """Take steps one after the other. Any thread."""
    for step in steps:
        step()
