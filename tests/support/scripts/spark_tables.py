"""A reader of tables by a Spark with Iceberg's runtime and Delta's package: ``spark_tables.py JARS WORK``.

Each line of standard input is a JSON object with a format and an address; the answer is a line of JSON, the table's
rows. The interpreter that runs this script needs the Spark version for which the runtime is built.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
COLUMNS = ("topic", "partition", "offset", "hex(key) key", "hex(value) value", "unix_micros(timestamp) timestamp",
           "timestampType", "transform(headers, h -> struct(h.key, hex(h.value) value)) headers")  # fmt: skip


def main(jars: str, work: str) -> None:
    """Answer each line of standard input until it ends."""
    builder = SparkSession.builder.master("local[1]").config("spark.jars", jars).config("spark.sql.warehouse.dir", work)
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    for line in sys.stdin:
        asked = json.loads(line)
        frame = spark.read.format(asked["format"]).load(asked["address"]).selectExpr(*COLUMNS)
        rows = [row.asDict(recursive=True) for row in frame.collect()]
        print(json.dumps(rows), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
