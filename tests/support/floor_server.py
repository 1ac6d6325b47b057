"""A minimal server for tests of connection storms: it answers one client, and closes all other connections at once.

``python -m tests.support.floor_server LOGIN_PORT TLS_PORT`` treats clients with the address INSIDE as logged in, and
answers their requests with prepared bytes. Their waits are caused only by the machine and Python: no broker's clients
can wait less. ``tests/support/insider.py`` is the client.
"""

from __future__ import annotations

import select
import socket
import struct
import sys

from tidelog.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse

INSIDE = "127.0.0.99"
ANSWERS = {
    0: ProduceResponse(
        responses=[
            TopicProduceResponse(
                name="topic", partition_responses=[PartitionProduceResponse(index=0, error_code=0, base_offset=0)]
            )
        ]
    ).encode(7),
    17: struct.pack(">hi", 0, 0),
    36: struct.pack(">hhi", 0, -1, 0),
}
"""API key -> the response, in the version that :mod:`tests.support.insider` uses."""


def answer(connection: socket.socket) -> bool:
    """Answer the received requests; returns False if the client has closed the connection."""
    received = bytearray(connection.recv(1 << 16))
    is_there = bool(received)
    while received:
        size, key, _, correlation_id = struct.unpack_from(">ihhi", received)
        connection.sendall(struct.pack(">ii", 4 + len(ANSWERS[key]), correlation_id) + ANSWERS[key])
        del received[: 4 + size]
    return is_there


def main() -> None:
    """Serve until the process is ended."""
    listeners = {socket.create_server(("127.0.0.1", int(port)), backlog=1024) for port in sys.argv[1:]}
    connections = {listener.fileno(): listener for listener in listeners}
    poll = select.epoll()
    for descriptor in connections:
        poll.register(descriptor, select.EPOLLIN)
    print("ready", flush=True)
    while True:
        for descriptor, _ in poll.poll():
            one = connections[descriptor]
            if one in listeners:
                client, (host, _) = one.accept()
                if host != INSIDE:
                    client.close()
                    continue
                connections[client.fileno()] = client
                poll.register(client.fileno(), select.EPOLLIN)
            elif not answer(one):
                poll.unregister(descriptor)
                connections.pop(descriptor).close()


if __name__ == "__main__":
    main()
