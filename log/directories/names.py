"""Names of partition directories: of served partitions, and of those that were deleted or put aside as strays."""

from __future__ import annotations

import os

from tidelog.log.files.topic_partition import TopicPartition

DELETE_DIRECTORY_SUFFIX = "-delete"
_RESERVED_SUFFIXES = (DELETE_DIRECTORY_SUFFIX, "-stray", "-future")
_MAX_NAME_BYTES = 255
METADATA_DIRECTORY = "__cluster_metadata-0"
"""Directory of a KRaft node's metadata log, which lies beside the partition directories."""


def partition_of_name(name: str) -> TopicPartition | None:
    """Return the partition of a directory name; None for any other name, and for a directory that is deleted, put aside
    or being moved. ``METADATA_DIRECTORY`` is not told apart from partitions."""
    if name.endswith(_RESERVED_SUFFIXES):
        return None
    try:
        return TopicPartition.parse(name)
    except ValueError:
        return None


def name_aside(partition: TopicPartition, suffix: str) -> str:
    """Build the name that a partition's directory gets when its log is deleted or put aside as a stray.

    It is ``<topic>-<partition>.<id><suffix>``, with the topic cut so that the whole has at most 255 bytes.

    The id is random: a counter or a time could repeat the name of a directory that an earlier process left.
    """
    ending = f"-{partition.partition}.{os.urandom(16).hex()}{suffix}"
    return partition.topic[: _MAX_NAME_BYTES - len(ending)] + ending
