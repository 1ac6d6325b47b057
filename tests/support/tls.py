"""A TLS connection in which the test itself moves the client's bytes."""

from __future__ import annotations

import contextlib
import socket
import ssl
from pathlib import Path

from tests.support.certificates import Certificates
from tidelog.broker.config.keys.security import listener_values
from tidelog.broker.security.tls.contexts import build_context
from tidelog.broker.security.tls.stores import read_key_store
from tidelog.broker.security.tls.tls_socket import CHUNK_BYTES, TlsSocket


def server_context(certificates: Certificates, **texts: str) -> ssl.SSLContext:
    """Build the context of a listener with these settings: ``ssl_client_auth="required"`` is ``ssl.client.auth``."""
    values = listener_values(certificates.server_texts(**texts), "SSL")
    return build_context(values, read_key_store(values))


def client_context(authority: Path, *, tls12: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority))
    if tls12:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Open a TCP connection on the loopback interface; return the server's end and the client's end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    theirs.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return ours, theirs


class TlsPair:
    """A TlsSocket of a server, and its client, whose TLS runs in memory.

    ``raw`` is the client's socket: the test itself sends and reads the ciphertext.
    """

    def __init__(self, server: ssl.SSLContext, client: ssl.SSLContext, *, is_tcp: bool = False) -> None:
        ours, self.raw = tcp_pair() if is_tcp else socket.socketpair()
        ours.setblocking(False)
        self.raw.setblocking(False)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = client.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        wrapped = server.wrap_socket(ours, server_side=True, do_handshake_on_connect=False)
        try:
            self._shake_hands(wrapped)
        except ssl.SSLError:
            wrapped.close()
            self.raw.close()
            raise
        self.tls = TlsSocket(wrapped, memoryview(bytearray(CHUNK_BYTES)))

    def _shake_hands(self, wrapped: ssl.SSLSocket) -> None:
        done = False
        while not done:
            with contextlib.suppress(ssl.SSLWantReadError):
                self.client.do_handshake()
                done = True
            self.raw.sendall(self._outgoing.read())
            with contextlib.suppress(ssl.SSLWantReadError):
                wrapped.do_handshake()
            self.drain()

    def encrypt(self, data: bytes) -> bytes:
        """Return this data as TLS records of the client; the test sends them through ``raw``."""
        self.client.write(data)
        return self._outgoing.read()

    def goodbye(self) -> bytes:
        """Return the client's close_notify."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self.client.unwrap()
        return self._outgoing.read()

    def drain(self, max_bytes: int = 1 << 20) -> None:
        """Hand ciphertext of the server to the client: one read of ``raw``, of up to ``max_bytes`` bytes."""
        with contextlib.suppress(BlockingIOError):
            self._incoming.write(self.raw.recv(max_bytes))

    def decrypted(self) -> bytes:
        """Read the data of all complete TLS records that `drain` has handed to the client."""
        pieces = []
        with contextlib.suppress(ssl.SSLWantReadError):
            while piece := self.client.read(1 << 16):
                pieces.append(piece)
        return b"".join(pieces)

    def close(self) -> None:
        self.tls.close()
        self.raw.close()
