"""A member, that is one broker of a KRaft cluster: its tasks, its connections to other nodes, its roles in partitions.

Imports: ``tidelog.broker.startup`` and the layers below; a lone node imports nothing of this package.
Invariant: decisions about the cluster are made in ``tidelog.broker.cluster``, without sockets and clocks.
"""
