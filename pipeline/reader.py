"""The batch reader of ``format("tidelog")``: options -> plan in the driver, slices -> Arrow in the tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pipeline.columns import Columns
from pipeline.decode import Isolation, ReadOptions, read_slice
from pipeline.options import SourceOptions
from pipeline.plan import ReadRequest, RowFilter, SegmentSlice, group, plan
from pipeline.request import batch_request


class SlicePartition(InputPartition):
    """A task's share: the slices it reads, in order."""

    def __init__(self, slices: tuple[SegmentSlice, ...]) -> None:
        super().__init__(None)
        self.slices = slices


class TidelogReader(DataSourceReader):
    """See the module. Picklable: it holds options and columns, no files."""

    def __init__(self, options: SourceOptions, wanted: Columns) -> None:
        self.options = options
        self.wanted = wanted

    def partitions(self) -> list[InputPartition]:
        """Plan the query, in the driver. Raises PipelineError."""
        request = self.request()
        return [SlicePartition(slices) for slices in group(plan(request), request)]

    def request(self) -> ReadRequest:
        """What the query reads; asks the files for their ends. Raises PipelineError."""
        return batch_request(self.options)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The records of one task as ``pyarrow.RecordBatch``es. Raises PipelineError."""
        if not isinstance(partition, SlicePartition):  # Spark makes one partition of an empty plan
            return
        options = ReadOptions(
            isolation=Isolation.READ_COMMITTED if self.options.read_committed else Isolation.READ_UNCOMMITTED,
            fail_on_data_loss=self.options.fail_on_data_loss,
            row_filter=RowFilter(key=self.options.key),
        )
        for piece in partition.slices:
            yield from read_slice(piece, self.wanted, options=options)
