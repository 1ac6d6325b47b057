"""Fixtures of the Spark tests: one session and one Tidelog broker for all of them. Use topics and paths of your own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.broker import TidelogProcess
from tests.support.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark on two cores, with ``format("kafka")`` and ``format("tidelog")``, shared by all tests."""
    with spark_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture(scope="session")
def tidelog_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogProcess]:
    """A Tidelog broker shared by all Spark tests: use topics of your own, never stop it."""
    with TidelogProcess(tmp_path_factory.mktemp("tidelog-broker")) as process:
        yield process
