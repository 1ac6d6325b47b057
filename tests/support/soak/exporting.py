"""A party of the soak that exports topics to a table of Parquet files, again and again, while the broker runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.soak.party import Party, World
from tests.support.soak.patience import patience_for
from tests.support.soak.reading import read_all


class Exporter(Party):
    """Runs ``tidelog pipeline export`` without Spark; at the end the table has every committed record, each once."""

    def __init__(self, world: World, topics: list[str], pause_s: float) -> None:
        super().__init__(world, "export")
        self.topics = topics
        self.pause_s = pause_s
        self.table = world.scratch / "table"

    def turn(self) -> None:
        self._export(may_fail=True)

    def _export(self, *, may_fail: bool = False) -> None:
        words = [sys.executable, "-I", "-m", "tidelog.cli", "pipeline", "export", "--master", "none", "--quiet"]
        words += ["--path", str(self.world.data_directory), "--topic", ",".join(self.topics), str(self.table)]
        patience_s = patience_for(self.world.data_directory)
        done = subprocess.run(words, capture_output=True, text=True, timeout=patience_s, check=False)
        self.counts["runs"] += 1
        if done.returncode:
            self.counts["runs that ended with an error"] += 1
            message = done.stderr.strip()
            if not may_fail or "Traceback" in message or len(message.splitlines()) > 1:
                self.faults.append(f"an export ended with {done.returncode}: {message}")

    def check(self) -> None:
        self._export()
        rows = self._rows()
        self.counts["rows"] = len(rows)
        for topic in self.topics:
            self._compare(topic, [row for row in rows if row["topic"] == topic])

    def _rows(self) -> list[dict[str, Any]]:
        import pyarrow.parquet

        names = ["topic", "partition", "offset", "key", "value"]
        files = sorted(Path(self.table, "data").glob("*.parquet"))
        return [row for file in files for row in pyarrow.parquet.read_table(file, columns=names).to_pylist()]

    def _compare(self, topic: str, rows: list[dict[str, Any]]) -> None:
        wanted = read_all(self.world.bootstrap, topic)
        found = {(row["partition"], row["offset"]): (row["key"], row["value"]) for row in rows}
        if len(found) != len(rows):
            self.faults.append(f"{topic}: {len(rows) - len(found)} rows are in the table twice")
        for position in sorted(wanted.keys() | found.keys()):
            if wanted.get(position) != found.get(position):
                read, exported = wanted.get(position), found.get(position)
                self.faults.append(
                    f"{topic}-{position[0]}@{position[1]}: {read!r:.60} is read, {exported!r:.60} exported"
                )
