"""An internal topic over replicated partitions: errors of the log as the coordinators' error codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.replicated import LED, ReplicatedBroker
from tests.unit.broker.data_broker import batch
from tidelog.broker.cluster.txn_markers import Marker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.coordinator.runtime.topic_log import InternalTopicLog
from tidelog.broker.coordinator.transaction.markers import BrokerMarkerWriter
from tidelog.broker.loop.deferred import Deferred, deferred_value
from tidelog.broker.metadata.metadata_image import PartitionState
from tidelog.protocol.errors import (
    CoordinatorNotAvailableError,
    KafkaError,
    NotCoordinatorError,
    NotLeaderOrFollowerError,
)
from tidelog.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (LED._replace(isr=(1,), partition_epoch=8), CoordinatorNotAvailableError),
        (PartitionState((1, 2, 3), (2, 3), 2, 6, 8), NotCoordinatorError),
    ],
)
def test_append_errors_are_those_of_coordinators(
    tmp_path: Path, state: PartitionState, error: type[KafkaError]
) -> None:
    node = ReplicatedBroker(tmp_path, {"min.insync.replicas": "2"})
    log = InternalTopicLog(node.broker, "t", 1)
    assert log.append(0, batch(b"a")) == 0
    waiting = log.when_committed(0)
    assert waiting is not None
    assert not waiting.done, "the followers do not have it yet"
    node.partition.take_over(state)
    with pytest.raises(error):
        log.append(0, batch(b"b"))
    node.close()


class Peers:
    """Other brokers, which keep the partitions of the markers they receive."""

    def __init__(self) -> None:
        self.written: list[tuple[str, int]] = []

    def write_marker(self, marker: Marker) -> Deferred[None]:
        """Keep the partition of the marker."""
        self.written.append((marker.topic, marker.partition))
        return deferred_value(None)


def test_a_marker_for_the_groups_of_another_broker_is_refused_as_for_any_partition(tmp_path: Path) -> None:
    """Transaction coordinators repeat it only for the error codes of partitions."""
    node = ReplicatedBroker(tmp_path)
    image = node.topic._replace(
        name="__consumer_offsets", topic_id=b"g" * 16, partitions=(LED._replace(leader=2),), is_internal=True
    )
    node.broker.metadata.put(image)
    node.replica_manager.take_roles(image, range(image.partition_count))
    topics = [WritableTxnMarkerTopic(name="__consumer_offsets", partition_indexes=[0])]
    marker = WritableTxnMarker(producer_id=7, transaction_result=True, topics=topics)
    answer = node.begin(WriteTxnMarkersRequest(markers=[marker]), 1).result()
    assert answer.markers[0].topics[0].partitions[0].error_code == NotLeaderOrFollowerError.code
    peers = Peers()
    writer = BrokerMarkerWriter(node.broker, coordinators_of(node.broker), cast(Any, peers))
    writer.write(("__consumer_offsets", 0), (7, 0), commit=True)
    assert peers.written == [("__consumer_offsets", 0)]
    node.close()
