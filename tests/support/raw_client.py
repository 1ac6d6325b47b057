"""Requests as bytes on a bare socket: for tests of requests that no client library sends."""

from __future__ import annotations

import socket
import struct

from tidelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tidelog.protocol.record.record_batch import Record, build_batch

TIMEOUT_S = 60.0


def connect(port: int) -> socket.socket:
    """Open a connection with a timeout for every wait."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def frame(api_key: int, version: int, correlation_id: int, body: bytes, *, flexible: bool = False) -> bytes:
    """Encode a request with header and length."""
    header = struct.pack(">hhih", api_key, version, correlation_id, 3) + b"raw" + (b"\0" if flexible else b"")
    return struct.pack(">i", len(header) + len(body)) + header + body


def api_versions(correlation_id: int = 1) -> bytes:
    """Encode ApiVersions v0."""
    return frame(18, 0, correlation_id, b"")


def produce(topic: str, value: bytes, correlation_id: int = 1, acks: int = 1) -> bytes:
    """Encode Produce v7 of one record to partition 0."""
    batch = build_batch([Record(0, 1_700_000_000_000, None, value, [])])
    request = ProduceRequest(
        acks=acks,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=memoryview(batch))])
        ],
    )
    return frame(0, 7, correlation_id, request.encode(7))


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    """Receive ``size`` bytes. Raises EOFError if the broker closes the connection before."""
    received = bytearray()
    while len(received) < size:
        piece = connection.recv(size - len(received))
        if not piece:
            raise EOFError(f"closed after {len(received)} of {size} bytes")
        received += piece
    return bytes(received)


def receive_frame(connection: socket.socket) -> bytes:
    """Receive one response, which begins with its correlation id. Raises EOFError."""
    (size,) = struct.unpack(">i", receive_exactly(connection, 4))
    return receive_exactly(connection, size)


def receive_produced(connection: socket.socket) -> tuple[int, int, int]:
    """Receive correlation id, error code and base offset of a Produce v7 response for one partition. Raises
    EOFError.
    """
    response = receive_frame(connection)
    partition = ProduceResponse.decode(memoryview(response)[4:], 7).responses[0].partition_responses[0]
    return struct.unpack(">i", response[:4])[0], partition.error_code, partition.base_offset


def is_closed(connection: socket.socket) -> bool:
    """Return whether the broker closes this connection before another byte. Raises TimeoutError if neither happens."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True
