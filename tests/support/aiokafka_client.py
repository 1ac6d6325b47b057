"""aiokafka, with the connections closed that it forgets.

A connection that the broker has closed is dropped from the client's table and never closed (aiokafka 0.14,
``AIOKafkaClient._get_conn``): its socket is left to the garbage collector, which complains of it in whatever test runs
then. Here it is closed first.
"""

from __future__ import annotations

from typing import Any

import aiokafka
import aiokafka.errors
import aiokafka.helpers
from aiokafka.client import AIOKafkaClient, ConnectionGroup

__all__ = ["aiokafka"]

_get_connection = AIOKafkaClient._get_conn


async def _close_and_get(
    client: Any, node_id: Any, *, group: Any = ConnectionGroup.DEFAULT, no_hint: bool = False
) -> Any:
    known = client._conns.get((node_id, group))
    if known is not None and not known.connected():
        known.close()
    return await _get_connection(client, node_id, group=group, no_hint=no_hint)


AIOKafkaClient._get_conn = _close_and_get
