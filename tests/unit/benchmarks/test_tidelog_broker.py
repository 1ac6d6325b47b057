"""The ready line of a broker's process, which other lines may follow in the same read."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from benchmarks.rivals.tidelog_broker import TidelogProcess, read_ready_line


@pytest.mark.parametrize("more", ["", "console http://127.0.0.1:9644\\n", "console http://127.0"])
def test_the_port_is_that_of_the_first_line(tmp_path: Path, more: str) -> None:
    broker = TidelogProcess(tmp_path)
    command = ["printf", f"tidelog ready on 127.0.0.1:1234\\n{more}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        process.wait()  # so that all of it comes in one read
        broker.process = process
        assert read_ready_line(broker, time.monotonic() + 60) == 1234
        broker.process = None
