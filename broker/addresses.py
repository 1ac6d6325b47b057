"""Which address of this broker a client is told.

With ``advertised.listeners`` it is the one of the client's listener. Without, it is the address this client's
connection arrived at: right behind port forwarding on the same port, in containers, and on machines with many names.
"""

from __future__ import annotations

from broker.broker import Broker, RequestContext

_MAPPED_IPV4 = "::ffff:"  # how a dual-stack socket shows an IPv4 address


def address_for_client(broker: Broker, context: RequestContext) -> tuple[str, int]:
    """Host and port under which the client of this request reaches this broker."""
    advertised = broker.config.advertised_listeners.get(context.listener_name)
    if advertised is not None:
        return advertised.host, advertised.port or context.local_port
    return context.local_host.removeprefix(_MAPPED_IPV4), context.local_port
