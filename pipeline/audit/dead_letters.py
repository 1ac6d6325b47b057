"""The search for dead letters of records that cannot be rows of their table: without its dead letter such a record is
missing.

    table by hour or day      a time outside of the years 1 to 9999
    table of latest values    no key

Dead letters are the rows of a second table, with bytes of the record and the reason (``export.file``). The comparison
of rows leaves such records out and collects their offsets. The contents of dead letters are not compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tidelog.pipeline.audit.table import (
    SHOWN_OFFSETS,
    ComparePlan,
    Comparison,
    IcebergRows,
    iceberg_batches,
    write_filter,
)
from tidelog.pipeline.engine.reference import IntegerArray
from tidelog.pipeline.files.remote import is_remote, locate

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS = ("topic", "partition", "offset")


def look_for_letters(plan: ComparePlan, found: Comparison) -> None:
    """Count records with neither a row nor a dead letter as missing. Raises OSError, ArrowException, PipelineError."""
    absent = np.setdiff1d(np.concatenate(found.no_rows), _letters_of(plan))
    shown = np.concatenate((found.shown.get("missing", []), absent[:SHOWN_OFFSETS])).astype(np.int64)
    found.note("missing", np.sort(shown))
    found.missing += len(absent)


def _letters_of(plan: ComparePlan) -> IntegerArray:
    """Read the offsets of a partition's dead letters, at least those in the plan's range."""
    found = (batch.filter(_is_of(plan, batch)).column("offset").to_numpy() for batch in _batches(plan))
    return np.concatenate([np.zeros(0, np.int64), *found])


def _is_of(plan: ComparePlan, batch: pa.RecordBatch) -> Any:
    import pyarrow.compute as pc

    topic, partition = batch.column("topic"), batch.column("partition")
    return pc.and_(pc.equal(topic, plan.topic), pc.equal(partition, plan.partition))


def _batches(plan: ComparePlan) -> Iterator[pa.RecordBatch]:
    import pyarrow.parquet as pq

    if isinstance(plan.letters, IcebergRows):
        yield from iceberg_batches(plan.letters, _COLUMNS, write_filter(plan, plan.start))
        return
    for path in plan.letters:
        file_system, key = locate(path) if is_remote(path) else (None, path)
        yield from pq.read_table(key, columns=list(_COLUMNS), filesystem=file_system, partitioning=None).to_batches()
