"""Records with which a node takes over its metadata log at each start, and what keeps it from doing so.

The log may be new, this node's own, or that of a stopped Apache Kafka whose place this node takes: Kafka leaves
partitions without a leader at a clean stop. Source: ActivationRecordsGenerator and ReplicationControlManager of Kafka
4.3.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.broker.controller.features import first_levels, highest_level
from tidelog.broker.metadata.bootstrap import bootstrap_path, read_bootstrap
from tidelog.broker.metadata.image_records import VersionedRecord, records_of_image
from tidelog.broker.metadata.metadata_image import TOPIC_RESOURCE, MetadataImage
from tidelog.broker.metadata.metadata_log import MetadataPlace
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.metadata_records.records import PartitionChangeRecord

REMOTE_STORAGE = "remote.storage.enable"


def activation_records(place: MetadataPlace, image: MetadataImage, node_id: int) -> Iterator[VersionedRecord]:
    """Yield the first records of a new log, and an election of this node for each partition that it does not lead.

    Raises KafkaStorageError.
    """
    yield from first_records(place, image)
    for topic in image.topics.values():
        for number, state in enumerate(topic.partitions):
            if state.leader != node_id:
                change = PartitionChangeRecord(
                    partition_id=number, topic_id=topic.topic_id, leader=node_id, isr=[node_id]
                )
                yield VersionedRecord(change)


def first_records(place: MetadataPlace, image: MetadataImage) -> list[VersionedRecord]:
    """Return the records of a new log: those of ``bootstrap.checkpoint``, without one the first levels of features.

    A log that has levels gets none. Raises KafkaStorageError.
    """
    if image.features:
        return []
    bootstrap = read_bootstrap(place.environment.file_system, place.log_directory)
    if bootstrap is None:
        return first_levels(image)
    reason = refusal(bootstrap)
    if reason is not None:
        raise KafkaStorageError(f"{bootstrap_path(place.log_directory)}: {reason}")
    return list(records_of_image(bootstrap))


def refusal(image: MetadataImage, *, enforces_acls: bool = False) -> str | None:
    """Return what the metadata have and this broker has not, None where it can serve all they say.

    ACLs need an authorizer: without it every client could do what they forbid.
    """
    for name, level in image.features.items():
        if level > highest_level(name):
            return f"{name} is at level {level}, and this release knows up to {highest_level(name)}"
    if image.acls and not enforces_acls:
        return f"the metadata have {len(image.acls)} ACLs, and without authorizer.class.name nothing would enforce them"
    if image.tokens:
        return f"the metadata have {len(image.tokens)} delegation tokens, which are not served"
    for (kind, name), texts in image.configs.items():
        if kind == TOPIC_RESOURCE and texts.get(REMOTE_STORAGE) == "true":
            return f"part of topic {name} is in remote storage, which is not served"
    return None
