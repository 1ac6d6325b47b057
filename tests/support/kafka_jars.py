"""Apache Kafka's jars for tests: `benchmarks.rivals.kafka_jars`, with a missing tool as a reason to skip the test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from benchmarks.rivals import kafka_jars as jars
from tests.support.requirements import missing

KAFKA_3 = jars.KAFKA_3
KAFKA_4 = jars.KAFKA_4
T = TypeVar("T")


def or_skip(get: Callable[[], T]) -> T:
    """Return ``get()``; a missing tool skips the test (fails it in CI) with the command that installs it."""
    try:
        return get()
    except jars.MissingToolError as error:
        missing(error.tool, error.install)


def clients_jar(version: str = KAFKA_4) -> Path:
    """Return the ``kafka-clients`` jar of a version."""
    return or_skip(lambda: jars.clients_jar(version))


def client_classpath(version: str) -> str:
    """Return a class path with ``kafka-clients`` of a version and all it needs."""
    return or_skip(lambda: jars.client_classpath(version))


def shell_classpath(version: str = KAFKA_4) -> str:
    """Return a class path that runs ``kafka-metadata-shell``."""
    return or_skip(lambda: jars.shell_classpath(version))


def streams_classpath(version: str = KAFKA_4) -> str:
    """Return a class path with Kafka Streams and all it needs."""
    return or_skip(lambda: jars.streams_classpath(version))


def connect_classpath(version: str = KAFKA_4) -> str:
    """Return a class path that runs Kafka Connect's workers, its file connectors and MirrorMaker 2."""
    return or_skip(lambda: jars.connect_classpath(version))


def broker_classpath(version: str = KAFKA_4) -> str:
    """Return a class path that runs Apache Kafka's broker and tools."""
    return or_skip(lambda: jars.broker_classpath(version))
