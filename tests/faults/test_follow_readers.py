"""Readers of a table that `export --follow` writes, while it is killed: every record once, and never fewer."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("polars")

import polars
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tests.support.pipelines import DataDirectory, fill

LIMIT_S = 120
KILLS = int(os.environ.get("TIDELOG_FOLLOW_KILLS", "1"))


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    return DataDirectory(tmp_path / "data")


class Reader(threading.Thread):
    """A reader that reads a Delta table all the time; it keeps the errors that it found, and counts its reads."""

    def __init__(self, table: str) -> None:
        super().__init__(name="reader", daemon=True)
        self.wrong: list[str] = []
        self.looks = self.rows = 0
        self.stopped = threading.Event()
        self._table = table

    def run(self) -> None:
        while not self.stopped.is_set() and not self.wrong:
            if not DeltaTable.is_deltatable(self._table):
                time.sleep(0.01)
                continue
            try:
                offsets = polars.read_delta(self._table).get_column("offset").sort().to_list()
            except (DeltaError, OSError, polars.exceptions.PolarsError) as error:
                self.wrong.append(str(error))
                return
            if offsets != list(range(len(offsets))) or len(offsets) < self.rows:
                self.wrong.append(f"{len(offsets)} rows after {self.rows}: {offsets[:5]} ...")
            self.rows = len(offsets)
            self.looks += 1


@contextmanager
def following(data: DataDirectory, table: str) -> Iterator[subprocess.Popen[str]]:
    """A process that follows, killed at the end unless it has ended."""
    command = [
        sys.executable,
        "-m",
        "tidelog",
        "pipeline",
        "export",
        table,
        "--path",
        str(data.path),
        "--format",
        "delta",
    ]
    command += ["--master", "none", "--quiet", "--follow", "--interval", "0.02", "--file-bytes", "2000"]
    process = subprocess.Popen([*command, "--commit-files", "1"], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_readers_are_right_at_every_moment_while_it_is_killed(data: DataDirectory, tmp_path: Path) -> None:
    chance, table = random.Random(20_261_122), str(tmp_path / "table")
    reader = Reader(table)
    fill(data.log("orders"), 5)
    reader.start()
    for _ in range(KILLS):
        fill(data.log("orders"), 1)  # no process has seen them: the next one has something to tell
        with following(data, table) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(f"{table} version ")
            for _ in range(chance.randrange(1, 20)):
                fill(data.log("orders"), 2)
    fill(data.log("orders"), 1)
    with following(data, table) as process:
        end = data.log("orders").log_end_offset
        deadline = time.monotonic() + LIMIT_S
        while reader.rows < end and not reader.wrong and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
    reader.stopped.set()
    reader.join(LIMIT_S)
    assert not reader.is_alive()
    assert reader.wrong == []
    assert polars.read_delta(table).get_column("offset").sort().to_list() == list(range(end))
