"""Single-record produce requests, one after the other, timed: what a client feels of a cleaning round."""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.cleaner_data import CONFIG, DATA_SETS, DataSet, make, place
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.record_batch import Record, build_batch

_LENGTH = struct.Struct(">i")
VERSION = 3
SMALL = DataSet("small", "enough for the kernels", 3_000, 100, 100)
ASIDE = "aside"


def clean_and_wait(bootstrap: str, topic: str) -> None:
    """``tidelog compaction run TOPIC --wait``."""
    words = ["compaction", "run", topic, "--wait", "--bootstrap", bootstrap]
    subprocess.run([sys.executable, "-m", "tidelog.cli", *words], check=True, capture_output=True)


@contextmanager
def broker_with(data_sets: list[DataSet], directory: Path) -> Iterator[str]:
    """A broker whose topics hold the data sets, cleaned only when asked, and a topic aside; its address."""
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
        place(make(data, directory / "data"), broker.data_directory / f"{data.name}-0")
    with TidelogProcess(directory / "broker", port=broker.port) as again:
        yield again.bootstrap


def measure_latency(directory: Path) -> dict[str, list[float]]:
    """Round trips in µs: alone, while kernels are loaded, beside a round, and into the very partition it cleans."""
    first = DATA_SETS["first"]
    twin = replace(first, name="first-twin")
    with (
        broker_with([SMALL, first, twin], directory) as bootstrap,
        Producer(bootstrap, ASIDE) as aside,
        Producer(bootstrap, twin.name) as inside,
    ):
        for data in (SMALL, first):  # a record behind what was put there, or the high watermark stays before it
            with Producer(bootstrap, data.name) as once:
                once.once()
        aside.run_for(1.0)
        inside.run_for(1.0)
        return {
            "alone": aside.run_for(4.0),
            "while kernels are compiled and loaded": aside.run_while(lambda: clean_and_wait(bootstrap, SMALL.name)),
            "alone again": aside.run_for(4.0),
            "beside a round": aside.run_while(lambda: clean_and_wait(bootstrap, first.name)),
            "into the partition being cleaned": inside.run_while(lambda: clean_and_wait(bootstrap, twin.name)),
            "alone at the end": aside.run_for(4.0),
        }


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
        """One round trip in µs."""
        begin = time.perf_counter()
        self._socket.sendall(self._frame)
        (size,) = _LENGTH.unpack(self._socket.recv(4, socket.MSG_WAITALL))
        self._socket.recv(size, socket.MSG_WAITALL)
        return (time.perf_counter() - begin) * 1e6

    def run_for(self, seconds: float) -> list[float]:
        """Round trips for so long."""
        end = time.perf_counter() + seconds
        times = []
        while time.perf_counter() < end:
            times.append(self.once())
        return times

    def run_while(self, work: Callable[[], None]) -> list[float]:
        """Round trips for as long as ``work`` takes in a thread of its own."""
        thread = threading.Thread(target=work)
        thread.start()
        times = []
        while thread.is_alive():
            times.append(self.once())
        return times
