"""Difference between two metadata images as a delta, which publishers get when a snapshot has replaced the image.

Source: MetadataDelta.finishSnapshot of Kafka 4.3.
"""

from __future__ import annotations

from typing import Any

from tidelog.broker.metadata.delta import MapChanges, MetadataDelta
from tidelog.broker.metadata.metadata_image import MetadataImage

_MAPPINGS = (
    "features", "brokers", "controllers", "topics", "topic_ids", "configs", "quotas", "scram", "acls", "tokens",
)  # fmt: skip


def difference(old: MetadataImage, new: MetadataImage) -> MetadataDelta:
    """Return the changes that lead from ``old`` to ``new``. Only the mappings and ``producer_ids`` are set.
    ``deletions`` stays empty: a member finds deleted topics in ``topics.changed``."""
    delta = MetadataDelta(old)
    for name in _MAPPINGS:
        changes: MapChanges[Any, Any] = getattr(delta, name)
        after = getattr(new, name)
        for key, value in after.items():
            if changes.old.get(key) != value:
                changes.put(key, value)
        for key in changes.old.keys() - after.keys():
            changes.remove(key)
    delta.producer_ids = new.producer_ids
    return delta
