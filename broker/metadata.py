"""What this broker knows of the cluster's topics: the picture that every request reads.

Owned by the loop thread. The store is the truth; this is its picture in memory, changed only by the TopicManager after
the store has committed. A ``TopicImage`` is immutable: a change puts a new one in its place, so who holds one sees one
moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

GROUP_METADATA_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
SHARE_GROUP_STATE_TOPIC = "__share_group_state"
# Clients see these as internal: consumers leave them out of pattern subscriptions, tools hide them.
INTERNAL_TOPICS = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC})


class TopicImage(NamedTuple):
    """One topic at one moment. ``configs`` are the topic's own overrides, as texts, without defaults.

    ``leader_epoch`` is that of all its partitions: 0, or for a topic taken over from another broker one that is larger
    than any its logs and its clients have seen.
    """

    name: str
    topic_id: bytes
    partition_count: int
    configs: Mapping[str, str]
    is_internal: bool
    leader_epoch: int = 0


class MetadataCache:
    """Topics by name and by id, and feature levels; read without waiting, on the loop thread."""

    __slots__ = ("changes", "features", "features_epoch", "topic_names", "topics")

    def __init__(self) -> None:
        #: Counts the topics that came, changed and went: who works with them sees whether to look again.
        self.changes = 0
        self.features: dict[str, int] = {}
        self.features_epoch = 0
        self.topics: dict[str, TopicImage] = {}
        self.topic_names: dict[bytes, str] = {}

    def put(self, image: TopicImage) -> None:
        """Show this image from now on in place of the topic's last one."""
        self.changes += 1
        self.topics[image.name] = image
        self.topic_names[image.topic_id] = image.name

    def remove(self, name: str) -> None:
        """Forget a deleted topic."""
        self.changes += 1
        image = self.topics.pop(name)
        del self.topic_names[image.topic_id]

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        """The topic with this id, or None."""
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]
