"""Drivers and a worker killed at each step of the sink: every record arrives once, none is lost.

Three drivers work in turn from one checkpoint and are killed with kill -9; the session of the tests finishes the copy.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.admin import Admin
from tests.support.broker import TidelogProcess
from tests.support.kafka_python import read_to_end
from tests.support.spark_copy import CopyPlan, start_copy
from tests.support.spark_topics import events, producer, write
from tests.support.tripwire import Tripwire
from tidelog.protocol.api_keys import ApiKey

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRIPT = Path(__file__).parent.parent / "support" / "scripts" / "spark_sink_driver.py"
ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE, TARGET, PARTITIONS = "kills-in", "kills-out", 2
RECORDS, PER_BATCH = 3000, 1000
STEP_S = 90.0


@contextmanager
def driver(arguments: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A driver in a process group of its own, killed at the end."""
    with (Path(arguments["work"]) / "driver.out").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            start_new_session=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
    with process:
        try:
            yield process
        finally:
            kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the driver's Python, its JVM and its workers, as kill -9 does."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def begin(process: subprocess.Popen[bytes]) -> None:
    """Wait until Spark is up, then let the driver start its query."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.stdin.write(b"\n")
    process.stdin.flush()


def values(bootstrap: str, topic: str, isolation: str) -> Counter[tuple[bytes | None, bytes | None]]:
    """Count each key and value in a topic."""
    return Counter((record.key, record.value) for record in read_to_end(bootstrap, topic, isolation))


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[tuple[Tripwire, CopyPlan, list[subprocess.Popen[bytes]]]]:
    """Three drivers that start up side by side, a broker behind a tripwire, the plan they all follow."""
    with ExitStack() as stack:
        wire = stack.enter_context(Tripwire())
        overrides = {"advertised.listeners": f"PLAINTEXT://{wire.bootstrap}"}
        broker = stack.enter_context(TidelogProcess(tmp_path / "broker", overrides))
        wire.connect_to(broker.port)
        plan = CopyPlan(
            data=str(broker.data_directory),
            source=SOURCE,
            target=TARGET,
            bootstrap=wire.bootstrap,
            checkpoint=str(tmp_path / "checkpoint"),
            per_trigger=PER_BATCH,
        )
        processes = []
        for number in range(3):
            work = tmp_path / f"driver-{number}"
            work.mkdir()
            arguments = {
                "work": str(work),
                "data": plan.data,
                "source": SOURCE,
                "target": TARGET,
                "bootstrap": wire.bootstrap,
                "checkpoint": plan.checkpoint,
            }
            if number == 2:
                arguments["kill_marker"] = str(tmp_path / "worker-was-killed")
            processes.append(stack.enter_context(driver(arguments)))
        yield wire, plan, processes


@pytest.mark.slow
def test_every_record_arrives_once_whoever_is_killed(
    spark: SparkSession,
    drivers: tuple[Tripwire, CopyPlan, list[subprocess.Popen[bytes]]],
    tmp_path: Path,
) -> None:
    wire, plan, (first, second, third) = drivers
    for topic in (SOURCE, TARGET):
        Admin(wire.bootstrap).create(topic, PARTITIONS)
    write(producer(wire.bootstrap), SOURCE, events(RECORDS, PARTITIONS))

    staged = wire.arm(ApiKey.INIT_PRODUCER_ID)
    begin(first)
    assert staged.reached.wait(STEP_S)
    kill(first)  # between staging and publishing
    assert list(Path(plan.checkpoint).rglob("*.batches"))
    assert not values(wire.bootstrap, TARGET, "read_uncommitted")

    produced = wire.arm(ApiKey.END_TXN)
    begin(second)
    assert produced.reached.wait(STEP_S)
    kill(second)  # every record is in the log, the end of the transaction is not
    assert values(wire.bootstrap, TARGET, "read_uncommitted").total() == PER_BATCH
    assert not values(wire.bootstrap, TARGET, "read_committed")

    ended = wire.arm(ApiKey.END_TXN, after=True)
    begin(third)
    assert ended.reached.wait(STEP_S)
    kill(third)  # the transaction has ended, Spark has not written that down
    assert (tmp_path / "worker-was-killed").exists()
    assert values(wire.bootstrap, TARGET, "read_committed").total() == PER_BATCH
    assert not list((Path(plan.checkpoint) / "commits").glob("[0-9]*"))

    query = start_copy(spark, plan)
    assert query.awaitTermination(int(STEP_S))
    assert values(wire.bootstrap, TARGET, "read_committed") == values(wire.bootstrap, SOURCE, "read_committed")
    assert values(wire.bootstrap, TARGET, "read_committed").total() == RECORDS
    assert [progress.numInputRows for progress in query.recentProgress] == [PER_BATCH] * (RECORDS // PER_BATCH)
    assert not [path for path in Path(plan.checkpoint, "tidelog-staging").rglob("*") if path.is_file()]
