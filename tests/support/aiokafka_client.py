"""aiokafka that closes all its connections, and a function that waits until they are closed.

A connection that the broker has closed is dropped from the client's table and never closed (aiokafka 0.14,
``AIOKafkaClient._get_conn``): the garbage collector closes its socket with a warning, during any later test. So this
module closes such a connection before the client drops it. After a failed login the client closes the connection, but
does not wait: closing TLS takes several turns of the loop, which may end before. ``until_closed`` waits for that.
"""

from __future__ import annotations

import asyncio
from typing import Any

import aiokafka
import aiokafka.errors
import aiokafka.helpers
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.conn import AIOKafkaConnection

__all__ = ["aiokafka", "until_closed"]

WAIT_S = 60.0
_get_connection = AIOKafkaClient._get_conn
_close = AIOKafkaConnection.close
_closing: set[asyncio.Future[None]] = set()


async def _close_and_get(
    client: Any, node_id: Any, *, group: Any = ConnectionGroup.DEFAULT, no_hint: bool = False
) -> Any:
    known = client._conns.get((node_id, group))
    if known is not None and not known.connected():
        known.close()
    return await _get_connection(client, node_id, group=group, no_hint=no_hint)


def _note_closing(connection: Any, *args: Any, **named: Any) -> Any:
    was_open = connection._reader is not None
    closed = _close(connection, *args, **named)
    if was_open:
        _closing.add(closed)
        closed.add_done_callback(_closing.discard)
    return closed


async def until_closed() -> None:
    """Wait until the connections of this loop that are being closed are closed."""
    loop = asyncio.get_running_loop()
    ours = {closed for closed in _closing if closed.get_loop() is loop}
    if ours:
        await asyncio.wait(ours, timeout=WAIT_S)


AIOKafkaClient._get_conn = _close_and_get
AIOKafkaConnection.close = _note_closing
