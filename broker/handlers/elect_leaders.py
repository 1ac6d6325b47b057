"""ElectLeaders on a lone node: ELECTION_NOT_NEEDED, because the preferred leader is the only replica and leads already.

Versions: 0 preferred leaders only; 1+ the kind of election; 2 flexible. Null topics mean all partitions. As in Kafka,
the answer to null topics omits partitions that need no election, so it is empty here.
"""

from __future__ import annotations

from functools import partial

from tidelog.broker.broker import Broker
from tidelog.broker.loop.steps import Steps, apply_each
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import ElectionNotNeededError, KafkaError, UnknownTopicOrPartitionError
from tidelog.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

API_KEY = ApiKey.ELECT_LEADERS
MIN_VERSION = 0
MAX_VERSION = 2
Request = ElectLeadersRequest


def handle(broker: Broker, context: RequestContext, request: ElectLeadersRequest) -> Steps[ElectLeadersResponse]:
    """Elect no leader; each partition's result says why."""
    results = []
    for asked in request.topic_partitions or ():
        image = broker.metadata.topics.get(asked.topic)
        count = 0 if image is None else image.partition_count
        partitions = yield from apply_each(asked.partitions, partial(refuse_election, count))
        results.append(ReplicaElectionResult(topic=asked.topic, partition_result=partitions))
        yield None
    return ElectLeadersResponse(replica_election_results=results)


def refuse_election(count: int, index: int) -> PartitionResult:
    """Build the answer for a partition of a topic with ``count`` partitions: no election."""
    return result(index, ElectionNotNeededError() if 0 <= index < count else UnknownTopicOrPartitionError())


def result(index: int, error: KafkaError) -> PartitionResult:
    """Build one partition's answer."""
    return PartitionResult(partition_id=index, error_code=error.code, error_message=error.message)


def error_response(request: ElectLeadersRequest, error: KafkaError) -> ElectLeadersResponse:
    """Answer every requested partition with the error; from version 1 on the whole answer has it, too."""
    return ElectLeadersResponse(
        error_code=error.code,
        replica_election_results=[
            ReplicaElectionResult(
                topic=asked.topic, partition_result=[result(index, error) for index in asked.partitions]
            )
            for asked in request.topic_partitions or ()
        ],
    )
