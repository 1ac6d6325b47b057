"""A broker's HTTP applications over a socket of the file system, with a client's session."""

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
    """Serve at ``path``; yield a session whose requests go there, whatever host they name."""
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
