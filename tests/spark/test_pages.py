"""Spark's examples of docs/spark.md and docs/kafka-directories.md, run unchanged except for directories."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.broker import TidelogProcess
from tests.support.examples import read_examples

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def lines(page: str, start: str) -> list[str]:
    """Return the commands of pages' blocks that begin with a text, which stand in one of the blocks."""
    return [line for each in read_examples(page) for line in each.commands if line.startswith(start)]


def run(text: str, broker: TidelogProcess, **names: Any) -> Any:
    """Evaluate an expression of a page, with the data directory of a broker for those that it names."""
    place = re.sub(r'"(/var/lib/\w+(/data)?|/mnt/b1,/mnt/b2,/mnt/b3)"', f'"{broker.data_directory}"', text)
    return eval(place.replace("127.0.0.1:9092", broker.bootstrap), names)


def frame(spark: SparkSession) -> DataFrame:
    return spark.range(10).selectExpr("cast(id as string) as value")


def test_directories_are_read(spark: SparkSession, tidelog_broker: TidelogProcess, tmp_path: Path) -> None:
    """Each line of both pages that reads a directory, and the first block of spark.md."""
    ours = frame(spark).write.format("tidelog").mode("append").options(topic="orders", stagingPath=str(tmp_path))
    ours.option("kafka.bootstrap.servers", tidelog_broker.bootstrap).save()
    found = [*lines("docs/spark.md", "spark.read.format("), *lines("docs/kafka-directories.md", "spark.read.format(")]
    assert len(found) == 4
    for line in found:
        is_shown = line.endswith(".show()")
        assert run(line.removesuffix(".show()"), tidelog_broker, spark=spark).count() == 10, is_shown


def test_tables_are_created_in_sql(spark: SparkSession, tidelog_broker: TidelogProcess) -> None:
    statements = lines("docs/spark.md", "CREATE TABLE")
    for statement in statements:
        spark.sql(statement.rstrip(";").replace("/var/lib/tidelog", str(tidelog_broker.data_directory)))
    assert len(statements) == 2
    for table in ("orders", "orders_from_23"):
        assert spark.table(table).columns[:2] == ["key", "value"]
        spark.sql(f"DROP TABLE {table}")


def test_a_stream_is_written(spark: SparkSession, tidelog_broker: TidelogProcess, tmp_path: Path) -> None:
    (line,) = lines("docs/spark.md", "frame.writeStream")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "rows.txt").write_text("one\ntwo\n")
    line = line.replace('"orders"', '"streamed"').replace("/shared/checkpoint", str(tmp_path / "checkpoint"))
    query = run(line, tidelog_broker, frame=spark.readStream.text(str(tmp_path / "in")))
    query.processAllAvailable()
    query.stop()
    read = spark.read.format("tidelog").option("subscribe", "streamed").load(str(tidelog_broker.data_directory))
    assert sorted(row.value for row in read.collect()) == [b"one", b"two"]
