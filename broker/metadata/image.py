"""Topics and feature levels as clients see them: a cache of the metadata, which requests read.

Owned by the loop thread. The metadata log decides which topics there are. A new topic enters the cache, so that clients
see it, after this broker has created its first logs; its other logs may be created at their first use. A ``TopicImage``
is immutable: a change replaces it, and the reader of the old one goes on with the topic as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tidelog.broker.metadata.metadata_image import TOPIC_RESOURCE, MetadataImage, PartitionState, TopicState
from tidelog.log.config import TOPIC_CONFIG_DEF
from tidelog.protocol.errors import InvalidTopicError

GROUP_METADATA_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
SHARE_GROUP_STATE_TOPIC = "__share_group_state"
# Clients see these as internal: consumers leave them out of pattern subscriptions, tools hide them.
INTERNAL_TOPICS = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC})


MIGRATING_DIRECTORY = bytes(16)
"""Directory of a replica that is older than the ids of directories (DirectoryId.MIGRATING, KIP-858)."""
UNASSIGNED_DIRECTORY = (1).to_bytes(16, "big")
"""Directory of a replica whose broker has not reported the directory yet (DirectoryId.UNASSIGNED)."""
LOST_DIRECTORY = (2).to_bytes(16, "big")
"""Directory of a replica that its broker cannot serve, because its log or its disk failed (DirectoryId.LOST). The
controller does not elect such a replica.
"""
LAST_RESERVED_DIRECTORY = (99).to_bytes(16, "big")
"""Largest reserved id: no log directory has this one or a smaller one."""
MAX_VIRTUAL_TOPICS = 10_000
"""Largest number of virtual topics (``virtual_names``) whose ids are kept. A client that uses a dropped id has to ask
by name again.
"""


def single_replica_states(
    node_id: int, count: int, leader_epoch: int = 0, directory: bytes = UNASSIGNED_DIRECTORY
) -> tuple[PartitionState, ...]:
    """Return the states of ``count`` partitions whose only replica is on ``node_id``; all share one object."""
    state = PartitionState((node_id,), (node_id,), node_id, leader_epoch, directories=(directory,))
    return (state,) * count


class TopicImage(NamedTuple):
    """One topic at one moment. ``configs`` has the topic's own overrides as texts, without defaults.

    Without a cluster, the leader epoch of its partitions is 0. Only partitions taken over from Apache Kafka have
    another: it is not smaller than any that their logs and clients have seen.
    """

    name: str
    topic_id: bytes
    partitions: tuple[PartitionState, ...]
    configs: Mapping[str, str]
    is_internal: bool
    source: str | None = None
    """For a virtual topic, the name of the topic whose records it shows."""

    @property
    def partition_count(self) -> int:
        """The number of partitions."""
        return len(self.partitions)


def base_of(name: str) -> str:
    """Return the topic that a virtual topic of this name reads; any other name as it is."""
    if "?" not in name and "..." not in name:
        return name
    from tidelog.broker.metadata.virtual_names import base_name

    return base_name(name)


def is_view_of(topic_id: bytes, name: str, view_id: bytes) -> bool:
    """Return whether ``view_id`` is the id of the virtual topic ``name`` of the topic with this id, which need not
    exist any more."""
    if "?" not in name and "..." not in name:
        return False
    from tidelog.broker.metadata.virtual_names import virtual_id

    return virtual_id(name, topic_id) == view_id


def topic_image(image: MetadataImage, topic: TopicState) -> TopicImage:
    """Return a topic of an image, with those of its own configs that this version knows."""
    texts = image.configs.get((TOPIC_RESOURCE, topic.name))
    own = {key: text for key, text in texts.items() if key in TOPIC_CONFIG_DEF.keys} if texts else {}
    return TopicImage(topic.name, topic.topic_id, topic.partitions, own, topic.name in INTERNAL_TOPICS)


class MetadataCache:
    """Topics by name and by id, and feature levels. Loop thread only."""

    __slots__ = ("_virtual_ids", "changes", "features", "features_epoch", "topic_names", "topics")

    def __init__(self) -> None:
        #: Number of additions, changes and removals of topics so far. While it is the same, no topic has changed.
        self.changes = 0
        self.features: dict[str, int] = {}
        self.features_epoch = 0
        self.topics: dict[str, TopicImage] = {}
        self.topic_names: dict[bytes, str] = {}
        self._virtual_ids: dict[bytes, None] = {}

    def set_features(self, levels: dict[str, int], epoch: int) -> None:
        """Set the levels of features in force; ``epoch`` is the offset of the newest metadata record."""
        self.features = levels
        self.features_epoch = epoch

    def find(self, name: str) -> TopicImage | None:
        """Return the topic of this name, virtual ones included (``tidelog.broker.metadata.virtual_names``)."""
        image = self.topics.get(name)
        if image is None and ("?" in name or "..." in name):
            return self._find_virtual(name)
        return image

    def _find_virtual(self, name: str) -> TopicImage | None:
        """Return the virtual topic of this name, and keep its id for ``topic_by_id``; None if there is none."""
        from tidelog.broker.metadata.virtual_names import split_name, virtual_id

        try:
            topic, _ = split_name(name)
        except InvalidTopicError:  # no topic may have this name, or it is an ordinary one with three dots
            return None
        base = self.topics.get(topic)
        if base is None:
            return None
        image = base._replace(name=name, topic_id=virtual_id(name, base.topic_id), source=base.name)
        if image.topic_id not in self._virtual_ids:
            if len(self._virtual_ids) >= MAX_VIRTUAL_TOPICS:
                oldest = next(iter(self._virtual_ids))
                del self._virtual_ids[oldest], self.topic_names[oldest]
            self._virtual_ids[image.topic_id] = None
            self.topic_names[image.topic_id] = name
        return image

    def put(self, image: TopicImage) -> None:
        """Add a topic, or replace its last image."""
        self.changes += 1
        self.topics[image.name] = image
        self.topic_names[image.topic_id] = image.name

    def remove(self, name: str) -> None:
        """Remove a deleted topic."""
        self.changes += 1
        image = self.topics.pop(name)
        del self.topic_names[image.topic_id]

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        """Return the topic with this id, or None."""
        name = self.topic_names.get(topic_id)
        if name is None:
            return None
        image = self.find(name)
        return image if image is not None and image.topic_id == topic_id else None
