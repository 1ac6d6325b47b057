"""Spark for tests: one session for the whole run; a machine without Java 17 or Maven skips the tests."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.rivals import spark as rival
from tests.support.kafka_jars import or_skip

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK_TO_COMPILE = "-XX:TieredStopAtLevel=1"
"""Tests run each plan once or twice: the optimising compiler would cost more than it gives."""


@contextmanager
def their_warnings() -> Iterator[None]:
    """Inside, warnings are not errors: for PySpark's own start and stop."""
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
        session = rival.start_session(rival.SessionPlan(work, jars=jars, java_options=QUICK_TO_COMPILE))
    signal.signal(signal.SIGINT, interrupt)  # Spark's own cancels jobs; Ctrl-C is to end the tests
    try:
        yield session
    finally:
        with their_warnings():
            session.stop()
