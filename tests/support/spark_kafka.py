"""Queries with Spark's own Kafka source, each in one call, and their rows and errors in a form to compare."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.readwriter import DataFrameReader
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader

Option = str | dict[str, Any]
Row = dict[str, Any]
SHORT_WAIT = {"kafka.fetch.max.wait.ms": "50"}
"""The connector asks for offsets on a connection whose fetch still waits, and Apache Kafka answers in order.

With Kafka's default this costs half a second per task.
"""
JavaError: type[Exception] = Py4JJavaError
"""The error of an action whose task, or whose request to the broker, failed."""
AWAIT_S = 60


def options(bootstrap: str, **given: Option) -> dict[str, str]:
    """Build options of the Kafka source: ``__`` stands for ``.``, and a value that is no string becomes JSON."""
    named = {
        name.replace("__", "."): value if isinstance(value, str) else json.dumps(value) for name, value in given.items()
    }
    return {"kafka.bootstrap.servers": bootstrap, **SHORT_WAIT, **named}


def read(spark: SparkSession, bootstrap: str, **given: Option) -> DataFrame:
    """Build a batch query of ``format("kafka")``."""
    reader: DataFrameReader = spark.read.format("kafka")
    return reader.options(**options(bootstrap, **given)).load()


def read_stream(spark: SparkSession, bootstrap: str, **given: Option) -> DataFrame:
    """Build a streaming query of ``format("kafka")``."""
    reader: DataStreamReader = spark.readStream.format("kafka")
    return reader.options(**options(bootstrap, **given)).load()


def rows(frame: DataFrame) -> list[Row]:
    """Read all rows, sorted by topic, partition and offset."""
    found: list[Row] = frame.toArrow().to_pylist()
    return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))


class Stream:
    """A running query into a table in memory. Use as a context manager: leaving it stops the query."""

    def __init__(self, frame: DataFrame, checkpoint: Path, *, mode: str = "append", **trigger: Any) -> None:
        self.spark = frame.sparkSession
        self.table = "rows_" + uuid.uuid4().hex
        writer = frame.writeStream.format("memory").queryName(self.table).outputMode(mode).trigger(**trigger)
        self.query: StreamingQuery = writer.option("checkpointLocation", str(checkpoint)).start()

    def rows(self) -> list[Row]:
        """Read the rows that the query has written so far."""
        return rows(self.spark.table(self.table))

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_error: object) -> None:
        self.query.stop()
        self.spark.catalog.dropTempView(self.table)


def available_now(frame: DataFrame, work: Path) -> tuple[list[int], list[Row]]:
    """Run a stream into files below ``work`` until it has read all records that are there at its start.

    Return the number of rows of each batch of this run, and all rows of this and of earlier runs. Raises the query's
    error.
    """
    target, checkpoint = str(work / "rows"), str(work / "checkpoint")
    writer = frame.writeStream.format("parquet").option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query = writer.start(target)
    assert query.awaitTermination(AWAIT_S), "the query did not end"
    batches = [progress["numInputRows"] for progress in query.recentProgress]
    return batches, rows(frame.sparkSession.read.parquet(target))


def causes(error: Exception) -> list[str]:
    """List the short names of an error's Java exceptions, outermost first: they do not depend on the run."""
    if not isinstance(error, Py4JJavaError):
        return [type(error).__name__]
    return [name.rsplit(".", 1)[1] for name in re.findall(r"^(?:Caused by)?: ?([\w.$]+)", str(error), re.MULTILINE)]
