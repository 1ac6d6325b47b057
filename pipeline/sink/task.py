"""The work of a sink task: its Arrow rows become record batches in one staged file. Runs in executors' Python workers.

A task requests from the broker only each topic's number of partitions, once. Like a producer's Metadata request, this
creates a missing topic if the broker allows it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING
from zlib import crc32

from tidelog.client.cluster import Cluster, Trouble, is_passing
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.options.sink_options import SinkOptions
from tidelog.pipeline.sink.rows import BatchBuilder
from tidelog.pipeline.sink.staging import StagedFile, StagingFile, TaskIdentity

if TYPE_CHECKING:
    import pyarrow as pa

RETRY_S = 0.2
#: How long, in seconds, to wait for the leaders of a topic, for example while it is being created.
TOPIC_WAIT_S = 10.0
_NUMBERS = 1 << 31


class UnknownTopicError(PipelineError):
    """A topic's number of partitions cannot be read.

    The topic is missing and not created, a partition has no leader, or a broker refuses the request or does not answer.
    """


class PartitionCounts:
    """The number of partitions of each topic, which a broker is asked for once. One thread at a time."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._counts: dict[str, int] = {}

    def of(self, topic: str) -> int:
        """Return the number of partitions. Raises UnknownTopicError."""
        if topic not in self._counts:
            self._counts[topic] = self._ask(topic)
        return self._counts[topic]

    def _ask(self, topic: str) -> int:
        deadline = time.monotonic() + min(TOPIC_WAIT_S, self._options.delivery_timeout_ms / 1000)
        while True:
            try:
                with Cluster(
                    self._options.bootstrap, self._options.request_timeout_ms / 1000, self._options.security
                ) as cluster:
                    return len(cluster.leaders(topic, create=True))
            except Trouble as error:
                if not is_passing(error) or time.monotonic() > deadline:
                    raise UnknownTopicError(f"cannot write to topic {topic}: {error}") from error
                time.sleep(RETRY_S)


def _first_partition(task: TaskIdentity) -> int:
    """Return a number by which tasks, batches and writers begin with different partitions for rows without key.

    Otherwise all rows of small batches would go to the first partitions of their topic.
    """
    return (crc32(task.writer.encode()) + task.batch_id + task.partition) % _NUMBERS


def stage_rows(
    rows: Iterator[pa.RecordBatch], task: TaskIdentity, options: SinkOptions, columns: dict[str, int]
) -> StagedFile:
    """Build and stage all of a task's rows. Raises PipelineError."""
    builder = BatchBuilder(
        options=options,
        columns=columns,
        partitions_of=PartitionCounts(options).of,
        first=_first_partition(task),
        keyless_bytes={},
    )
    with StagingFile(options.staging, task) as file:
        for batch in builder.batches(rows):
            file.append(batch.topic, batch.partition, batch.data, batch.records)
        return file.finish()
