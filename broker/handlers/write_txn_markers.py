"""WriteTxnMarkers: end transactions in given partitions; between brokers, and what ``kafka-transactions abort`` sends.

v1 flexible; v2 names the transaction version (KIP-890). Each partition has its own error.
"""

from __future__ import annotations

from broker.broker import Broker, RequestContext
from broker.coordinator.markers import BrokerMarkerWriter
from protocol.api_keys import ApiKey
from protocol.errors import NONE, KafkaError
from protocol.messages.write_txn_markers import (
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


def handle(broker: Broker, context: RequestContext, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    """Write each marker into each of its partitions."""
    writer = BrokerMarkerWriter(broker)

    def write(marker: WritableTxnMarker, topic: str, partition: int) -> int:
        producer = (marker.producer_id, marker.producer_epoch)
        try:
            writer.write(
                (topic, partition),
                producer,
                commit=marker.transaction_result,
                coordinator_epoch=marker.coordinator_epoch,
            )
        except KafkaError as error:
            return error.code
        return NONE

    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(
                                partition_index=partition, error_code=write(marker, topic.name, partition)
                            )
                            for partition in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


def error_response(request: WriteTxnMarkersRequest, error: KafkaError) -> WriteTxnMarkersResponse:
    """The same error for every partition."""
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
