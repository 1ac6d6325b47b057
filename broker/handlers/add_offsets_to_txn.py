"""AddOffsetsToTxn: a group's partition of ``__consumer_offsets`` becomes part of a producer's transaction.

v2 PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH; v3 flexible; v4 TRANSACTION_ABORTABLE. Clients of transaction
version 2 do not send this request (KIP-890).
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.coordinator.errors import error_for_old_producer
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.metadata.image import GROUP_METADATA_TOPIC
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

API_KEY = ApiKey.ADD_OFFSETS_TO_TXN
MIN_VERSION, MAX_VERSION = 0, 4
Request = AddOffsetsToTxnRequest

_FIRST_VERSION_WITH_FENCED = 2
_CLIENT_TRANSACTION_VERSION = 1


def handle(
    broker: Broker, context: RequestContext, request: AddOffsetsToTxnRequest
) -> Deferred[AddOffsetsToTxnResponse]:
    """Add the group's partition of ``__consumer_offsets``; the group id may be empty. Raises what
    ``TransactionCoordinator.add_partitions`` raises."""
    coordinators = coordinators_of(broker)
    partition = (GROUP_METADATA_TOPIC, coordinators.groups.runtime.partition_for(request.group_id))
    producer = (request.producer_id, request.producer_epoch)
    try:
        added = coordinators.transactions.add_partitions(
            request.transactional_id, producer, (partition,), _CLIENT_TRANSACTION_VERSION
        )
    except KafkaError as error:
        raise error if context.api_version >= _FIRST_VERSION_WITH_FENCED else error_for_old_producer(error) from error
    return added.map(lambda _: AddOffsetsToTxnResponse())


def error_response(request: AddOffsetsToTxnRequest, error: KafkaError) -> AddOffsetsToTxnResponse:
    """Answer with the error."""
    return AddOffsetsToTxnResponse(error_code=error.code)
