"""The address of this broker in answers to a client.

With ``advertised.listeners`` it is the one of the client's listener. Without (or without a host there), it is the
address this client's connection arrived at: right on machines with many names and inside of a container network, wrong
where an address is translated on the way to a network that the client cannot reach by itself.
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.requests.context import RequestContext

_MAPPED_IPV4 = "::ffff:"  # how a dual-stack socket shows an IPv4 address


def address_for_client(broker: Broker, context: RequestContext) -> tuple[str, int]:
    """Host and port under which the client of this request reaches this broker."""
    advertised = broker.config.advertised_listeners.get(context.listener_name)
    reached = context.local_host.removeprefix(_MAPPED_IPV4)
    if advertised is None:
        return reached, context.local_port
    return advertised.host or reached, advertised.port or context.local_port
