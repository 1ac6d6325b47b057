"""A streaming query that copies a topic: ``format("tidelog")`` is its source and its sink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """The topics ``source`` and ``target`` of a copy, and its settings.

    ``data`` is the data directory of the broker at ``bootstrap``; ``per_trigger`` is the number of records of a batch.
    """

    data: str
    source: str
    target: str
    bootstrap: str
    checkpoint: str
    sink: str = "tidelog"
    per_trigger: int = 1000


def start_copy(session: SparkSession, plan: CopyPlan, options: Mapping[str, str] | None = None) -> StreamingQuery:
    """Start the query; it ends when all records that the source has now are copied. ``options`` go to the sink."""
    rows = (
        session.readStream.format("tidelog")
        .option("path", plan.data)
        .option("subscribe", plan.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(plan.per_trigger))
        .load()
        .select("key", "value")
    )
    return (
        rows.writeStream.format(plan.sink)
        .option("kafka.bootstrap.servers", plan.bootstrap)
        .option("topic", plan.target)
        .option("checkpointLocation", plan.checkpoint)
        .options(**(options or {}))
        .trigger(availableNow=True)
        .start()
    )
