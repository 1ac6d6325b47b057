"""Single-record produce requests, one after the other, timed: what a client feels of a cleaning round."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.record_batch import Record, build_batch

_LENGTH = struct.Struct(">i")
VERSION = 3


def clean_and_wait(bootstrap: str, topic: str) -> None:
    """``tidelog compaction run TOPIC --wait``."""
    words = ["compaction", "run", topic, "--wait", "--bootstrap", bootstrap]
    subprocess.run([sys.executable, "-m", "tidelog.cli", *words], check=False, capture_output=True)


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
