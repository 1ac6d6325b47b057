"""An internal topic over replicated partitions: errors in the words of coordinators."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.replicated import LED, ReplicatedBroker
from tests.unit.broker.data_broker import batch
from tidelog.broker.coordinator.runtime.topic_log import InternalTopicLog
from tidelog.broker.metadata.metadata_image import PartitionState
from tidelog.protocol.errors import CoordinatorNotAvailableError, KafkaError, NotCoordinatorError


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (LED._replace(isr=(1,), partition_epoch=8), CoordinatorNotAvailableError),
        (PartitionState((1, 2, 3), (2, 3), 2, 6, 8), NotCoordinatorError),
    ],
)
def test_appends_are_refused_in_the_words_of_coordinators(
    tmp_path: Path, state: PartitionState, error: type[KafkaError]
) -> None:
    node = ReplicatedBroker(tmp_path, {"min.insync.replicas": "2"})
    log = InternalTopicLog(node.broker, "t", 1)
    assert log.append(0, batch(b"a")) == 0
    waiting = log.uncommitted(0)
    assert waiting is not None
    assert not waiting.done, "the followers do not have it yet"
    node.partition.take_over(state)
    with pytest.raises(error):
        log.append(0, batch(b"b"))
    node.close()
