"""DescribeLogDirs: partitions and sizes of logs in each log directory, and the bytes of its file system.

Versions: 2 flexible; 3+ an error for the whole answer; 4+ total and usable bytes (KIP-827); 5 cordoned directories
(KIP-1066). Sizes are read from the directories in a thread, so that no log has to be opened for the answer.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Set
from functools import partial

from tidelog.broker.broker import Broker
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.threads import run_in_thread
from tidelog.broker.metadata.image_records import WITH_CORDONED
from tidelog.broker.requests.context import RequestContext
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError, KafkaStorageError
from tidelog.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

API_KEY = ApiKey.DESCRIBE_LOG_DIRS
MIN_VERSION = 0
MAX_VERSION = 5
Request = DescribeLogDirsRequest

LOG_SUFFIX = ".log"


def handle(
    broker: Broker, context: RequestContext, request: DescribeLogDirsRequest
) -> Deferred[DescribeLogDirsResponse]:
    """Describe the directories in a thread; null topics mean all."""
    counts = {name: image.partition_count for name, image in broker.metadata.topics.items()}
    asked: dict[str, set[int]] | None = None
    if request.topics is not None:
        asked = {}
        for topic in request.topics:
            asked.setdefault(topic.topic, set()).update(topic.partitions)
    failed = {directory.path for directory in broker.log_manager.directories if not directory.is_online}
    cordoned = broker.log_manager.cordoned if broker.controller.level >= WITH_CORDONED else frozenset()
    work = partial(describe_all, broker.config.log_dirs, failed, cordoned, counts, asked)
    return run_in_thread(broker.loop, broker.executor, work, broker.timers.turns)


def describe_all(
    directories: list[str],
    failed: Set[str],
    cordoned: Set[str],
    counts: Mapping[str, int],
    asked: Mapping[str, set[int]] | None,
) -> DescribeLogDirsResponse:
    """Describe all log directories; those in ``failed`` are offline and have KAFKA_STORAGE_ERROR. Any thread."""
    results = []
    for path in map(os.path.abspath, directories):
        if path in failed:
            results.append(DescribeLogDirsResult(error_code=KafkaStorageError.code, log_dir=path))
            continue
        result = describe_directory(path, counts, asked)
        result.is_cordoned = path in cordoned
        results.append(result)
    return DescribeLogDirsResponse(results=results)


def describe_directory(
    path: str, counts: Mapping[str, int], asked: Mapping[str, set[int]] | None
) -> DescribeLogDirsResult:
    """Describe one log directory; if it cannot be read, the result has KAFKA_STORAGE_ERROR."""
    topics: dict[str, list[DescribeLogDirsPartition]] = {}
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                found = partition_of(entry.name, counts)
                if found is None or (asked is not None and found.partition not in asked.get(found.topic, ())):
                    continue
                with contextlib.suppress(FileNotFoundError):  # the topic is being deleted
                    size = log_bytes(entry.path)
                    partition = DescribeLogDirsPartition(partition_index=found.partition, partition_size=size)
                    topics.setdefault(found.topic, []).append(partition)
        room = os.statvfs(path)
    except OSError:
        return DescribeLogDirsResult(error_code=KafkaStorageError.code, log_dir=path)
    return DescribeLogDirsResult(
        log_dir=path,
        topics=[
            DescribeLogDirsTopic(name=name, partitions=sorted(partitions, key=lambda one: one.partition_index))
            for name, partitions in sorted(topics.items())
        ],
        total_bytes=room.f_blocks * room.f_frsize,
        usable_bytes=room.f_bavail * room.f_frsize,
    )


def partition_of(directory_name: str, counts: Mapping[str, int]) -> TopicPartition | None:
    """Return the partition of a directory in a log directory; None if no existing partition has that directory.

    ``counts`` has the number of partitions of each topic.
    """
    try:
        found = TopicPartition.parse(directory_name)
    except ValueError:
        return None
    return found if found.partition < counts.get(found.topic, 0) else None


def log_bytes(path: str) -> int:
    """Return the bytes in a partition's segments; a file that was deleted meanwhile counts as 0 bytes. Raises OSError,
    FileNotFoundError if the directory itself is gone.
    """
    size = 0
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name.endswith(LOG_SUFFIX):
                try:
                    size += entry.stat().st_size
                except FileNotFoundError:
                    continue
    return size


def error_response(request: DescribeLogDirsRequest, error: KafkaError) -> DescribeLogDirsResponse:
    """Build an answer that has only the error."""
    return DescribeLogDirsResponse(error_code=error.code)
