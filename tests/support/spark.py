"""Spark for tests: one session for the whole run; a machine without Java 17 or Maven skips the tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.rivals import spark as rival
from tests.support.jvm import QUICK, SILENT, archive_options
from tests.support.kafka_jars import or_skip

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDER = Path(__file__).parent / "scripts" / "spark_classes.py"
RECORDING_TIMEOUT_S = 300
ROOT = Path(__file__).resolve().parents[2]


@cache
def java_options() -> str:
    """Return options of Spark's JVMs: no optimising compiler, as it costs more than it gives if a plan runs only once.

    A session starts with 4 s of CPU time instead of 7 from an archive of its classes, see `tests.support.jvm`.
    """
    import pyspark

    (package,) = pyspark.__path__
    return " ".join(archive_options("spark", Path(package) / "jars", _record))


def _record(archive: Path) -> None:
    """Run a session in another process, whose JVM writes an archive of its loaded classes when it ends."""
    options = " ".join((*QUICK, *SILENT, f"-XX:ArchiveClassesAtExit={archive}"))
    with TemporaryDirectory() as work:
        subprocess.run(
            [sys.executable, "-W", "ignore", str(RECORDER), work, options],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            timeout=RECORDING_TIMEOUT_S,
            check=True,
        )


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
        session = rival.start_session(rival.SessionPlan(work, jars=jars, java_options=java_options()))
    signal.signal(signal.SIGINT, interrupt)  # Spark's handler cancels jobs; here Ctrl-C has to end the tests
    try:
        yield session
    finally:
        with their_warnings():
            session.stop()
