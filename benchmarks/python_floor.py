"""Floor of a broker written in Python: ``python -m benchmarks.python_floor [--mb 300]``.

An uvloop server without a broker's decisions, beside the C program of ``loadgen/floor.c``, which does the same. A
produced batch costs a receive, CRC-32C, base offset, write and an answer; a fetch one ``sendfile``. The server keeps no
index, and all batches have one size. Its user time is the least that a server in Python can use.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from struct import Struct

import uvloop

from benchmarks.native import run_load
from benchmarks.procfs import cpu_time
from benchmarks.rivals.floor import Floor
from benchmarks.rivals.process import BrokerProcess
from benchmarks.serving_rows import JAVA_BATCH_BYTES, LARGE_VALUE_BYTES, LIBRDKAFKA_BATCH_BYTES, load_batches
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.record.crc import crc32c
from tidelog.protocol.types import read_unsigned_varint

BUFFER_BYTES, RECEIVE_BYTES = 8 << 20, 256 * 1024
ROUNDS = 3
_INT32, _CRC = Struct(">i"), Struct(">I")
_HEAD = Struct(">hhih")
_OFFSET, _COUNT = Struct(">q"), Struct(">i")
_PRODUCED = Struct(">ihqqqBBBBiB")
_FETCHED = Struct(">ihqqqBi")


class State:
    """The server's one data file, and the offset, position and batch shape at its end."""

    def __init__(self, path: str) -> None:
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        self.next_offset = self.size = self.batch_bytes = self.batch_records = 0


class Client:
    """One connection."""

    def __init__(self, state: State, sock: socket.socket) -> None:
        self._state, self._sock = state, sock
        self._view = memoryview(bytearray(BUFFER_BYTES))
        self._end = 0

    def on_readable(self) -> None:
        """Receive, and answer the complete frames."""
        view = self._view
        received = self._sock.recv_into(view[self._end : self._end + RECEIVE_BYTES])
        if not received:
            asyncio.get_running_loop().remove_reader(self._sock)
            self._sock.close()
            return
        end, position = self._end + received, 0
        answers: list[bytes] = []
        while end - position >= 4:
            size = _INT32.unpack_from(view, position)[0] + 4
            if position + size > end:
                break
            self._answer(view[position + 4 : position + size], answers)
            position += size
        if position and position < end:
            view[: end - position] = view[position:end]
        self._end = end - position
        if answers:
            self._sock.send(b"".join(answers))

    def _answer(self, frame: memoryview, answers: list[bytes]) -> None:
        api_key, _, correlation_id, client_id = _HEAD.unpack_from(frame)
        position = 10 + client_id + 1
        if api_key == ApiKey.PRODUCE:
            answers.append(self._produce(frame, correlation_id, position))
        elif api_key == ApiKey.FETCH:
            self._fetch(frame, correlation_id, position)
        else:
            answers.append(b"\0\0\0\4" + _INT32.pack(correlation_id))

    def _produce(self, frame: memoryview, correlation_id: int, position: int) -> bytes:
        state = self._state
        begin = position + frame[position] + 7 if frame[position] else position + 8
        end = begin + frame[begin]
        topic = bytes(frame[begin:end])
        partition = _INT32.unpack_from(frame, end + 1)[0]
        length, begin = read_unsigned_varint(frame, end + 5)
        batch = frame[begin : begin + length - 1]
        error = 0 if crc32c(batch[21:]) == _CRC.unpack_from(batch, 17)[0] else 2
        base = state.next_offset
        _OFFSET.pack_into(batch, 0, base)
        state.size += os.pwrite(state.file, batch, state.size)
        state.batch_bytes, state.batch_records = len(batch), _COUNT.unpack_from(batch, 57)[0]
        state.next_offset = base + state.batch_records
        body = b"\0\2" + topic + b"\2" + _PRODUCED.pack(partition, error, base, -1, 0, 1, 0, 0, 0, 0, 0)
        return _INT32.pack(len(body) + 4) + _INT32.pack(correlation_id) + body

    def _fetch(self, frame: memoryview, correlation_id: int, position: int) -> None:
        state, sock = self._state, self._sock
        begin = position + 26
        end = begin + frame[begin]
        topic = bytes(frame[begin:end])
        partition = _INT32.unpack_from(frame, end + 1)[0]
        offset, limit = _OFFSET.unpack_from(frame, end + 9)[0], _INT32.unpack_from(frame, end + 29)[0]
        start = offset // state.batch_records * state.batch_bytes
        count = min(max(0, state.size - start), limit)
        fields = (partition, 0, state.next_offset, state.next_offset, 0, 0, -1)
        body = bytes(11) + b"\2" + topic + b"\2" + _FETCHED.pack(*fields) + varint(count + 1)
        head = _INT32.pack(len(body) + 4 + count + 3) + _INT32.pack(correlation_id) + body
        sock.send(head, socket.MSG_MORE)
        while count:
            try:
                sent = os.sendfile(sock.fileno(), state.file, start, count)
            except BlockingIOError:
                time.sleep(0.0001)  # the socket's buffers are full: rare, because a response has only 1 MiB
                continue
            start, count = start + sent, count - sent
        sock.send(bytes(3))


def varint(value: int) -> bytes:
    """Encode an unsigned varint."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


async def serve(port: int, path: str) -> None:
    """Serve until killed."""
    loop, state = asyncio.get_running_loop(), State(path)
    with socket.create_server(("127.0.0.1", port)) as listener:
        listener.setblocking(False)
        while True:
            sock, _ = await loop.sock_accept(listener)
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            loop.add_reader(sock, Client(state, sock).on_readable)


class PythonFloor(Floor):
    """The server of this module, as a process."""

    name = "python floor"

    def command(self) -> list[str]:
        """Return the command of this module with port and data file."""
        path = str(self.directory / "records")
        return [sys.executable, "-m", "benchmarks.python_floor", "--serve", str(self.port), path]


def measure(broker: BrokerProcess, work: Callable[[], object], payload: int) -> tuple[float, float]:
    """Measure user and system seconds of ``work`` per gigabyte."""
    before = cpu_time(broker.pid)
    work()
    spent = cpu_time(broker.pid) - before
    return spent.user_s / payload * 1e9, spent.system_s / payload * 1e9


def main() -> None:
    """Measure and print, or serve."""
    parser = argparse.ArgumentParser(prog="benchmarks.python_floor")
    parser.add_argument("--mb", type=int, default=300)
    parser.add_argument("--serve", nargs=2, metavar=("PORT", "FILE"))
    asked = parser.parse_args()
    if asked.serve:
        uvloop.run(serve(int(asked.serve[0]), asked.serve[1]))
        return
    payload = asked.mb * 1_000_000
    print("| work | who | user s/GB | system s/GB |\n|---|---|---:|---:|")
    with tempfile.TemporaryDirectory() as directory:
        for floor in (Floor, PythonFloor):
            with floor(Path(directory)) as broker:
                report("16 KiB batches", broker, partial(load, broker, payload, JAVA_BATCH_BYTES), payload)
                broker.restart()
                report("1 MB batches", broker, partial(load, broker, payload, LIBRDKAFKA_BATCH_BYTES), payload)
                report("fetch", broker, partial(fetch, broker, payload), payload)


def load(broker: BrokerProcess, payload: int, batch_bytes: int) -> None:
    """Produce values of 1,000 B, after what the file holds."""
    load_batches(broker, "floor", payload, LARGE_VALUE_BYTES, batch_bytes)


def fetch(broker: BrokerProcess, payload: int) -> None:
    """Read as many bytes as the values of one load have, from the beginning of the file."""
    run_load("fetch", broker.host, broker.port, topic="floor", total_bytes=payload)


def report(name: str, broker: BrokerProcess, work: Callable[[], object], payload: int) -> None:
    """Print the mean of the rounds: user time is counted in hundredths of a second."""
    found = [measure(broker, work, payload) for _ in range(ROUNDS)]
    user, system = (sum(seconds) / ROUNDS for seconds in zip(*found, strict=True))
    print(f"| {name} | {broker.name} | {user:.3f} | {system:.2f} |", flush=True)


if __name__ == "__main__":
    main()
