"""TxnOffsetCommit: store a group's committed offsets as part of a transaction.

v2 leader epochs; v3 member, instance and generation (KIP-447), flexible; v4 TRANSACTION_ABORTABLE; v5 adds the group's
partition of ``__consumer_offsets`` to the transaction (KIP-890); up to v4 a client sends AddOffsetsToTxn before.
"""

from __future__ import annotations

from functools import partial

from tidelog.broker.broker import Broker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.handlers.known_partitions import divide, join_answers
from tidelog.broker.handlers.partition_chunks import chunks_of
from tidelog.broker.loop.deferred import Deferred, deferred_value
from tidelog.broker.loop.steps import Steps, wait_for, wait_for_all
from tidelog.broker.metadata.image import GROUP_METADATA_TOPIC
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    KafkaError,
    NotCoordinatorError,
    NotLeaderOrFollowerError,
    ProducerFencedError,
    TransactionAbortableError,
)
from tidelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from tidelog.protocol.schema.copies import with_fields

API_KEY = ApiKey.TXN_OFFSET_COMMIT
MIN_VERSION, MAX_VERSION = 0, 5
Request = TxnOffsetCommitRequest

_FIRST_VERSION_THAT_ADDS = 5
_FIRST_VERSION_WITH_ABORTABLE = 4


def handle(broker: Broker, context: RequestContext, request: TxnOffsetCommitRequest) -> Steps[TxnOffsetCommitResponse]:
    """Check the transaction, then the member, then append the offsets. Up to v4 the transaction is not checked if
    ``transaction.partition.verification.enable`` is false.

    Raises a KafkaError if the record that adds the group's partition to the transaction is not committed; all other
    errors are in the response.
    """
    parts = []
    for topics in chunks_of(request.topics):
        parts.append(divide(broker.metadata, topics))
        yield None
    refusal: KafkaError | None = None
    checked = deferred_value(None)
    if any(part.known for part in parts) and _is_checked(broker, context.api_version):
        try:
            checked = yield from _check_transaction(broker, context.api_version, request)
        except KafkaError as error:
            refusal = error
    commits = []
    for part in parts:
        commits.append(_commit(broker, with_fields(request, topics=part.known), refusal))
        yield None
    yield from wait_for(checked)
    answered = yield from wait_for_all(commits)
    responses = []
    for part, answer in zip(parts, answered, strict=True):
        refused = [topic for asked, error in part.unknown for topic in _refuse([asked], error)]
        responses += join_answers(refused, answer.topics)
        yield None
    return TxnOffsetCommitResponse(topics=responses)


def _commit(
    broker: Broker, part: TxnOffsetCommitRequest, refusal: KafkaError | None
) -> Deferred[TxnOffsetCommitResponse]:
    """Let the group's coordinator commit the offsets of partitions that exist, unless the transaction is refused."""
    if not part.topics:
        return deferred_value(TxnOffsetCommitResponse())
    refuse = partial(error_response, part)
    try:
        if refusal is not None:
            raise refusal
        return coordinators_of(broker).groups.commit_offsets_in_transaction(part).recover(refuse)
    except KafkaError as error:
        return deferred_value(refuse(error))


def _is_checked(broker: Broker, version: int) -> bool:
    """Return whether the coordinator of the transaction is asked: always by the versions that add the partition."""
    return version >= _FIRST_VERSION_THAT_ADDS or broker.config.get_bool("transaction.partition.verification.enable")


def _check_transaction(broker: Broker, version: int, request: TxnOffsetCommitRequest) -> Steps[Deferred[None]]:
    """Let the transaction's coordinator, here or on another broker, verify or add the group's partition."""
    coordinators = coordinators_of(broker)
    partition = (GROUP_METADATA_TOPIC, coordinators.groups.runtime.partition_for(request.group_id))
    producer = (request.producer_id, request.producer_epoch)
    is_adding = version >= _FIRST_VERSION_THAT_ADDS
    try:
        if broker.peers is not None:
            asked = broker.peers.ask_coordinator(request.transactional_id, partition, producer, is_adding=is_adding)
            if asked is not None:
                yield asked
            if not coordinators.transactions.is_here(request.transactional_id):
                broker.peers.check_batch(partition, producer)
                return deferred_value(None)
        if is_adding:
            return coordinators.transactions.add_partitions(request.transactional_id, producer, (partition,), 2)
        return coordinators.transactions.verify_partition(request.transactional_id, producer, partition)
    except ProducerFencedError as error:
        raise InvalidProducerEpochError from error
    except NotLeaderOrFollowerError as error:
        raise NotCoordinatorError from error
    except TransactionAbortableError as error:
        raise error if version >= _FIRST_VERSION_WITH_ABORTABLE else InvalidTxnStateError() from error


def error_response(request: TxnOffsetCommitRequest, error: KafkaError) -> TxnOffsetCommitResponse:
    """Build a response with one error for every partition."""
    return TxnOffsetCommitResponse(topics=_refuse(request.topics, error))


def _refuse(topics: list[TxnOffsetCommitRequestTopic], error: KafkaError) -> list[TxnOffsetCommitResponseTopic]:
    return [
        TxnOffsetCommitResponseTopic(
            name=topic.name,
            partitions=[
                TxnOffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error.code)
                for partition in topic.partitions
            ],
        )
        for topic in topics
    ]
