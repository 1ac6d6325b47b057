"""The server: sockets, dispatch, partitions, coordinators.

Imports: ``tidelog.cleaner``, ``tidelog.log`` and ``tidelog.protocol``. Its packages stand as layers in pyproject.toml.
Invariant: the loop thread owns the broker's state; what crosses threads is immutable or stands under a lock.
"""
