"""A Spark driver that tests kill: it copies a topic, with ``format("tidelog")`` as source and as sink.

Arguments: a JSON object with ``work``, ``data``, ``source``, ``target``, ``bootstrap``, ``checkpoint`` and perhaps
``kill_marker``, the path of a file. With ``kill_marker`` the Python worker of one task creates the file and kills
itself while it writes. The driver prints "ready" when Spark has started, waits for a line of
standard input, and begins.
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
from tests.support.spark import JAVA_OPTIONS
from tests.support.spark_copy import CopyPlan, start_copy
from tidelog.pipeline.sink.sink import TidelogStreamWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class KillOnceWriter(TidelogStreamWriter):
    """A sink writer whose first task with rows kills its own process after one batch of rows.

    ``kill_marker`` is the path of the file that this task creates.
    """

    kill_marker = ""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write like the sink, unless no task has created the marker yet: then die after the first batch of rows."""
        return super().write(self._until_killed(iterator))

    def _until_killed(self, iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in iterator:
            yield batch
            if batch.num_rows and not os.path.exists(self.kill_marker):
                Path(self.kill_marker).touch()
                os.kill(os.getpid(), signal.SIGKILL)


class KillOnceSource(DefaultSource):
    """A data source like ``format("tidelog")``, whose sink loses one of its workers."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``, which differs from ``tidelog``."""
        return "tidelog_kill_once"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """Build the sink's writer; the option ``killMarker`` has the marker's path."""
        options = dict(self.options)
        marker = options.pop("killmarker")
        writer = KillOnceWriter(options, schema, overwrite)
        writer.kill_marker = marker
        return writer


def main(arguments: dict[str, str]) -> None:
    """Start Spark, wait for a line, and copy the topic until all its records are read."""
    work = Path(arguments["work"])
    kill_marker = arguments.get("kill_marker")
    settings = {"spark.master": "local[2,3]"}  # a task may fail twice
    session = start_session(SessionPlan(work, java_options=JAVA_OPTIONS, settings=settings))
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
