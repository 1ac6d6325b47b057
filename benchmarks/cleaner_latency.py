"""Single-record produce requests, one after the other, timed: the effect of a cleaning round on a client.

This process asks for rounds over HTTP, because starting a command would use a processor. Each of several rounds cleans
a log of its own, with quiet phases before and after. As a control, the same requests run beside processes that only
compute.
"""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.cleaner_data import CONFIG, DATA_SETS, DataSet, make, replace_log
from tidelog.client.settings import ClientSettings
from tidelog.commands.running.compaction import WAIT_S, ask
from tidelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.protocol.record.record_batch import Record, build_batch

_LENGTH = struct.Struct(">i")
VERSION = 3
SMALL = DataSet("small", "enough for a first round", 3_000, 100, 100)
ASIDE = "aside"


def clean_and_wait(bootstrap: str, topic: str) -> None:
    """Do what ``tidelog compaction run TOPIC --wait`` does, in this process. Raises RuntimeError if a log was not
    cleaned, and ClientError, KafkaError, OSError.
    """
    status, answer = ask(ClientSettings(bootstrap), "POST", f"/compaction/{topic}", WAIT_S)
    if status != HTTPStatus.OK or any("error" in entry for entry in answer):
        raise RuntimeError(f"cleaning {topic}: {status} {answer}")


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Processes that only compute, inside the ``with`` block."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        time.sleep(0.5)
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


@contextmanager
def broker_with(data_sets: list[DataSet], directory: Path) -> Iterator[str]:
    """A broker whose topics hold the data sets and are cleaned only on request, and one more topic; its address."""
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    from benchmarks.rivals.tidelog_broker import TidelogProcess

    shutil.rmtree(directory / "broker", ignore_errors=True)
    config = {**CONFIG, "min.cleanable.dirty.ratio": "1.0"}
    with TidelogProcess(directory / "broker") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        topics = [NewTopic(data.name, 1, 1, config=config) for data in data_sets] + [NewTopic(ASIDE, 1, 1)]
        for created in admin.create_topics(topics).values():
            created.result()
    for data in data_sets:
        made = make(data if data is SMALL else DATA_SETS["first"], directory / "data")
        replace_log(made, broker.data_directory / f"{data.name}-0")
    with TidelogProcess(directory / "broker", port=broker.port) as again:
        yield again.bootstrap


def measure_latency(directory: Path, rounds: int) -> dict[str, list[float]]:
    """Measure round trips in µs: alone, beside busy processes, beside the first round, beside later rounds, and into
    the partitions that they clean.
    """
    first = DATA_SETS["first"]
    make(first, directory / "data")
    logs = [replace(first, name=f"first-{number}") for number in range(2 * rounds)]
    with broker_with([SMALL, *logs], directory) as bootstrap, Producer(bootstrap, ASIDE) as aside:
        for data in (SMALL, *logs):  # a record after the data set: without it the high watermark stays before the data
            with Producer(bootstrap, data.name) as once:
                once.once()
        aside.run_for(1.0)
        phases = {"alone": aside.run_for(4.0)}
        for count in (1, 2):
            with busy_processes(count):
                phases[f"beside {count} busy process{'es' * (count > 1)}"] = aside.run_for(3.0)
        phases["beside the first round"] = aside.run_while(lambda: clean_and_wait(bootstrap, SMALL.name))
        return phases | measure_rounds(bootstrap, aside, [data.name for data in logs])


def measure_rounds(bootstrap: str, aside: Producer, topics: list[str]) -> dict[str, list[float]]:
    """Measure round trips beside a round over each topic in turn; every second time into that topic."""
    again, beside, inside = aside.run_for(2.0), [], []
    for number, topic in enumerate(topics):
        clean = partial(clean_and_wait, bootstrap, topic)
        if number % 2:
            with Producer(bootstrap, topic) as into:
                inside += into.run_while(clean)
        else:
            beside += aside.run_while(clean)
        again += aside.run_for(1.0)
    return {"alone again": again, "beside a round": beside, "into the partition being cleaned": inside}


class Producer:
    """One connection; each request is sent when the last was answered."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        records = bytes(build_batch([Record(0, 1_700_000_000_000, b"key", b"v" * 100)]))
        partition = PartitionProduceData(index=0, records=memoryview(records))
        request = ProduceRequest(
            acks=1, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=[partition])]
        )
        header = struct.pack(">hhih", 0, VERSION, 1, -1)
        body = request.encode(VERSION)
        self._frame = _LENGTH.pack(len(header) + len(body)) + header + body

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def once(self) -> float:
        """Measure one round trip in µs."""
        begin = time.perf_counter()
        self._socket.sendall(self._frame)
        (size,) = _LENGTH.unpack(self._socket.recv(4, socket.MSG_WAITALL))
        self._socket.recv(size, socket.MSG_WAITALL)
        return (time.perf_counter() - begin) * 1e6

    def run_for(self, seconds: float) -> list[float]:
        """Measure round trips for this time."""
        end = time.perf_counter() + seconds
        times = []
        while time.perf_counter() < end:
            times.append(self.once())
        return times

    def run_while(self, work: Callable[[], None]) -> list[float]:
        """Measure round trips for as long as ``work`` takes in a thread of its own. Raises what it raises."""
        times = []
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(work)
            while not future.done():
                times.append(self.once())
        future.result()
        return times
