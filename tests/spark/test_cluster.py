"""Executors that are processes of their own, in directories of their own, one of which is killed in the middle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.rivals import spark as rival
from tests.support.kafka_jars import or_skip
from tests.support.pipelines import DataDirectory, fill
from tidelog.pipeline.export.manifest import ExportTable

pytestmark = pytest.mark.java
ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "tests" / "support" / "scripts" / "spark_cluster_driver.py"


def test_executors_elsewhere_and_one_that_dies(tmp_path: Path) -> None:
    or_skip(rival.require_java)
    data = DataDirectory(tmp_path / "data")
    fill(data.log("t"), 60)
    fill(data.log("t", 1), 20)
    data.close()
    arguments = json.dumps({"work": str(tmp_path), "data": "data"})
    done = subprocess.run(
        [sys.executable, str(SCRIPT), arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert len(seen["places"]) == 2, "two executors worked"
    assert not any(place == str(tmp_path) for place in seen["places"])
    expected = [[0, offset] for offset in range(300)] + [[1, offset] for offset in range(100)]
    assert seen["offsets"] == expected
    assert (tmp_path / "killed").exists()
    assert seen["exported"] == 400
    table = ExportTable(str(tmp_path / "table"))
    assert sum(file.rows for file in table.read().files) == 400
    assert len(os.listdir(table.directory("data"))) == seen["files"]
