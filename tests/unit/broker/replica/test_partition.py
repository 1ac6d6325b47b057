"""Reads and writes of one partition: leadership is checked before anything is read or written, for every caller."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.stand_in import StandIn
from tests.support.topics import create_topic
from tests.unit.broker.data_broker import DataBroker, batch
from tidelog.broker.metadata.image import UNASSIGNED_DIRECTORY
from tidelog.broker.metadata.metadata_image import NO_LEADER, PartitionState
from tidelog.broker.replica.partition import Partition
from tidelog.log.fetch import FetchIsolation
from tidelog.protocol.errors import (
    FencedLeaderEpochError,
    KafkaError,
    KafkaStorageError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    UnknownLeaderEpochError,
)

BROKER = Path(__file__).resolve().parents[4] / "broker"
ELSEWHERE = PartitionState((1, 2), (2,), 2, 5)


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataBroker]:
    data = DataBroker(tmp_path)
    create_topic(data, "t", 1)
    data.append("t", b"a", b"b")
    yield data
    data.close()


@pytest.fixture
def partition(data: DataBroker) -> Partition:
    return data.replica_manager.partition("t", 0)


def read(partition: Partition) -> object:
    return partition.read(0, 1000, isolation=FetchIsolation.HIGH_WATERMARK, min_one_message=True)


ASKED: dict[str, Callable[[Partition], object]] = {
    "append": lambda partition: partition.append_records(memoryview(batch(b"c"))),
    "read": read,
    "offsets": lambda partition: partition.offsets(),
    "offset for a time": lambda partition: partition.offset_for(-1, 2),
    "segment offsets": lambda partition: partition.segment_offsets_for(-1, 10),
    "delete records": lambda partition: partition.delete_records(1),
    "producers": lambda partition: partition.active_producers(10),
    "leader": lambda partition: partition.check_leader(),
}


@pytest.mark.parametrize("asked", ASKED)
def test_only_the_leader_serves(partition: Partition, asked: str) -> None:
    ASKED[asked](partition)
    end = partition.log_end_offset
    partition.take_over(ELSEWHERE)
    with pytest.raises(NotLeaderOrFollowerError):
        ASKED[asked](partition)
    assert partition.log_end_offset == end


@pytest.mark.parametrize(
    ("leader", "epoch", "error"),
    [
        (1, -1, None),
        (1, 5, None),
        (1, 4, FencedLeaderEpochError),
        (1, 6, UnknownLeaderEpochError),
        (2, 4, FencedLeaderEpochError),
        (2, 6, UnknownLeaderEpochError),
        (2, 5, NotLeaderOrFollowerError),
        (2, -1, NotLeaderOrFollowerError),
        (NO_LEADER, -1, NotLeaderOrFollowerError),
    ],
)
def test_the_epoch_is_compared_before_the_leader(
    partition: Partition, leader: int, epoch: int, error: type[KafkaError] | None
) -> None:
    partition.take_over(PartitionState((1, 2), (1, 2), leader, 5))
    if error is None:
        assert partition.offsets(epoch).high_watermark == 2
        return
    with pytest.raises(error):
        partition.offsets(epoch)


def test_too_few_in_sync_replicas_take_no_records_with_acks_all(data: DataBroker, partition: Partition) -> None:
    data.topics.set_configs("t", {"min.insync.replicas": "2"})
    partition.take_over(PartitionState((1, 2, 3), (1,), 1, 0))
    with pytest.raises(NotEnoughReplicasError):
        partition.append_records(memoryview(batch(b"c")), -1)
    partition.take_over(PartitionState((1, 2, 3), (1, 3), 1, 0))
    assert partition.append_records(memoryview(batch(b"c")), -1).first_offset == 2


def test_lost_leadership_fails_a_wait_for_a_commit(data: DataBroker, partition: Partition) -> None:
    data.topics.set_configs("t", {"flush.messages": "1"})
    wait = partition.when_committed(partition.append_records(memoryview(batch(b"c"))).last_offset)
    assert not wait.done
    partition.take_over(ELSEWHERE)
    with pytest.raises(NotLeaderOrFollowerError):
        wait.result()


def test_after_lost_leadership_nothing_waits_for_a_commit(data: DataBroker, partition: Partition) -> None:
    """A coordinator that resigns answers requests that waited: their answers would wait for the former leader's records
    without end."""
    data.topics.set_configs("t", {"flush.messages": "1"})
    end = partition.append_records(memoryview(batch(b"c"))).last_offset
    partition.take_over(ELSEWHERE)
    with pytest.raises(NotLeaderOrFollowerError):
        partition.when_committed(end).result()
    partition.when_committed(0).result()


def test_without_flush_messages_appended_records_are_committed(partition: Partition) -> None:
    info = partition.append_records(memoryview(batch(b"c")))
    assert partition.when_committed(info.last_offset).done
    assert partition.high_watermark == partition.log_end_offset


def test_a_wait_after_a_failed_sync_begins_another(
    data: DataBroker, partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    data.topics.set_configs("t", {"flush.messages": "1"})
    log = partition.local_log
    failing = [True]

    def flush(offset: int) -> None:
        if failing:
            raise KafkaStorageError("no room for a checkpoint")
        log.flush(offset)

    monkeypatch.setattr(partition, "_log", StandIn(log, flush=flush))
    wait = partition.when_committed(partition.append_records(memoryview(batch(b"c"))).last_offset)
    data.loop.run_soon()
    with pytest.raises(KafkaStorageError):
        wait.result()
    failing.clear()
    again = partition.when_committed(2)
    assert not again.done
    data.loop.run_soon()
    again.result()
    assert partition.high_watermark == 3


def test_replicas_and_leader_are_those_of_the_image(data: DataBroker) -> None:
    image = data.broker.metadata.topics["t"]
    partition = data.replica_manager.partition("t", 0)
    state = image.partitions[0]
    assert (partition.replicas, partition.isr, partition.leader, partition.leader_epoch) == state[:4]
    assert state == PartitionState((1,), (1,), 1, 0, directories=(UNASSIGNED_DIRECTORY,))


# Who works on a log without going through ``Partition``, and why.
THROUGH = {
    "broker/find/indexing.py": "the index thread works on the files of a replica, whoever leads",
    "broker/find/finding.py": "look-ups read index files and log in worker threads",
    "broker/find/virtual_topics.py": "the same look-ups, for the fetches of a virtual topic",
    "broker/cleaning.py": "compaction runs per replica, in cleaner threads, whoever leads",
}
LOG_OF_A_PARTITION = {"local_log", "get_log", "get_or_create_log", "open_logs"}
MODULES = [path for path in sorted(BROKER.rglob("*.py")) if "replica" not in path.relative_to(BROKER).parts]


def reaches_through(path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    return any(name in text for name in LOG_OF_A_PARTITION) and any(
        isinstance(node, ast.Attribute) and node.attr in LOG_OF_A_PARTITION for node in ast.walk(ast.parse(text))
    )


def test_no_other_package_uses_the_log_of_a_partition() -> None:
    found = {path.relative_to(BROKER.parent).as_posix() for path in MODULES if reaches_through(path)}
    assert found == set(THROUGH)
    assert "local_log" in vars(Partition)
    assert not {"log", "opened_log"} & set(dir(Partition)), "the log has one name, which this test looks for"
