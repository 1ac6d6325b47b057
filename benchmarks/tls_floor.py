"""The least cost of TLS in Python: ``python -m benchmarks.tls_floor [--mb 100]``.

Two bare loops, without a broker: one sends bytes of a file as a fetch is answered, one receives what a producer sends.
Each runs over a plain socket and over TLS. No broker that uses Python's ssl can use less than this process's processor
time, in seconds per gigabyte. The other end is a process of its own.
"""

from __future__ import annotations

import argparse
import os
import socket
import ssl
import tempfile
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

from benchmarks.procfs import cpu_time
from tests.support.certificates import Certificates
from tidelog.broker.config.keys.security import listener_values
from tidelog.broker.security.tls.contexts import build_context
from tidelog.broker.security.tls.stores import read_key_store

CHUNK_BYTES = 64 * 1024
RECEIVE_BYTES = 256 * 1024
FILE_BYTES = 64 * 1024 * 1024
RECORDS = {"large records": [CHUNK_BYTES], "librdkafka's records": [1_000, 1_000, 10, 10, 16_384]}
"""Sizes in bytes of a producer's writes. librdkafka sends each of its buffers as a TLS record of its own."""


def connect(port: int, authority: str | None) -> socket.socket:
    """Connect as a client, over TLS if an authority is given."""
    sock = socket.create_connection(("127.0.0.1", port))
    if authority is None:
        return sock
    return ssl.create_default_context(cafile=authority).wrap_socket(sock, server_hostname="localhost")


def discard(port: int, authority: str | None) -> None:
    """Connect and receive until the other side closes."""
    sock, buffer = connect(port, authority), bytearray(RECEIVE_BYTES)
    while sock.recv_into(buffer):
        pass


def supply(port: int, authority: str | None, sizes: list[int], count: int) -> None:
    """Connect and send ``count`` bytes in writes of these sizes."""
    sock, data = connect(port, authority), bytes(max(sizes))
    while count > 0:
        for size in sizes:
            sock.sendall(data[:size])
            count -= size
    sock.close()


def send_file(sock: socket.socket, descriptor: int, count: int) -> None:
    """Send bytes of a file as a broker answers a fetch: by sendfile without TLS, read and encrypted with it."""
    buffer, sent = memoryview(bytearray(CHUNK_BYTES)), 0
    while sent < count:
        position = sent % (FILE_BYTES - RECEIVE_BYTES)
        if isinstance(sock, ssl.SSLSocket):
            sent += sock.send(buffer[: os.preadv(descriptor, [buffer], position)])
        else:
            sent += os.sendfile(sock.fileno(), descriptor, position, RECEIVE_BYTES)


def receive(sock: socket.socket) -> None:
    """Receive until the other side closes, as a broker does."""
    buffer = bytearray(RECEIVE_BYTES)
    while sock.recv_into(buffer):
        pass


def measure(
    context: ssl.SSLContext | None, client: Callable[..., None], arguments: list[object], work: Callable[..., None]
) -> tuple[float, float]:
    """Return user seconds, and user and system seconds, of ``work`` on an accepted connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        other = get_context("spawn").Process(target=client, args=(listener.getsockname()[1], *arguments))
        other.start()
        sock, _ = listener.accept()
    if context is not None:
        sock = context.wrap_socket(sock, server_side=True)
    before = cpu_time(os.getpid())
    work(sock)
    spent = cpu_time(os.getpid()) - before
    sock.close()
    other.join()
    return spent.user_s, spent.user_s + spent.system_s


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.tls_floor")
    parser.add_argument("--mb", type=int, default=100)
    count = parser.parse_args().mb * 1_000_000
    with tempfile.TemporaryDirectory() as directory:
        certificates = Certificates(Path(directory))
        values = listener_values(certificates.server_texts(), "SSL")
        context = build_context(values, read_key_store(values))
        content = Path(directory) / "content"
        content.write_bytes(os.urandom(FILE_BYTES))
        descriptor = os.open(content, os.O_RDONLY)
        print("| s/GB, user / all | plain | TLS |\n|---|---|---|")
        rows: dict[str, list[str]] = {}
        for tls, authority in ((None, None), (context, str(certificates.authority.certificate))):
            found = {"fetch": measure(tls, discard, [authority], lambda sock: send_file(sock, descriptor, count))}
            for name, sizes in RECORDS.items():
                found[f"produce, {name}"] = measure(tls, supply, [authority, sizes, count], receive)
            for name, (user, total) in found.items():
                rows.setdefault(name, []).append(f"{user / count * 1e9:.2f} / {total / count * 1e9:.2f}")
        for name, cells in rows.items():
            print(f"| {name} | {' | '.join(cells)} |")
        os.close(descriptor)


if __name__ == "__main__":
    main()
