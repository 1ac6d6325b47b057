"""``tidelog cluster start``: a development cluster on one machine, which stops as a whole and continues at the next
start."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from tests.support.cluster_clients import WAIT_S, values
from tests.support.jvm import broker_options
from tests.support.kafka_jars import KAFKA_4, broker_classpath
from tests.support.kraft_node import wait_until

pytestmark = [pytest.mark.java, pytest.mark.slow]
NODES = 2


@contextmanager
def cluster(directory: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A running command, and what it printed when the cluster was ready."""
    jars = broker_classpath().removesuffix("/*")
    words = ["cluster", "start", "--nodes", str(NODES), "--port", "0", "--data-dir", str(directory), "--kafka", jars]
    command = [sys.executable, "-I", "-m", "tidelog.cli", *words, "--json"]
    environment = {**os.environ, "JDK_JAVA_OPTIONS": shlex.join(broker_options(KAFKA_4))}  # a controller of seconds
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield process, read_ready_document(process)
        finally:
            process.terminate()


def read_ready_document(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Read the JSON document that says the cluster is ready."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line == "}\n":
            found: dict[str, Any] = json.loads("".join(lines))
            return found
    assert process.stderr is not None
    raise AssertionError(process.stderr.read())


def is_running(pid: int) -> bool:
    """Return whether there is a process with this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_all_nodes_end_together_and_records_are_kept(tmp_path: Path) -> None:
    """A node that is killed ends the cluster with its name; Ctrl-C ends it well."""
    with cluster(tmp_path) as (process, found):
        pids = [found["controller"]["pid"], *(broker["pid"] for broker in found["brokers"])]
        topics = AdminClient({"bootstrap.servers": found["bootstrap"]}).list_topics(timeout=WAIT_S)
        assert len(topics.brokers) == NODES
        producer = Producer({"bootstrap.servers": found["bootstrap"], "acks": "all"})
        producer.produce("kept", b"record")
        assert producer.flush(WAIT_S) == 0
        os.kill(pids[1], signal.SIGKILL)
        assert process.wait(WAIT_S) == 1
        assert process.stderr is not None
        assert process.stderr.read().startswith("tidelog cluster start: node 1 ended with -9")
        wait_until(lambda: not any(map(is_running, pids)), "no process is left")
    with cluster(tmp_path) as (process, found):
        assert values(found["bootstrap"], "kept") == [b"record"]
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 0
    assert len(list(tmp_path.glob("node-*/data/.kafka_cleanshutdown"))) == NODES
