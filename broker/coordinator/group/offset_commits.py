"""OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete for the groups of one partition, and expiry of offsets.

A commit makes one record per partition. Partitions that cannot be committed (unknown topic, metadata too large) get
their own errors; the others are committed. From v10 on, OffsetCommit and OffsetFetch name topics by id; the offsets are
stored by topic name, as in Kafka.

Retention (KIP-211): offsets expire ``offsets.retention.minutes`` after an event. In a group with members the event is
the commit, and only offsets of topics that no member reads expire. In a classic group with members none expires while
the group is not stable, or its members' subscriptions are not known. In an empty classic group the event is that the
group became empty; in other empty groups, and those that never had members, it is the commit. An offset that an old
client committed with a retention time of its own expires at the end of that time instead, under
the same conditions.

Source: OffsetCommit v0-10, TxnOffsetCommit v0-5, OffsetFetch v0-10, OffsetDelete v0; KIP-447 (require stable).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from tidelog.broker.coordinator.group.offsets import OffsetAndMetadata, OffsetStore
from tidelog.broker.coordinator.group.records import offset_tombstone
from tidelog.broker.coordinator.runtime.result import CoordinatorRecord, CoordinatorResult, ProducerStamp
from tidelog.broker.loop.steps import Steps, apply_each
from tidelog.log.system.retention_clock import RetentionClock
from tidelog.protocol.coordinator_records.group import OffsetCommitKey, OffsetCommitValue
from tidelog.protocol.errors import (
    NONE,
    GroupSubscribedToTopicError,
    OffsetMetadataTooLargeError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from tidelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from tidelog.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from tidelog.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from tidelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from tidelog.protocol.types import ZERO_UUID

if TYPE_CHECKING:
    from tidelog.broker.coordinator.config import GroupConfig
    from tidelog.broker.coordinator.group.replay import Group
    from tidelog.broker.metadata.image import MetadataCache
    from tidelog.log.system.time import Time

INVALID_OFFSET = -1
MAX_INT64 = 2**63 - 1
EXPIRY_PART = 128
"""Number of offsets and groups after which a step of expiry ends, and largest number of offsets in one part: about 1 ms
of work."""

TopicPartitionKey = tuple[str, int]


class OffsetCommits:
    """Builds the records and responses of requests for offsets; ``OffsetStore`` has the offsets. Loop thread only."""

    def __init__(self, offsets: OffsetStore, *, metadata: MetadataCache, time: Time, config: GroupConfig) -> None:
        self._offsets = offsets
        self._metadata = metadata
        self._time = time
        self._config = config
        self.expiry_clock = RetentionClock(time)

    def partitions_of(self, request: OffsetCommitRequest | TxnOffsetCommitRequest) -> Iterator[tuple[bytes, int]]:
        """Yield the topic ids and partitions of a request. Topics whose names do not exist are left out; they get
        errors later."""
        for topic in request.topics:
            topic_id = topic.topic_id if isinstance(topic, OffsetCommitRequestTopic) else ZERO_UUID
            if topic_id == ZERO_UUID:
                image = self._metadata.find(topic.name)
                if image is None:
                    continue
                topic_id = image.topic_id
            for partition in topic.partitions:
                yield bytes(topic_id), partition.partition_index

    def named_partitions_of(self, request: OffsetCommitRequest | TxnOffsetCommitRequest) -> Iterator[tuple[str, int]]:
        """Yield the topic names and partitions of a request, without topics that do not exist."""
        for topic_id, partition in self.partitions_of(request):
            image = self._metadata.topic_by_id(topic_id)
            if image is not None:
                yield image.name, partition

    # -- OffsetCommit -------------------------------------------------------------------------------------------

    def commit(self, request: OffsetCommitRequest) -> CoordinatorResult[OffsetCommitResponse]:
        """Commit offsets of a request whose member was checked already."""
        now_ms = self._time.milliseconds()
        expire_ms = -1 if request.retention_time_ms < 0 else min(now_ms + request.retention_time_ms, MAX_INT64)
        records: list[CoordinatorRecord] = []
        response = OffsetCommitResponse(
            topics=[self._commit_topic(request.group_id, topic, now_ms, expire_ms, records) for topic in request.topics]
        )
        return CoordinatorResult(response, records)

    def _commit_topic(
        self,
        group_id: str,
        topic: OffsetCommitRequestTopic,
        now_ms: int,
        expire_ms: int,
        records: list[CoordinatorRecord],
    ) -> OffsetCommitResponseTopic:
        name: str | None = topic.name
        error_code = NONE
        if topic.topic_id != ZERO_UUID:
            name = name_of(self._metadata, topic.topic_id)
            error_code = UnknownTopicIdError.code if name is None else NONE
        partition_count = self._partition_count(name)
        response = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
        answers = response.partitions = []
        for partition in topic.partitions:
            partition_error = error_code
            if partition_error == NONE:
                partition_error = self._check(partition_count, partition.partition_index, partition.committed_metadata)
            if partition_error == NONE:
                records.append(_commit_record(group_id, name or "", partition, now_ms, expire_ms))
            answers.append(
                OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=partition_error)
            )
        return response

    def _partition_count(self, topic: str | None) -> int:
        image = None if topic is None else self._metadata.find(topic)
        return 0 if image is None else image.partition_count

    def _check(self, partition_count: int, partition: int, metadata: str | None) -> int:
        """Return the error code of a commit for one partition, NONE if it is valid."""
        if not 0 <= partition < partition_count:
            return UnknownTopicOrPartitionError.code
        if metadata is not None and len(metadata) > self._config.offset_metadata_max_bytes:
            return OffsetMetadataTooLargeError.code
        return NONE

    # -- TxnOffsetCommit ----------------------------------------------------------------------------------------

    def commit_in_transaction(self, request: TxnOffsetCommitRequest) -> CoordinatorResult[TxnOffsetCommitResponse]:
        """Commit offsets in the producer's transaction: they are pending until its marker is written."""
        records: list[CoordinatorRecord] = []
        response = TxnOffsetCommitResponse(
            topics=[self._commit_topic_in_transaction(request.group_id, topic, records) for topic in request.topics]
        )
        stamp = ProducerStamp(request.producer_id, request.producer_epoch)
        return CoordinatorResult(response, records, stamp=stamp)

    def _commit_topic_in_transaction(
        self, group_id: str, topic: TxnOffsetCommitRequestTopic, records: list[CoordinatorRecord]
    ) -> TxnOffsetCommitResponseTopic:
        now_ms = self._time.milliseconds()
        partition_count = self._partition_count(topic.name)
        answers = []
        for partition in topic.partitions:
            error_code = self._check(partition_count, partition.partition_index, partition.committed_metadata)
            if error_code == NONE:
                key = OffsetCommitKey(group=group_id, topic=topic.name, partition=partition.partition_index)
                value = OffsetCommitValue(
                    offset=partition.committed_offset,
                    leader_epoch=partition.committed_leader_epoch,
                    metadata=partition.committed_metadata or "",
                    commit_timestamp=now_ms,
                )
                records.append(CoordinatorRecord(key, value))
            answers.append(
                TxnOffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error_code)
            )
        return TxnOffsetCommitResponseTopic(name=topic.name, partitions=answers)

    # -- OffsetFetch --------------------------------------------------------------------------------------------

    def fetch(
        self, request: OffsetFetchRequestGroup, *, require_stable: bool, by_id: bool
    ) -> Steps[OffsetFetchResponseGroup]:
        """Return the offsets of the requested partitions, or all offsets of the group if the request's topics are None.

        With ``require_stable`` a partition with a pending commit gets an error. With ``by_id`` topics have ids, not
        names.
        """
        if request.topics is None:
            topics = yield from self._all_topics(request.group_id, require_stable, by_id)
        else:
            topics = []
            for topic in request.topics:
                topics.append((yield from self._fetch_topic(request.group_id, topic, require_stable, by_id)))
                yield None
        return OffsetFetchResponseGroup(group_id=request.group_id, topics=topics)

    def _all_topics(self, group_id: str, require_stable: bool, by_id: bool) -> Steps[list[OffsetFetchResponseTopics]]:
        topics = []
        for name, partitions in list(self._offsets.of_group(group_id).items()):
            image = self._metadata.find(name)
            if by_id and image is None:
                continue  # a deleted topic cannot be named by id
            answer = OffsetFetchResponseTopics(name=name)
            if image is not None:
                answer.topic_id = image.topic_id
            fetch = partial(self._fetch_partition, group_id, name, require_stable)
            answer.partitions = yield from apply_each(list(partitions), fetch)
            topics.append(answer)
        return topics

    def _fetch_topic(
        self, group_id: str, topic: OffsetFetchRequestTopics, require_stable: bool, by_id: bool
    ) -> Steps[OffsetFetchResponseTopics]:
        name = name_of(self._metadata, topic.topic_id) if by_id else topic.name
        response = OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id)
        if name is None:
            fetch = partial(build_no_offset, error_code=UnknownTopicIdError.code)
        else:
            fetch = partial(self._fetch_partition, group_id, name, require_stable)
        response.partitions = yield from apply_each(topic.partition_indexes, fetch)
        return response

    def _fetch_partition(
        self, group_id: str, topic: str, require_stable: bool, partition: int
    ) -> OffsetFetchResponsePartitions:
        if require_stable and self._offsets.is_pending(group_id, topic, partition):
            return build_no_offset(partition, UnstableOffsetCommitError.code)
        commit = self._offsets.get(group_id, topic, partition)
        if commit is None:
            return build_no_offset(partition, NONE)
        return OffsetFetchResponsePartitions(
            partition_index=partition,
            committed_offset=commit.offset,
            committed_leader_epoch=commit.leader_epoch,
            metadata=commit.metadata,
        )

    # -- OffsetDelete -------------------------------------------------------------------------------------------

    def delete(self, group: Group, request: OffsetDeleteRequest) -> CoordinatorResult[OffsetDeleteResponse]:
        """Delete offsets of topics that no member of the group reads."""
        records: list[CoordinatorRecord] = []
        topics = [self._delete_topic(group, topic, records) for topic in request.topics]
        return CoordinatorResult(OffsetDeleteResponse(topics=topics), records)

    def _delete_topic(
        self, group: Group, topic: OffsetDeleteRequestTopic, records: list[CoordinatorRecord]
    ) -> OffsetDeleteResponseTopic:
        partition_count = self._partition_count(topic.name)
        subscribed = group.is_subscribed_to(topic.name)
        answers = []
        for asked in topic.partitions:
            partition = asked.partition_index
            error_code = GroupSubscribedToTopicError.code if subscribed else NONE
            if not 0 <= partition < partition_count:
                error_code = UnknownTopicOrPartitionError.code
            answers.append(OffsetDeleteResponsePartition(partition_index=partition, error_code=error_code))
            if error_code == NONE and self._has_offset(group.group_id, topic.name, partition):
                records.append(offset_tombstone(group.group_id, topic.name, partition))
        return OffsetDeleteResponseTopic(name=topic.name, partitions=answers)

    def _has_offset(self, group_id: str, topic: str, partition: int) -> bool:
        if self._offsets.get(group_id, topic, partition) is not None:
            return True
        return self._offsets.is_pending(group_id, topic, partition)

    # -- expiry -------------------------------------------------------------------------------------------------

    def offsets_in_parts(self, group_id: str) -> Iterator[list[TopicPartitionKey]]:
        """Yield the partitions for which a group has committed offsets, in lists of at most EXPIRY_PART. Yields
        one empty list if there are none.
        """
        offsets = self._offsets.of_group
        found = (
            (topic, partition)
            for topic in list(offsets(group_id))
            for partition in list(offsets(group_id).get(topic, ()))
        )
        yield list(islice(found, EXPIRY_PART))
        while part := list(islice(found, EXPIRY_PART)):
            yield part

    def collect_expired(
        self, group: Group, partitions: Iterable[TopicPartitionKey], now_ms: int
    ) -> list[CoordinatorRecord]:
        """Build tombstones for those of the given offsets that have expired at ``now_ms``."""
        group_id = group.group_id
        tombstones = []
        subscribed: dict[str, bool] = {}
        for topic, partition in partitions:
            if topic not in subscribed:
                subscribed[topic] = group.is_subscribed_to(topic)
            commit = self._offsets.get(group_id, topic, partition)
            if (
                commit is not None
                and not subscribed[topic]
                and self._is_expired(group, commit, now_ms)
                and not self._offsets.is_pending(group_id, topic, partition)
            ):
                tombstones.append(offset_tombstone(group_id, topic, partition))
        return tombstones

    def _is_expired(self, group: Group, commit: OffsetAndMetadata, now_ms: int) -> bool:
        start_ms = group.retention_start_ms(commit.commit_timestamp_ms)
        if start_ms is None:
            return False
        if commit.expire_timestamp_ms >= 0:
            return now_ms >= commit.expire_timestamp_ms
        return now_ms - start_ms >= self._config.offsets_retention_ms

    def tombstones_of_topic(self, topic: str, end_offset: int) -> Iterator[list[CoordinatorRecord]]:
        """Yield tombstones for all groups' offsets of a deleted topic and of its virtual topics, a list for each
        EXPIRY_PART offsets.

        Commits at ``end_offset`` or later in ``__consumer_offsets`` belong to a new topic of that name, and remain.
        """
        offsets = self._offsets
        found = (
            (group_id, name, partition)
            for name in (topic, *offsets.index.views_of(topic))
            if name == topic or name not in self._metadata.topics
            for group_id in offsets.index.groups_of(name)
            for partition in offsets.partitions_of(group_id, name)
        )
        while part := list(islice(found, EXPIRY_PART)):
            yield [
                offset_tombstone(group_id, name, partition)
                for group_id, name, partition in part
                if offsets.is_older(group_id, name, partition, end_offset)
            ]


def name_of(metadata: MetadataCache, topic_id: bytes) -> str | None:
    """Return the name of the topic with this id, None if there is none. ``topic_names`` would not do: it keeps the id
    of a virtual topic whose topic is deleted. By now a virtual topic of a new topic may have the same name."""
    image = metadata.topic_by_id(topic_id)
    return None if image is None else image.name


def build_no_offset(partition: int, error_code: int) -> OffsetFetchResponsePartitions:
    """Build the response of a partition without a committed offset."""
    return OffsetFetchResponsePartitions(
        partition_index=partition, committed_offset=INVALID_OFFSET, metadata="", error_code=error_code
    )


def _commit_record(
    group_id: str, topic: str, partition: OffsetCommitRequestPartition, now_ms: int, expire_ms: int
) -> CoordinatorRecord:
    value = OffsetCommitValue(
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata or "",
        commit_timestamp=now_ms if partition.commit_timestamp < 0 else partition.commit_timestamp,
        expire_timestamp=expire_ms,
    )
    return CoordinatorRecord(OffsetCommitKey(group=group_id, topic=topic, partition=partition.partition_index), value)
