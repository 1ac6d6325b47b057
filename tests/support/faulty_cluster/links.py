"""TCP proxies between the nodes of a cluster, which can be cut in one direction or in both.

A proxy knows which node opened a connection: the process with the socket at the other end, by ``/proc``. Bytes of a cut
direction wait in the proxy, as in TCP's retransmissions; so do the ends of connections. A connection in a cut direction
is accepted, and nothing is sent on it. If other processes leave the proxies no CPU time, ``failures`` has a line.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import datetime
from typing import Any, Self

PIECE = 256 * 1024
ACCEPT_AGAIN_S = 0.1
TICK_S = 0.5
HOST = "127.0.0.1"
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST = 4, 20, 1
ALL_STATES, ANY_COOKIE = 0xFFFFFFFF, (1 << 64) - 1
NETLINK_HEADER = struct.Struct("=IHHII")
SOCKET_ID = struct.Struct("!HH4s12x4s12xIQ")
INODE_AT = NETLINK_HEADER.size + 4 + SOCKET_ID.size + 16
"""Position of the inode in the kernel's inet_diag_msg: after four bytes, the socket's id and four numbers."""
Pair = tuple[str, str]
"""A direction: the names of the node that sends and of the node that receives."""


class Links:
    """The proxies, in a thread of their own."""

    def __init__(self, processes: Callable[[], Mapping[int, str]]) -> None:
        """``processes`` maps the process ids of the nodes to their names."""
        self._processes = processes
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._servers: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: dict[Pair, asyncio.Event] = {}
        self.pieces: Counter[Pair] = Counter()
        """Pieces of data that were passed on, by direction: about one for each request or response."""
        self.failures: list[str] = []
        """Errors of the proxies themselves, for a run that fails."""

    def __enter__(self) -> Self:
        self._thread.start()
        self._loop.call_soon_threadsafe(self._begin, self._note_delays())
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def add(self, name: str, target_port: int) -> int:
        """Start a proxy for a port of the node ``name``; return the proxy's own port."""
        server = socket.create_server((HOST, 0))
        server.setblocking(False)
        self._servers.append(server)
        self._loop.call_soon_threadsafe(self._begin, self._accept(server, name, target_port))
        port: int = server.getsockname()[1]
        return port

    def cut(self, *pairs: Pair) -> None:
        """Pass on no bytes in these directions."""
        self._call(lambda: self._close_gates(pairs))

    def heal(self) -> None:
        """Pass on bytes in all directions again."""
        self._call(self._open_gates)

    def _call(self, change: Callable[[], object]) -> None:
        async def run() -> None:
            change()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def _close_gates(self, pairs: Iterable[Pair]) -> None:
        for pair in pairs:
            self._gate(pair).clear()

    def _open_gates(self) -> None:
        for gate in self._open.values():
            gate.set()

    def _gate(self, pair: Pair) -> asyncio.Event:
        gate = self._open.get(pair)
        if gate is None:
            gate = self._open[pair] = asyncio.Event()
            gate.set()
        return gate

    # ---- the thread

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.failures.append(repr(error))

    async def _close(self) -> None:
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for server in self._servers:
            server.close()

    async def _note_delays(self) -> None:
        """Add a line to ``failures`` for each time in which the proxies did not run."""
        while True:
            since = time.monotonic()
            await asyncio.sleep(TICK_S)
            late = time.monotonic() - since - TICK_S
            if late > TICK_S:
                now = datetime.now().astimezone()
                self.failures.append(f"{now:%H:%M:%S} the proxies stood still for {late:.1f} s")

    async def _accept(self, server: socket.socket, name: str, target_port: int) -> None:
        """Accept connections until cancelled. After an error, such as too few descriptors, accepting goes on: without
        the controller's proxy all brokers would be cut off."""
        while True:
            try:
                client, address = await self._loop.sock_accept(server)
            except OSError as error:
                self.failures.append(f"{name}: {error}")
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            client.setblocking(False)
            self._begin(self._serve(client, address[1], name, target_port))

    async def _serve(self, client: socket.socket, client_port: int, name: str, target_port: int) -> None:
        with client, socket.socket() as target:
            target.setblocking(False)
            for one in (client, target):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(OSError):
                who = owner(client_port, client.getsockname()[1], self._processes())
                await self._gate((who, name)).wait()
                await self._loop.sock_connect(target, (HOST, target_port))
                await together(self._pump(client, target, (who, name)), self._pump(target, client, (name, who)))

    async def _pump(self, source: socket.socket, target: socket.socket, pair: Pair) -> None:
        """Move bytes in one direction until the sender closes it; an error ends both directions."""
        gate = self._gate(pair)
        while True:
            data = await self._loop.sock_recv(source, PIECE)
            await gate.wait()
            if not data:
                target.shutdown(socket.SHUT_WR)
                return
            self.pieces[pair] += 1
            await self._loop.sock_sendall(target, data)


async def together(*works: Coroutine[Any, Any, None]) -> None:
    """Run coroutines until all have ended or one has failed; then cancel the others.

    A coroutine that went on would use the descriptor number of a closed socket, which another socket soon gets.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def owner(port: int, target_port: int, processes: Mapping[int, str]) -> str:
    """Return the name of the node whose process has the socket from this local port to ``target_port``; "" for another
    process. Sockets to other targets may have the same local port."""
    name = f"socket:[{inode_of(port, target_port)}]"
    return next((node for pid, node in processes.items() if _has_socket(pid, name)), "")


def inode_of(port: int, target_port: int) -> int:
    """Ask the kernel for the socket between two ports of this host; return its inode, 0 if there is none.

    Reading /proc/net/tcp instead takes 4 to 12 ms of CPU time, too long for each new connection on a busy machine.
    """
    host = socket.inet_aton(HOST)
    wanted = SOCKET_ID.pack(port, target_port, host, host, 0, ANY_COOKIE)
    body = struct.pack("=BBBxI", socket.AF_INET, socket.IPPROTO_TCP, 0, ALL_STATES) + wanted
    head = NETLINK_HEADER.pack(NETLINK_HEADER.size + len(body), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as kernel:
        kernel.send(head + body)
        answer = kernel.recv(4096)
    if NETLINK_HEADER.unpack_from(answer)[1] != SOCK_DIAG_BY_FAMILY:
        return 0
    inode: int = struct.unpack_from("=I", answer, INODE_AT)[0]
    return inode


def _has_socket(pid: int, name: str) -> bool:
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{descriptor}") == name:
                    return True
    return False
