"""A Spark session that answers two queries and ends: it loads the classes that every session of the tests needs."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.rivals.spark import SessionPlan, start_session


def main(work: str, java_options: str) -> None:
    """Start the session with these options, run two queries, and wait until its JVM ends, which may write a file."""
    session = start_session(SessionPlan(Path(work), java_options=java_options))
    session.range(100).selectExpr("id % 7 as key", "id").groupBy("key").sum("id").collect()
    rows = session.createDataFrame([(1, "a"), (2, "b")], "number int, word string")
    assert rows.rdd.map(lambda row: row.number).collect() == [1, 2]
    gateway = session.sparkContext._gateway
    assert gateway is not None
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
