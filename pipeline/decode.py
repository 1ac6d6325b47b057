"""Slices of segments as Arrow record batches in the schema of Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

from pipeline.columns import Columns
from pipeline.errors import CorruptBatchError, DataLossError
from pipeline.plan import SegmentSlice
from pipeline.segment_files import OpenSegment, ReadCount
from protocol.errors import KafkaError
from protocol.record_batch import LOG_APPEND_TIME, MAGIC_V0, iter_batches


class Isolation(Enum):
    """Whether records of aborted transactions are left out."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


def read_slice(
    piece: SegmentSlice,
    wanted: Columns,
    *,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    count: ReadCount | None = None,
) -> Iterator[Any]:
    """The records of a slice as ``pyarrow.RecordBatch``es. Raises CorruptBatchError, DataLossError, PipelineError."""
    import pyarrow as pa

    schema = wanted.arrow_schema()
    try:
        file = OpenSegment(piece.path, count)
    except FileNotFoundError:
        raise DataLossError(f"{piece.path} is gone") from None
    with file:
        data = file.read_at(piece.start_position, piece.size_bytes)
    rows: list[dict[str, Any]] = []
    position = piece.start_position
    for batch in iter_batches(data):
        position = piece.start_position + batch.position
        if batch.last_offset < piece.start_offset or batch.is_control:
            continue
        try:
            batch.ensure_valid()
            if batch.base_offset >= piece.end_offset:
                break
            timestamp_type = -1 if batch.magic == MAGIC_V0 else int(batch.timestamp_type == LOG_APPEND_TIME)
            for record in batch.records():
                if piece.start_offset <= record.offset < piece.end_offset:
                    rows.append(
                        {
                            "key": record.key,
                            "value": record.value,
                            "topic": piece.topic,
                            "partition": piece.partition,
                            "offset": record.offset,
                            "timestamp": record.timestamp * 1000,
                            "timestampType": timestamp_type,
                            "headers": [{"key": k, "value": v} for k, v in record.headers] or None,
                        }
                    )
        except KafkaError as error:
            raise CorruptBatchError(piece.path, position, batch.last_offset, str(error)) from error
        if len(rows) >= 10_000:
            yield pa.RecordBatch.from_pylist(rows, schema=schema)
            rows = []
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=schema)
