"""``aiokafka_client`` closes connections that aiokafka would drop unclosed, and waits until all are closed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection

from tests.support.aiokafka_client import until_closed


class Connection:
    """A connection that the broker has closed."""

    is_closed = False

    def connected(self) -> bool:
        return False

    def close(self) -> None:
        self.is_closed = True


async def test_a_connection_that_the_broker_closed_is_closed() -> None:
    client, connection = AIOKafkaClient(bootstrap_servers="127.0.0.1:1"), Connection()
    client._conns[7, 0] = connection
    assert await client._get_conn(7) is None, "there is no such node"
    assert connection.is_closed
    assert not client._conns


async def test_until_closed_waits_for_connections_that_are_being_closed() -> None:
    """After a refused login aiokafka closes the connection, but does not wait until it is closed."""
    closed = asyncio.get_running_loop().create_future()
    connection = AIOKafkaConnection("127.0.0.1", 1)
    connection._reader, connection._writer = object(), SimpleNamespace(close=lambda: None)
    connection._read_task, connection._closed_fut = SimpleNamespace(done=lambda: True), closed
    connection.close()
    waiting = asyncio.ensure_future(until_closed())
    await asyncio.sleep(0)
    assert not waiting.done()
    closed.set_result(None)
    await waiting
    await until_closed()
