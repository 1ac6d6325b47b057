"""kafka-python, imported without the warning of the deprecated call by which it reads its schemas.

A socket that is connecting while the client closes, or whose connection is refused, is never closed (kafka-python 3.0,
``KafkaNetSocket.sock_connect``): the garbage collector closes it with a warning, during any later test. So this module
closes such a socket at once.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.admin
    import kafka.errors
    from kafka.net.inet import KafkaNetSocket

__all__ = ["kafka", "read_to_end", "take_up_join"]

READ_LIMIT_S = 60.0
POLL_MS = 200
_connect = KafkaNetSocket.sock_connect


async def _connect_or_close(parent: Any, net: Any, sock: Any, *args: Any, **named: Any) -> Any:
    try:
        return await _connect(parent, net, sock, *args, **named)
    except BaseException:  # also GeneratorExit, when the coroutine is closed
        sock.close()
        raise


KafkaNetSocket.sock_connect = _connect_or_close


def read_to_end(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[Any]:
    """Return all records up to the end offsets, which are the last stable ones under read_committed."""
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level=isolation, auto_offset_reset="earliest", group_id=None
    )
    try:
        assigned = [kafka.TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic))]
        consumer.assign(assigned)
        ends = consumer.end_offsets(assigned)
        found: list[Any] = []
        deadline = time.monotonic() + READ_LIMIT_S
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            assert time.monotonic() < deadline, ends
            for records in consumer.poll(POLL_MS).values():
                found.extend(records)
        return found
    finally:
        consumer.close()


def take_up_join(consumer: Any) -> None:
    """Make the next poll finish a rebalance that the last poll left unfinished; for members with short polls.

    A group leader of kafka-python 3.0.12 that rejoins because its topic's metadata has changed clears that reason as
    soon as it has computed the assignment. If a poll ends between that and the response to SyncGroup, no later poll
    handles the response: the consumer has no partitions and sends no heartbeats from then on, with any broker.
    """
    coordinator = consumer._coordinator
    if coordinator.rejoining:
        coordinator.request_rejoin()
