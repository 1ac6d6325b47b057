"""A streaming query that copies a topic: ``format("tidelog")`` as source and as sink, in batches of some records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """A copy's source: ``data`` is the broker's data directory."""

    data: str
    source: str
    target: str
    bootstrap: str
    checkpoint: str
    sink: str = "tidelog"
    per_trigger: int = 1000


def start_copy(session: SparkSession, plan: CopyPlan, options: Mapping[str, str] | None = None) -> StreamingQuery:
    """Start the query; it ends when all that the source holds now is copied. ``options`` are added to the sink's."""
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
