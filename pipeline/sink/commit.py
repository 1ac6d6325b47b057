"""The exactly-once publishing of staged batches: one transaction holds a batch's records and its batch id.

The transactional id, and the group whose committed offset is the last published batch id, are both
``tidelog-spark-<writer>``. A writer is a streaming query, a batch write, or one source of a replay or backfill:

    InitProducerId      fences every older driver of the writer and ends the transaction it left open
    OffsetFetch         a committed batch id >= this one: the batch was published before, nothing to do
    AddPartitionsToTxn, Produce ...     staged batches, as ``tidelog.pipeline.sink.produce`` sends them
    AddOffsetsToTxn, TxnOffsetCommit    this batch id, in partition 0 of each topic that was written
    EndTxn              read_committed sees all of the batch after it, and nothing before

No record is lost or written twice when a driver dies at any point. Before EndTxn is in the broker's log, the next
driver's InitProducerId aborts records and batch id together. After it both are committed, and the next driver's
OffsetFetch finds the batch id. That request follows InitProducerId, so no older driver can publish after it. Hence the
whole publishing is repeated after any lost connection or retriable error, until ``kafka.delivery.timeout.ms``. A fenced
driver must not repeat it: another one works for the writer.

Requests are those of Kafka's first transaction protocol (before KIP-890), which all brokers since 2.5 serve.

A group's offsets expire (``offsets.retention.minutes``, 7 days): a batch would be published again if its
driver died between EndTxn and Spark's own commit log and is restarted only after that time.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.client.cluster import GROUP, TRANSACTION, Cluster, Trouble, ask, is_passing, raise_for_code
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.options.sink_options import SinkOptions
from tidelog.pipeline.sink.produce import Producer, TopicPartition, produce, queue_batches
from tidelog.pipeline.sink.staging import StagedFile, StagingError
from tidelog.protocol.errors import (
    InvalidProducerEpochError,
    InvalidTopicError,
    KafkaError,
    MessageTooLargeError,
    OperationNotAttemptedError,
    ProducerFencedError,
)
from tidelog.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from tidelog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from tidelog.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from tidelog.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from tidelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

logger = logging.getLogger(__name__)

#: The newest version of each request with which the client itself adds partitions (before KIP-890).
_ADD_PARTITIONS, _ADD_OFFSETS, _COMMIT_OFFSETS, _END, _INIT = 3, 3, 4, 4, 4
_FETCH_ONE_GROUP = 7
_DELETE_GROUPS = 2
RETRY_S = 0.2
_FENCED = (ProducerFencedError, InvalidProducerEpochError)


class PublishError(PipelineError):
    """The staged rows were not published, or may have been: the message says which, and has the broker's error.

    They may have been if no attempt got the answer to its EndTxn. Publish them again under the same writer and batch
    id: under new ones they could be there twice.
    """


@dataclass(frozen=True, slots=True)
class Publication:
    """One batch to publish: the staged ``files`` of batch ``batch_id`` of ``writer``.

    ``is_last``: the writer writes no other batch, so its group is deleted afterwards.
    """

    writer: str
    batch_id: int
    files: tuple[StagedFile, ...]
    is_last: bool = False
    note: str = "last batch id of a Spark writer"
    """The metadata of the committed offset."""

    @property
    def name(self) -> str:
        """The transactional id, which is also the group."""
        return f"tidelog-spark-{self.writer}"


@dataclass(slots=True)
class Outcome:
    """Knowledge of a batch after some attempts. ``is_unknown``: an EndTxn had no answer, and no later attempt found
    out."""

    is_unknown: bool = False


def publish(options: SinkOptions, publication: Publication) -> bool:
    """Publish a batch; returns False if it has no records or was published before. Raises PublishError, StagingError.

    It also returns False if its own attempt has published the batch, but the response to EndTxn was lost.
    """
    if not any(file.batches for file in publication.files):
        return False
    deadline = time.monotonic() + options.delivery_timeout_ms / 1000
    outcome = Outcome()
    while True:
        try:
            with Cluster(options.bootstrap, options.request_timeout_ms / 1000, options.security) as cluster:
                return _Transaction(cluster, options, publication, outcome).run()
        except Trouble as error:
            if not is_passing(error) or isinstance(error, _FENCED) or time.monotonic() > deadline:
                raise _as_publish_error(publication, options, outcome, error) from error
            logger.info("publishing batch %d of %s is retried: %s", publication.batch_id, publication.name, error)
            time.sleep(RETRY_S)


def _as_publish_error(
    publication: Publication, options: SinkOptions, outcome: Outcome, error: Exception
) -> PublishError:
    hint = ""
    if isinstance(error, _FENCED):
        hint = (
            "; another driver writes for this query, or publishing took longer than "
            f"kafka.transaction.timeout.ms={options.transaction_timeout_ms}"
        )
    elif isinstance(error, MessageTooLargeError):
        hint = "; make kafka.batch.size smaller or the topic's max.message.bytes larger"
    elif isinstance(error, InvalidTopicError):
        hint = "; expected a topic's name"
    what = "may have been published or not" if outcome.is_unknown else "was not published"
    return PublishError(f"batch {publication.batch_id} of {publication.name} {what}: {error}{hint}")


class _Transaction:
    """One attempt at publishing, on its own connections."""

    def __init__(self, cluster: Cluster, options: SinkOptions, publication: Publication, outcome: Outcome) -> None:
        self._outcome = outcome
        self._cluster = cluster
        self._options = options
        self._publication = publication
        self._name = publication.name
        self._coordinator = cluster.coordinator(self._name, TRANSACTION)
        self._producer_id = self._producer_epoch = -1

    def run(self) -> bool:
        """Publish the batch in a transaction; return False if it was published before. Raises ClientError, KafkaError,
        StagingError.
        """
        self._start_producer()
        if self._read_published() >= self._publication.batch_id:
            logger.info("batch %d of %s was published before", self._publication.batch_id, self._name)
            return False
        self._outcome.is_unknown = False  # InitProducerId has ended the transaction of an earlier attempt
        try:
            self._produce()
            self._commit_batch_id()
        except (KafkaError, StagingError) as error:
            if not isinstance(error, _FENCED):
                self._abort()
            raise
        self._outcome.is_unknown = True
        try:
            self._end(committed=True)
        except _FENCED:
            self._outcome.is_unknown = False
            raise
        if self._publication.is_last:
            self._delete_group()
        return True

    def _start_producer(self) -> None:
        request = InitProducerIdRequest(
            transactional_id=self._name, transaction_timeout_ms=self._options.transaction_timeout_ms
        )
        answer = ask(self._coordinator, request, InitProducerIdResponse, _INIT)
        raise_for_code(answer.error_code, f"InitProducerId of {self._name}")
        self._producer_id, self._producer_epoch = answer.producer_id, answer.producer_epoch

    def _read_published(self) -> int:
        """Read the last batch id in the group, -1 for none."""
        request = OffsetFetchRequest(group_id=self._name, topics=None, require_stable=True)
        answer = ask(self._cluster.coordinator(self._name, GROUP), request, OffsetFetchResponse, _FETCH_ONE_GROUP)
        raise_for_code(answer.error_code, f"OffsetFetch of {self._name}")
        found = [partition for topic in answer.topics for partition in topic.partitions]
        for partition in found:
            raise_for_code(partition.error_code, f"OffsetFetch of {self._name}")
        return max((partition.committed_offset for partition in found), default=-1)

    def _produce(self) -> None:
        queues = queue_batches(self._publication.files)
        self._add_partitions(list(queues))
        producer = Producer(self._name, self._producer_id, self._producer_epoch, self._options.request_timeout_ms)
        produce(self._cluster, producer, queues)

    def _add_partitions(self, partitions: Sequence[TopicPartition]) -> None:
        numbers: dict[str, list[int]] = defaultdict(list)
        for topic, partition in partitions:
            numbers[topic].append(partition)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._name,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=numbers[name]) for name in numbers],
        )
        answer = ask(self._coordinator, request, AddPartitionsToTxnResponse, _ADD_PARTITIONS)
        failed = [
            (result.partition_error_code, f"{answered.name}-{result.partition_index}")
            for answered in answer.results_by_topic_v3_and_below
            for result in answered.results_by_partition
            if result.partition_error_code
        ]
        for code, name in sorted(failed, key=lambda pair: pair[0] == OperationNotAttemptedError.code):
            raise_for_code(code, f"AddPartitionsToTxn of {name}")  # a failed partition comes before those not attempted

    def _commit_batch_id(self) -> None:
        """Commit the batch id as an offset, in the same transaction."""
        answer = ask(
            self._coordinator,
            AddOffsetsToTxnRequest(
                transactional_id=self._name,
                producer_id=self._producer_id,
                producer_epoch=self._producer_epoch,
                group_id=self._name,
            ),
            AddOffsetsToTxnResponse,
            _ADD_OFFSETS,
        )
        raise_for_code(answer.error_code, f"AddOffsetsToTxn of {self._name}")
        topics = sorted({batch.topic for file in self._publication.files for batch in file.batches})
        request = TxnOffsetCommitRequest(
            transactional_id=self._name,
            group_id=self._name,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            topics=[TxnOffsetCommitRequestTopic(name=name, partitions=[self._mark()]) for name in topics],
        )
        committed = ask(self._cluster.coordinator(self._name, GROUP), request, TxnOffsetCommitResponse, _COMMIT_OFFSETS)
        for topic in committed.topics:
            for partition in topic.partitions:
                raise_for_code(partition.error_code, f"TxnOffsetCommit of {self._name} for {topic.name}")

    def _mark(self) -> TxnOffsetCommitRequestPartition:
        return TxnOffsetCommitRequestPartition(
            partition_index=0,
            committed_offset=self._publication.batch_id,
            committed_metadata=self._publication.note,
        )

    def _abort(self) -> None:
        """Abort the transaction now, so that readers need not wait for its timeout or for the next driver."""
        try:
            self._end(committed=False)
        except Trouble as error:  # the transaction may not have begun
            logger.info("transaction of %s was not aborted: %s", self._name, error)

    def _end(self, *, committed: bool) -> None:
        request = EndTxnRequest(
            transactional_id=self._name,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            committed=committed,
        )
        answer = ask(self._coordinator, request, EndTxnResponse, _END)
        raise_for_code(answer.error_code, f"EndTxn of {self._name}")

    def _delete_group(self) -> None:
        """Delete the group, which no driver needs again. The group expires if this fails, so no error is raised."""
        try:
            ask(
                self._cluster.coordinator(self._name, GROUP),
                DeleteGroupsRequest(groups_names=[self._name]),
                DeleteGroupsResponse,
                _DELETE_GROUPS,
            )
        except Trouble as error:
            logger.info("group %s stays until it expires: %s", self._name, error)
