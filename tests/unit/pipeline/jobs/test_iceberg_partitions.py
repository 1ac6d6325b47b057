"""Partitioned Iceberg tables: each row once, each file in one partition, and readers that skip the others."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.support.iceberg import NAME, run, table_of, target_below
from tests.support.pipelines import DataDirectory, fill, write
from tidelog.pipeline.job_errors import BadRequestError
from tidelog.pipeline.jobs.audit import AuditRequest, audit
from tidelog.pipeline.jobs.exporting.partitioning import parse_fields
from tidelog.pipeline.jobs.iceberg import IcebergTarget
from tidelog.protocol.record.record_batch import Record

pytestmark = pytest.mark.usefixtures("catalogs")

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
BEGIN_MS = 19_000 * DAY_MS


def target_by(tmp_path: Path, *fields: str) -> IcebergTarget:
    plain = target_below(tmp_path)
    return IcebergTarget(plain.catalog, NAME, plain.warehouse, partition_by=fields)


Row = tuple[str, int, int, int]


def fill_at_random(data: DataDirectory, chance: random.Random) -> list[Row]:
    """Write records of some days, in no order of time; returns their topic, partition, offset and time."""
    rows: list[Row] = []
    for topic, partition in (("orders", 0), ("orders", 1), ("payments", 0)):
        for _ in range(chance.randint(1, 8)):
            times = [BEGIN_MS + chance.randrange(-HOUR_MS, 3 * HOUR_MS) for _ in range(chance.randint(1, 6))]
            records = [Record(n, time, b"k", b"v%d" % time) for n, time in enumerate(times)]
            first = write(data.log(topic, partition), records)
            rows += [(topic, partition, first + n, time) for n, time in enumerate(times)]
    return rows


def rows_of(target: IcebergTarget, chosen: str = "topic != ''") -> list[Row]:
    table = table_of(target).scan(chosen, selected_fields=("topic", "partition", "offset", "timestamp")).to_arrow()
    return sorted(
        (row["topic"], row["partition"], row["offset"], round(row["timestamp"].timestamp() * 1000))
        for row in table.to_pylist()
    )


@pytest.mark.parametrize(
    ("fields", "seed"),
    [
        (("hour(timestamp)",), 1),
        (("day(timestamp)", "topic"), 2),
        (("topic", "partition"), 3),
        (("partition", "hour(timestamp)"), 4),
    ],
)
def test_each_row_is_there_once_and_each_file_in_one_partition(
    data: DataDirectory, tmp_path: Path, fields: tuple[str, ...], seed: int
) -> None:
    chance = random.Random(seed)
    target = target_by(tmp_path, *fields)
    written: list[Row] = []
    for turn in range(2):
        written += fill_at_random(data, chance)
        named = target if turn == 0 else IcebergTarget(target.catalog, NAME, target.warehouse)
        assert run(data, named, file_bytes=chance.choice((1000, 1 << 20)), commit_files=4).committed
    assert rows_of(target) == sorted(written)
    partitions = table_of(target).inspect.partitions()
    assert partitions.num_rows == len({partition_of(row, fields) for row in written})
    assert not audit(None, AuditRequest(data.source(), NAME, iceberg=target)).is_wrong


def partition_of(row: Row, fields: tuple[str, ...]) -> tuple[Any, ...]:
    topic, partition, _, time = row
    values = {
        "topic": topic, "partition": partition, "hour(timestamp)": time // HOUR_MS, "day(timestamp)": time // DAY_MS,
    }  # fmt: skip
    return tuple(values[field] for field in fields)


def test_readers_open_the_files_of_the_asked_hour_alone(data: DataDirectory, tmp_path: Path) -> None:
    target = target_by(tmp_path, "hour(timestamp)")
    for hour in range(10):
        write(data.log("orders"), [Record(0, BEGIN_MS + hour * HOUR_MS, None, b"v")])
    run(data, target)
    scan = table_of(target).scan("timestamp >= '2022-01-08T03:00:00+00:00' and timestamp < '2022-01-08T05:00:00+00:00'")
    assert len(list(scan.plan_files())) == 2
    assert scan.to_arrow().column("offset").to_pylist() == [3, 4]


def test_a_table_of_another_spec_is_refused(data: DataDirectory, tmp_path: Path) -> None:
    fill(data.log("orders"), 1)
    target = target_by(tmp_path, "topic")
    run(data, target)
    other = IcebergTarget(target.catalog, NAME, target.warehouse, partition_by=("day(timestamp)",))
    with pytest.raises(BadRequestError, match=r"lake\.events is partitioned by topic: expected the same"):
        run(data, other)
    with table_of(target).update_spec() as update:
        from pyiceberg.transforms import BucketTransform

        update.add_field("offset", BucketTransform(4), "bucket")
    with pytest.raises(BadRequestError, match=r"is partitioned by topic, bucket\[4\]\(offset\): expected"):
        run(data, target_by_nothing(target))


def target_by_nothing(target: IcebergTarget) -> IcebergTarget:
    return IcebergTarget(target.catalog, NAME, target.warehouse)


def test_fields_are_read_as_they_are_written() -> None:
    assert parse_fields("topic, hour(timestamp)") == ("topic", "hour(timestamp)")
    for text in ("", "offset", "topic,topic", "hour(timestamp),day(timestamp)", "month(timestamp)"):
        with pytest.raises(BadRequestError, match=r"--partition-by .*: expected some of"):
            parse_fields(text)
