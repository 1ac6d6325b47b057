"""A member of a KRaft cluster: the connections to its controllers, and a broker that is fed by their metadata.

Imports: ``tidelog.broker.startup`` and the layers below; a lone node imports nothing of this package.
Invariant: what is decided about the cluster is decided in ``tidelog.broker.cluster``, without sockets and clocks.
"""
