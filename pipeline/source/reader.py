"""The batch reader of ``format("tidelog")``: options -> plan in the driver, slices -> Arrow in the tasks.

The reader accepts no filters of a query: it has no method ``pushFilters``. Spark 4.2 keeps one plan for each loaded
source, and the filters of one query replace the plan of all others over that source
(``PythonDataSourceV2.setReadInfo``): after one filtered query, every later count of the frame would be too small. So a
plan follows from the options alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from tidelog.pipeline.decode.decode import Isolation, ReadOptions, read_slice
from tidelog.pipeline.errors import hide_frames, hide_frames_of_rows
from tidelog.pipeline.options.columns import Columns
from tidelog.pipeline.options.options import SourceOptions
from tidelog.pipeline.plan.plan import ReadRequest, SegmentSlice, group, plan
from tidelog.pipeline.plan.request import batch_request


class SlicePartition(InputPartition):
    """The slices that one task reads, in order."""

    def __init__(self, slices: tuple[SegmentSlice, ...]) -> None:
        super().__init__(None)
        self.slices = slices


class TidelogReader(DataSourceReader):
    """The reader of one batch query. Picklable: it holds options and columns, no files."""

    def __init__(self, options: SourceOptions, wanted: Columns) -> None:
        self.options = options
        self.wanted = wanted

    def request(self) -> ReadRequest:
        """Build the query's read request; ends come from the files (or the broker). Raises PipelineError."""
        return batch_request(self.options)

    def read_options(self) -> ReadOptions:
        """Build the options with which tasks read their slices."""
        return ReadOptions(
            isolation=Isolation.READ_COMMITTED if self.options.read_committed else Isolation.READ_UNCOMMITTED,
            fail_on_data_loss=self.options.fail_on_data_loss,
            row_filter=self.options.row_filter,
        )

    @hide_frames
    def partitions(self) -> list[InputPartition]:
        """Plan the query, in the driver. Raises PipelineError."""
        request = self.request()
        return [SlicePartition(slices) for slices in group(plan(request), request)]

    @hide_frames_of_rows
    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the records of one task as ``pyarrow.RecordBatch``es. Raises PipelineError."""
        if not isinstance(partition, SlicePartition):  # Spark makes one partition of its own for an empty plan
            return
        options = self.read_options()
        for piece in partition.slices:
            yield from read_slice(piece, self.wanted, options=options)
