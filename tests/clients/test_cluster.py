"""A Tidelog member in a cluster of real Apache Kafka controllers, used by Kafka's own tools and clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.rivals.apache_kafka import CLUSTER_ID, STORAGE_TOOL
from tests.support.apache_kafka import run_tool
from tidelog.cli import main

pytestmark = [pytest.mark.java, pytest.mark.slow]


def test_kafka_storage_takes_what_was_formatted(tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text(
        f"process.roles=broker\nnode.id=4\nlog.dirs={tmp_path / 'a'},{tmp_path / 'b'}\n"
        "controller.quorum.bootstrap.servers=localhost:9093\ncontroller.listener.names=CONTROLLER\n"
        "listeners=PLAINTEXT://localhost:9092\n"
    )
    assert main(["format", "-t", CLUSTER_ID, "-c", str(config)]) == 0
    done = run_tool(STORAGE_TOOL, ["info", "-c", str(config)])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Found problem" not in done.stdout
    assert f"cluster.id={CLUSTER_ID}, " in done.stdout
    assert "node.id=4, version=1" in done.stdout
