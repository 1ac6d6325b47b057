"""Spark sessions, and the jars of Spark's own Kafka source: the rival of ``format("tidelog")``.

The connector is four jars, fetched without their dependencies, which PySpark already contains. The token provider is
older than the connector on purpose: 4.2.0's is not published, and 4.0.0's links and works.

    python -m benchmarks.rivals.spark      fetches missing jars, and prints all paths for spark.jars
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.rivals.kafka_jars import BUILD, SCALA, Artifact, MissingToolError, java, resolve

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
"""PySpark 4's class files need it."""
JAVA_INSTALL = "apt-get install openjdk-17-jre-headless"
CONNECTOR = (
    Artifact("org.apache.spark", f"spark-sql-kafka-0-10_{SCALA}", "4.2.0", bare=True),
    Artifact("org.apache.spark", f"spark-token-provider-kafka-0-10_{SCALA}", "4.0.0", bare=True),
    Artifact("org.apache.kafka", "kafka-clients", "3.9.2", bare=True),
    Artifact("org.apache.commons", "commons-pool2", "2.13.1", bare=True),
)


def java_version(printed: str) -> int | None:
    """Parse the feature number in what ``java -version`` printed: 17 of "17.0.15", 8 of "1.8.0_402"."""
    found = re.search(r'version "(?:1\.)?(\d+)', printed)
    return int(found[1]) if found else None


def require_java() -> None:
    """Raise MissingToolError unless the Java on PATH can run Spark."""
    try:
        done = subprocess.run([java(), "-version"], capture_output=True, text=True, check=False)
    except MissingToolError:
        raise MissingToolError(f"Java {OLDEST_JAVA} or newer", JAVA_INSTALL) from None
    version = java_version(done.stderr)
    if version is None or version < OLDEST_JAVA:
        raise MissingToolError(f"Java {OLDEST_JAVA} or newer (found {version})", JAVA_INSTALL)


def connector_jars() -> list[Path]:
    """Return the jars of ``format("kafka")``, fetched on the first call. Raises as `resolve`."""
    directory = resolve("connector", CONNECTOR, BUILD / "spark-jars")
    return [directory / f"{artifact.name}-{artifact.version}.jar" for artifact in CONNECTOR]


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """Settings to start Spark with. ``work`` takes its temporary files; ``python`` is the workers' interpreter."""

    work: Path
    python: str = sys.executable
    cores: int = 2
    memory: str = "1g"
    jars: tuple[Path, ...] = ()
    java_options: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)

    def configuration(self) -> dict[str, str]:
        """Return Spark's settings: quiet, on 127.0.0.1, in UTC."""
        return {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.memory": self.memory,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": f"-Duser.timezone=UTC {self.java_options}".strip(),
            "spark.jars": ",".join(map(str, self.jars)),
            "spark.local.dir": str(self.work / "local"),
            "spark.sql.warehouse.dir": str(self.work / "warehouse"),
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": str(self.cores),
            "spark.log.level": "ERROR",
            **self.settings,
        }


def start_session(plan: SessionPlan) -> SparkSession:
    """Start a session. A process can have one at a time, and all run in the JVM that the first one starts. Raises as
    `require_java`.
    """
    from pyspark.sql import SparkSession

    require_java()
    os.environ["PYSPARK_PYTHON"], os.environ["PYSPARK_DRIVER_PYTHON"] = plan.python, sys.executable
    builder = SparkSession.builder.master(f"local[{plan.cores}]").appName("tidelog")
    for key, value in plan.configuration().items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


if __name__ == "__main__":
    print(",".join(map(str, connector_jars())))
