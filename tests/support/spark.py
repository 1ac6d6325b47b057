"""Spark for tests: one session for the whole run; a machine without Java 17 or Maven skips the tests."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.rivals import spark as rival
from tests.support.jvm import WITHOUT_ARCHIVE
from tests.support.kafka_jars import or_skip

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_OPTIONS = " ".join(WITHOUT_ARCHIVE)
"""Options of Spark's JVMs: no optimizing compiler, as it costs more than it gives if a plan runs only once; and Spark's
classes are not verified: a session takes 10 s of CPU time in place of 12. An archive of the classes, as Kafka's JVMs
have one, takes 29 s to write, and saves 5 s in each of the few sessions of a run."""
SETTINGS = {
    "spark.python.daemon.module": "tests.support.scripts.spark_daemon",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Settings of the shared session. Python workers are forked with all modules imported: two modules of tests take 51 s
of CPU time in place of 63. The default class for checkpoints starts a ``readlink`` for each file of one: in 32 tests of
streams 3,800 processes, which take 10 of their 63 s. Sessions of other processes use the defaults: the workers of
``test_cluster.py`` and ``test_sink_kills.py`` import what they need."""


@contextmanager
def their_warnings() -> Iterator[None]:
    """Ignore warnings inside the block: PySpark causes some, and the test run makes each an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def spark_session(work: Path) -> Iterator[SparkSession]:
    """A session with the Kafka connector on its class path. Skips without Java 17 or Maven."""
    or_skip(rival.require_java)
    jars = tuple(or_skip(rival.connector_jars))
    interrupt = signal.getsignal(signal.SIGINT)
    with their_warnings():
        session = rival.start_session(rival.SessionPlan(work, jars=jars, java_options=JAVA_OPTIONS, settings=SETTINGS))
    signal.signal(signal.SIGINT, interrupt)  # Spark's handler cancels jobs; here Ctrl-C has to end the tests
    try:
        yield session
    finally:
        with their_warnings():
            session.stop()
