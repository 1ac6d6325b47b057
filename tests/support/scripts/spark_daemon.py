"""Spark's process that forks Python workers, as ``spark.python.daemon.module``: what workers import is imported once.

Spark's own process imports nothing, so each worker imports PyArrow, pandas and the package itself. Spark also collects
garbage after each task, and goes through all that the worker has imported each time. Here these objects are frozen
before a worker is forked, so the collector leaves them out.
"""

from __future__ import annotations

import gc
from importlib import import_module

from pyspark import daemon

MODULES = (
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source",
    "lz4.frame",
    "pandas",
    "pyarrow.pandas_compat",
    "zstandard",
    "pyspark_tidelog",
    "tidelog.pipeline.decode.arrow_rows",
    "tidelog.pipeline.sink.produce",
    "tidelog.pipeline.sink.sink",
    "tidelog.pipeline.sink.staging",
    "tidelog.pipeline.sink.task",
    "tidelog.pipeline.source.reader",
)
"""Modules that workers of the tests import."""


def main() -> None:
    """Import the modules, freeze their objects, and fork workers until Spark closes standard input."""
    for name in MODULES:
        import_module(name)
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
