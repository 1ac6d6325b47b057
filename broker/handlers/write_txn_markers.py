"""WriteTxnMarkers: end transactions in given partitions; sent by other brokers and by ``kafka-transactions abort``.

v1 flexible; v2 names the transaction version, by which epochs are compared (KIP-1228). Each partition has its own
error.
"""

from __future__ import annotations

from functools import partial

from tidelog.broker.broker import Broker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.coordinator.transaction.markers import BrokerMarkerWriter
from tidelog.broker.loop.deferred import Deferred, deferred_value
from tidelog.broker.loop.steps import Steps, apply_each, wait_for_all
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import (
    NONE,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    KafkaError,
    NotCoordinatorError,
    NotLeaderOrFollowerError,
)
from tidelog.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

API_KEY = ApiKey.WRITE_TXN_MARKERS
MIN_VERSION, MAX_VERSION = 0, 2
Request = WriteTxnMarkersRequest

COORDINATOR_ERRORS = (NotCoordinatorError, CoordinatorNotAvailableError, CoordinatorLoadInProgressError)
"""Errors of a group coordinator, which writes the markers for its partition of ``__consumer_offsets``."""


def handle(broker: Broker, context: RequestContext, request: WriteTxnMarkersRequest) -> Steps[WriteTxnMarkersResponse]:
    """Write each marker into each of its partitions; the answer is sent when all are committed."""
    writer = BrokerMarkerWriter(broker, coordinators_of(broker))

    def write(marker: WritableTxnMarker, topic: str, partition: int) -> Deferred[int]:
        producer = (marker.producer_id, marker.producer_epoch)
        try:
            written = writer.write(
                (topic, partition),
                producer,
                commit=marker.transaction_result,
                coordinator_epoch=marker.coordinator_epoch,
                transaction_version=marker.transaction_version,
            )
        except KafkaError as error:
            return deferred_value(code_of(error))
        return written.map(lambda _: NONE).recover(code_of)

    markers = []
    for marker in request.markers:
        topics = []
        for topic in marker.topics:
            for partition in topic.partition_indexes:
                yield writer.when_open((topic.name, partition))
            codes = yield from apply_each(topic.partition_indexes, partial(write, marker, topic.name))
            results = yield from build_results(topic.partition_indexes, (yield from wait_for_all(codes)))
            topics.append(WritableTxnMarkerTopicResult(name=topic.name, partitions=results))
            yield None
        markers.append(WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics))
        yield None
    return WriteTxnMarkersResponse(markers=markers)


def code_of(error: KafkaError) -> int:
    """Return an error's code, or for a coordinator's error NOT_LEADER_OR_FOLLOWER, after which the sender tries
    again."""
    return NotLeaderOrFollowerError.code if isinstance(error, COORDINATOR_ERRORS) else error.code


def build_results(partitions: list[int], codes: list[int]) -> Steps[list[WritableTxnMarkerPartitionResult]]:
    """Build the results of one topic's partitions."""
    return apply_each(
        zip(partitions, codes, strict=True),
        lambda result: WritableTxnMarkerPartitionResult(partition_index=result[0], error_code=result[1]),
    )


def error_response(request: WriteTxnMarkersRequest, error: KafkaError) -> WriteTxnMarkersResponse:
    """Build a response with one error for every partition."""
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(partition_index=partition, error_code=error.code)
                            for partition in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )
