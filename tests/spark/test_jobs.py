"""The jobs on Spark, over the logs of a running broker: tables, reports, topics written again."""

from __future__ import annotations

import dataclasses
import importlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.admin import Admin
from tests.support.broker import TidelogProcess
from tests.support.pipelines import DataDirectory, damage_first_batch, fill
from tests.support.spark import JAVA_OPTIONS
from tidelog.pipeline.job_errors import BadRequestError, JobError
from tidelog.pipeline.jobs.audit import AuditRequest, audit
from tidelog.pipeline.jobs.backfill import BackfillRequest, backfill
from tidelog.pipeline.jobs.compact import CompactRequest, compact
from tidelog.pipeline.jobs.export import ExportRequest, ExportResult, export
from tidelog.pipeline.jobs.iceberg import IcebergTarget, export_to_iceberg
from tidelog.pipeline.jobs.index import IndexRequest, index
from tidelog.pipeline.jobs.offline_logs import Configuration
from tidelog.pipeline.jobs.progress import Progress
from tidelog.pipeline.jobs.replay import ReplayRequest, replay, replay_source
from tidelog.pipeline.jobs.runner import Task, run_tasks
from tidelog.pipeline.jobs.source import LogSource, choose
from tidelog.pipeline.jobs.writing import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2
ROOT = Path(__file__).resolve().parents[2]
Row = tuple[int, int, bytes | None, bytes | None]


def produced(broker: TidelogProcess, count: int, topic: str = "") -> str:
    """Produce so many records over a topic's partitions, every tenth without key. Returns the topic."""
    topic = topic or f"jobs-{uuid.uuid4().hex[:8]}"
    if (
        topic
        not in confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "x"})
        .list_topics(timeout=60)
        .topics
    ):
        Admin(broker.bootstrap).create(topic, PARTITIONS)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
    for number in range(count):
        producer.produce(
            topic, b"value %d" % number, None if number % 10 == 0 else b"key %d" % (number % 50),
            partition=number % PARTITIONS, headers=[("n", b"%d" % number)] if number % 3 == 0 else None,
        )  # fmt: skip
    assert producer.flush(30) == 0
    return topic


def consumed(broker: TidelogProcess, topic: str) -> list[Any]:
    """Return everything a read_committed consumer gets, by partition and offset."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, n, 0) for n in range(PARTITIONS)])
    found, ended = [], 0
    while ended < PARTITIONS:
        message = consumer.poll(60)
        assert message is not None
        error = message.error()
        if error is not None:
            assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF
            ended += 1
        else:
            found.append(message)
    consumer.close()
    return sorted(found, key=lambda message: (message.partition(), message.offset()))


def table_rows(table: Path) -> list[Row]:
    rows = pq.read_table(table / "data").to_pylist()
    return sorted((row["partition"], row["offset"], row["key"], row["value"]) for row in rows)


def source_of(broker: TidelogProcess, topic: str) -> LogSource:
    return LogSource((str(broker.data_directory),), choose(topic, None, None), broker.bootstrap)


@pytest.fixture
def topic(tidelog_broker: TidelogProcess) -> str:
    return produced(tidelog_broker, 3000)


def run_export(spark: SparkSession, broker: TidelogProcess, topic: str, table: Path) -> ExportResult:
    return export(spark, ExportRequest(source_of(broker, topic), str(table), file_bytes=30_000))


def test_an_exported_table_has_the_rows_of_a_consumer_of_spark_and_of_the_audit(
    spark: SparkSession, tidelog_broker: TidelogProcess, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table"
    request = ExportRequest(source_of(tidelog_broker, topic), str(table), file_bytes=30_000)
    result = export(spark, request, Progress("export"))
    expected = [(m.partition(), m.offset(), m.key(), m.value()) for m in consumed(tidelog_broker, topic)]
    assert table_rows(table) == expected
    assert result.files >= PARTITIONS
    frame = spark.read.parquet(str(table / "data"))
    assert (frame.count(), frame.selectExpr("max(timestamp) > timestamp'2020-01-01'").first()[0]) == (3000, True)  # type: ignore[index]
    assert frame.where("headers is not null").count() == 1000
    produced(tidelog_broker, 500, topic)
    second = run_export(spark, tidelog_broker, topic, table)
    assert (second.rows > 0, len(table_rows(table))) == (True, 3500)
    listed_before = frame.groupBy("partition", "offset").count()
    assert (listed_before.count(), listed_before.where("count > 1").count()) == (3000, 0)
    found = audit(spark, AuditRequest(source_of(tidelog_broker, topic), table=str(table)))
    assert not found.is_wrong
    assert sum(c.table_rows for partition in found.partitions for c in partition.comparisons) == 3500
    assert f"{result.files} of {result.files} tasks" in capsys.readouterr().err


def test_an_export_killed_between_stage_and_commit_is_run_again(
    spark: SparkSession, tidelog_broker: TidelogProcess, topic: str, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    script = f"""
import time
from pathlib import Path
from tidelog.pipeline.export.manifest import ExportTable
from tidelog.cli import main
def stopped(*arguments):
    Path({str(tmp_path / "staged")!r}).touch()
    time.sleep(600)
ExportTable.commit = stopped
main(["pipeline", "export", "--path", {str(tidelog_broker.data_directory)!r}, "--topic", {topic!r}, {str(table)!r},
      "--master", "none", "--quiet"])
"""
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT)
    deadline = time.monotonic() + 60
    while not (tmp_path / "staged").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(list((table / "_tidelog" / "staging").iterdir())) == 1
    assert list((table / "data").iterdir()) == []
    result = run_export(spark, tidelog_broker, topic, table)
    assert (result.manifest.version, len(table_rows(table))) == (1, 3000)
    assert os.listdir(table / "_tidelog" / "staging") == []


def test_iceberg_gets_the_rows_and_the_offsets_in_one_snapshot(
    spark: SparkSession, tidelog_broker: TidelogProcess, topic: str, tmp_path: Path
) -> None:
    from pyiceberg.catalog import load_catalog

    uri = f"sqlite:///{tmp_path / 'catalog.db'}"
    (tmp_path / "warehouse").mkdir()
    target = IcebergTarget(uri, "lake.events", str(tmp_path / "warehouse"))
    request = ExportRequest(source_of(tidelog_broker, topic), "", file_bytes=30_000)
    first = export_to_iceberg(spark, request, target)
    again = export_to_iceberg(spark, request, target)
    assert (first.rows, again.committed) == (3000, False)
    table = load_catalog("tidelog", uri=uri).load_table("lake.events")
    rows = table.scan().to_arrow().to_pylist()
    expected = [(m.partition(), m.offset(), m.key(), m.value()) for m in consumed(tidelog_broker, topic)]
    assert sorted((r["partition"], r["offset"], r["key"], r["value"]) for r in rows) == expected
    assert len(table.snapshots()) == 1
    table.catalog.close()


def replay_request(broker: TidelogProcess, topic: str, to: str, **fields: Any) -> ReplayRequest:
    source = replay_source(str(broker.data_directory), {"subscribe": topic}, fields.pop("begin", None), None)
    return ReplayRequest(source, Target(broker.bootstrap, to, fields.pop("codec", 0)), "test", **fields)


def test_a_replay_keeps_records_names_their_origin_and_runs_once(
    spark: SparkSession, tidelog_broker: TidelogProcess, topic: str
) -> None:
    to = produced(tidelog_broker, 0)
    request = replay_request(tidelog_broker, topic, to, codec=4)
    for written in (3000, 0):
        assert sum(result.rows for result in replay(spark, request)) == written
    theirs, ours = consumed(tidelog_broker, topic), consumed(tidelog_broker, to)
    for before, after in zip(theirs, ours, strict=True):
        origin = ("replayed-from", b"%s-%d@%d" % (topic.encode(), before.partition(), before.offset()))
        assert (after.partition(), after.key(), after.value()) == (before.partition(), before.key(), before.value())
        assert (after.timestamp(), after.headers()) == (before.timestamp(), [*(before.headers() or []), origin])
    produced(tidelog_broker, 100, topic)
    results = replay(spark, replay_request(tidelog_broker, topic, to))
    assert sum(result.rows for result in results) == 100
    assert all(result.resumed == 1500 for result in results)


def test_a_replay_of_a_range_by_key(spark: SparkSession, tidelog_broker: TidelogProcess, topic: str) -> None:
    to = produced(tidelog_broker, 0)
    begin = f'{{"{topic}":{{"0":1400,"1":1500}}}}'
    (result,) = replay(spark, replay_request(tidelog_broker, topic, to, begin=begin, by_key=True))
    assert (result.rows, result.start, result.end) == (100, 1400, 1500)
    places = {(message.key(), message.partition()) for message in consumed(tidelog_broker, to) if message.key()}
    assert len({key for key, _ in places}) == len(places)


def test_an_earlier_range_and_another_target_under_a_name_in_use_are_refused(
    tidelog_broker: TidelogProcess, topic: str
) -> None:
    to, other = produced(tidelog_broker, 0), produced(tidelog_broker, 0)

    def run(to: str, first: int, name: str = "test") -> int:
        begin = f'{{"{topic}":{{"0":{first},"1":{first}}}}}'
        request = dataclasses.replace(replay_request(tidelog_broker, topic, to, begin=begin), name=name)
        return sum(result.rows for result in replay(None, request))

    assert [run(to, 1400), run(to, 1400), run(to, 1450)] == [200, 0, 0]
    with pytest.raises(BadRequestError, match=f"--name test: .* {topic}-0 was written from offset 1400 to 1499"):
        run(to, 1300)
    with pytest.raises(BadRequestError, match=f"--to {other}: under this --name rows were written to {to} "):
        run(other, 1400)
    assert (len(consumed(tidelog_broker, to)), len(consumed(tidelog_broker, other))) == (200, 0)
    assert (run(to, 1300, "earlier"), run(other, 1400, "other")) == (400, 200)


def test_a_missing_topic_is_reported_and_not_created(tidelog_broker: TidelogProcess, topic: str) -> None:
    to = f"jobs-{uuid.uuid4().hex[:8]}"
    with pytest.raises(BadRequestError, match=f"--to {to}: the topic does not exist: expected one with 2 partitions"):
        replay(None, replay_request(tidelog_broker, topic, to))
    assert to not in Admin(tidelog_broker.bootstrap).topics()


def test_a_topic_with_too_few_partitions_is_reported(
    spark: SparkSession, tidelog_broker: TidelogProcess, topic: str
) -> None:
    to = f"jobs-{uuid.uuid4().hex[:8]}"
    Admin(tidelog_broker.bootstrap).create(to, 1)
    with pytest.raises(BadRequestError, match=f"--to {to}: the topic has 1 partitions, records come from partition 1:"):
        replay(spark, replay_request(tidelog_broker, topic, to))
    consumer = confluent_kafka.Consumer({"bootstrap.servers": tidelog_broker.bootstrap, "group.id": "x"})
    assert consumer.get_watermark_offsets(confluent_kafka.TopicPartition(to, 0), timeout=60) == (0, 0)


def test_an_exported_table_can_be_written_back_once(
    spark: SparkSession, tidelog_broker: TidelogProcess, topic: str, tmp_path: Path
) -> None:
    run_export(spark, tidelog_broker, topic, tmp_path / "table")
    to = produced(tidelog_broker, 0)
    request = BackfillRequest((str(tmp_path / "table" / "data"),), Target(tidelog_broker.bootstrap, to), "back")
    for written in (3000, 0):
        assert sum(result.rows for result in backfill(spark, request)) == written
    produced(tidelog_broker, 100, topic)
    run_export(spark, tidelog_broker, topic, tmp_path / "table")
    assert sum(result.rows for result in backfill(spark, request)) == 100
    theirs, ours = consumed(tidelog_broker, topic), consumed(tidelog_broker, to)
    assert Counter((m.partition(), m.key(), m.value(), m.timestamp()[1]) for m in ours) == Counter(
        (m.partition(), m.key(), m.value(), m.timestamp()[1]) for m in theirs
    )


def test_a_backfill_that_was_stopped_continues_where_it_was(
    tidelog_broker: TidelogProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"value": [f"row {n}" for n in range(1000)]}), path, row_group_size=64)
    to = produced(tidelog_broker, 0)
    request = BackfillRequest((str(path),), Target(tidelog_broker.bootstrap, to), "stopped")
    monkeypatch.setattr("tidelog.pipeline.jobs.writing.CHUNK_ROWS", 150)
    with monkeypatch.context() as patch:
        patch.setattr("tidelog.pipeline.jobs.writing.remove_files", _StopAfter(3))
        with pytest.raises(JobError, match="stopped here"):
            backfill(None, request)
    (result,) = backfill(None, request)
    assert (result.before, result.rows) == (450, 550)
    assert sorted(message.value() for message in consumed(tidelog_broker, to)) == sorted(
        f"row {n}".encode() for n in range(1000)
    )


class _StopAfter:
    def __init__(self, calls: int) -> None:
        self.calls = calls

    def __call__(self, _: Any) -> None:
        self.calls -= 1
        if not self.calls:
            raise OSError("stopped here")


def test_offline_jobs_run_on_spark_side_by_side(spark: SparkSession, tmp_path: Path) -> None:
    data = DataDirectory(tmp_path / "data")
    for partition in range(3):
        fill(data.log("orders", partition), 60)
    data.close()
    configuration = Configuration(
        overrides={"cleanup.policy": "compact", "index.keys": "true", "segment.bytes": "4096"}
    )
    compacted = compact(spark, CompactRequest(data.source(), configuration))
    assert [result.records_after for result in compacted] == [7, 7, 7]
    indexed = index(spark, IndexRequest(data.source(), configuration))
    assert [result.next_offset for result in indexed] == [300, 300, 300]


def test_an_error_in_a_task_is_one_line_in_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    data = DataDirectory(tmp_path / "data")
    fill(data.log("orders"), 3)
    data.close()
    path = tmp_path / "data" / "orders-0" / f"{0:020d}.log"
    damage_first_batch(path)
    with pytest.raises(JobError) as caught:
        export(spark, ExportRequest(data.source(), str(tmp_path / "table"), keep_damaged=False))
    assert "\n" not in str(caught.value)
    assert "corrupt batch at byte 0" in str(caught.value)


def test_an_unusable_master_is_bad_input_in_one_line(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path / "data")
    words = ["pipeline", "audit", "--path", str(data.path), "--master", "spark://nowhere"]
    done = subprocess.run(
        [sys.executable, "-m", "tidelog.cli", *words],
        cwd=ROOT,
        env={**os.environ, "SPARK_SUBMIT_OPTS": JAVA_OPTIONS},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == "tidelog pipeline audit: --master spark://nowhere: Invalid master URL: spark://nowhere\n"


def test_a_module_that_workers_miss_is_reported_in_one_line(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "on_the_driver_alone.py").write_text("def work(plan):\n    return plan\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    work = importlib.import_module("on_the_driver_alone").work
    with pytest.raises(JobError, match=r"^a worker of Spark has no Python module on_the_driver_alone: "):
        run_tasks(spark, [Task("one", 1, 1)], work, Progress("trial", quiet=True))
