"""aiokafka closes here what it forgets."""

from __future__ import annotations

from aiokafka.client import AIOKafkaClient

import tests.support.aiokafka_client  # noqa: F401 - what is tested


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
