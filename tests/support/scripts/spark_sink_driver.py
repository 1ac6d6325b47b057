"""A Spark driver that is killed: it copies a topic through ``format("tidelog")``, source and sink, until all is read.

Arguments: a JSON object with ``work``, ``data``, ``source``, ``target``, ``bootstrap``, ``checkpoint`` and perhaps
``kill_marker``. With it one task's Python worker is killed once while it writes; it is the path of a file that says so.
It prints "ready" once Spark is there, waits for a line and begins.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage

from benchmarks.rivals.spark import SessionPlan, start_session
from pyspark_tidelog import DefaultSource
from tests.support.spark import java_options
from tests.support.spark_copy import CopyPlan, start_copy
from tidelog.pipeline.sink.sink import TidelogStreamWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class KillOnceWriter(TidelogStreamWriter):
    """Its first task to get rows kills its own process with some of them written."""

    kill_marker = ""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write like the sink, until the marker is made."""
        return super().write(self._until_killed(iterator))

    def _until_killed(self, iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in iterator:
            yield batch
            if batch.num_rows and not os.path.exists(self.kill_marker):
                Path(self.kill_marker).touch()
                os.kill(os.getpid(), signal.SIGKILL)


class KillOnceSource(DefaultSource):
    """``format("tidelog")`` whose sink loses a worker."""

    @classmethod
    def name(cls) -> str:
        """Return another name than the real one."""
        return "tidelog_kill_once"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """Build the sink; the marker's path comes as an option of its own."""
        options = dict(self.options)
        marker = options.pop("killmarker")
        writer = KillOnceWriter(options, schema, overwrite)
        writer.kill_marker = marker
        return writer


def main(arguments: dict[str, str]) -> None:
    """Copy until all is read."""
    work = Path(arguments["work"])
    kill_marker = arguments.get("kill_marker")
    settings = {"spark.master": "local[2,3]"}  # a task may fail twice
    session = start_session(SessionPlan(work, java_options=java_options(), settings=settings))
    options = {}
    if kill_marker is not None:
        session.dataSource.register(KillOnceSource)
        options["killMarker"] = kill_marker
    print("ready", flush=True)
    sys.stdin.readline()
    plan = CopyPlan(
        data=arguments["data"],
        source=arguments["source"],
        target=arguments["target"],
        bootstrap=arguments["bootstrap"],
        checkpoint=arguments["checkpoint"],
        sink="tidelog_kill_once" if kill_marker else "tidelog",
    )
    start_copy(session, plan, options).awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
