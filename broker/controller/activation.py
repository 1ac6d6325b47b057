"""Records that a node appends to its metadata log at each start, and the checks that it can serve the metadata.

The log may be new, this node's own, or that of a stopped Apache Kafka whose place this node takes: Kafka leaves
partitions without a leader at a clean stop. Source: ActivationRecordsGenerator and ReplicationControlManager of Kafka
4.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tidelog.broker.controller.features import KRAFT_VERSION, first_level, first_levels, highest_level, lowest_level
from tidelog.broker.metadata.bootstrap import bootstrap_path, read_bootstrap
from tidelog.broker.metadata.image_records import METADATA_VERSION, VersionedRecord, change_version, records_of_image
from tidelog.broker.metadata.metadata_image import EMPTY_IMAGE, TOPIC_RESOURCE, MetadataImage, PartitionState
from tidelog.broker.metadata.metadata_log import MetadataLocation
from tidelog.broker.metadata.quorum_state import STATIC_VOTERS, QuorumVoters
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.metadata_records.records import PartitionChangeRecord

REMOTE_STORAGE = "remote.storage.enable"


def activation_records(location: MetadataLocation, image: MetadataImage, node_id: int) -> Iterator[VersionedRecord]:
    """Yield the first records of a new log, and elections of this node: for each partition that it does not lead, and
    for each that has eligible leader replicas or last known ones.

    Raises KafkaStorageError.
    """
    yield from first_records(location, image)
    version = change_version(image.features.get(METADATA_VERSION, first_level(METADATA_VERSION)))
    for topic in image.topics.values():
        for number, state in enumerate(topic.partitions):
            if state.leader != node_id or state.elr or state.last_known_elr:
                yield VersionedRecord(_election(topic.topic_id, number, state, node_id), version)


def _election(topic_id: bytes, number: int, state: PartitionState, node_id: int) -> PartitionChangeRecord:
    """Return the record that makes this node the leader and only member of the ISR, and empties both ELR fields."""
    return PartitionChangeRecord(
        partition_id=number,
        topic_id=topic_id,
        leader=node_id,
        isr=[node_id],
        eligible_leader_replicas=[] if state.elr else None,
        last_known_elr=[] if state.last_known_elr else None,
    )


def first_records(location: MetadataLocation, image: MetadataImage) -> list[VersionedRecord]:
    """Return the records that begin a new log: those of ``bootstrap.checkpoint``, or else the features' first levels.

    A log with feature levels is not new: then there are none. Raises KafkaStorageError.
    """
    if image.features:
        return []
    bootstrap = read_bootstrap(location.environment.file_system, location.log_directory)
    if bootstrap is None:
        return first_levels(image)
    reason = refusal(bootstrap)
    if reason is not None:
        raise KafkaStorageError(f"{bootstrap_path(location.log_directory)}: {reason}")
    return list(records_of_image(bootstrap))


def refusal(image: MetadataImage, voters: QuorumVoters = STATIC_VOTERS, *, enforces_acls: bool = False) -> str | None:
    """Return why this broker cannot serve the metadata, None where it can.

    ACLs need an authorizer: without it every client could do what they forbid.
    """
    reason = level_refusal(image, voters)
    if reason is not None:
        return reason
    if image.acls and not enforces_acls:
        return f"the metadata have {len(image.acls)} ACLs, and without authorizer.class.name nothing would enforce them"
    for (kind, name), texts in image.configs.items():
        if kind == TOPIC_RESOURCE and has_remote_storage(texts):
            return f"part of topic {name} is in remote storage, which is not served"
    return None


def has_remote_storage(texts: Mapping[str, str]) -> bool:
    """Return whether a topic with these configs has tiered storage, by Kafka's rule for booleans."""
    return texts.get(REMOTE_STORAGE, "").strip().lower() == "true"


def level_refusal(image: MetadataImage, voters: QuorumVoters) -> str | None:
    """Return a text about a feature level that this release does not support, None if it supports all.

    Metadata without metadata.version come from a Kafka before 3.3, which did not write it.
    """
    levels = {**image.features, KRAFT_VERSION: voters.kraft_version}
    for name, level in levels.items():
        if level > highest_level(name):
            return f"{name} is at level {level}, and this release knows up to {highest_level(name)}"
    lowest = lowest_level(METADATA_VERSION)
    if image.features.get(METADATA_VERSION, lowest) < lowest:
        return (
            f"{METADATA_VERSION} is at level {image.features[METADATA_VERSION]}, and this release knows {lowest} and up"
        )
    if METADATA_VERSION not in image.features and has_content(image):
        return f"the metadata have no {METADATA_VERSION}: a Kafka before 3.3 wrote them"
    return None


def has_content(image: MetadataImage) -> bool:
    """Return whether an image holds anything but its position in the log."""
    return image._replace(offset=-1, epoch=0, timestamp_ms=-1) != EMPTY_IMAGE
