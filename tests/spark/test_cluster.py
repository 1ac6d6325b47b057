"""Executors that are processes of their own, in their own directories, with a Python that the driver sent to them.

One is killed in the middle of an export, and speculation runs a task of another export twice.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

import pyarrow.parquet
import pytest

from benchmarks.rivals import spark as rival
from tests.support.kafka_jars import or_skip
from tests.support.pipelines import DataDirectory, fill
from tidelog.pipeline.export.manifest import ExportTable

pytestmark = pytest.mark.java
ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "tests" / "support" / "scripts" / "spark_cluster_driver.py"


def packed_environment(work: Path) -> Path:
    """Pack a virtual environment as venv-pack does, but for its packages, which it finds where they lie."""
    environment = work / "packed"
    venv.create(environment, symlinks=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "tests.pth").write_text(sysconfig.get_path("purelib"))
    archive = work / "environment.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        for path in environment.iterdir():
            file.add(path, path.name)
    return archive


def test_executors_elsewhere_one_that_dies_and_one_that_is_slow(tmp_path: Path) -> None:
    or_skip(rival.require_java)
    data = DataDirectory(tmp_path / "data")
    fill(data.log("t"), 60)
    fill(data.log("t", 1), 20)
    data.close()
    arguments = {"work": str(tmp_path), "data": "data", "archive": str(packed_environment(tmp_path))}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), json.dumps(arguments)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert len(seen["places"]) == 2, "two executors worked"
    assert [python for _, python in seen["places"]] == [f"{place}/environment" for place, _ in seen["places"]]
    expected = [[0, offset] for offset in range(300)] + [[1, offset] for offset in range(100)]
    assert seen["offsets"] == expected
    assert {"killed", "slow", "overtaken"} <= set(os.listdir(tmp_path))
    for name in ("killed", "speculated"):
        table = ExportTable(str(tmp_path / f"table-{name}"))
        rows = pyarrow.parquet.read_table(table.directory("data"), partitioning=None).to_pylist()
        assert sorted([row["partition"], row["offset"]] for row in rows) == expected
        assert len(os.listdir(table.directory("data"))) == seen[name]
