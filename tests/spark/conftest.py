"""Fixtures of the Spark tests: one session and one Tidelog broker for all of them. Use topics and paths of your own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.apache_kafka import ApacheKafka
from tests.support.broker import TidelogProcess
from tests.support.object_store import ENVIRONMENT
from tests.support.spark import spark_session
from tests.support.spark_topics import BROKER_SETTINGS, SparkTopics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def store_credentials() -> Iterator[None]:
    """Those of the tests' object store, in the environment: Spark's workers have that of the JVM they come from."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, store_credentials: None) -> Iterator[SparkSession]:
    """Spark on two cores, with ``format("kafka")`` and ``format("tidelog")``, shared by all tests."""
    with spark_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture(scope="session")
def tidelog_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogProcess]:
    """A Tidelog broker shared by all Spark tests: use topics of your own, never stop it."""
    with TidelogProcess(tmp_path_factory.mktemp("tidelog-broker"), BROKER_SETTINGS) as process:
        yield process


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """An Apache Kafka shared by all Spark tests: use topics of your own, never stop it."""
    with ApacheKafka(tmp_path_factory.mktemp("apache-kafka"), BROKER_SETTINGS, in_shared_jvm=True) as process:
        yield process


@pytest.fixture(scope="session")
def same_topics(tidelog_broker: TidelogProcess, apache_kafka: ApacheKafka) -> tuple[SparkTopics, SparkTopics]:
    """The topics of `SparkTopics`, equal on Tidelog and on Apache Kafka. Only to be read."""
    return SparkTopics(tidelog_broker.bootstrap), SparkTopics(apache_kafka.bootstrap)
