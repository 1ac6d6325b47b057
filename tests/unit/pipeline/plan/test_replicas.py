"""Replicas of a partition in the data directories of several brokers: only committed records are read."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import tidelog
from tests.support.pipelines import NOW_MS, DataDirectory, end_transaction, write
from tidelog.log.files.checkpoints import REPLICATION_OFFSET_FILE, write_offset_checkpoint, write_partition_metadata
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.system.file_system import OsFileSystem
from tidelog.pipeline.errors import SelectionError
from tidelog.pipeline.options.options import parse_options
from tidelog.pipeline.plan.log_watch import LogWatch
from tidelog.protocol.record.record_batch import Record

pytest.importorskip("pyarrow")

PLACE = TopicPartition("t", 0)


class Cluster:
    """Brokers with a replica each of one partition; a batch is a list of (value, ...) records."""

    def __init__(self, path: Path, brokers: int) -> None:
        self.brokers = [DataDirectory(path / f"b{number}") for number in range(brokers)]

    @property
    def paths(self) -> list[str]:
        return [str(broker.path) for broker in self.brokers]

    def append(self, broker: int, values: list[bytes]) -> None:
        write(self.brokers[broker].log("t"), [Record(n, NOW_MS, None, value) for n, value in enumerate(values)])

    def checkpoint(self, broker: int, offset: int | None) -> None:
        """Write a broker's high watermarks; None: the partition is not among them yet."""
        known = {TopicPartition("other", 0): 7} if offset is None else {PLACE: offset}
        path = self.brokers[broker].path / REPLICATION_OFFSET_FILE
        write_offset_checkpoint(OsFileSystem(), str(path), known)

    def close(self) -> None:
        for broker in self.brokers:
            broker.close()

    def read(self, **asked: Any) -> list[tuple[int, bytes]]:
        table = tidelog.scan(self.paths, "t", columns=["offset", "value"], **asked).read_all()
        return list(zip(table.column("offset").to_pylist(), table.column("value").to_pylist(), strict=True))


@pytest.mark.parametrize("seed", range(12))
def test_the_replica_with_most_below_the_high_watermark_is_read_up_to_it(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    cluster = Cluster(tmp_path, 3)
    batches = [[b"%d/%d" % (n, i) * 20 for i in range(chance.randint(1, 5))] for n in range(chance.randint(4, 60))]
    ends = [sum(map(len, batches[:count])) for count in range(len(batches) + 1)]
    has = [chance.randint(0, len(batches)) for _ in range(3)]
    in_sync = sorted(range(3), key=lambda broker: -has[broker])[: chance.randint(1, 3)]
    committed = min(has[broker] for broker in in_sync)
    for broker in range(3):
        for batch in batches[: has[broker]]:
            cluster.append(broker, batch)
        if has[broker] >= committed:  # what was never committed may differ, and is taken back later
            for _ in range(chance.randint(0, 3)):
                cluster.append(broker, [b"uncommitted of %d" % broker])
        cluster.checkpoint(broker, ends[chance.randint(0, committed)])
    marks = [chance.randint(0, committed) for _ in range(3)]
    for broker, mark in enumerate(marks):
        cluster.checkpoint(broker, ends[mark])
    cluster.close()
    expected = [value for batch in batches[: max(marks)] for value in batch]
    assert cluster.read() == list(enumerate(expected))


def test_a_replica_that_lags_or_was_cut_is_passed_over_for_one_that_has_the_records(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 2)
    for _ in range(4):
        cluster.append(1, [b"v"])
    cluster.append(0, [b"v"])
    for broker in (0, 1):
        cluster.checkpoint(broker, 4)
    cluster.close()
    assert [offset for offset, _ in cluster.read()] == [0, 1, 2, 3]


def test_of_equal_replicas_the_one_that_begins_first_is_read(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 2)
    for number in range(60):
        for broker in (0, 1):
            cluster.append(broker, [b"v%d" % number * 60])
    for broker in (0, 1):
        cluster.checkpoint(broker, 60)
    cluster.close()
    for path in sorted((cluster.brokers[0].path / "t-0").glob(f"{0:020d}.*")):
        path.unlink()
    assert [offset for offset, _ in cluster.read()] == list(range(60))


def test_transactions_end_at_the_high_watermark(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 2)
    for broker in (0, 1):
        log = cluster.brokers[broker].log("t")
        ids: dict[str, Any] = {"producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
        write(log, [Record(0, NOW_MS, None, b"aborted")], producer_id=1, **ids)
        end_transaction(log, 1, commit=False)
        write(log, [Record(0, NOW_MS, None, b"committed")], producer_id=2, **ids)
        end_transaction(log, 2, commit=True)
        write(log, [Record(0, NOW_MS, None, b"above the mark")])
        cluster.checkpoint(broker, 4)
    cluster.close()
    assert cluster.read(isolation="read_committed") == [(2, b"committed")]
    assert cluster.read() == [(0, b"aborted"), (2, b"committed")]


def test_a_partition_younger_than_the_checkpoints_has_nothing_that_is_known_to_be_committed(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 2)
    for broker in (0, 1):
        cluster.append(broker, [b"v"])
        cluster.checkpoint(broker, None)
    assert cluster.read() == []
    cluster.checkpoint(1, 1)
    assert cluster.read() == [(0, b"v")]
    cluster.close()


def test_replicas_without_a_checkpoint_are_refused(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 2)
    for broker in (0, 1):
        cluster.append(broker, [b"v"])
    cluster.close()
    with pytest.raises(SelectionError, match=r"t-0 is in .*b0/t-0, .*b1/t-0, and no replication-offset-checkpoint"):
        cluster.read()


def test_topics_of_one_name_and_two_ids_are_no_replicas(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 2)
    for broker in (0, 1):
        cluster.append(broker, [b"v"])
        cluster.checkpoint(broker, 1)
        write_partition_metadata(OsFileSystem(), str(cluster.brokers[broker].path / "t-0"), bytes([broker + 1] * 16))
    cluster.close()
    with pytest.raises(SelectionError, match="are not replicas of one partition: the topic's id is"):
        cluster.read()


def test_a_stream_follows_the_high_watermark_from_one_replica_to_another(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 2)
    watch = LogWatch(parse_options({"path": ",".join(cluster.paths), "subscribe": "t"}, streaming=True))
    seen = []
    for turn in range(6):
        leader = turn % 2
        cluster.append(leader, [b"%d" % turn])
        cluster.append(1 - leader, [b"%d" % turn])
        cluster.append(leader, [b"%d too" % turn])
        cluster.checkpoint(leader, 2 * turn + 1)
        (partition,) = watch.partitions()
        seen.append(partition.end)
        cluster.append(1 - leader, [b"%d too" % turn])
    cluster.close()
    assert seen == [1, 3, 5, 7, 9, 11]
