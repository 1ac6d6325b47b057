"""Spark on a secured broker: ``kafka.*`` options of both formats, by SASL_SSL with users and ACLs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

import tidelog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECURITY = tidelog.Security(
    users={"ann": "a word", "bob": "another"},
    acls={
        "ann": ["all topic *", "all group *", "all transactional-id *", "idempotent-write cluster"],
        "bob": ["describe topic orders"],
    },
)
OURS = ("security.protocol", "ssl.truststore.type", "ssl.truststore.location", "sasl.mechanism", "sasl.jaas.config")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tidelog.Broker]:
    with tidelog.Broker(data_dir=tmp_path_factory.mktemp("secured"), security=SECURITY) as broker:
        yield broker


def options(broker: tidelog.Broker, user: str) -> dict[str, str]:
    """Return options that are the same for both formats."""
    return {f"kafka.{key}": text for key, text in broker.clients.java(user).items()}


def test_both_formats_write_and_read_by_sasl_ssl(spark: SparkSession, secured: tidelog.Broker, tmp_path: Path) -> None:
    ann = options(secured, "ann")
    assert {f"kafka.{key}" for key in OURS} <= ann.keys()
    frame = spark.range(10).selectExpr("cast(id as string) as value")
    frame.write.format("kafka").options(**ann).option("topic", "orders").save()
    staged = frame.write.format("tidelog").mode("append").options(**ann, stagingPath=str(tmp_path))
    staged.option("topic", "orders").save()
    read = spark.read.format("kafka").options(**ann).option("subscribe", "orders").load()
    assert read.count() == 20
    files = spark.read.format("tidelog").options(**ann).option("subscribe", "orders")
    assert files.load(str(secured.data_dir)).count() == 20


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
          'username="ann" password="wrong";'}, "Authentication failed"),
        ({"kafka.security.protocol": "PLAINTEXT"}, "kafka.bootstrap.servers"),
    ],
)  # fmt: skip
def test_a_wrong_login_is_reported_when_the_query_is_planned(
    spark: SparkSession, secured: tidelog.Broker, change: dict[str, str], says: str
) -> None:
    given = options(secured, "ann") | change
    frame = spark.range(1).selectExpr("cast(id as string) as value")
    frame.write.format("kafka").options(**options(secured, "ann")).option("topic", "asked").save()
    with pytest.raises(PySparkException, match=says):
        spark.read.format("tidelog").options(**given).option("subscribe", "asked").load(str(secured.data_dir)).count()


def test_a_user_without_a_grant_writes_nothing(spark: SparkSession, secured: tidelog.Broker, tmp_path: Path) -> None:
    frame = spark.range(1).selectExpr("cast(id as string) as value")
    writing = frame.write.format("tidelog").mode("append").options(**options(secured, "bob"), stagingPath=str(tmp_path))
    with pytest.raises(PySparkException, match=r"(?i)authori[sz]"):
        writing.option("topic", "orders").save()


def test_a_table_takes_no_password_and_a_view_writes_none_into_files(
    spark: SparkSession, secured: tidelog.Broker, tmp_path: Path
) -> None:
    ann = options(secured, "ann")
    frame = spark.range(1).selectExpr("cast(id as string) as value")
    frame.write.format("kafka").options(**ann).option("topic", "viewed").save()
    given = {"path": str(secured.data_dir), "subscribe": "viewed", **ann}
    clause = ", ".join(f"{name} '{text}'" for name, text in given.items() if text)
    with pytest.raises(PySparkException, match=r"option kafka\.sasl\.jaas\.config is not for CREATE TABLE"):
        spark.sql(f"CREATE TABLE with_password USING tidelog OPTIONS ({clause})")
    spark.sql(f"CREATE TEMPORARY VIEW with_password USING tidelog OPTIONS ({clause})")
    spark.table("with_password").write.parquet(str(tmp_path / "copied"))
    spark.catalog.dropTempView("with_password")
    files = [path.read_bytes() for path in (tmp_path / "copied").glob("*.parquet")]
    assert files
    assert not [content for content in files if b"a word" in content or b"jaas" in content]
