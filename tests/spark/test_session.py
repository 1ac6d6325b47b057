"""The shared session: it has both formats, and its workers run the tests' interpreter."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pyspark.sql.functions import udf

from tests.support.admin import Admin
from tests.support.broker import TidelogProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_workers_run_the_tests_interpreter(spark: SparkSession) -> None:
    where = udf(lambda _: sys.executable, "string")
    assert spark.range(1).select(where("id")).collect()[0][0] == sys.executable


def test_the_kafka_format_reads_an_empty_topic(spark: SparkSession, tidelog_broker: TidelogProcess) -> None:
    Admin(tidelog_broker.bootstrap).create("session-empty", 2)
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", tidelog_broker.bootstrap)
    assert reader.option("subscribe", "session-empty").load().count() == 0
