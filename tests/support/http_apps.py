"""A broker's HTTP applications, served on a Unix socket for tests."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from aiohttp import web

from tidelog.broker.broker import Broker

Serve = Callable[[Broker, socket.socket], Awaitable[web.AppRunner]]


@asynccontextmanager
async def serving(serve: Serve, broker: Broker, path: Path) -> AsyncIterator[aiohttp.ClientSession]:
    """Serve on the Unix socket ``path``; yield a client session that sends all requests to it, whatever their host."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    listener.setblocking(False)
    runner = await serve(broker, listener)
    try:
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session:
            yield session
    finally:
        await runner.cleanup()
        os.unlink(path)
