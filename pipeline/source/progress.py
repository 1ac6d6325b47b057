"""``commitGroup``: a stream's progress as committed offsets of a consumer group, so that tools that show lag see it.

Spark keeps the position that counts in its checkpoint; nothing is ever read back from the group. So after a failed
connection or a retriable error, a warning is logged and the next commit includes these offsets. A refusal (for example
because the group has members) is an error, because a retry does not help.
"""

from __future__ import annotations

import logging

from tidelog.client.cluster import GROUP, Cluster, Trouble, ask, is_passing, raise_for_code
from tidelog.pipeline.errors import OptionError, PipelineError
from tidelog.pipeline.options.offset_json import PartitionOffsets
from tidelog.pipeline.options.options import SourceOptions
from tidelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

logger = logging.getLogger(__name__)

#: The newest version of OffsetCommit that names topics by their names, not their ids.
_BY_NAME = 9
TIMEOUT_S = 10.0


class GroupProgress:
    """Commits a stream's positions to one group; does nothing without ``commitGroup``. One thread."""

    def __init__(self, options: SourceOptions) -> None:
        """Raises OptionError for a group without ``kafka.bootstrap.servers``."""
        if options.commit_group is not None and options.bootstrap is None:
            raise OptionError(f"commitGroup={options.commit_group} needs kafka.bootstrap.servers to commit to")
        self._group = options.commit_group
        self._bootstrap = options.bootstrap or ""
        self._security = options.security
        self._reached: PartitionOffsets | None = None
        self._committed: PartitionOffsets | None = None

    def note_progress(self, offsets: PartitionOffsets) -> None:
        """Note that records below ``offsets`` are processed."""
        self._reached = offsets

    def commit(self) -> None:
        """Commit the noted offsets if they differ from the last commit. Raises PipelineError when the broker refuses
        it."""
        if self._group is None or not self._reached or self._reached == self._committed:
            return
        try:
            self._send(self._group, self._reached)
        except Trouble as error:
            if not is_passing(error):
                raise PipelineError(f"commitGroup={self._group}: {error}") from error
            logger.warning(
                "progress of group %s was not committed, the next commit includes it: %s", self._group, error
            )
        else:
            self._committed = self._reached

    def _send(self, group: str, offsets: PartitionOffsets) -> None:
        request = OffsetCommitRequest(
            group_id=group,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=number, committed_offset=offset, committed_metadata=""
                        )
                        for number, offset in partitions.items()
                    ],
                )
                for topic, partitions in offsets.items()
            ],
        )
        with Cluster(self._bootstrap, TIMEOUT_S, self._security) as cluster:
            answer = ask(cluster.coordinator(group, GROUP), request, OffsetCommitResponse, _BY_NAME)
        for topic in answer.topics:
            for partition in topic.partitions:
                raise_for_code(partition.error_code, f"OffsetCommit of {topic.name}-{partition.partition_index}")
