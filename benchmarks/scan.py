"""The benchmark of ``tidelog.scan``: a log on disk to Arrow batches, one core, no broker and no Spark.

    python -m benchmarks.scan [--records 3000000] [--rounds 5]

A log of uncompressed batches of some 900 kB, keys of 8 bytes and values of random bytes, is written once and read warm.
Rows and bytes are per second of the process's processor time, in the best round: other work on the machine can only
make a round slower. The aim is 8 M rows/s with values of 100 bytes. DuckDB counts the rows of the same reader and sums
the sizes of their values.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

import tidelog
from benchmarks.machine import describe, require_compiled
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch

BATCH_BYTES = 900_000
SEGMENT_BATCHES = 250
COLUMNS = {
    "all seven columns": None,
    "key, value, offset, timestamp": ("key", "value", "offset", "timestamp"),
    "offset, timestamp": ("offset", "timestamp"),
}


def write_log(directory: Path, records: int, value_bytes: int) -> None:
    """Write segments of a topic ``t`` with one partition."""
    (directory / "t-0").mkdir(parents=True)
    chance = np.random.default_rng(1)
    each = max(1, BATCH_BYTES // (value_bytes + 16))
    base = 0
    while base < records:
        path = directory / "t-0" / f"{base:020d}.log"
        with path.open("wb") as file:
            for _ in range(SEGMENT_BATCHES):
                values = chance.bytes(each * value_bytes)
                batch = [
                    Record(base + n, base + n, b"%08d" % n, values[n * value_bytes : (n + 1) * value_bytes])
                    for n in range(each)
                ]
                file.write(build_batch(batch, BatchOptions()))
                base += each
                if base >= records:
                    break


def read_all(directory: Path, columns: tuple[str, ...] | None) -> int:
    """Read every batch; returns the number of rows."""
    return sum(batch.num_rows for batch in tidelog.scan(directory, "t", columns=columns))


def count_by_duckdb(directory: Path) -> int:
    """Count the rows and sum the sizes of values in DuckDB; returns the number of rows."""
    import duckdb

    connection = duckdb.connect(config={"threads": 1})
    connection.register("log", tidelog.scan(directory, "t"))
    (row,) = connection.sql("select count(*), sum(octet_length(value)) from log").fetchall()
    return int(row[0])


def best_rate(read: Callable[[], int], rounds: int) -> float:
    """Measure rows per second of processor time in the best round."""
    best = 0.0
    for _ in range(rounds):
        began = time.process_time()
        rows = read()
        best = max(best, rows / (time.process_time() - began))
    return best


def main() -> None:
    require_compiled()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=3_000_000, help="records of 100 bytes; a sixth as many of 1 kB")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print(f"{describe()}\n\n| values | read | M rows/s a core | GB/s of values |\n|---|---|---:|---:|")
    for value_bytes, records in ((100, arguments.records), (1000, arguments.records // 6)):
        with tempfile.TemporaryDirectory() as work:
            directory = Path(work, "data")
            write_log(directory, records, value_bytes)
            measure(directory, value_bytes, arguments.rounds)


def measure(directory: Path, value_bytes: int, rounds: int) -> None:
    """Print the rows of one size of values."""
    for title, columns in COLUMNS.items():
        show(value_bytes, title, best_rate(partial(read_all, directory, columns), rounds))
    show(value_bytes, "DuckDB: count, sum of sizes", best_rate(partial(count_by_duckdb, directory), rounds))


def show(value_bytes: int, title: str, rate: float) -> None:
    """Print one row."""
    print(f"| {value_bytes} B | {title} | {rate / 1e6:.2f} | {rate * value_bytes / 1e9:.2f} |", flush=True)


if __name__ == "__main__":
    main()
