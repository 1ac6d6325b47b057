"""The server: sockets, dispatch, partitions, coordinators.

Imports: ``tidelog.cleaner``, ``tidelog.log`` and ``tidelog.protocol``. Its rooms stand as floors in pyproject.toml.
Invariant: the loop thread owns the broker's state; what crosses threads is immutable or stands under a lock.
"""
